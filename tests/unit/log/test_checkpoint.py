"""Checkpoints: whole or not at all, one generation back if damaged."""

import asyncio
import logging
import random

import pytest

from bascule.log.checkpoint import read_checkpoint, write_checkpoint
from bascule.testing.disk import MemoryDisk

PATH = "streams/hw"


async def written(*states: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    for state in states:
        await write_checkpoint(disk, PATH, state)
    return disk


def test_what_was_written_last_is_read() -> None:
    async def scenario() -> None:
        disk = await written()
        assert await read_checkpoint(disk, PATH) is None
        for state in (b"one", b"", b"three" * 1000):
            await write_checkpoint(disk, PATH, state)
            assert await read_checkpoint(disk, PATH) == state
            disk.crash()
            assert await read_checkpoint(disk, PATH) == state

    asyncio.run(scenario())


def test_a_power_loss_at_any_step_leaves_the_old_or_the_new() -> None:
    async def scenario(step: int, seed: int) -> tuple[bytes | None, bool]:
        disk = await written(b"older", b"old")
        disk.fail_at(disk.steps + step)
        finished = True
        try:
            await write_checkpoint(disk, PATH, b"new")
        except OSError:
            finished = False
        disk.heal()
        disk.crash(random.Random(seed))
        return await read_checkpoint(disk, PATH), finished

    outcomes = [asyncio.run(scenario(step, seed)) for step in range(1, 12) for seed in range(20)]
    assert {state for state, _ in outcomes} == {b"old", b"new"}
    assert all(state == b"new" for state, finished in outcomes if finished)
    assert sum(finished for _, finished in outcomes) in range(20, 200)


@pytest.mark.parametrize("keep_previous", [True, False])
def test_a_file_torn_at_any_byte_or_with_any_bit_flipped_falls_back(
    keep_previous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        disk = await written(b"previous", b"present")
        good = disk.content(PATH)
        if not keep_previous:
            await disk.remove(PATH + ".previous")
        expected = b"previous" if keep_previous else None
        damaged = [good[:length] for length in range(len(good))]
        damaged += [good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :] for at in range(len(good))]
        damaged += [bytes(len(good)), good + b"x"]
        for content in damaged:
            disk.put(PATH, content)
            caplog.clear()
            assert await read_checkpoint(disk, PATH) == expected
            assert "torn or damaged" in caplog.text

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())


def test_a_damaged_file_never_takes_the_place_of_the_good_one_before_it() -> None:
    async def scenario() -> None:
        disk = await written(b"good", b"present")
        disk.put(PATH, b"damaged")
        await write_checkpoint(disk, PATH, b"new")
        assert await read_checkpoint(disk, PATH) == b"new"
        assert disk.content(PATH + ".damaged") == b"damaged"
        disk.put(PATH, b"damaged again")
        assert await read_checkpoint(disk, PATH) == b"good"

    asyncio.run(scenario())


def test_a_failed_write_changes_nothing_and_the_next_one_works() -> None:
    async def scenario() -> None:
        disk = await written(b"old")
        disk.capacity_bytes = len(disk.content(PATH)) + 2
        with pytest.raises(OSError, match="No space"):
            await write_checkpoint(disk, PATH, b"new")
        assert await read_checkpoint(disk, PATH) == b"old"
        disk.capacity_bytes = None
        await write_checkpoint(disk, PATH, b"new")
        assert await read_checkpoint(disk, PATH) == b"new"

    asyncio.run(scenario())
