"""Files, folders and the whole data folder taken away under a running log: noticed, said, and never written around."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bascule.errors import LogError
from bascule.log.disk import FileDisk
from bascule.log.raftlog import RaftStorage
from bascule.node.partition.filewatch import FileWatch
from bascule.ports import Disk, Write
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, open_bench
from bascule.testing.records import split, values
from bascule.wire.raft_messages import HardState, Membership, Snapshot

COUNT = 100


def body(number: int) -> bytes:
    return b"value %d" % number


async def filled(disk: Disk, folder: str = FOLDER) -> Bench:
    bench = await open_bench(disk, 1_000, folder=folder)
    for number in range(0, COUNT, 5):
        await bench.store([body(each) for each in range(number, number + 5)])
    return bench


async def watch_over(*benches: Bench, on_gone: Callable[[], None] = lambda: None) -> FileWatch:
    storage = RaftStorage(benches[0].disk, "raft")
    await storage.open()
    await storage.save(HardState(), [], Snapshot(0, 0, Membership(("a",))))
    return FileWatch(benches[0].disk, benches[0].scheduler, storage, lambda: [bench.log for bench in benches], on_gone)


async def passes(watch: FileWatch, count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0.06)  # what changed just now cannot be told from what changes next: see `Seen.version`
        await watch.check()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    real = FileDisk(tmp_path / "data")
    real.lock()
    yield real
    real.close()


def at(tmp_path: Path, path: str) -> Path:
    return tmp_path / "data" / path


def replace_with_a_copy(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    os.replace(copy, path)


@pytest.mark.parametrize("harm", ["remove", "move", "replace"])
@pytest.mark.parametrize("number", [0, 2, -1], ids=["first", "sealed", "active"])
def test_a_segment_taken_away_ends_writing_and_reading_goes_on(
    disk: FileDisk, tmp_path: Path, number: int, harm: str
) -> None:
    async def scenario() -> None:
        bench = await filled(disk)
        watch = await watch_over(bench)
        await passes(watch)
        assert bench.failures == []
        segment = bench.log.segments[number]
        path = at(tmp_path, segment.path)
        await bench.read_all()  # so that all of them are open
        if harm == "remove":
            path.unlink()
        elif harm == "move":
            path.rename(tmp_path / "elsewhere")
        else:
            replace_with_a_copy(path)
        await passes(watch, 1)
        (error,) = bench.failures
        assert segment.path in str(error)
        assert "removed, moved or replaced" in str(error)
        with pytest.raises(LogError):
            bench.append([b"never"])
        assert [offset for offset, _ in await bench.read_all()] == list(range(COUNT))
        if harm == "replace":
            await bench.log.reopen()  # it holds the same
        else:
            with pytest.raises(LogError, match="removed, moved or replaced"):
                await bench.log.reopen()
            assert bench.log.failed is not None
        await passes(watch, 2)
        assert len(bench.failures) == 1

    asyncio.run(scenario())


def test_what_is_put_back_is_written_again(disk: FileDisk, tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = await filled(disk)
        watch = await watch_over(bench)
        await passes(watch)
        folder = at(tmp_path, "streams/test@1")
        folder.rename(tmp_path / "elsewhere")
        await bench.store([b"acked, for nobody has looked yet"])
        await passes(watch, 1)
        assert bench.log.failed is not None
        assert not folder.exists()
        (tmp_path / "elsewhere").rename(folder)
        await bench.log.reopen()
        await bench.store([b"and on"])
        await passes(watch)
        assert len(bench.failures) == 1
        assert [offset for offset, _ in await bench.read_all()] == list(range(COUNT + 2))
        await bench.close()
        again = await open_bench(disk, 1_000)
        assert [offset for offset, _ in await again.read_all()] == list(range(COUNT + 2))

    asyncio.run(scenario())


def test_a_folder_that_was_there_is_not_made_again(disk: FileDisk, tmp_path: Path) -> None:
    """Not even before anybody has looked: the next segment would begin a log without a beginning."""

    async def scenario() -> None:
        bench = await filled(disk)
        shutil.rmtree(at(tmp_path, FOLDER))
        while bench.log.failed is None and bench.log.end < 10 * COUNT:
            await bench.store([b"x" * 300] * 3)
        assert bench.log.failed is not None
        assert not at(tmp_path, FOLDER).exists()
        with pytest.raises(LogError):
            await bench.log.reopen()

    asyncio.run(scenario())


@pytest.mark.parametrize("top", ["streams", "raft"])
def test_a_folder_of_the_data_folder_is_not_made_again(disk: FileDisk, tmp_path: Path, top: str) -> None:
    async def scenario() -> None:
        await watch_over(await filled(disk))
        at(tmp_path, top).rename(tmp_path / "elsewhere")
        (error,) = await disk.commit([Write(f"{top}/new@7/0/file", 0, [b"x"], create=True)], sync=True)
        assert isinstance(error, FileNotFoundError)
        with pytest.raises(FileNotFoundError):
            await disk.make_folder(f"{top}/new")
        assert not at(tmp_path, top).exists()
        await disk.remove("quarantine")  # what we remove ourselves may be made again
        await disk.make_folder("quarantine")
        await disk.remove("quarantine")
        await disk.make_folder("quarantine")

    asyncio.run(scenario())


@pytest.mark.parametrize("replaced", [False, True])
def test_without_its_data_folder_a_broker_promises_nothing(disk: FileDisk, tmp_path: Path, replaced: bool) -> None:
    async def scenario() -> None:
        bench, empty = await filled(disk), await open_bench(disk, folder="streams/empty@2/0")
        told: list[str] = []
        watch = await watch_over(bench, empty, on_gone=lambda: told.append(watch.gone))
        await passes(watch)
        folder = tmp_path / "data"
        folder.rename(tmp_path / "elsewhere")
        if replaced:
            folder.mkdir()
        await passes(watch, 2)
        assert len(told) == 1
        assert str(folder) in told[0]
        for log in (bench.log, empty.log):
            assert log.failed is not None
            with pytest.raises(LogError):
                await log.reopen()
        with pytest.raises(LogError, match="neither votes"):
            await watch._storage.save(HardState(term=7), [])
        assert not folder.exists() or list(folder.iterdir()) == []
        (error,) = await disk.commit([Write("streams/new@9/0/file", 0, [b"x"], create=True)], sync=True)
        assert isinstance(error, OSError)
        if replaced:
            folder.rmdir()
        (tmp_path / "elsewhere").rename(folder)
        await passes(watch, 1)
        assert told[1:] == [""]
        for each in (bench, empty):
            await each.log.reopen()
            await each.store([b"and on"])
        await watch._storage.save(HardState(term=7), [])
        assert [offset for offset, _ in await bench.read_all()] == list(range(COUNT + 1))

    asyncio.run(scenario())


@pytest.mark.parametrize("harm", ["folder", "file"])
def test_without_its_metadata_a_broker_promises_nothing(disk: FileDisk, tmp_path: Path, harm: str) -> None:
    async def scenario() -> None:
        bench = await filled(disk)
        watch = await watch_over(bench)
        await passes(watch)
        path = at(tmp_path, "raft")
        if harm == "file":
            (path,) = path.glob("*.commands")
        path.rename(tmp_path / "elsewhere")
        await passes(watch, 1)
        assert watch.gone
        assert bench.log.failed is not None
        with pytest.raises(LogError):
            await watch._storage.save(HardState(term=7), [])
        with pytest.raises(LogError):
            await watch._storage.open()
        (tmp_path / "elsewhere").rename(path)
        await passes(watch, 1)
        assert not watch.gone
        await watch._storage.save(HardState(term=7), [])
        assert (await watch._storage.open())[0].term == 7

    asyncio.run(scenario())


def test_a_lock_file_that_was_removed_is_made_and_locked_again(disk: FileDisk, tmp_path: Path) -> None:
    async def scenario() -> None:
        at(tmp_path, "lock").unlink()
        await disk.look([""])
        other = FileDisk(tmp_path / "data")
        with pytest.raises(Exception, match=f"process {os.getpid()}"):
            other.lock()
        # If another broker was faster, the folder is its own.
        at(tmp_path, "lock").unlink()
        other.lock()
        with pytest.raises(OSError, match="another broker"):
            await disk.look([""])
        other.close()

    asyncio.run(scenario())


def test_what_the_log_itself_changes_is_no_loss(disk: FileDisk) -> None:
    """It rolls, writes indexes, truncates, fails, reopens and is deleted, with a look after every step."""

    async def scenario() -> None:
        bench = await filled(disk)
        watch = await watch_over(bench)
        for step in range(12):
            bench.log.segments.visible_end = 0
            await bench.log.truncate(bench.log.end - 7)
            await watch.check()
            await bench.store([body(each) for each in range(30)])
            await watch.check()
            assert bench.failures == [], step
        await bench.log.delete()
        await passes(watch)
        assert bench.failures == []

    asyncio.run(scenario())


def test_a_short_active_file_is_damage_and_writing_goes_on_elsewhere(disk: FileDisk, tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = await filled(disk)
        watch = await watch_over(bench)
        await passes(watch)
        active = bench.log.segments[-1]
        retained = values(at(tmp_path, active.path).read_bytes())[:2]
        size = sum(len(record) for record in split(at(tmp_path, active.path).read_bytes())[:2])
        os.truncate(at(tmp_path, active.path), size + 10)
        await passes(watch, 1)
        assert active in bench.log.damaged
        assert bench.failures == []
        await bench.store([b"and on"])
        assert bench.log.segments[-1] is not active
        found = [offset for offset, _ in await bench.read_all()]
        assert found[-1] == COUNT
        assert found == [*range(active.base), *(offset for offset, _ in retained), COUNT]
        assert at(tmp_path, active.path).stat().st_size == size + 10

    asyncio.run(scenario())


def test_many_segments_are_looked_at_some_at_a_time(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bascule.limits.SEGMENTS_LOOKED_AT", 2)

    async def scenario() -> None:
        bench = await filled(disk)
        assert len(bench.log.segments) > 6
        watch = await watch_over(bench)
        await passes(watch, 12)
        at(tmp_path, bench.log.segments[-2].path).unlink()
        for _ in range(12):
            await passes(watch, 1)
            if bench.failures:
                break
        assert len(bench.failures) == 1

    asyncio.run(scenario())


def test_a_pass_over_many_logs_at_rest_looks_at_few(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.limits.IDLE_PATHS_LOOKED_AT", 3)
    looked: list[int] = []

    async def scenario() -> None:
        first = await open_bench(disk, folder="streams/s@1/0")
        benches = [first]
        for number in range(1, 20):
            benches.append(await open_bench(disk, folder=f"streams/s@1/{number}", scheduler=first.scheduler))
        for bench in benches:
            await bench.store([b"x"])
        watch = await watch_over(*benches)
        await passes(watch, 20)
        look = disk.look

        async def counted(paths: list[str]) -> object:
            looked.append(len(paths))
            return await look(paths)

        monkeypatch.setattr(disk, "look", counted)
        await passes(watch, 14)
        assert max(looked) <= 2 + 3
        # One that stores something has its turn at once, however many there are.
        shutil.rmtree(Path(disk._root) / "streams/s@1/13")
        await benches[13].store([b"acked"])
        await watch.check()
        assert benches[13].log.failed is not None

    asyncio.run(scenario())


@pytest.mark.parametrize("path", [FOLDER, f"{FOLDER}/{0:020}.log", "streams"])
def test_the_disk_in_memory_does_the_same(path: str) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await filled(disk)
        watch = await watch_over(bench)
        await passes(watch)
        assert bench.failures == []
        put_back = disk.vanish(path)
        bench.append([b"acked, for nobody has looked yet"])
        await bench.log.flushed()
        assert bench.log.promised_end == COUNT + 1
        assert [offset for offset, _ in await bench.read_all()] == list(range(COUNT + 1))
        await passes(watch, 1)
        assert len(bench.failures) == 1
        with pytest.raises(LogError):
            await bench.log.reopen()
        put_back()
        await bench.log.reopen()
        await bench.store([b"and on"])
        await passes(watch)
        assert [offset for offset, _ in await bench.read_all()] == list(range(COUNT + 2))
        disk.vanish(path)
        disk.crash()
        again = await open_bench(disk, 1_000)
        assert len(await again.read_all()) < COUNT

    asyncio.run(scenario())
