"""The real disk, and that the disk in memory does the same and loses what it should."""

import asyncio
import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule import limits
from bascule.errors import StartError
from bascule.log.disk import FileDisk
from bascule.log.files import OpenFiles
from bascule.log.syncfs import FileSystemSync, reports_errors
from bascule.ports import Disk, Write
from bascule.testing.disk import MemoryDisk


@pytest.fixture
def file_disk(tmp_path: Path) -> Iterator[FileDisk]:
    disk = FileDisk(tmp_path)
    yield disk
    disk.close()


@pytest.fixture(params=["file", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "memory":
        yield MemoryDisk()
        return
    real = FileDisk(tmp_path)
    yield real
    real.close()


def test_committed_bytes_are_read_back_and_a_file_is_made_with_its_folders(disk: Disk) -> None:
    async def scenario() -> None:
        assert await disk.commit([Write("a/b/c", 0, [b"one", b"two"], create=True)], sync=True) == [None]
        assert await disk.commit([Write("a/b/c", 6, [b"!"])], sync=False) == [None]
        assert await disk.read("a/b/c", 0, 100) == b"onetwo!"
        assert await disk.read("a/b/c", 3, 3) == b"two"
        assert disk.read_cached("a/b/c", 3, 100) == b"two!"
        assert await disk.size("a/b/c") == 7
        assert await disk.size("a/b") is None
        assert await disk.size("a/x") is None
        assert await disk.list("a") == ["b"]
        assert await disk.list("nowhere") == []

    asyncio.run(scenario())


def test_each_write_has_its_own_answer(disk: Disk) -> None:
    async def scenario() -> None:
        await disk.commit([Write("there", 0, [b"x"], create=True)], sync=True)
        writes = [
            Write("there", 0, [b"y"], create=True),
            Write("new", 0, [b"z"], create=True),
            Write("missing", 0, [b"z"]),
        ]
        exists, fine, missing = await disk.commit(writes, sync=True)
        assert isinstance(exists, FileExistsError)
        assert fine is None
        assert isinstance(missing, FileNotFoundError)
        assert await disk.read("there", 0, 9) == b"x"
        assert await disk.read("new", 0, 9) == b"z"

    asyncio.run(scenario())


def test_files_and_folders_are_renamed_removed_and_truncated(disk: Disk) -> None:
    async def scenario() -> None:
        await disk.make_folder("f/g")
        await disk.commit([Write("f/g/one", 0, [b"1234"], create=True)], sync=True)
        await disk.commit([Write("f/g/two", 0, [b"5678"], create=True)], sync=True)
        assert await disk.read("f/g/two", 0, 9) == b"5678"
        await disk.rename("f/g/one", "f/g/two")
        await disk.sync_folder("f/g")
        assert await disk.read("f/g/two", 0, 9) == b"1234"
        assert disk.read_cached("f/g/one", 0, 9) is None
        await disk.truncate("f/g/two", 2)
        assert await disk.read("f/g/two", 0, 9) == b"12"
        await disk.rename("f/g", "f/h")
        assert await disk.read("f/h/two", 0, 9) == b"12"
        with pytest.raises(FileNotFoundError):
            await disk.read("f/g/two", 0, 9)
        await disk.remove("f/h")
        await disk.remove("f/h")
        assert await disk.list("f") == []
        with pytest.raises(FileNotFoundError):
            await disk.sync_folder("f/h")

    asyncio.run(scenario())


def test_many_dirty_files_are_one_sync_of_the_file_system(file_disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    single: list[int] = []
    whole: list[None] = []
    monkeypatch.setattr(os, "fdatasync", single.append)
    monkeypatch.setattr(file_disk._file_system, "_sync", lambda: whole.append(None))

    async def scenario() -> None:
        writes = [Write(f"p/{number}", 0, [b"x"], create=True) for number in range(20)]
        assert await file_disk.commit(writes, sync=True) == [None] * 20
        assert (len(single), len(whole)) == (0, 1)
        few = [Write(f"p/{number}", 1, [b"y"]) for number in range(limits.SYNCFS_FROM_FILES - 1)]
        assert await file_disk.commit(few, sync=True) == [None] * len(few)
        assert (len(single), len(whole)) == (len(few), 1)
        assert await file_disk.commit(few, sync=False) == [None] * len(few)
        assert (len(single), len(whole)) == (len(few), 1)

    asyncio.run(scenario())


def test_a_sync_of_the_file_system_works_and_its_failure_is_everyones(
    file_disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        writes = [Write(f"p/{number}", 0, [b"x"], create=True) for number in range(9)]
        assert await file_disk.commit(writes, sync=True) == [None] * 9

        def fail() -> None:
            raise OSError(errno.EIO, "the device is gone")

        monkeypatch.setattr(file_disk._file_system, "_sync", fail)
        more = [Write(f"p/{number}", 1, [b"y"]) for number in range(9)]
        errors = await file_disk.commit([*more, Write("missing", 0, [b""])], sync=True)
        assert [error and error.errno for error in errors] == [errno.EIO] * 9 + [errno.ENOENT]

    asyncio.run(scenario())


def test_a_write_that_fails_half_way_is_truncated_and_the_others_stand(
    file_disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev

    def pwritev(descriptor: int, buffers: list[bytes], position: int, flags: int) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("full"):
            if position >= 6:
                raise OSError(errno.ENOSPC, "no space")
            return real(descriptor, [bytes(buffers[0])[:2]], position)
        return real(descriptor, [bytes(buffers[0])[:1]], position)

    async def scenario() -> None:
        await file_disk.commit([Write("full", 0, [b"abcd"], create=True)], sync=True)
        monkeypatch.setattr(os, "pwritev", pwritev)
        writes = [Write("full", 4, [b"efgh", b"ijkl"]), Write("other", 0, [b"ab", b"", b"cde"], create=True)]
        failed, fine = await file_disk.commit(writes, sync=True)
        assert failed is not None
        assert failed.errno == errno.ENOSPC
        assert fine is None

    asyncio.run(scenario())
    assert (tmp_path / "full").read_bytes() == b"abcd"
    assert (tmp_path / "other").read_bytes() == b"abcde"


def test_a_single_file_is_written_durably_in_one_call_once_all_in_it_is_durable(
    file_disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    calls: list[str] = []

    def pwritev(descriptor: int, buffers: list[bytes], position: int, flags: int) -> int:
        calls.append("durable write" if flags == os.RWF_DSYNC else "write")
        return real(descriptor, buffers, position, flags)

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: calls.append("sync"))

    async def scenario() -> None:
        assert await file_disk.commit([Write("f", 0, [b"1"], create=True)], sync=True) == [None]
        assert await file_disk.commit([Write("f", 1, [b"2"])], sync=True) == [None]
        assert await file_disk.commit([Write("f", 2, [b"3"])], sync=False) == [None]
        assert await file_disk.commit([Write("f", 3, [b"4"])], sync=True) == [None]
        assert await file_disk.commit([Write("f", 4, [b"5"])], sync=True) == [None]
        assert await file_disk.commit([Write("f", 5, [])], sync=True) == [None]
        assert await file_disk.read("f", 0, 9) == b"12345"

    asyncio.run(scenario())
    assert calls == ["durable write", "durable write", "write", "write", "sync", "durable write"]


def test_a_file_that_was_there_before_is_synced_whole_at_first(
    file_disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").write_bytes(b"1")
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)

    async def scenario() -> None:
        assert await file_disk.commit([Write("old", 1, [b"2"])], sync=True) == [None]

    asyncio.run(scenario())
    assert len(synced) == 1


@pytest.mark.parametrize(("number", "failed"), [(errno.EIO, errno.EIO), (errno.EOPNOTSUPP, None)])
def test_a_durable_write_that_fails_is_truncated_and_one_that_is_not_possible_becomes_a_sync(
    file_disk: FileDisk, monkeypatch: pytest.MonkeyPatch, number: int, failed: int | None
) -> None:
    real = os.pwritev

    def pwritev(descriptor: int, buffers: list[bytes], position: int, flags: int) -> int:
        if flags and position:
            real(descriptor, buffers, position, 0)
            raise OSError(number, os.strerror(number))
        return real(descriptor, buffers, position, flags)

    async def scenario() -> None:
        await file_disk.commit([Write("f", 0, [b"1"], create=True)], sync=True)
        monkeypatch.setattr(os, "pwritev", pwritev)
        (error,) = await file_disk.commit([Write("f", 1, [b"2"])], sync=True)
        assert (error and error.errno) == failed
        assert await file_disk.read("f", 0, 9) == (b"1" if failed else b"12")

    asyncio.run(scenario())


def test_a_failed_sync_fails_what_it_covered_only(file_disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("bad"):
            raise OSError(errno.EIO, "the device is gone")
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)

    async def scenario() -> None:
        writes = [Write("bad", 0, [b"1"], create=True), Write("good", 0, [b"1"], create=True), Write("bad", 1, [b"2"])]
        errors = await file_disk.commit(writes, sync=True)
        assert [error and error.errno for error in errors] == [errno.EIO, None, errno.EIO]
        assert await file_disk.read("bad", 0, 9) == b"12"

    asyncio.run(scenario())


def test_what_is_not_in_the_page_cache_is_not_waited_for(file_disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        await file_disk.commit([Write("a", 0, [b"0123456789"], create=True)], sync=True)
        assert file_disk.read_cached("a", 2, 3) == b"234"
        assert file_disk.read_cached("a", 8, 50) == b"89"
        assert file_disk.read_cached("a", 50, 50) == b""
        assert file_disk.read_cached("never opened", 0, 1) is None
        large = os.urandom(3 * limits.MIB)
        await file_disk.commit([Write("b", 0, [large], create=True)], sync=True)
        assert file_disk.read_cached("b", 1, 3 * limits.MIB) == large[1:]

        real = os.preadv
        monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, position, flags: 4)
        assert file_disk.read_cached("a", 0, 10) is None, "four of ten bytes, and the file goes on: not cached"

        def would_wait(*_: object) -> int:
            raise BlockingIOError(errno.EAGAIN, "not now")

        monkeypatch.setattr(os, "preadv", would_wait)
        assert file_disk.read_cached("a", 0, 10) is None
        monkeypatch.setattr(os, "preadv", real)
        assert await file_disk.read("a", 0, 10) == b"0123456789"

    asyncio.run(scenario())


def test_open_files_are_bounded_and_never_closed_under_a_user(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / str(number)).write_bytes(b"%d" % number)
    files = OpenFiles(str(tmp_path), limit=4)
    failures: list[BaseException] = []

    def use(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(400):
                number = chance.randrange(40)
                file = files.borrow(str(number))
                assert os.pread(file.descriptor, 9, 0) == b"%d" % number
                if chance.random() < 0.1:
                    files.forget(str(number))
                assert os.pread(file.descriptor, 9, 0) == b"%d" % number
                files.give_back(file)
        except BaseException as error:
            failures.append(error)

    before = len(os.listdir("/proc/self/fd"))
    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(files) <= 4
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    files.close_all()
    assert len(os.listdir("/proc/self/fd")) == before


def test_paths_cannot_leave_the_data_folder(file_disk: FileDisk) -> None:
    for path in ("/etc/passwd", "../x", "a/../../x"):
        with pytest.raises(ValueError, match="inside the data folder"):
            asyncio.run(file_disk.read(path, 0, 1))


def test_a_data_folder_has_one_broker(tmp_path: Path) -> None:
    code = (
        "import sys; from bascule.log.disk import FileDisk; d = FileDisk(sys.argv[1]); d.lock(); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    folder = tmp_path / "made" / "here"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        disk = FileDisk(folder)
        with pytest.raises(StartError, match=rf"another broker \(process {other.pid}\) uses it"):
            disk.lock()
        other.communicate("")
        disk.lock()
        disk.close()
    finally:
        other.kill()
        other.communicate()


def test_a_data_folder_that_cannot_be_used_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, reason in ((tmp_path / "file", "not a folder"), (tmp_path / "file" / "below", "not a folder")):
        with pytest.raises(StartError, match=reason) as caught:
            FileDisk(path).lock()
        assert "\n" not in str(caught.value)
    closed = FileDisk("/proc/version-that-cannot-be/made")
    with pytest.raises(StartError, match="cannot be written"):
        closed.lock()


def test_an_evicted_file_is_the_same_file_read_from_the_device(disk: Disk) -> None:
    async def scenario() -> None:
        await disk.evict("nowhere")
        await disk.commit([Write("a/file", 0, [b"x" * 10_000], create=True)], sync=False)
        await disk.evict("a/file")
        assert await disk.read("a/file", 0, 20_000) == b"x" * 10_000
        await disk.commit([Write("a/file", 10_000, [b"more"])], sync=True)
        await disk.evict("a/file")
        assert await disk.read("a/file", 9_999, 10) == b"xmore"

    asyncio.run(scenario())


# --- the disk in memory -------------------------------------------------------------------------------------


def test_power_loss_takes_what_was_not_synced() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        await disk.commit([Write("a/file", 0, [b"kept"], create=True)], sync=True)
        await disk.commit([Write("a/file", 4, [b" lost"])], sync=False)
        await disk.commit([Write("a/empty", 0, [b"lost"], create=True)], sync=False)
        await disk.rename("a/file", "a/renamed")
        disk.crash()
        assert disk.paths() == ["a/empty", "a/file"], "the rename was not synced, the new entry was"
        assert disk.content("a/file") == b"kept"
        assert disk.content("a/empty") == b""
        await disk.rename("a/file", "a/renamed")
        await disk.sync_folder("a")
        disk.crash()
        assert disk.paths() == ["a/empty", "a/renamed"]
        await disk.remove("a")
        disk.crash()
        assert disk.paths() == ["a/empty", "a/renamed"]
        await disk.remove("a")
        await disk.sync_folder("")
        disk.crash()
        assert disk.paths() == []

    asyncio.run(scenario())


def test_an_evicted_file_shows_what_a_failed_sync_did_not_write() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        await disk.commit([Write("a/file", 0, [b"kept"], create=True)], sync=True)
        disk.fail_at(disk.steps + 2)
        (error,) = await disk.commit([Write("a/file", 4, [b" lost"])], sync=True)
        assert error is not None
        assert disk.content("a/file") == b"kept lost"
        await disk.evict("a/file")
        assert disk.content("a/file") == b"kept"

    asyncio.run(scenario())


def test_a_kill_keeps_the_page_cache_but_may_tear_what_is_being_written() -> None:
    async def scenario() -> None:
        lengths = []
        for seed in range(20):
            disk = MemoryDisk()
            await disk.commit([Write("file", 0, [b"kept"], create=True)], sync=False)
            disk.sync_delay_s = 60
            writing = asyncio.create_task(disk.commit([Write("file", 4, [b"x" * 100])], sync=True))
            await asyncio.sleep(0)
            disk.kill(random.Random(seed))
            writing.cancel()
            assert disk.content("file").startswith(b"kept")
            lengths.append(len(disk.content("file")))
        assert max(lengths) == 104
        assert len(dict.fromkeys(lengths)) > 5

    asyncio.run(scenario())


def test_a_flipped_bit_is_flipped_for_good() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        await disk.commit([Write("file", 0, [b"abc"], create=True)], sync=True)
        disk.flip("file", 1, 0)
        assert disk.content("file") == b"acc"
        disk.crash()
        assert disk.content("file") == b"acc"

    asyncio.run(scenario())


def test_bytes_under_a_failed_sync_never_become_durable() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        await disk.commit([Write("file", 0, [b"good"], create=True)], sync=True)
        disk.fail_at(disk.steps + 2)
        (error,) = await disk.commit([Write("file", 4, [b"bad!"])], sync=True)
        assert error is not None
        assert await disk.commit([Write("file", 8, [b"more"])], sync=True) == [None]
        assert disk.content("file") == b"goodbad!more"
        disk.crash()
        assert disk.content("file") == b"good\0\0\0\0more"

    asyncio.run(scenario())


def test_a_chancy_power_loss_is_a_function_of_its_seed_and_keeps_all_that_was_synced() -> None:
    async def outcome(seed: int) -> bytes:
        disk = MemoryDisk()
        await disk.commit([Write("file", 0, [b"synced"], create=True)], sync=True)
        for number in range(5):
            await disk.commit([Write("file", 6 + 4 * number, [b"abcd"])], sync=False)
        disk.crash(random.Random(seed))
        return disk.content("file")

    outcomes = [asyncio.run(outcome(seed)) for seed in range(30)]
    assert outcomes == [asyncio.run(outcome(seed)) for seed in range(30)]
    assert len(set(outcomes)) > 10
    assert all(content.startswith(b"synced") for content in outcomes)


def test_a_full_disk_and_a_slow_sync_can_be_had() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        disk.capacity_bytes = 10
        assert await disk.commit([Write("file", 0, [b"12345678"], create=True)], sync=True) == [None]
        (error,) = await disk.commit([Write("file", 8, [b"123"])], sync=True)
        assert error is not None
        assert error.errno == errno.ENOSPC
        disk.capacity_bytes = 11
        disk.sync_delay_s = 0.02
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await disk.commit([Write("file", 8, [b"123"])], sync=True) == [None]
        assert loop.time() - began >= 0.02

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("release", "reports"),
    [
        ("5.7.19-generic", False),
        ("4.19.0", False),
        ("5.8.0", True),
        ("5.15.0-91-generic", True),
        ("6.1", True),
        ("?", False),
    ],
)
def test_which_kernels_say_what_could_not_be_written(release: str, reports: bool) -> None:
    assert reports_errors(release) is reports


def test_where_syncfs_reports_nothing_each_file_is_synced_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FileDisk(tmp_path / "old")
    disk._file_system = FileSystemSync(str(tmp_path / "old"), "4.19.0")
    disk.lock()
    assert "Linux 4.19.0 does not report write errors of syncfs" in caplog.text
    single: list[int] = []
    monkeypatch.setattr(os, "fdatasync", single.append)
    monkeypatch.setattr(disk._file_system, "_sync", lambda: pytest.fail("syncfs"))

    async def scenario() -> None:
        writes = [Write(f"p/{number}", 0, [b"x"], create=True) for number in range(20)]
        assert await disk.commit(writes, sync=True) == [None] * 20
        assert len(single) == 20

    asyncio.run(scenario())
    disk.close()


def test_a_failed_syncfs_is_also_that_of_commits_that_had_written_before_it(tmp_path: Path) -> None:
    """The kernel tells one caller of an error, whosesoever bytes it took."""
    system = FileSystemSync(str(tmp_path), "6.1")
    fails = [True, False, False]

    def sync() -> None:
        if fails.pop(0):
            raise OSError(errno.EIO, "lost")

    system._sync = sync  # type: ignore[method-assign]
    before = system.failures
    with pytest.raises(OSError, match="lost"):
        system.run(before)
    with pytest.raises(OSError, match="failed meanwhile"):
        system.run(before)
    system.run(system.failures)
    system.close()


def test_work_done_together_does_what_it_would_do_alone(disk: Disk) -> None:
    async def work(here: Disk) -> bytes:
        files = [Write(f"f/{number}", 0, [b"%d" % number], create=True) for number in range(limits.SYNCFS_FROM_FILES)]
        assert not any(await here.commit(files, sync=True))
        await here.evict("f/1")
        await here.rename("f/1", "f/one")
        await here.truncate("f/2", 0)
        await here.remove("f/3")
        await here.sync_folder("f")
        assert await here.list("f") == ["0", "2", "one"]
        return await here.read("f/one", 0, 10)

    async def scenario() -> None:
        assert await disk.together(work) == b"1"
        assert await disk.size("f/2") == 0
        assert disk.read_cached("f/0", 0, 10) == b"0"
        with pytest.raises(FileNotFoundError):
            await disk.together(lambda here: here.read("nowhere", 0, 1))

    asyncio.run(scenario())


def test_work_done_together_is_one_trip_and_may_wait_for_the_disk_only(file_disk: FileDisk) -> None:
    threads: dict[str, None] = {}

    async def work(here: Disk) -> None:
        for number in range(20):
            await here.commit([Write(str(number), 0, [b"x"], create=True)], sync=False)
            threads[threading.current_thread().name] = None

    async def waits(here: Disk) -> None:
        await asyncio.sleep(0)

    async def scenario() -> None:
        await file_disk.together(work)
        assert len(threads) == 1
        assert threading.current_thread().name not in threads
        with pytest.raises(RuntimeError, match="waited for something else"):
            await file_disk.together(waits)

    asyncio.run(scenario())


def test_syncs_of_one_folder_are_shared_until_they_begin(
    file_disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow(path: str) -> None:
        synced.append(path)
        begun.set()
        assert go_on.wait(10)

    monkeypatch.setattr("bascule.log.disk._sync_folder", slow)

    async def scenario() -> None:
        first = asyncio.ensure_future(file_disk.sync_folder("f"))
        await asyncio.to_thread(begun.wait)
        later = [asyncio.ensure_future(file_disk.sync_folder("f")) for _ in range(100)]
        others = [asyncio.ensure_future(file_disk.sync_folder("g")) for _ in range(100)]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, *later, *others)
        assert synced.count(str(tmp_path / "f")) >= 2, "what came after its begin is not covered by the first"
        assert len(synced) < 50

    asyncio.run(scenario())
