"""The end of a log is known: damage there after a clean stop, or before what is on record as promised, is not taken for
a torn tail. Every byte is flipped, and the log truncated there."""

import asyncio
import errno
import random
from collections.abc import Callable

import pytest

from bascule import limits
from bascule.log import cleanshutdown, promised
from bascule.log.promised import PromisedEnds
from bascule.log.tail import Tail
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, nothing_is_fatal, start_ends, stop_ends
from bascule.testing.loop import run
from bascule.testing.records import split
from tests.harness.ended_logs import COUNT, NOT_SUSPECT, body, filled, numbered, on_record, opened, segments, stopped

Change = Callable[[bytes], bytes]


def flips(data: bytes) -> list[bytes]:
    found = []
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        found.append(bytes(flipped))
    return found


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
def test_no_offset_is_given_again_whatever_bit_of_the_last_segment_flips(clean: bool) -> None:
    async def scenario() -> None:
        disk = await stopped(clean)
        path = segments(disk)[-1]
        whole = disk.content(path)
        first = COUNT - len(split(whole))
        starts = [sum(map(len, split(whole)[:number])) for number in range(len(split(whole)) + 1)]
        for at, damaged in enumerate(flips(whole)):
            lost = first + next(number for number, end in enumerate(starts[1:]) if at < end)
            harmed = disk.copy()
            harmed.put(path, damaged)
            _, bench = await opened(harmed)
            assert bench.log.tail is (Tail.SHORT if lost == COUNT - 1 else Tail.SURE)
            retained = numbered(*(number for number in range(COUNT) if number != lost))
            assert await bench.read_all() == retained
            assert bench.log.end == COUNT
            assert any(harmed.content(each) for each in harmed.paths() if each.startswith("quarantine/"))
            await bench.store([b"next"])
            assert await bench.read_all() == [*retained, (COUNT, b"next")]

    run(scenario())


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
@pytest.mark.parametrize("replicated", [False, True], ids=["alone", "replicated"])
def test_a_last_segment_truncated_at_any_byte_is_short_and_not_torn(clean: bool, replicated: bool) -> None:
    async def scenario() -> None:
        disk = await stopped(clean, replicated)
        path = segments(disk)[-1]
        whole = disk.content(path)
        first = COUNT - len(split(whole))
        ends = [sum(map(len, split(whole)[: number + 1])) for number in range(len(split(whole)))]
        for size in range(len(whole)):
            harmed = disk.copy()
            harmed.put(path, whole[:size])
            _, bench = await opened(harmed, replicated)
            left = first + sum(end <= size for end in ends)
            assert bench.log.tail is Tail.SHORT
            assert bench.log.end == (left if replicated else COUNT)
            assert await bench.read_all() == numbered(*range(left))
            if not replicated:
                await bench.store([b"next"])
                assert await bench.read_all() == [*numbered(*range(left)), (COUNT, b"next")]

    run(scenario())


@pytest.mark.parametrize("replicated", [False, True], ids=["alone", "replicated"])
def test_a_short_log_stays_short_through_crashes_until_it_has_its_records_again(replicated: bool) -> None:
    async def scenario() -> None:
        disk = await stopped(True, replicated=True)
        path = segments(disk)[-1]
        disk.put(path, disk.content(path)[:-3])
        for _ in range(3):
            _, bench = await opened(disk, replicated=True)
            assert (bench.log.tail, bench.log.end) == (Tail.SHORT, COUNT - 1)
            await on_record()
            disk.crash()
        _, bench = await opened(disk, replicated=True)
        if replicated:
            await bench.store([body(COUNT - 1)])
            bench.log.record.verify()
        else:
            bench.log.record.verify()  # a leader that has no more either
        assert bench.log.tail is Tail.SURE
        await on_record()
        for end, tail in ((disk.kill, Tail.SURE), (disk.crash, Tail.LIKELY)):
            end(random.Random(1))
            _, bench = await opened(disk, replicated=True)
            assert bench.log.tail is tail

    run(scenario())


def test_a_log_is_verified_once_what_it_caught_up_with_is_promised() -> None:
    async def scenario() -> None:
        disk = await stopped(True, replicated=True)
        path = segments(disk)[-1]
        disk.put(path, disk.content(path)[:-3])
        _, bench = await opened(disk, replicated=True)
        bench.append([b"again"])
        bench.log.record.verify()
        tails = [bench.log.tail]
        await bench.log.flushed()
        assert [*tails, bench.log.tail] == [Tail.SHORT, Tail.SURE]

    run(scenario())


def test_a_torn_tail_leaves_a_replica_suspect_until_it_is_verified() -> None:
    async def scenario() -> None:
        disk = await stopped(False, replicated=True)
        disk.crash()
        path = segments(disk)[-1]
        disk.put(path, disk.content(path) + b"\0\0\0\1 the rest of a write")
        for _ in range(3):
            _, bench = await opened(disk, replicated=True)
            assert (bench.log.tail, bench.log.end) == (Tail.SUSPECT, COUNT)
            disk.crash()
        ends, bench = await opened(disk, replicated=True)
        await stop_ends(ends, bench)  # in good order, but nobody has looked at the others
        ends, bench = await opened(disk, replicated=True)
        assert bench.log.tail is Tail.SUSPECT
        bench.log.record.verify()
        await stop_ends(ends, bench)
        assert (await opened(disk, replicated=True))[1].log.tail is Tail.SURE

    run(scenario())


def test_bytes_behind_the_end_of_a_clean_stop_change_nothing() -> None:
    async def scenario() -> None:
        disk = await stopped(True, replicated=True)
        path = segments(disk)[-1]
        disk.put(path, disk.content(path) + b"\0\0\0\1 something")
        _, bench = await opened(disk, replicated=True)
        assert bench.log.tail is Tail.SURE
        assert await bench.read_all() == numbered(*range(COUNT))

    run(scenario())


def test_starts_and_crashes_without_a_write_between_change_nothing() -> None:
    async def scenario() -> None:
        for clean in (True, False):
            disk = await stopped(clean)
            for _ in range(3):
                _, bench = await opened(disk)
                assert bench.log.tail in NOT_SUSPECT
                assert await bench.read_all() == numbered(*range(COUNT))
                disk.crash(random.Random(1))

    run(scenario())


def test_a_clean_end_that_only_the_clean_shutdown_knows_outlives_an_interrupted_start() -> None:
    async def scenario() -> None:
        disk = await stopped(True, replicated=True)
        await disk.remove(promised.FILE)
        path = segments(disk)[-1]
        disk.put(path, disk.content(path)[:-3])
        await start_ends(disk)
        disk.crash()
        _, bench = await opened(disk, replicated=True)
        assert (bench.log.tail, bench.log.end) == (Tail.SHORT, COUNT - 1)

    run(scenario())


# --- files that are missing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
def test_a_last_segment_that_is_gone_is_missed(clean: bool) -> None:
    async def scenario() -> None:
        disk = await stopped(clean)
        path = segments(disk)[-1]
        left = COUNT - len(split(disk.content(path)))
        await disk.remove(path)
        _, bench = await opened(disk)
        assert (bench.log.tail, bench.log.end) == (Tail.SHORT, COUNT)
        await bench.store([b"next"])
        assert await bench.read_all() == [*numbered(*range(left)), (COUNT, b"next")]

    run(scenario())


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
@pytest.mark.parametrize("replicated", [False, True], ids=["alone", "replicated"])
def test_a_folder_that_is_gone_is_missed(clean: bool, replicated: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = await stopped(clean, replicated)
        await disk.remove(FOLDER)
        _, bench = await opened(disk, replicated)
        assert bench.log.tail is Tail.SHORT
        assert bench.log.end == (0 if replicated else COUNT)
        if not replicated:
            await bench.store([b"next"])
            assert await bench.read_all() == [(COUNT, b"next")]
        _, bench = await opened(disk.copy(), replicated)

    run(scenario())
    assert "offsets 0 to 11" in caplog.text


@pytest.mark.parametrize("replicated", [False, True], ids=["alone", "replicated"])
def test_every_segment_that_is_gone_leaves_a_hole_that_is_said(
    replicated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        disk = await stopped(True, replicated)
        for path in segments(disk)[:-1]:
            for index_too in (False, True):
                harmed = disk.copy()
                gone = [int(part) for part in [path[-24:-4]]]
                count = len(split(disk.content(path)))
                await harmed.remove(path)
                if index_too:
                    await harmed.remove(path[:-4] + ".index")
                caplog.clear()
                _, bench = await opened(harmed, replicated)
                missing = range(gone[0], gone[0] + count)
                assert f"offsets {missing[0]} to {missing[-1]}" in caplog.text
                assert await bench.read_all() == numbered(*(each for each in range(COUNT) if each not in missing))
                assert bool(bench.log.damaged) == replicated
                assert bench.log.end == COUNT

    run(scenario())


def test_an_index_whose_segment_is_gone_is_evidence_and_put_on_record_before_it_is_removed() -> None:
    async def scenario() -> None:
        disk, _, bench = await filled(replicated=True)
        last = bench.log.segments[-1]
        await bench.log.appender.seal(last)
        bench.log.appender.put_back(last, last)
        await bench.log.flushed()
        index = last.index_path
        assert index in disk.paths()
        disk = disk.copy()
        await disk.remove(promised.FILE)  # nothing else knows
        await disk.remove(last.path)
        for _ in range(2):
            _, bench = await opened(disk, replicated=True)
            assert (bench.log.tail, bench.log.end) == (Tail.SHORT, last.base)
            assert index not in disk.paths()
            disk.crash()

    run(scenario())


def test_an_index_that_goes_on_where_its_segment_ends_is_evidence() -> None:
    async def scenario() -> None:
        disk, _, bench = await filled()
        last = bench.log.segments[-1]
        await bench.log.appender.seal(last)
        bench.log.appender.put_back(last, last)
        await bench.log.flushed()
        disk = disk.copy()
        await disk.remove(promised.FILE)
        disk.put(last.path, b"".join(split(disk.content(last.path))[:-1]))
        _, bench = await opened(disk)
        assert (bench.log.tail, bench.log.end) == (Tail.SHORT, COUNT)
        assert await bench.read_all() == numbered(*range(COUNT - 1))

    run(scenario())


# --- the file of promised ends ---------------------------------------------------------------------------------------


def test_whatever_happens_to_the_promised_ends_the_log_opens_with_everything() -> None:
    async def scenario() -> None:
        disk = await stopped(False, replicated=True)
        whole = disk.content(promised.FILE)
        tails = []
        for content in [None, *flips(whole), *(whole[:size] for size in range(len(whole)))]:
            harmed = disk.copy()
            await harmed.remove(promised.FILE)
            if content is not None:
                harmed.put(promised.FILE, content)
            _, bench = await opened(harmed, replicated=True)
            assert await bench.read_all() == numbered(*range(COUNT))
            tails.append(bench.log.tail)
            harmed.kill(random.Random(1))
            _, again = await opened(harmed, replicated=True)
            assert again.log.tail is bench.log.tail
        # Cut before the log's name was on record the file says nothing about it; but the page cache does.
        assert dict.fromkeys(tails) == dict.fromkeys([Tail.SUSPECT, Tail.SURE])

    run(scenario())


def test_whatever_happens_to_the_clean_shutdown_the_log_opens_with_everything() -> None:
    async def scenario() -> None:
        disk = await stopped(True)
        whole = disk.content(cleanshutdown.FILE)
        path = segments(disk)[-1]
        short = disk.content(path)[:-1]
        for content in [*flips(whole), *(whole[:size] for size in range(len(whole)))]:
            harmed = disk.copy()
            harmed.put(cleanshutdown.FILE, content)
            _, bench = await opened(harmed)
            assert await bench.read_all() == numbered(*range(COUNT))
            assert bench.log.tail is Tail.SURE
            harmed = disk.copy()  # and the log is damaged too: the promised ends know as well
            harmed.put(cleanshutdown.FILE, content)
            harmed.put(path, short)
            assert (await opened(harmed))[1].log.end == COUNT

    run(scenario())


def test_the_promised_ends_are_on_record_within_200_ms_and_cost_nothing_while_nothing_is_promised() -> None:
    async def scenario() -> None:
        disk, _, bench = await filled()
        for number in range(20):
            await bench.store([b"more"])
            await asyncio.sleep(0.2)
            reader = PromisedEnds(disk.copy(), nothing_is_fatal)
            await reader.load(None)
            assert reader.record(FOLDER).promised == COUNT + number + 1
        steps = disk.steps
        await asyncio.sleep(60)
        assert disk.steps == steps

    run(scenario())


def test_the_file_of_promised_ends_is_bounded() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        ends = await start_ends(disk)
        records = [ends.record(f"streams/s@1/{number}") for number in range(3000)]
        sizes = []
        for end in range(1, 40):
            for record in records:
                await record.found(end, False) if record is records[0] else None
                record.promised = end
                ends.due(record)
            await ends.store()
            sizes.append(len(disk.content(promised.FILE)))
        assert max(sizes) > min(sizes[1:])
        largest = limits.PROMISED_ENDS_GROWTH * 3000 * 60 + limits.PROMISED_ENDS_BYTES
        assert max(sizes) < largest
        again = PromisedEnds(disk.copy(), nothing_is_fatal)
        await again.load(None)
        assert [again.record(record.folder).promised for record in records] == [39] * 3000

    run(scenario())


def test_promised_ends_that_cannot_be_written_are_written_when_they_can_be(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk, _, bench = await filled()
        disk.injected_error = lambda path: errno.EIO if path.startswith(promised.FILE) else None
        for _ in range(3):
            await bench.store([b"more"])
            await asyncio.sleep(5)
        assert bench.log.failed is None
        disk.heal()
        await asyncio.sleep(5)
        reader = PromisedEnds(disk.copy(), nothing_is_fatal)
        await reader.load(None)
        assert reader.record(FOLDER).promised == COUNT + 3

    run(scenario())
    assert caplog.text.count(f"{promised.FILE}: cannot be written") == 1
