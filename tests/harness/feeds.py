"""A stream on three brokers in memory whose logs become alike."""

from bascule.errors import Status
from bascule.wire.pb import api_pb2 as api
from tests.harness.members import Member, until


async def make_stream(members: dict[str, Member]) -> None:
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
    assert (await members["a"].call("CreateStream", request))[0] is Status.OK
    await until(lambda: isr(members) == 3)


def isr(members: dict[str, Member]) -> int:
    partition = members["a"].broker.cluster.metadata.partition("s", 0)
    return 0 if partition is None else len(partition.isr)


def stored(member: Member) -> bytes:
    return b"".join(member.disk.durable(path) for path in member.disk.paths() if "/s@" in path and ".log" in path)


async def alike(members: dict[str, Member]) -> bytes:
    """What they all have on their disks, once it is the same."""
    await until(lambda: len({stored(member) for member in members.values()}) == 1)
    return stored(members["a"])
