"""Three brokers in memory: damage in the logs of a paused partition is found and repaired during the pause, and nothing
stays open."""

import asyncio
import random

import pytest

from bascule.node.partition import pausedlogs, repair
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.testing.records import record_starts
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node
from tests.harness.members import Member, followers, leader_of, until
from tests.harness.pausing import pause
from tests.harness.replicas import EXPECTED, flip, loaded, log_bytes, logs

FIND = flip(20)


async def paused() -> dict[str, Member]:
    members = await loaded()
    await pause(members["a"])
    await until(lambda: not any(len(member.broker.replicas) for member in members.values()))
    return members


def nothing_is_open(members: dict[str, Member]) -> bool:
    return not any(len(each.broker.manager.paused_logs) + len(each.broker.replicas) for each in members.values())


async def scrubbed(member: Member) -> None:
    assert member.process is not None
    await member.process.start(member.broker.manager.scrub())


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("number", [0, 1], ids=["first", "sealed"])
def test_damage_of_a_paused_partition_is_repaired_before_another_copy_is_bad(leads: bool, number: int) -> None:
    async def main() -> None:
        members = await paused()
        harmed = leader_of(members, "s") if leads else followers(members)[0]
        before = log_bytes(harmed)
        FIND(harmed.disk, logs(harmed)[number], random.Random(1))
        assert log_bytes(harmed) != before
        await scrubbed(harmed)
        assert log_bytes(harmed) == before
        await until(lambda: nothing_is_open(members))
        for member in members.values():
            if member is not harmed:
                FIND(member.disk, logs(member)[number], random.Random(1))
        await harmed.publish("s", b"more", timeout_s=30)
        assert await leader_of(members, "s").read("s") == [*EXPECTED, b"more"]

    run(main())


@pytest.mark.parametrize("leads", [True, False])
def test_a_damaged_last_record_is_not_repaired_before_the_resumption_and_the_replica_knows(leads: bool) -> None:
    """The opening truncates it, as at a start: whoever lacks it does not lead before it has it again."""

    async def main() -> None:
        members = await paused()
        harmed = leader_of(members, "s") if leads else followers(members)[0]
        before = log_bytes(harmed)
        path = logs(harmed)[-1]
        harmed.disk.flip(path, record_starts(harmed.disk.content(path))[-1] + 20, 3)
        await scrubbed(harmed)
        assert log_bytes(harmed) == before[: len(log_bytes(harmed))]
        await harmed.publish("s", b"more", timeout_s=30)
        assert await leader_of(members, "s").read("s") == [*EXPECTED, b"more"]
        await until(lambda: len({log_bytes(member) for member in members.values()}) == 1)

    run(main())


def test_it_is_found_by_the_daily_scrub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "SCRUB_EVERY_S", 30.0)

    async def main() -> None:
        members = await paused()
        harmed = followers(members)[0]
        before = log_bytes(harmed)
        FIND(harmed.disk, logs(harmed)[1], random.Random(1))
        await asyncio.sleep(60)
        assert log_bytes(harmed) == before
        assert nothing_is_open(members)

    run(main())


@pytest.mark.parametrize("number", range(8))
def test_a_partition_that_is_resumed_paused_or_deleted_while_it_is_read_goes_on(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else has its log open then."""
    monkeypatch.setattr(pausedlogs, "SCRUB_BYTES_A_SECOND", 20_000)

    async def main() -> None:
        members = await paused()
        harmed = members["abc"[number % 3]]
        FIND(harmed.disk, logs(harmed)[0], random.Random(1))
        scrubs = [asyncio.ensure_future(scrubbed(member)) for member in members.values()]
        chance = random.Random(number)
        for _ in range(5):
            await asyncio.sleep(chance.random() * chance.choice([0.01, 0.1, 1.0]))
            await members["a"].publish("s", b"more", timeout_s=30)
            assert not any(len(each.broker.manager.paused_logs) for each in members.values())
            await pause(members["a"])
        await asyncio.gather(*scrubs)
        await until(lambda: nothing_is_open(members))
        scrubs = [asyncio.ensure_future(scrubbed(member)) for member in members.values()]
        await asyncio.sleep(chance.random())
        if number % 2:
            status, text, _ = await members["a"].call("DeleteStream", api.DeleteStreamRequest(name="s"))
            assert not text, status
            await asyncio.gather(*scrubs)
            assert not any(logs(member) for member in members.values())
        else:
            await members["a"].publish("s", b"more", timeout_s=30)
            assert await leader_of(members, "s").read("s") == [*EXPECTED, *[b"more"] * 6]
            await asyncio.gather(*scrubs)

    run(main())


def test_what_no_other_replica_can_be_asked_for_is_found_again_and_nothing_stays_open() -> None:
    async def main() -> None:
        members = await paused()
        harmed, *others = sorted(members.values(), key=lambda member: member is leader_of(members, "s"))
        before = log_bytes(harmed)
        FIND(harmed.disk, logs(harmed)[1], random.Random(1))
        for member in others:
            member.buses[3].disconnect()
        await scrubbed(harmed)
        assert log_bytes(harmed) != before
        assert len(harmed.broker.manager.paused_logs) == 0
        for member in others:
            member.buses[3].reconnect()
        await scrubbed(harmed)
        assert log_bytes(harmed) == before

    run(main())


def test_damage_in_the_only_copy_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk, MemoryNats()).start()
        await node.create("s")
        for number in range(3):
            await node.publish("s", b"value %d" % number)
        await node.call("PauseStream", api.PauseStreamRequest(name="s"))
        path = next(path for path in disk.paths() if path.startswith("streams/s@") and path.endswith(".log"))
        disk.flip(path, record_starts(disk.content(path))[1] + 20, 3)
        await node.broker.manager.scrub()
        assert f"{path}: damage" in caplog.text
        assert len(node.broker.manager.paused_logs) == 0

    run(main())


def test_a_stop_closes_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pausedlogs, "SCRUB_BYTES_A_SECOND", 1000)

    async def main() -> None:
        members = await paused()
        member = followers(members)[0]
        scrub = asyncio.ensure_future(scrubbed(member))
        await until(lambda: len(member.broker.manager.paused_logs) == 1)
        await member.broker.stop()
        await member.broker.close()
        assert len(member.broker.manager.paused_logs) == 0
        await asyncio.gather(scrub, return_exceptions=True)

    run(main())
