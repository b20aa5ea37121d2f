"""In-sync sets that change, and partitions below their minimum: one line for all of them, and another one when they are
others."""

import asyncio
import logging

import pytest

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import controller_of, partitions_of
from tests.harness.broker import Node
from tests.harness.members import REPLICATION, Member, leader_of, three, until

COUNT = 40


def test_many_partitions_below_their_minimum_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "bascule")

    def said() -> list[tuple[int, str]]:
        return [
            (each.levelno, each.getMessage()) for each in caplog.records if "this broker leads" in each.getMessage()
        ]

    async def scenario() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        for name in ("first", "second"):
            request = api.CreateStreamRequest(name=name, subject=name, partitions=COUNT)
            request.minIsr.value = 2
            assert (await node.call("CreateStream", request))[0] is Status.OK
            await asyncio.sleep(5)
        assert [(level, text.split(" (")[0]) for level, text in said()] == [
            (logging.ERROR, f"{count} partitions that this broker leads are below min ISR") for count in (COUNT, 80)
        ]
        assert "(first/0, first/1, first/2, first/3, first/4, …)" in said()[0][1]
        for name in ("first", "second"):
            assert (await node.call("DeleteStream", api.DeleteStreamRequest(name=name)))[0] is Status.OK
        await asyncio.sleep(5)
        assert said()[-1] == (
            logging.WARNING,
            "all partitions that this broker leads have enough replicas in sync again",
        )
        assert len(said()) <= 4

    run(scenario())


async def with_partitions(min_isr: int) -> dict[str, Member]:
    members = await three(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", partitions=COUNT, replicationFactor=3)
    request.minIsr.value = min_isr
    assert (await members["a"].call("CreateStream", request))[0] is Status.OK
    await asyncio.sleep(3)
    return members


def test_many_sets_that_fall_below_their_minimum_are_one_line_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bascule")

    async def scenario() -> None:
        members = await with_partitions(3)
        caplog.clear()
        dies = next(each for each in members.values() if each is not controller_of(members))
        dies.kill()
        stays = controller_of(members)
        await until(lambda: all(len(item.isr) == 2 for item in partitions_of(stays)))
        await asyncio.sleep(3)
        led = {each.name: sum(item.leader == each.name for item in partitions_of(stays)) for each in members.values()}
        assert led[dies.name] == 0
        about = [each for each in caplog.records if each.name.startswith("bascule.node.partition")]
        below = [each for each in about if "below min ISR" in each.getMessage()]
        assert {each.levelno for each in below} == {logging.ERROR}
        assert 2 <= len(below) <= 4, "one from each broker, and another one if it came to lead more"
        last = {int(each.getMessage().split()[0]) for each in below[-2:]}
        assert last == {count for count in led.values() if count}
        changed = [each.getMessage() for each in about if "in-sync sets" in each.getMessage()]
        assert 2 <= len(changed) <= 4
        assert f"eligible to lead: {dies.name}" in changed[0]
        assert sum(each.levelno >= logging.WARNING for each in about) <= 8, "nothing else by partition either"

    run(scenario())


def test_many_replicas_that_lag_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "bascule")

    async def scenario() -> None:
        members = await with_partitions(1)
        leader = leader_of(members, "s")
        lags = next(each for each in members.values() if each is not leader)
        caplog.clear()
        lags.buses[REPLICATION].disconnect()
        await until(
            lambda: all(lags.name not in item.isr or item.leader == lags.name for item in partitions_of(leader))
        )
        await asyncio.sleep(3)
        said = [each for each in caplog.records if "replicas that lag" in each.getMessage()]
        assert said
        assert {each.levelno for each in said} == {logging.WARNING}
        counts = [int(each.getMessage().partition("sets of ")[2].split()[0]) for each in said]
        assert sum(counts) >= COUNT // 2, "all partitions are counted"
        assert f"{lags.name} of s/" in said[0].getMessage()
        assert len(said) <= 6, "a line for each partition"

    run(scenario())


def test_another_partition_below_its_minimum_is_said_although_the_number_is_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        for name in ("first", "second"):
            request = api.CreateStreamRequest(name=name, subject=name)
            request.minIsr.value = 2
            assert (await node.call("CreateStream", request))[0] is Status.OK
            if name == "first":
                await asyncio.sleep(5)
                assert (await node.call("DeleteStream", api.DeleteStreamRequest(name=name)))[0] is Status.OK
        await asyncio.sleep(5)
        said = [each.getMessage() for each in caplog.records if "are below min ISR" in each.getMessage()]
        assert [text.partition("(")[2].partition(")")[0] for text in said] == ["first/0", "second/0"]

    run(scenario())
