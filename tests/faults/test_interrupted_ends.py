"""What is interrupted leaves a valid log, with the end of it known: starts, stops, truncations and
deletions, each with every call to the disk as the last one before the process is killed or the power is lost."""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable

import pytest

from bascule.log.promised import PromisedEnds
from bascule.log.tail import Tail
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, nothing_is_fatal, stop_ends
from bascule.testing.loop import run
from tests.harness.ended_logs import COUNT, NOT_SUSPECT, body, filled, numbered, on_record, opened, segments, stopped

Act = Callable[[MemoryDisk], Awaitable[None]]
Prepare = Callable[[], Awaitable[tuple[MemoryDisk, Act]]]


def every_last_call(prepare: Prepare, check: Callable[[MemoryDisk], Awaitable[None]]) -> int:
    """From each call on that the act makes all fail, as for a process that is gone; then it is, or power is lost."""

    async def scenario(step: int, seed: int | None, power: bool) -> bool:
        disk, act = await prepare()
        disk.fail_at(disk.steps + step, errno.EIO, times=10_000)
        calls = disk.steps
        try:
            await act(disk)
        except Exception:
            pass
        over = disk.steps - calls < step
        await asyncio.sleep(0)
        disk.heal()
        if power:
            disk.crash(None if seed is None else random.Random(seed))
        else:
            disk.kill(random.Random(seed))
        await check(disk)
        return over

    step = 1
    while not all(run(scenario(step, *how)) for how in ((None, True), (1, True), (2, True), (1, False))):
        step += 1
    return step


async def is_whole(disk: MemoryDisk) -> None:
    _, bench = await opened(disk, replicated=True)
    assert bench.log.tail in NOT_SUSPECT
    assert await bench.read_all() == numbered(*range(COUNT))


def test_a_stop_that_is_interrupted_anywhere_leaves_a_valid_log() -> None:
    async def prepare() -> tuple[MemoryDisk, Act]:
        disk, ends, bench = await filled(replicated=True)
        return disk, lambda _: stop_ends(ends, bench)

    assert every_last_call(prepare, is_whole) > 5


def test_a_start_that_is_interrupted_anywhere_leaves_a_valid_log() -> None:
    async def prepare() -> tuple[MemoryDisk, Act]:
        disk = await stopped(True, replicated=True)

        async def act(disk: MemoryDisk) -> None:
            await opened(disk, replicated=True)

        return disk, act

    assert every_last_call(prepare, is_whole) > 10


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
@pytest.mark.parametrize("replicated", [False, True], ids=["alone", "replicated"])
def test_a_start_on_damage_that_is_interrupted_anywhere_does_not_forget_it(clean: bool, replicated: bool) -> None:
    async def prepare() -> tuple[MemoryDisk, Act]:
        disk = await stopped(clean, replicated)
        path = segments(disk)[-1]
        disk.put(path, disk.content(path)[:-3])

        async def act(disk: MemoryDisk) -> None:
            await opened(disk, replicated)

        return disk, act

    async def check(disk: MemoryDisk) -> None:
        _, bench = await opened(disk, replicated)
        if replicated:
            assert (bench.log.tail, bench.log.end) == (Tail.SHORT, COUNT - 1)
        else:
            assert bench.log.end == COUNT
        assert await bench.read_all() == numbered(*range(COUNT - 1))

    assert every_last_call(prepare, check) > 10


def test_a_start_on_a_torn_tail_that_is_interrupted_anywhere_stays_suspect() -> None:
    async def prepare() -> tuple[MemoryDisk, Act]:
        disk = await stopped(False, replicated=True)
        disk.crash()
        path = segments(disk)[-1]
        disk.put(path, disk.content(path) + b"\0\0\0\1 the rest")

        async def act(disk: MemoryDisk) -> None:
            await opened(disk, replicated=True)

        return disk, act

    async def check(disk: MemoryDisk) -> None:
        assert (await opened(disk, replicated=True))[1].log.tail is Tail.SUSPECT

    assert every_last_call(prepare, check) > 10


@pytest.mark.parametrize("end", range(COUNT))
def test_a_truncation_that_is_interrupted_anywhere_is_not_damage(end: int) -> None:
    async def prepare() -> tuple[MemoryDisk, Act]:
        disk, _, bench = await filled(replicated=True)
        bench.log.segments.visible_end = 0
        return disk, lambda _: bench.log.truncate(end)

    async def check(disk: MemoryDisk) -> None:
        _, bench = await opened(disk, replicated=True)
        assert bench.log.tail in NOT_SUSPECT
        assert not bench.log.damaged
        assert end <= bench.log.end <= COUNT
        assert await bench.read_all() == numbered(*range(bench.log.end))

    assert every_last_call(prepare, check) > 3


@pytest.mark.parametrize("roll", [False, True], ids=["inside a segment", "at its beginning"])
def test_a_log_that_is_truncated_in_a_hole_ends_before_it(roll: bool) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        _, bench = await opened(disk, replicated=True)
        for number in range(5 if roll else 2):
            await bench.store([body(number)])
        left = bench.log.end
        await bench.store([b"behind a hole"], offset=20)
        assert len(bench.log.segments) == (2 if roll else 1)
        bench.log.segments.visible_end = 0
        await on_record()
        await bench.log.truncate(10)
        assert bench.log.end == left
        for _ in range(2):
            disk.crash()
            _, bench = await opened(disk, replicated=True)
            assert (bench.log.tail, bench.log.end) == (Tail.LIKELY, left)
            assert not bench.log.damaged
        await bench.store([b"and on"])
        assert await bench.read_all() == [*numbered(*range(left)), (left, b"and on")]

    run(scenario())


def test_a_log_that_is_truncated_right_behind_a_damaged_record_ends_before_that() -> None:
    """What the damage held cannot be told any more when nothing stands behind it: it comes again from the leader."""

    async def scenario() -> None:
        disk = MemoryDisk()
        _, bench = await opened(disk, replicated=True)
        for number in range(3):
            await bench.store([body(number)])
        (path,) = segments(disk)
        size = len(disk.content(path)) // 3
        disk.flip(path, size + 30, 1)
        disk.kill(random.Random(1))
        _, bench = await opened(disk, replicated=True)
        assert bench.log.damaged
        bench.log.segments.visible_end = 0
        await bench.log.truncate(2)
        assert (bench.log.end, list(bench.log.damaged)) == (1, [])
        disk.crash(None)
        _, bench = await opened(disk, replicated=True)
        assert bench.log.tail is Tail.SUSPECT, "the record had been promised: another replica has to be asked"
        assert bench.log.end == 1
        for number in (1, 2):
            await bench.store([body(number)])
        disk.kill(random.Random(1))
        _, bench = await opened(disk, replicated=True)
        assert await bench.read_all() == numbered(0, 1, 2)

    run(scenario())


def test_a_deletion_that_is_interrupted_anywhere_is_not_damage(caplog: pytest.LogCaptureFixture) -> None:
    async def prepare() -> tuple[MemoryDisk, Act]:
        disk, _, bench = await filled(replicated=True)
        return disk, lambda _: bench.log.delete()

    async def check(disk: MemoryDisk) -> None:
        caplog.clear()
        _, bench = await opened(disk, replicated=True)
        assert bench.log.tail in NOT_SUSPECT
        assert bench.log.end in (0, COUNT)
        assert not bench.log.damaged
        assert not caplog.text

    assert every_last_call(prepare, check) > 3


def test_a_rewrite_of_the_promised_ends_that_is_interrupted_anywhere_loses_nothing() -> None:
    async def prepare() -> tuple[MemoryDisk, Act]:
        disk, ends, _ = await filled(replicated=True)
        return disk, lambda _: ends.begin()

    async def check(disk: MemoryDisk) -> None:
        ends = PromisedEnds(disk, nothing_is_fatal)
        await ends.load(None)
        assert ends.was_complete
        assert ends.record(FOLDER).promised == COUNT
        await is_whole(disk)

    assert every_last_call(prepare, check) >= 4
