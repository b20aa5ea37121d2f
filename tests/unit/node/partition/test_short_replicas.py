"""Three brokers in memory, and files that become shorter while they run: whoever reads them is served everything, the
file is healed from the others, and nobody stands still."""

import asyncio
from collections.abc import Callable

import pytest

from bascule.errors import Status
from bascule.log.filecopy import Copy
from bascule.log.refill import refill
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import open_bench
from bascule.testing.loop import run
from bascule.testing.records import record_starts
from bascule.wire.kernels import decode_records
from bascule.wire.pb import api_pb2 as api
from tests.harness.logs import bounded
from tests.harness.members import Member, leader_of, until
from tests.harness.replicas import COUNT, EXPECTED, loaded, log_bytes, logs, value, whole_again

Cut = Callable[[bytes], int]
CUTS: dict[str, Cut] = {
    "in a record": lambda data: record_starts(data)[1] + 20,
    "between records": lambda data: record_starts(data)[1],
    "to nothing": lambda data: 0,
}


async def read_back(member: Member) -> list[bytes]:
    request = api.SubscribeRequest(
        stream="s", startPosition=api.LATEST, reverse=True, readISRReplica=True, stopPosition=api.STOP_ON_CANCEL
    )
    call = MemoryCall(10.0)
    call.request(request.SerializeToString())
    assert member.process is not None
    status, text = await member.process.start(call.run(member.methods["/proto.API/Subscribe"]))
    assert (status, text) == (Status.RESOURCE_EXHAUSTED, "Stop offset reached")
    frames = bytes(call.responses[5:])
    return [record[2] for record in decode_records(frames, 0, len(frames), 1 << 30)[1]][::-1]


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize("number", [0, 1, -1], ids=["first", "sealed", "active"])
@pytest.mark.parametrize("where", CUTS)
def test_a_file_that_became_shorter_is_healed_for_its_reader(
    where: str, number: int, leads: bool, backwards: bool
) -> None:
    async def scenario() -> None:
        members = await loaded()
        leader = leader_of(members, "s")
        harmed = next(member for member in members.values() if (member is leader) == leads)
        path = logs(harmed)[number]
        before = log_bytes(harmed)
        harmed.disk.shorten(path, CUTS[where](harmed.disk.content(path)))
        read = read_back if backwards else lambda member: member.read("s", replica=True)
        assert await read(harmed) == EXPECTED
        await until(lambda: log_bytes(harmed) == before)
        await whole_again(members)

    with bounded():
        run(scenario())


@pytest.mark.parametrize("where", CUTS)
def test_a_time_is_looked_up_in_a_file_that_became_shorter(where: str) -> None:
    async def scenario() -> None:
        members = await loaded()
        leader = leader_of(members, "s")
        replica = leader.broker.replicas.find("s", 0)
        assert replica is not None
        first = replica.log.segments[1].first_timestamp
        path = logs(leader)[1]
        leader.disk.shorten(path, CUTS[where](leader.disk.content(path)))
        assert await replica.log.offset_at_or_after(first) >= replica.log.segments[1].base
        assert await replica.log.offset_at_or_before(first) is not None
        assert await leader.read("s") == EXPECTED
        await whole_again(members)

    with bounded():
        run(scenario())


@pytest.mark.parametrize("where", CUTS)
def test_a_file_truncated_again_while_it_is_healed_is_healed_at_last(where: str) -> None:
    async def scenario() -> None:
        members = await loaded()
        leader = leader_of(members, "s")
        path = logs(leader)[1]
        whole = leader.disk.content(path)
        leader.disk.shorten(path, record_starts(whole)[4] + 3)
        leader.disk.latency_s = lambda: 0.01
        reading = asyncio.ensure_future(leader.read("s"))
        await asyncio.sleep(0.035)
        leader.disk.shorten(path, CUTS[where](whole))
        found = await reading  # it may step over what cannot be healed just now
        assert [each for each in EXPECTED if each in found] == found
        leader.disk.latency_s = None
        await until(lambda: leader.disk.content(path) == whole)
        assert await leader.read("s") == EXPECTED
        await whole_again(members)

    with bounded():
        run(scenario())


def test_a_replica_that_is_fed_from_a_short_file_gets_everything() -> None:
    async def scenario() -> None:
        members = await loaded()
        leader = leader_of(members, "s")
        wiped = next(member for member in members.values() if member is not leader and not member.seed)
        wiped.kill()
        path = logs(leader)[1]
        leader.disk.shorten(path, CUTS["in a record"](leader.disk.content(path)))
        for name in logs(wiped):
            wiped.disk.shorten(name, 0)
        await wiped.start()
        await until(lambda: len(wiped.disk.paths()) > 0 and log_bytes(wiped) == log_bytes(leader), 60)
        assert await leader.read("s") == EXPECTED
        assert len(EXPECTED) == COUNT
        await whole_again(members)

    with bounded():
        run(scenario())


def test_a_copy_of_a_file_that_became_shorter_is_given_up() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        disk.put("file", b"0123456789")
        copy = Copy(disk, "file")
        await copy.begin()
        await copy.take(0, 4, durable=True)
        disk.shorten("file", 6)
        with pytest.raises(OSError, match="shorter"):
            await copy.take(4, 8, durable=True)
        await copy.give_up()
        assert disk.paths() == ["file"]

    run(scenario())


def test_damage_noted_from_several_places_is_filled_once() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, 1_000)
        await bench.store([value(number) for number in range(10)])
        await bench.store([value(number) for number in range(10, 12)])
        segment = bench.log.segments[0]
        whole = disk.content(segment.path)
        last = record_starts(whole)[-1]
        other = await open_bench(disk.copy(), 1_000)
        middle = record_starts(whole)[4]
        disk.shorten(segment.path, middle + 3)
        segment.damage = {middle: last, record_starts(whole)[6]: len(whole), len(whole): len(whole)}

        async def fetch(start: int, end: int) -> bytes:
            return await other.log.reader(start, uncommitted=True).read(1 << 20, end) or b""

        assert await refill(bench.log, segment, fetch)
        assert disk.content(segment.path) == whole
        assert [each for _, each in await bench.read_all()] == [value(number) for number in range(12)]

    run(scenario())
