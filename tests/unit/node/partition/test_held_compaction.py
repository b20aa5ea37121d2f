"""Compaction goes by the holds that the broker of each replica knows: SetHold waits until all know."""

import asyncio
from typing import Any

from bascule.core.metadata.streams import Stream
from bascule.node.membership.lease import LEASE_S
from bascule.node.partition.compactor import bound_of
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.acks import create
from tests.harness.administration import answer
from tests.harness.members import Member, isr, leader_of, three, until

COMPACTED: dict[str, Any] = {
    "segmentMaxBytes": api.NullableInt64(value=300),
    "cleanerInterval": api.NullableInt64(value=3_600_000),
    "compactEnabled": api.NullableBool(value=True),
}
LATE_S = 1.5


async def superseded(count: int) -> tuple[dict[str, Member], Member]:
    """A stream of one key with so many records, on three brokers; and one of these that neither leads it nor is the
    controller."""
    members = await three(MemoryNats())
    await create(members["a"], "s", "s", replicationFactor=3, **COMPACTED)
    await until(lambda: len(isr(members)) == 3)
    for number in range(count):
        await members["a"].call(
            "Publish", api.PublishRequest(stream="s", key=b"k", value=b"%d" % number, ackPolicy=api.ALL)
        )
    leader = leader_of(members, "s")
    late = next(each for each in members.values() if each is not leader and not each.broker.controller.active)
    return members, late


def is_late(member: Member) -> None:
    """It carries out what the metadata says after a while."""
    take_roles = member.broker.manager.take_roles

    async def later(stream: Stream, partitions: tuple[int, ...]) -> None:
        await asyncio.sleep(LATE_S)
        await take_roles(stream, partitions)

    member.broker.manager.take_roles = later  # type: ignore[method-assign]


def hold(offset: int) -> admin.SetHoldRequest:
    return admin.SetHoldRequest(stream="s", name="archive", offset=offset)


async def compact(member: Member) -> None:
    assert member.process is not None
    await member.process.start(member.broker.compactor.compact(at_once=True))


def test_a_hold_is_answered_when_no_replica_compacts_what_it_keeps() -> None:
    async def main() -> None:
        members, late = await superseded(30)
        await until(lambda: (found := late.broker.replicas.find("s", 0)) is not None and found.log.visible_end == 30)
        is_late(late)
        other = next(each for each in members.values() if each is not late)
        await answer(other, "SetHold", hold(0))
        await compact(late)
        assert len(await late.read("s", replica=True)) == 30
        await answer(other, "RemoveHold", admin.RemoveHoldRequest(stream="s", name="archive"))
        await asyncio.sleep(2 * LATE_S)
        await compact(late)
        assert len(await late.read("s", replica=True)) < 30

    run(main())


def test_a_hold_that_is_raised_waits_for_nobody() -> None:
    async def main() -> None:
        members, late = await superseded(3)
        other = next(each for each in members.values() if each is not late)
        await answer(other, "SetHold", hold(0))
        is_late(late)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await answer(other, "SetHold", hold(2))
        assert loop.time() < began + LATE_S
        await answer(other, "SetHold", hold(2))
        assert loop.time() > began + LATE_S, "nobody knows whether it was raised to there just now"

    run(main())


def test_a_broker_without_contact_to_the_controller_compacts_nothing() -> None:
    """Nobody waits for it any longer, so there may be a hold that it does not know."""

    async def main() -> None:
        members, late = await superseded(30)
        replica = late.broker.replicas.find("s", 0)
        assert replica is not None
        await until(lambda: replica.log.visible_end == 30)
        for member in members.values():
            if member is not late:
                member.kill()
        await asyncio.sleep(LEASE_S + 1.0)
        before = len(replica.log.segments)
        await compact(late)
        assert bound_of(replica) == 0
        assert len(replica.log.segments) == before
        assert len(await late.read("s", replica=True)) == 30

    run(main())
