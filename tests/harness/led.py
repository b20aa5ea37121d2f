"""A stream `s` on three brokers in memory, and its members by what they do: set-up that several test files share."""

from dataclasses import dataclass

from bascule.errors import Status
from bascule.node.partition.replica import Replica
from bascule.testing.bus import MemoryNats
from bascule.wire.pb import api_pb2 as api
from tests.harness.members import Member, isr, leader_of, three, until


def is_controller(member: Member) -> bool:
    return member.process is not None and member.broker.controller.active


def replica_of(member: Member) -> Replica:
    replica = member.broker.replicas.find("s", 0)
    assert replica is not None
    return replica


@dataclass(frozen=True, slots=True)
class Led:
    nats: MemoryNats
    members: dict[str, Member]
    leader: Member
    """When the stream was made."""

    @property
    def other(self) -> Member:
        """The first that did not lead then."""
        return next(member for member in self.members.values() if member is not self.leader)

    @property
    def controller(self) -> Member:
        return next(member for member in self.members.values() if is_controller(member))


async def make_stream(members: dict[str, Member]) -> None:
    """On all three, in sync."""
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
    assert (await members["a"].call("CreateStream", request))[0] is Status.OK
    await until(lambda: len(isr(members)) == 3)


async def replicated() -> Led:
    """On all three, in sync, with one message."""
    nats = MemoryNats()
    members = await three(nats)
    await make_stream(members)
    await members["a"].publish("s", b"first")
    return Led(nats, members, leader_of(members, "s"))


async def apart(replication: int = 1) -> Led:
    """Led by a broker that is not the controller."""
    nats = MemoryNats()
    members = await three(nats)
    return Led(nats, members, await made_apart(members, replication))


async def made_apart(members: dict[str, Member], replication: int = 1) -> Member:
    for number in range(10):
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=replication)
        assert (await members["a"].call("CreateStream", request))[0] is Status.OK
        leader = leader_of(members, "s")
        if not is_controller(leader):
            return leader
        assert (await members["a"].call("DeleteStream", api.DeleteStreamRequest(name="s")))[0] is Status.OK
        filler = api.CreateStreamRequest(name=f"f{number}", subject=f"f{number}")
        assert (await members["a"].call("CreateStream", filler))[0] is Status.OK
    raise AssertionError("the controller leads everything")
