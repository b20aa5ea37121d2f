"""A disk that reads wrongly now and then, and rightly when it is asked again: nothing of that is damage."""

import asyncio
import errno
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bascule.errors import CorruptError, LogError
from bascule.log import checkpoint, cleanshutdown
from bascule.log.disk import FileDisk
from bascule.log.index import read_footer
from bascule.log.raftlog import RaftStorage
from bascule.log.refill import refill
from bascule.log.sync import SyncMode
from bascule.log.tail import CleanEnd, Tail
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, open_bench, start_ends, stop_ends
from bascule.testing.loop import run
from bascule.wire.raft_messages import Entry, HardState, Membership, Snapshot

COUNT = 24
EXPECTED = [(number, b"%d" % number * 20) for number in range(COUNT)]
SEGMENT_BYTES = 500


class Wrong:
    """Every so-manyth read of each file has a wrong bit, at another place each time; the first one too."""

    def __init__(self, every: int) -> None:
        self.reads: Counter[str] = Counter()
        self.wrong = 0
        self._every = every

    def __call__(self, path: str, data: bytes) -> bytes:
        self.reads[path] += 1
        if not data or (self.reads[path] - 1) % self._every:
            return data
        self.wrong += 1
        bent = bytearray(data)
        bent[self.wrong * 7919 % len(bent)] ^= 1 << self.wrong % 8
        return bytes(bent)


async def stored(cached: bool = True) -> MemoryDisk:
    """The log of a broker that has stopped in good order."""
    disk = MemoryDisk()
    disk.cached = cached
    ends = await start_ends(disk)
    bench = await open_bench(disk, SEGMENT_BYTES, ends=ends)
    for _, value in EXPECTED:
        await bench.store([value])
    await stop_ends(ends, bench)
    return disk


def logs_of(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: disk.content(path) for path in disk.paths() if path.endswith(".log")}


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("replicated", [True, False])
@pytest.mark.parametrize("without_indexes", [True, False])
@pytest.mark.parametrize("every", [2, 3])
def test_a_start_takes_no_wrong_read_for_damage(
    cached: bool, replicated: bool, without_indexes: bool, every: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        disk = await stored(cached)
        before = logs_of(disk)
        for path in disk.paths() if without_indexes else []:
            if path.endswith(".index"):
                await disk.remove(path)
        disk.misread = wrong = Wrong(every)
        ends = await start_ends(disk)
        assert ends.was_complete
        bench = await open_bench(disk, SEGMENT_BYTES, replicated=replicated, ends=ends)
        assert bench.log.tail is Tail.SURE
        assert not bench.log.damaged
        assert await bench.read_all() == EXPECTED
        assert [await bench.log.offset_at_or_after(number * 10) for number in range(COUNT)] == list(range(COUNT))
        reader, newest_first = bench.log.reverse_reader(COUNT), 0
        while await reader.read(200) is not None:
            newest_first += reader.count
        assert newest_first == COUNT
        assert not bench.log.damaged
        assert logs_of(disk) == before
        assert wrong.wrong > 10
        await bench.close()

    with caplog.at_level(logging.ERROR):
        run(scenario())
    assert not caplog.records


def test_an_index_that_is_read_wrongly_once_is_not_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = await stored()
        path = next(path for path in disk.paths() if path.endswith(".index"))
        disk.misread = _once(path)
        assert await read_footer(disk, path) is not None
        bench = await open_bench(disk, SEGMENT_BYTES)
        disk.misread = _once(path, after=1)
        await bench.log.offset_at_or_after(30)
        assert path in disk.paths()
        await bench.close()

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert "made again" not in caplog.text


def _once(wanted: str, after: int = 0, at: int = 0) -> Callable[[str, bytes], bytes]:
    seen = 0

    def wrong(path: str, data: bytes) -> bytes:
        nonlocal seen
        if path != wanted or not data:
            return data
        seen += 1
        place = at % len(data)
        return data if seen != after + 1 else data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    return wrong


def test_where_damage_ends_is_not_judged_by_a_wrong_read() -> None:
    """One record is damaged in truth. Whichever read goes wrong, it alone is lost."""

    async def scenario() -> None:
        for number in range(200):
            disk = await stored()
            path = next(path for path in disk.paths() if path.endswith(".log"))
            disk.flip(path, 40 if number % 2 else 2, 3)  # its length is right, or not
            await disk.remove(path.replace(".log", ".index"))
            disk.misread = _once(path, after=number % 8, at=number * 37)
            bench = await open_bench(disk, SEGMENT_BYTES, replicated=True)
            assert await bench.read_all() == EXPECTED[1:]
            await bench.close()

    run(scenario())


@pytest.mark.parametrize("every", [2, 3, 5])
def test_a_refill_copies_nothing_that_was_read_wrongly(every: int) -> None:
    async def scenario() -> None:
        disk = await stored()
        before = logs_of(disk)
        peer = await open_bench(disk.copy(), SEGMENT_BYTES)
        path = list(before)[1]
        disk.flip(path, 150, 3)
        await disk.remove(path.replace(".log", ".index"))
        disk.misread = wrong = Wrong(every)
        bench = await open_bench(disk, SEGMENT_BYTES, replicated=True)
        (segment,) = bench.log.damaged
        assert await refill(bench.log, segment, lambda start, end: _fetch(peer, start, end))
        assert not bench.log.damaged
        assert logs_of(disk) == before
        assert wrong.wrong
        await bench.close()

    run(scenario())


async def _fetch(peer: Bench, start: int, end: int) -> bytes:
    peer.log.set_visible_end(peer.log.promised_end)
    return await peer.log.reader(start).read(stop_end=end) or b""


@pytest.mark.parametrize("every", [2, 3])
def test_the_raft_log_starts_on_what_is_read_rightly_at_last(every: int) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        storage = RaftStorage(disk, "raft")
        await storage.open()
        await storage.save(HardState(1, "a"), [Entry(index, 1, data=b"command") for index in (1, 2, 3)])
        await storage.compact(Snapshot(2, 1, Membership(("a",)), b"state"))
        await storage.save(HardState(2, "a"), [Entry(4, 2, data=b"last")])
        disk.misread = wrong = Wrong(every)
        hard_state, snapshot, entries, _ = await RaftStorage(disk, "raft").open()
        assert (hard_state, snapshot.index, [entry.index for entry in entries]) == (HardState(2, "a"), 2, [3, 4])
        assert wrong.wrong > 2

    run(scenario())


def test_small_files_are_read_again_before_they_count_as_damaged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        for content in (b"first", b"second", b"third"):
            disk.misread = _once("state")
            await checkpoint.write_checkpoint(disk, "state", content)
            disk.misread = _once("state")
            assert await checkpoint.read_checkpoint(disk, "state") == content
        assert "state.damaged" not in disk.paths()
        left = {FOLDER: CleanEnd(7, 1, 0, 400, 1234)}
        await cleanshutdown.leave(disk, True, left)
        disk.misread = _once(cleanshutdown.FILE)
        found = await cleanshutdown.read(disk)
        assert found is not None
        assert found.ends == left

    with caplog.at_level(logging.ERROR):
        run(scenario())
    assert not caplog.records


def test_what_reads_differently_every_time_is_an_error_and_nothing_is_truncated() -> None:
    async def scenario() -> None:
        disk = await stored()
        before = logs_of(disk)
        disk.misread = Wrong(1)
        with pytest.raises((LogError, OSError)):
            await open_bench(disk, SEGMENT_BYTES, replicated=True)
        with pytest.raises(OSError, match="every read gives other bytes") as raised:
            await checkpoint.read_checkpoint(disk, next(iter(before)))
        assert raised.value.errno == errno.EIO
        disk.misread = None
        assert logs_of(disk) == before
        bench = await open_bench(disk, SEGMENT_BYTES, replicated=True)
        assert await bench.read_all() == EXPECTED
        await bench.close()

    run(scenario())


def test_real_damage_of_the_metadata_is_still_refused() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        storage = RaftStorage(disk, "raft")
        await storage.open()
        for index in (1, 2):
            await storage.save(HardState(1, "a"), [Entry(index, 1, data=b"command")])
        (path,) = (path for path in disk.paths() if path.endswith(".commands"))
        disk.flip(path, 10, 1)
        with pytest.raises(CorruptError):
            await RaftStorage(disk, "raft").open()

    run(scenario())


class Asked(MemoryDisk):
    """Remembers what was to be read past the page cache."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh: list[tuple[str, int]] = []

    async def read(self, path: str, position: int, length: int, fresh: bool = False) -> bytes:
        if fresh:
            self.fresh.append((path, position + length))
        return await super().read(path, position, length, fresh)


def test_bytes_that_memory_alone_may_have_are_not_read_past_it() -> None:
    """Under relaxed sync a sync that failed leaves pages in memory that the device never gets."""

    async def scenario() -> None:
        disk = Asked()
        bench = await open_bench(disk, mode=SyncMode("interval", 3_600_000_000_000))
        await bench.store([b"one", b"two"])
        (segment,) = bench.log.segments
        assert segment.synced.size < segment.promised.size
        disk.stored(FOLDER, durable=False)[segment.path].data[20] ^= 1
        assert [offset for offset, _ in await bench.read_all()] == [1]
        assert disk.fresh == []
        disk.fail_at(disk.steps + 1)
        bench.log.finish_synced(await disk.commit(bench.log.take_unsynced(), sync=True))
        assert bench.log.failed is not None
        await bench.log.reopen()
        assert disk.fresh == []

    run(scenario())


def test_the_real_disk_reads_the_same_past_the_page_cache(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FileDisk(tmp_path)
        disk.lock()
        try:
            bench = await open_bench(disk)
            await bench.store([value for _, value in EXPECTED])
            (segment,) = bench.log.segments
            size = segment.promised.size
            assert await segment.read(0, size, fresh=True) == await segment.read(0, size)
            assert await segment.read(size - 5, 5, fresh=True) == (tmp_path / segment.path).read_bytes()[-5:]
            assert await segment.read(size, 0, fresh=True) == b""
            await bench.close()
        finally:
            disk.close()

    asyncio.run(scenario())
