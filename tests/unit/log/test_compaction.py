"""Of each key only the newest record stays, at its offset, whatever happens in the middle of a pass."""

import asyncio
import random

import pytest

from bascule import limits
from bascule.errors import LogError
from bascule.log.compaction import Compacted, Progress
from bascule.log.manifest import LASTING_SUFFIX, MANIFEST_SUFFIX
from bascule.log.sync import SyncMode
from bascule.log.tail import Tail
from bascule.testing.disk import MemoryDisk
from bascule.testing.keyed import Keyed, encode_keyed, problems, stored_in
from bascule.testing.logs import open_bench, start_ends
from bascule.testing.loop import run
from tests.harness.compacted import KEYS, SEGMENT, SMALL, check, files, filled, order, put, some, stored


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("most", [1, 400, 1 << 30])
def test_only_the_newest_record_of_each_key_stays_also_after_a_start(replicated: bool, most: int) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        messages = [*some(30), Keyed(b"", b"no key"), *some(30, 30)]
        bench = await filled(disk, messages, replicated=replicated)
        written = await stored(bench)
        assert len(written) == 61
        active = bench.log.segments[-1].base
        before = len(bench.log.segments)
        done = await bench.log.compact(order(bench, most=most))
        found = await check(bench, written)
        assert done.ended
        assert done.records == 61 - len(found)
        below = [each for each in found if each.offset < active]
        newest = {each.message.key: each for each in written}
        assert below == [each for each in written if each.offset < active and newest[each.message.key] == each]
        assert len(bench.log.segments) <= before
        if most > 1000:
            assert len(bench.log.segments) <= 3
        await bench.log.flushed()
        assert not files(disk, MANIFEST_SUFFIX) + files(disk, ".tmp")
        again = await bench.log.compact(order(bench, most=most))
        assert again.records == 0
        await bench.close()
        for without in ("", ".index"):
            for path in files(disk, without) if without else []:
                await disk.remove(path)
            bench = await open_bench(disk, SEGMENT, replicated=replicated)
            assert await check(bench, written) == found
            await bench.close()
        bench = await open_bench(disk, SEGMENT, replicated=replicated)
        await put(bench, some(30, 61))
        written += (await stored(bench))[len(found) :]
        await bench.log.compact(order(bench, most=most))
        await check(bench, written)

    run(main())


def test_what_is_bounded_stays() -> None:
    """At or above the bound, younger than the minimum lag, above the high watermark, and the newest file."""

    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, some(40, keys=2))
        written = await stored(bench)
        bases = [each.base for each in bench.log.segments]
        await bench.log.compact(order(bench, bound=bases[2] - 1))
        assert [each.offset for each in await stored(bench) if each.offset >= bases[1]] == list(range(bases[1], 40))
        assert bench.log.segments[0].records == 0
        until = written[bases[4] - 1].timestamp
        await bench.log.compact(order(bench, until=until - 1))
        assert [each.offset for each in await stored(bench)] == list(range(bases[3], 40))
        await bench.log.compact(order(bench, until=until))
        assert [each.offset for each in await stored(bench)] == list(range(bases[4], 40))
        await bench.log.compact(order(bench))
        found = await check(bench, written)
        assert [each.offset for each in found] == list(range(bases[-1], 40))

    run(main())


def test_a_tombstone_goes_after_everything_that_it_deletes() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        messages = [Keyed(b"a", b"1"), *some(8), Keyed(b"a", b"2"), *some(8), Keyed(b"a", b"", True), *some(20)]
        bench = await filled(disk, messages)
        written = await stored(bench)
        at = written[18].timestamp
        await bench.log.compact(order(bench, tombstones_until=at, now=5))
        found = await check(bench, written)
        assert [each.offset for each in found if each.message.key == b"a"] == [18], "others may still read the others"
        assert (progress := bench.log.compaction.progress) is not None
        assert progress.alone_at == 5
        assert progress.alone_until >= at
        await bench.log.compact(order(bench, tombstones_until=at, now=6, notes_tombstones=False))
        assert [each.offset for each in await stored(bench) if each.message.key == b"a"] == [18], "it is not in the map"
        assert bench.log.compaction.progress == progress
        await bench.log.compact(order(bench, tombstones_until=at - 1, now=7, from_start=True))
        assert [each.offset for each in await stored(bench) if each.message.key == b"a"] == [18], "it is young"
        assert bench.log.compaction.progress == progress._replace(alone_at=7)
        await bench.log.compact(order(bench, tombstones_until=at, from_start=True))
        found = await check(bench, written, at)
        assert not [each for each in found if each.message.key == b"a"]
        assert bench.log.compaction.progress == Progress(progress.clean_end, cleared_end=progress.cleared_end)

    run(main())


def test_whoever_has_read_what_a_tombstone_deletes_reads_the_tombstone_too() -> None:
    """Also if it is so old, when it is compacted for the first time, that it might go."""

    async def main() -> None:
        messages = [Keyed(b"a", b"1"), *some(8), Keyed(b"a", b"", True), *some(20)]
        bench = await filled(MemoryDisk(), messages)
        reader = bench.log.reader(0)
        read = stored_in(await reader.read(1) or b"")
        await bench.log.compact(order(bench, tombstones_until=1 << 60, from_start=True))
        while records := await reader.read():
            read += stored_in(records)
        assert [each.offset for each in read if each.message.key == b"a"] == [0, 9]

    run(main())


def test_a_tombstone_stays_if_others_begin_to_read_the_log_during_the_pass() -> None:
    async def main() -> None:
        messages = [Keyed(b"a", b"1"), *some(8), Keyed(b"a", b"", True), *some(20)]
        bench = await filled(MemoryDisk(), messages)
        await bench.log.compact(order(bench))
        alone = True
        under_way = asyncio.create_task(
            bench.log.compact(
                order(bench, tombstones_until=1 << 60, from_start=True)._replace(tombstones_go=lambda: alone)
            )
        )
        await asyncio.sleep(0)
        alone = False
        assert (await under_way).tombstones == 0
        assert [each.offset for each in await stored(bench) if each.message.key == b"a"] == [9]

    run(main())


def test_more_keys_than_fit_take_more_passes() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, some(120, keys=40))
        written = await stored(bench)
        passes = 0
        while True:
            done = await bench.log.compact(order(bench, map_bytes=SMALL))
            assert problems(written, await stored(bench)) == []
            passes += 1
            assert done.keys <= 6
            assert passes <= 120, "each pass gets further"
            if done.ended:
                break
        assert passes >= 120 // 6 - 2
        found = await check(bench, written)
        active = bench.log.segments[-1].base
        newest = {each.message.key: each.offset for each in written if each.offset < active}
        assert len([each for each in found if each.offset < active]) <= len(newest)

    run(main())


@pytest.mark.parametrize("replicated", [False, True])
def test_a_crash_at_any_step_leaves_the_old_files_or_the_new_one(replicated: bool) -> None:
    async def main() -> None:
        outcomes: dict[int, int] = {}
        for step in range(1, 400):
            done = False
            for seed in range(2):
                chance = random.Random(step * 10 + seed)
                disk = MemoryDisk()
                ends = await start_ends(disk)
                bench = await filled(disk, some(28, keys=11), replicated=replicated, ends=ends)
                written = await stored(bench)
                await bench.log.compact(order(bench, bound=15, most=300))
                last = disk.steps + step
                disk.fail_at(last, times=1000)
                try:
                    await bench.log.compact(order(bench, most=300))
                except LogError:
                    pass
                done = disk.steps < last
                disk.heal()
                if seed % 2:
                    disk.kill(chance)
                else:
                    disk.crash(chance if seed else None)
                ends = await start_ends(disk)
                bench = await open_bench(disk, SEGMENT, replicated=replicated, ends=ends)
                found = await check(bench, written)
                outcomes[len(found)] = outcomes.get(len(found), 0) + 1
                assert bench.log.tail in (Tail.SURE, Tail.LIKELY)
                assert not files(disk, MANIFEST_SUFFIX) + files(disk, ".tmp")
                assert not [path for path in disk.paths() if path.startswith("quarantine")]
                await put(bench, some(9, 28, keys=11))
                written += (await stored(bench))[len(found) :]
                await bench.log.compact(order(bench))
                await check(bench, written)
                assert len(files(disk, LASTING_SUFFIX)) == sum(each.holes > 0 for each in bench.log.segments)
            if done:
                break
        assert len(outcomes) >= 3, outcomes
        assert min(outcomes.values()) >= 4, outcomes

    run(main())


@pytest.mark.parametrize("most", [1, 300])
def test_a_deleted_key_does_not_return_whatever_step_a_power_loss_hits(most: int) -> None:
    """In the pass that removes what is deleted, between the two, or in the one that removes the tombstones."""

    async def main() -> None:
        deleted = [Keyed(b"k%d" % each, tombstone=True) for each in range(0, 11, 2)]
        outcomes: set[int] = set()
        for step in range(1, 800):
            chance, disk = random.Random(step), MemoryDisk()
            ends = await start_ends(disk)
            bench = await filled(disk, [*some(24, keys=11), *deleted, Keyed(b"last", b"1")], ends=ends)
            written = await stored(bench)
            last = disk.steps + step
            disk.fail_at(last, times=1000)
            try:
                await bench.log.compact(order(bench, most=most))
                await bench.log.compact(order(bench, most=most, tombstones_until=1 << 60, from_start=True))
            except LogError:
                pass
            done = disk.steps < last
            disk.heal()
            disk.crash(chance)
            bench = await open_bench(disk, SEGMENT, ends=await start_ends(disk))
            outcomes.add(len(await check(bench, written, 1 << 60)))
            for _ in range(2):
                await bench.log.compact(order(bench, tombstones_until=1 << 60, from_start=True))
                await check(bench, written, 1 << 60)
            if done:
                break
        assert len(outcomes) >= 4, outcomes

    run(main())


def alike(key: bytes, count: int) -> list[Keyed]:
    return [Keyed(key, b"%04d" % number) for number in range(count)]


def test_a_power_loss_between_two_copies_of_equal_form_loses_no_newest_record() -> None:
    """Records of a stream are often of one length: then the copy of a pass has as many, at the same places, as the file
    that it replaces."""

    async def main() -> None:
        interrupted = 0
        for step in range(1, 200):
            chance = random.Random(step)
            disk = MemoryDisk()
            ends = await start_ends(disk)
            bench = await filled(disk, alike(b"a", 24) + alike(b"b", 4), ends=ends)
            await bench.log.compact(order(bench))
            size = bench.log.segments[0].appended.size
            await put(bench, alike(b"a", 12) + alike(b"b", 4))
            written = await stored(bench)
            last = disk.steps + step
            disk.fail_at(last, times=1000)
            try:
                await bench.log.compact(order(bench))
            except LogError:
                pass
            done = disk.steps < last
            interrupted += bool(files(disk, MANIFEST_SUFFIX))
            disk.heal()
            disk.crash(chance)
            bench = await open_bench(disk, SEGMENT, ends=await start_ends(disk))
            await check(bench, written)
            if done:
                assert bench.log.segments[0].appended.size == size > 0
                break
        assert interrupted > 3

    run(main())


@pytest.mark.parametrize("times", [1, 3, 1000])
def test_the_disk_fails_at_any_step_and_the_log_goes_on(times: int) -> None:
    async def main() -> None:
        for step in range(1, 400):
            disk = MemoryDisk()
            bench = await filled(disk, some(28))
            written = await stored(bench)
            last = disk.steps + step
            disk.fail_at(last, times=times)
            try:
                await bench.log.compact(order(bench, most=400))
            except LogError:
                pass
            done = disk.steps < last
            disk.heal()
            await check(bench, written)
            await bench.log.compact(order(bench, most=400))
            found = await check(bench, written)
            await bench.close()
            bench = await open_bench(disk, SEGMENT)
            assert await check(bench, written) == found
            assert not files(disk, MANIFEST_SUFFIX) + files(disk, ".tmp")
            if done:
                break

    run(main())


def test_a_pass_that_is_cancelled_leaves_everything_as_it_was() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, some(40))
        written = await stored(bench)
        work = asyncio.get_running_loop().create_task(bench.log.compact(order(bench)))
        for _ in range(20):
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert await stored(bench) == written
        assert not files(disk, ".tmp")

    run(main())


def test_a_full_disk_stops_compaction_and_nothing_else() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, some(40))
        written = await stored(bench)
        disk.capacity_bytes = disk.used_bytes + limits.COMPACT_FREE_BYTES
        done = await bench.log.compact(order(bench))
        assert done == Compacted(keys=KEYS, ended=True)
        assert await stored(bench) == written
        await put(bench, some(1, 40))
        disk.capacity_bytes = None
        done = await bench.log.compact(order(bench))
        assert done.records > 0

    run(main())


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("harm", ["flipped", "cut", "gone", "foreign"])
def test_a_manifest_that_does_not_fit_makes_no_hole_legal(harm: str, replicated: bool) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, some(40, keys=15), replicated=replicated)
        await bench.log.compact(order(bench, most=1))
        found = await stored(bench)
        segment = next(
            each for each in bench.log.segments if each.records and each.records_end not in (None, each.appended.end)
        )
        await bench.close()
        path = segment.path.removesuffix(".log") + LASTING_SUFFIX
        if harm == "flipped":
            disk.flip(path, 12, 3)
        elif harm == "cut":
            await disk.truncate(path, 20)
        elif harm == "gone":
            await disk.remove(path)
        else:
            await disk.truncate(segment.path, segment.promised.size - 7)
        bench = await open_bench(disk, SEGMENT, replicated=replicated)
        left = await stored(bench) if not replicated or harm != "foreign" else found[:-1]
        assert not [each for each in left if each not in found]
        if harm != "foreign":
            assert left == found, "the records are all there, and the hole at the end of the segment is not legal"
        assert replicated == bool(bench.log.damaged)
        assert not [each for each in bench.log.segments if each.base == segment.base and each.holes]

    run(main())


def test_damage_in_a_compacted_segment_is_found_and_its_pass_ends_there() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, some(60), replicated=True)
        disk.flip(bench.log.segments[3].path, 40, 2)
        left = await stored(bench)
        done = await bench.log.compact(order(bench))
        assert done.ended
        assert [each for each in await stored(bench) if each.offset >= bench.log.segments[3].base] == [
            each for each in left if each.offset >= bench.log.segments[3].base
        ]

    run(main())


def test_the_front_expires_with_its_manifests() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, some(60))
        written = await stored(bench)
        await bench.log.compact(order(bench, most=1))
        bases = [each.base for each in bench.log.segments]
        start = next(each.base for each in bench.log.segments[1:] if each.base > 20)
        bench.log.raise_start(start)
        await bench.log.expire()
        assert bases.index(start) > 0
        assert len(files(disk, LASTING_SUFFIX)) == sum(each.holes > 0 for each in bench.log.segments)
        found = await stored(bench)
        assert all(each.offset >= start for each in found)
        await bench.close()
        bench = await open_bench(disk, SEGMENT)
        assert await stored(bench) == found
        assert problems([each for each in written if each.offset >= start], found) == []

    run(main())


def test_it_is_truncated_within_what_is_compacted_if_an_administrator_accepts_that() -> None:
    async def main() -> None:
        for end in range(1, 40, 3):
            disk = MemoryDisk()
            bench = await filled(disk, some(40))
            await bench.log.compact(order(bench, most=400))
            found = await stored(bench)
            await bench.log.truncate(end, exposed_too=True)
            left = [each for each in found if each.offset < end]
            assert await stored(bench) == left
            assert len(files(disk, LASTING_SUFFIX)) == sum(each.holes > 0 for each in bench.log.segments)
            await bench.close()
            bench = await open_bench(disk, SEGMENT)
            assert await stored(bench) == left
            await put(bench, some(3, 90))
            assert len(await stored(bench)) == len(left) + 3

    run(main())


def test_compacted_segments_are_merged_and_stay_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, some(60, keys=23))
        written = await stored(bench)
        await bench.log.compact(order(bench, most=1))
        found = await stored(bench)
        await bench.log.flushed()
        whole = [each for each in bench.log.segments if not each.empty][:-1]
        assert any(each.holes for each in whole[1:])
        assert await bench.log.merge(whole[0].base, whole[-1].appended.end) == len(whole)
        assert await check(bench, written) == found
        await bench.close()
        bench = await open_bench(disk, SEGMENT)
        assert await check(bench, written) == found

    run(main())


def test_small_segments_are_not_merged_under_a_pass() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, some(60))
        written = await stored(bench)
        log = bench.log
        merging = asyncio.create_task(log.merge(log.segments[0].base, log.segments[3].appended.end))
        await asyncio.sleep(0)
        under_way = asyncio.create_task(log.compact(order(bench)))
        merged: list[int] = []
        while not under_way.done():
            old = log.segments[:2]
            if len(old) == 2 and log.compaction.running and not log.segments.changing.locked():
                merged.append(await log.merge(old[0].base, old[-1].appended.end))
            await asyncio.sleep(5e-6)
        done = await under_way
        assert (await merging, sum(merged)) == (4, 0)
        assert len(merged) > 2
        assert done.ended
        found = await check(bench, written)
        assert done.records == len(written) - len(found) > len(found)
        assert await log.merge(log.segments[0].base, log.segments[-2].appended.end) in (0, len(log.segments) - 1)

    run(main())


@pytest.mark.parametrize("most", [1, 400, 1 << 30])
@pytest.mark.parametrize("turns", range(0, 60, 4))
def test_a_pass_goes_on_when_the_front_expires_meanwhile(turns: int, most: int) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        deleted = [Keyed(b"k%d" % each, tombstone=True) for each in range(3)]
        bench = await filled(disk, [*some(40), *deleted, *some(20, 40)])
        written = await stored(bench)
        log = bench.log
        start = log.segments[3].base
        under_way = asyncio.create_task(log.compact(order(bench, tombstones_until=1 << 62, most=most)))
        for _ in range(turns):
            await asyncio.sleep(5e-6)
        log.raise_start(start)
        await log.expire()
        done = await under_way
        assert done.ended
        assert done.records > 0
        assert not files(disk, ".tmp")
        found = await stored(bench)
        assert problems([each for each in written if each.offset >= start], found, 1 << 62) == []
        active = log.segments[-1].base
        newest = {each.message.key: each.offset for each in written}
        assert [each for each in found if each.offset < active and newest[each.message.key] != each.offset] == []

    run(main())


def test_a_pass_takes_as_long_as_its_bytes_and_not_as_its_segments() -> None:
    async def main() -> None:
        bench = await filled(MemoryDisk(), some(600, keys=500))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await bench.log.compact(order(bench, most=1 << 30))
        assert len(bench.log.segments) < 5
        assert loop.time() - began < 1.0

    run(main())


@pytest.mark.parametrize("ends", ["close", "power loss", "no index"])
def test_a_log_that_was_fed_from_a_compacted_one_counts_its_records(ends: str) -> None:
    """It has no manifests: nothing but the records themselves shows what is missing."""

    async def main() -> None:
        source = await filled(MemoryDisk(), some(60), replicated=True)
        await source.log.compact(order(source, most=1))
        found = await stored(source)
        disk = MemoryDisk()
        bench = await open_bench(disk, SEGMENT, replicated=True)
        for each in found:
            bench.log.append(*encode_keyed([each.message], each.offset, each.timestamp))
        await bench.log.flushed()
        assert len(found) < 40 < bench.log.end
        assert sum(each.records for each in bench.log.segments) == len(found)
        if ends == "power loss":
            disk.crash(random.Random(1))
        else:
            await bench.close()
            for path in files(disk, ".index") if ends == "no index" else []:
                await disk.remove(path)
        bench = await open_bench(disk, SEGMENT, replicated=True)
        assert len(bench.log.segments) > 1
        assert sum(each.records for each in bench.log.segments) == len(found)
        await bench.log.truncate(bench.log.end - 1)
        assert sum(each.records for each in bench.log.segments) == len(found) - 1

    run(main())


@pytest.mark.parametrize("keys", [KEYS, 1 << 20])
@pytest.mark.parametrize("most", [1, 400, 1 << 30])
def test_a_pass_does_not_go_on_with_keys_of_records_that_were_truncated(most: int, keys: int) -> None:
    async def main() -> None:
        whole = 0
        for turns in range(0, 80, 2):
            bench = await filled(
                MemoryDisk(), [*some(20, keys=keys), *some(40, 20, keys=max(keys, 40))], replicated=True
            )
            log = bench.log
            under_way = asyncio.create_task(log.compact(order(bench, most=most)))
            for _ in range(turns):
                await asyncio.sleep(5e-6)
            await log.truncate(24, exposed_too=True)
            if log.segments.is_compacted_below(24):
                under_way.cancel()
                await asyncio.gather(under_way, return_exceptions=True)
                continue  # its replica has it begin anew
            whole += 1
            written = await stored(bench)
            assert [each.offset for each in written] == list(range(24))
            await put(bench, [Keyed(written[number].message.key, b"x" * 40) for number in range(3)])
            await put(bench, [Keyed(b"other%d" % number, b"x" * 40) for number in range(8)])
            written = await stored(bench)
            await under_way
            assert problems(written, await stored(bench)) == []
            await log.compact(order(bench, most=most))
            active = log.segments[-1].base
            found = [each.offset for each in await check(bench, written) if each.offset < active]
            newest = {each.message.key: each.offset for each in written}
            assert found == [each for each in found if each in newest.values()], "it began with the first keys"
        assert whole > 5

    run(main())


@pytest.mark.parametrize("power", [False, True])
def test_a_log_that_begins_anew_has_all_its_records_or_none_whatever_step_a_crash_hits(power: bool) -> None:
    """Some were removed for what others of them say: a part of them is worth nothing."""

    async def main() -> None:
        outcomes: dict[int, int] = {}
        for step in range(1, 400):
            disk = MemoryDisk()
            ends = await start_ends(disk)
            bench = await filled(disk, some(28, keys=11), replicated=True, ends=ends)
            await bench.log.compact(order(bench, bound=15, most=300))
            written = await stored(bench)
            last = disk.steps + step
            disk.fail_at(last, times=1000)
            try:
                await bench.log.begin_anew()
            except OSError:
                assert bench.log.begins_anew
            done = disk.steps < last
            disk.heal()
            disk.crash(random.Random(step)) if power else disk.kill(random.Random(step))
            bench = await open_bench(disk, SEGMENT, replicated=True, ends=await start_ends(disk))
            found = await stored(bench)
            assert found in (written, [])
            outcomes[len(found)] = outcomes.get(len(found), 0) + 1
            if not found:
                assert (bench.log.start, bench.log.end, files(disk, "anew")) == (0, 0, [])
                assert [path for path in disk.paths() if path.startswith("quarantine")]
                await put(bench, some(9))
                assert len(await stored(bench)) == 9
            if done:
                break
        assert min(outcomes.values()) >= 2
        assert len(outcomes) == 2

    run(main())


def test_a_log_that_could_not_begin_anew_tries_it_again() -> None:
    async def main() -> None:
        for step in range(1, 60):
            disk = MemoryDisk()
            bench = await filled(disk, some(28, keys=11), replicated=True)
            await bench.log.compact(order(bench, bound=15, most=300))
            disk.fail_at(disk.steps + step, times=1)
            try:
                await bench.log.begin_anew()
            except OSError:
                await bench.log.begin_anew()
            assert not bench.log.begins_anew
            assert (bench.log.end, await stored(bench), files(disk, "anew")) == (0, [], [])
            await put(bench, some(9))
            assert len(await stored(bench)) == 9
            await bench.close()
            bench = await open_bench(disk, SEGMENT, replicated=True)
            assert len(await stored(bench)) == 9

    run(main())


@pytest.mark.parametrize("mode", [SyncMode("interval", 10_000_000_000), SyncMode("os")])
def test_a_power_loss_does_not_take_what_superseded_an_older_record_under_relaxed_sync(mode: SyncMode) -> None:
    async def main() -> None:
        for seed in range(5):
            disk = MemoryDisk()
            bench = await filled(disk, [Keyed(b"key", b"old"), *some(12)], mode=mode)
            await asyncio.sleep(25.0)
            assert all(each.synced.size == each.appended.size for each in bench.log.segments)
            await put(bench, [Keyed(b"key", b"newer"), *some(seed)])
            done = await bench.log.compact(order(bench))
            assert done.records > 0
            disk.crash(random.Random(seed))
            bench = await open_bench(disk, SEGMENT, mode=mode)
            assert [each.message.value for each in await stored(bench) if each.message.key == b"key"] == [b"newer"]

    run(main())


def test_under_relaxed_sync_a_key_survives_a_disk_that_fails_at_any_step_and_a_power_loss() -> None:
    async def main() -> None:
        failed = 0
        for step in range(1, 400):
            disk = MemoryDisk()
            mode = SyncMode("interval", 10_000_000_000)
            bench = await filled(disk, [Keyed(b"key", b"old"), *some(12)], mode=mode)
            await asyncio.sleep(25.0)
            await put(bench, [Keyed(b"key", b"newer")])
            written = await stored(bench)
            last = disk.steps + step
            disk.fail_at(last, times=3)
            try:
                await bench.log.compact(order(bench))
            except LogError:
                pass
            done = disk.steps < last
            disk.heal()
            assert problems(written, await stored(bench)) == []
            if bench.log.failed is not None:
                failed += 1  # nothing is known about the pages that the sync covered
                await bench.log.reopen()
                await bench.log.compact(order(bench))
            disk.crash(random.Random(step))
            bench = await open_bench(disk, SEGMENT, mode=mode)
            assert b"key" in {each.message.key for each in await stored(bench)}
            if done:
                break
        assert failed

    run(main())


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("most", [1, 400])
def test_it_is_truncated_in_the_hole_at_the_end_of_a_segment(most: int, replicated: bool) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        first = [Keyed(b"", b"0"), Keyed(b"", b"1"), Keyed(b"a", b"1"), Keyed(b"b", b"1")]
        bench = await filled(disk, [*first, *alike(b"x", 6), *first[2:], *alike(b"y", 6)], replicated=replicated)
        await bench.log.compact(order(bench, most=most))
        segment = bench.log.segments[0]
        assert segment.records_end == 2
        assert segment.appended.end > 3
        await bench.log.truncate(3, exposed_too=True)
        assert (bench.log.end, files(disk, LASTING_SUFFIX)) == (2, [])
        await put(bench, some(3))
        segments = bench.log.segments
        assert [each.appended.end for each in segments[:-1]] == [each.base for each in segments[1:]]
        written = await stored(bench)
        assert len(written) == 5
        for _ in range(2):
            await bench.close()
            bench = await open_bench(disk, SEGMENT, replicated=replicated)
            assert await stored(bench) == written
            assert not bench.log.damaged

    run(main())


def test_files_without_a_record_join_others_also_when_nothing_else_goes() -> None:
    async def main() -> None:
        bench = await filled(MemoryDisk(), [*some(60), Keyed(b"", b"no key"), *some(30, 60)])
        written = await stored(bench)
        await bench.log.compact(order(bench)._replace(joins=lambda *_: False))
        assert sum(each.empty for each in bench.log.segments) > 5
        done = await bench.log.compact(order(bench))
        assert done.records == 0
        assert not any(each.empty for each in bench.log.segments)
        await check(bench, written)

    run(main())
