"""A stream with a load of messages on three brokers in memory, and damage to its replicas."""

import asyncio
import random
from collections.abc import Callable

from bascule.log.sync import GROUP, SyncMode
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.records import record_starts
from bascule.wire.pb import api_pb2 as api
from tests.harness.members import Member, isr, three, until

COUNT = 40


def logs(member: Member) -> list[str]:
    return [path for path in member.disk.paths() if path.startswith("streams/s@") and path.endswith(".log")]


def log_bytes(member: Member) -> bytes:
    return b"".join(member.disk.content(path) for path in logs(member))


async def alike(members: dict[str, Member]) -> bytes:
    """What they all have on their disks for sure, once it is the same."""

    def durable() -> set[bytes]:
        return {b"".join(map(member.disk.durable, logs(member))) for member in members.values()}

    await until(lambda: len(durable()) == 1)
    return durable().pop()


def value(number: int) -> bytes:
    return b"%05d" % number * (1 + number % 40)


EXPECTED = [value(number) for number in range(COUNT)]


async def loaded(segment_max_bytes: int = 3000, mode: SyncMode = GROUP, min_isr: int = 1) -> dict[str, Member]:
    members = await three(MemoryNats(), mode)
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
    request.segmentMaxBytes.value = segment_max_bytes
    request.minIsr.value = min_isr
    await members["a"].call("CreateStream", request)
    for number in range(COUNT):
        await members["a"].publish("s", value(number))
    await until(lambda: len(isr(members)) == 3)
    await asyncio.sleep(0.5)
    return members


async def whole_again(members: dict[str, Member]) -> None:
    await until(lambda: len(isr(members)) == 3)
    await until(lambda: len({log_bytes(member) for member in members.values()}) == 1)
    for member in members.values():
        assert await member.read("s", replica=True) == EXPECTED
    quarantined = [path for m in members.values() for path in m.disk.paths() if path.startswith("quarantine/")]
    assert len(quarantined) < 20


def leads(member: Member) -> bool:
    replica = member.broker.replicas.find("s", 0)
    return replica is not None and replica.leading is not None


def flip(position_in_record: int) -> Callable[[MemoryDisk, str, random.Random], None]:
    def harm(disk: MemoryDisk, path: str, chance: random.Random) -> None:
        records = record_starts(disk.content(path))
        disk.flip(path, records[len(records) // 2] + position_in_record, 3)

    return harm


def end(member: Member) -> None:
    """The process alone, not the machine."""
    assert member.process is not None
    member.process.kill()
    member.process = None
    for bus in member.buses:
        bus.disconnect()
    member.disk.kill(random.Random(1))
