"""The metadata's command log: nothing confirmed is lost, and nothing missing goes unnoticed."""

import asyncio
import logging
import random

import pytest

from bascule.errors import CorruptError, LogError
from bascule.log.commandlog import Command, CommandLog
from bascule.testing.disk import MemoryDisk

FOLDER = "metadata"


def commands(first: int, last: int) -> list[Command]:
    return [(index, b"command %d" % index) for index in range(first, last + 1)]


async def opened(disk: MemoryDisk) -> tuple[CommandLog, tuple[int, bytes | None, list[Command]]]:
    log = CommandLog(disk, FOLDER)
    return log, await log.open()


async def filled(last: int, snapshots: tuple[int, ...] = ()) -> tuple[MemoryDisk, CommandLog]:
    disk = MemoryDisk()
    log, _ = await opened(disk)
    for index, command in commands(1, last):
        await log.append(index, command)
        if index in snapshots:
            await log.snapshot(index, b"state %d" % index)
    return disk, log


def test_commands_come_back_in_order_after_a_power_loss() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        log, content = await opened(disk)
        assert content == (0, None, [])
        assert disk.paths() == []
        for last in range(1, 6):
            await log.append(*commands(last, last)[0])
            disk.crash()
            log, content = await opened(disk)
            assert content == (0, None, commands(1, last))

    asyncio.run(scenario())


def test_a_snapshot_replaces_the_commands_it_covers() -> None:
    async def scenario() -> None:
        disk, log = await filled(10, (4, 7))
        _, content = await opened(disk)
        assert content == (7, b"state 7", commands(8, 10))
        await log.snapshot(10, b"state 10")
        _, content = await opened(disk)
        assert content == (10, b"state 10", [])
        names = await disk.list(FOLDER)
        assert [name for name in names if "snapshot" in name] == [f"{7:020}.snapshot", f"{10:020}.snapshot"]
        assert [name for name in names if "commands" in name] == [f"{8:020}.commands", f"{11:020}.commands"]
        log, _ = await opened(disk)
        await log.append(*commands(11, 11)[0])
        _, content = await opened(disk)
        assert content == (10, b"state 10", commands(11, 11))

    asyncio.run(scenario())


def test_a_damaged_snapshot_falls_back_to_the_one_before_and_every_command_since(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        for snapshots in ((), (3,), (3, 5), (2, 3, 5)):
            disk, _ = await filled(12, (*snapshots, 9))
            disk.put(f"{FOLDER}/{9:020}.snapshot", b"torn")
            _, (index, state, since) = await opened(disk)
            expected = snapshots[-1] if snapshots else 0
            assert index == expected
            assert state == (b"state %d" % expected if expected else None)
            assert since == commands(expected + 1, 12)

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "trying the snapshot before it" in caplog.text


def test_a_tail_torn_at_any_byte_is_set_aside_and_writing_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk, _ = await filled(3)
        path = f"{FOLDER}/{1:020}.commands"
        whole = disk.content(path)
        size = len(whole) // 3
        for length in range(2 * size, 3 * size):
            torn = MemoryDisk()
            torn.put(path, whole[:length])
            log, content = await opened(torn)
            assert content == (0, None, commands(1, 2))
            retained = [torn.content(name) for name in torn.paths() if "cut-at" in name]
            assert retained == ([whole[2 * size : length]] if length > 2 * size else [])
            await log.append(3, b"another")
            assert (await opened(torn))[1][2] == [*commands(1, 2), (3, b"another")]

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "never confirmed" in caplog.text


def test_a_first_command_that_was_torn_leaves_an_empty_log() -> None:
    async def scenario() -> None:
        disk, _ = await filled(1)
        path = f"{FOLDER}/{1:020}.commands"
        for content in (b"", disk.content(path)[:7], bytes(50)):
            torn = MemoryDisk()
            torn.put(path, content)
            log, found = await opened(torn)
            assert found == (0, None, [])
            await log.append(1, b"again")
            torn.crash()
            assert (await opened(torn))[1] == (0, None, [(1, b"again")])

    asyncio.run(scenario())


def test_damage_before_the_last_command_stops_the_start_whatever_the_bit() -> None:
    async def scenario() -> None:
        disk, _ = await filled(4)
        path = f"{FOLDER}/{1:020}.commands"
        whole = disk.content(path)
        for at in range(len(whole) - len(whole) // 4):
            content = bytearray(whole)
            content[at] ^= 1 << at % 8
            damaged = MemoryDisk()
            damaged.put(path, bytes(content))
            with pytest.raises(CorruptError, match=r"commands: .* restore the folder metadata"):
                await opened(damaged)
            assert damaged.content(path) == bytes(content), "the evidence stays"

    asyncio.run(scenario())


def test_a_missing_file_of_commands_stops_the_start() -> None:
    async def scenario() -> None:
        disk, _ = await filled(9, (3, 6))
        await disk.remove(f"{FOLDER}/{7:020}.commands")
        _, content = await opened(disk)
        assert content == (6, b"state 6", []), "which cannot be told from a log that ends there"

        disk, _ = await filled(12, (3, 6))
        await disk.remove(f"{FOLDER}/{4:020}.commands")
        disk.put(f"{FOLDER}/{6:020}.snapshot", b"damaged")
        with pytest.raises(CorruptError, match="command 4 is missing, 7 is there"):
            await opened(disk)

    asyncio.run(scenario())


def test_a_lone_damaged_snapshot_is_not_an_empty_log() -> None:
    async def scenario() -> None:
        disk, _ = await filled(9, (3, 6, 9))
        for path in disk.paths():
            disk.put(path, disk.content(path)[:-1])
        with pytest.raises(CorruptError, match="restore the folder metadata"):
            await opened(disk)
        await disk.remove(f"{FOLDER}/{7:020}.commands")
        with pytest.raises(CorruptError, match="is damaged, and the commands it covers are gone"):
            await opened(disk)

    asyncio.run(scenario())


def test_indexes_have_no_gaps() -> None:
    async def scenario() -> None:
        _, log = await filled(3)
        for index in (3, 5, 1):
            with pytest.raises(ValueError, match="cannot follow 3"):
                await log.append(index, b"x")
        with pytest.raises(ValueError, match="the last command is 3"):
            await log.snapshot(2, b"state")

    asyncio.run(scenario())


def test_whatever_step_fails_nothing_confirmed_is_lost() -> None:
    async def scenario(step: int, seed: int) -> bool:
        disk = MemoryDisk()
        log, _ = await opened(disk)
        disk.fail_at(disk.steps + step)
        confirmed, failed = 0, False
        for index, command in commands(1, 8):
            try:
                await log.append(index, command)
                confirmed = index
                if index in (3, 6):
                    await log.snapshot(index, b"state %d" % index)
            except (LogError, OSError):
                failed = True
                break
        disk.heal()
        if failed and seed % 2:
            index, _, found = await log.open()
            confirmed = max(confirmed, index + len(found))
            await log.append(confirmed + 1, b"command %d" % (confirmed + 1))
            confirmed += 1
        disk.crash(random.Random(seed))
        log, (index, state, found) = await opened(disk)
        assert index + len(found) in (confirmed, confirmed + 1)
        assert found == commands(index + 1, index + len(found))
        assert state == (b"state %d" % index if index else None)
        await log.append(index + len(found) + 1, b"goes on")
        return failed

    failures = [asyncio.run(scenario(step, seed)) for step in range(1, 60) for seed in range(4)]
    assert 100 < sum(failures) < len(failures)


def test_after_a_failed_append_the_log_says_so_until_it_is_opened_again() -> None:
    async def scenario() -> None:
        disk, log = await filled(2)
        disk.fail_at(disk.steps + 2)
        with pytest.raises(LogError, match="could not be stored"):
            await log.append(3, b"command 3")
        with pytest.raises(LogError, match="could not be stored"):
            await log.append(3, b"command 3")
        _, _, found = await log.open()
        disk.crash()
        assert (await opened(disk))[1][2] == found, "what was found after the failure is durable"

    asyncio.run(scenario())
