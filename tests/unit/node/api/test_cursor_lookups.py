"""What is answered about a cursor while it is set anew, compacted, or its stream made again."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bascule import limits
from bascule.core.cursors.keys import CursorName, CursorValue
from bascule.core.cursors.offsets import Budget, NewestOffsets
from bascule.core.metadata.streams import CURSORS
from bascule.errors import Status
from bascule.node.api.cursorlog import CursorLog
from bascule.node.config.broker import CursorSettings
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.keyed import Keyed
from bascule.testing.logs import Bench
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.compacted import filled, order, put
from tests.harness.members import CONTROL, Member, leader_of, three, until

CURSOR = CursorName("c", "s", 0)
Step = Callable[[], Awaitable[object]]


def set_to(offset: int, name: CursorName = CURSOR) -> Keyed:
    return Keyed(name.key, name.value(offset))


OTHERS = [set_to(number, CursorName(f"o{number}", "s", 0)) for number in range(40)]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CURSOR_SCAN_BYTES", 300)


async def overtaken(bench: Bench, offset: int = 6) -> None:
    """The cursor is set anew, and a pass of compaction removes what it was."""
    await put(bench, [set_to(offset)])
    await bench.log.compact(order(bench))


def beside(log: CursorLog, bench: Bench, method: str, call: int) -> None:
    """It is overtaken before this call of that method."""
    original, calls = getattr(log, method), 0

    async def hooked(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            await overtaken(bench)
        return await original(*arguments)

    setattr(log, method, hooked)


@pytest.mark.parametrize("call", [2, 3])
def test_a_cursor_that_is_set_anew_while_its_index_is_made_was_set(call: int) -> None:
    async def main() -> None:
        bench = await filled(MemoryDisk(), [set_to(5), *OTHERS])
        log = CursorLog(bench.log, Budget(1000))
        beside(log, bench, "_index_older", call)
        assert await log.find(CURSOR) == CursorValue(6, 0)

    run(main())


def test_a_cursor_that_is_set_anew_while_it_is_searched_was_set() -> None:
    async def main() -> None:
        bench = await filled(MemoryDisk(), [set_to(5), *OTHERS])
        log = CursorLog(bench.log, Budget(0))
        search, begun = log._search, asyncio.Event()

        async def searching(cursor: CursorName, key: bytes, below: int) -> object:
            begun.set()
            return await search(cursor, key, below)

        log._search = searching  # type: ignore[method-assign, assignment]
        asking = asyncio.create_task(log.find(CURSOR))
        await begun.wait()
        await overtaken(bench)
        assert await asking == CursorValue(6, 0)

    run(main())


def test_a_record_that_is_compacted_before_it_is_read_is_not_replaced_by_an_older_one() -> None:
    """Also where an older one is still there: a pass need not remove all."""

    async def main() -> None:
        bench = await filled(MemoryDisk(), [set_to(5), *OTHERS])
        log = CursorLog(bench.log, Budget(1000))
        assert await log.find(CursorName("never set", "s", 0)) is None
        beside(log, bench, "_value_at", 1)
        assert await log.find(CURSOR) == CursorValue(6, 0)

    run(main())


def test_what_was_compacted_before_it_was_taken_in_is_not_missed() -> None:
    async def main() -> None:
        bench = await filled(MemoryDisk(), [set_to(4), *OTHERS])
        log = CursorLog(bench.log, Budget(1000))
        assert await log.find(CURSOR) == CursorValue(4, 0)
        await put(bench, [set_to(5), *OTHERS])
        beside(log, bench, "_take_in_to", 1)
        assert await log.find(CURSOR) == CursorValue(6, 0)

    run(main())


def test_an_older_record_is_not_taken_for_the_newest_when_there_is_room_again() -> None:
    budget = Budget(1)
    other, newest = NewestOffsets(budget), NewestOffsets(budget)
    other.newer(b"other", 1)
    newest.newer(b"c", 10)
    other.clear()
    newest.older(b"c", 3)
    assert (newest.get(b"c"), newest.complete) == (None, False)
    newest.newer(b"c", 11)
    assert newest.get(b"c") == 11


async def made_again_unawares(members: dict[str, Member]) -> Member:
    """The leader of the cursors has not heard that `s`, which another broker leads, was deleted and made again."""
    await until(lambda: members["a"].broker.cluster.metadata.stream(CURSORS) is not None)
    await asyncio.sleep(2)
    leader = leader_of(members, CURSORS)
    if leader.broker.controller.active:
        leader.kill()
        await asyncio.sleep(6)
        await leader.start()
        await until(lambda: not leader_of(members, CURSORS).broker.controller.active)
        await asyncio.sleep(5)
        leader = leader_of(members, CURSORS)
    controller = next(each for each in members.values() if each.broker.controller.active)
    create = api.CreateStreamRequest(name="s", subject="s", replicationFactor=1)
    for number in range(10):
        assert (await controller.call("CreateStream", create))[0] is Status.OK
        if leader_of(members, "s") is not leader:
            break
        assert (await controller.call("DeleteStream", api.DeleteStreamRequest(name="s"), 20.0))[0] is Status.OK
        filler = api.CreateStreamRequest(name=f"f{number}", subject=f"f{number}")
        assert (await controller.call("CreateStream", filler))[0] is Status.OK
    await asyncio.sleep(1)
    leader.buses[CONTROL].disconnect()
    assert (await controller.call("DeleteStream", api.DeleteStreamRequest(name="s"), 20.0))[0] is Status.OK
    assert (await controller.call("CreateStream", create, 20.0))[0] is Status.OK
    known = [each.broker.cluster.metadata.stream("s") for each in (leader, controller)]
    assert known[0] != known[1], "the leader has not heard of it"
    return leader


def test_a_leader_with_old_metadata_stores_no_cursor_of_a_stream_that_was_made_again() -> None:
    """It would count as never set, and so would the one before it."""

    async def main() -> None:
        members = await three(MemoryNats(), cursors=CursorSettings(partitions=1))
        leader = await made_again_unawares(members)
        replica = leader.broker.replicas.find(CURSORS, 0)
        assert replica is not None
        end = replica.log.end
        request = api.SetCursorRequest(stream="s", partition=0, cursorId="c", offset=7)
        setting = asyncio.ensure_future(leader.call("SetCursor", request, 3.0))
        await asyncio.sleep(0.5)
        assert not setting.done()
        assert replica.log.end == end
        leader.buses[CONTROL].reconnect()
        assert (await setting)[0] is Status.OK
        fetch = api.FetchCursorRequest(stream="s", partition=0, cursorId="c")
        status, _, answers = await leader.call("FetchCursor", fetch)
        assert (status, api.FetchCursorResponse.FromString(answers[0]).offset) == (Status.OK, 7)

    run(main())
