"""A replica that compares its log with the others': what it still believes, and for whom it does not wait."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bascule.core.metadata.streams import Partition, StreamConfig
from bascule.core.partition.candidate import PeerLog
from bascule.errors import PeerError
from bascule.log.tail import Tail
from bascule.node.partition.repair import Repair
from bascule.testing.loop import run
from bascule.types import Epoch, PartitionId
from bascule.wire.repair import LogEnd


class Others:
    """Replicas that answer, and the members of the cluster."""

    def __init__(self, members: str, **answers: PeerLog) -> None:
        self.members, self.answers = members, answers

    def is_member(self, broker: str) -> bool:
        return broker in self.members

    async def describe(self, broker: str, key: object) -> PeerLog | None:
        if broker not in self.answers:
            raise PeerError("it does not answer")
        return self.answers[broker]


def comparing(others: Others, tail: Tail, isr: tuple[str, ...]) -> tuple[Repair, Any]:
    partition = Partition(PartitionId(0), ("a", "b", "c"), "a", isr=isr, epoch=Epoch(5), leader_epoch=Epoch(5))
    replica = SimpleNamespace(
        partition=partition,
        stream=SimpleNamespace(name="s", config=StreamConfig(min_isr=2)),
        log=SimpleNamespace(damaged={}, last_epoch=3, promised_end=10),
        verification=SimpleNamespace(tail=tail),
        key=(1, 0),
        name="s/0",
    )
    settings = SimpleNamespace(broker_id="a", defaults=SimpleNamespace(min_isr_of=lambda config: config.min_isr))
    broker: Any = SimpleNamespace(feeds=None, peer_logs=others)
    environment: Any = SimpleNamespace(settings=settings)
    return Repair(environment, broker, replica), replica


def test_what_others_said_before_the_partition_changed_does_not_count() -> None:
    """b said that it has more, and lost its disk before c answered."""

    async def main() -> None:
        others = Others("abc", b=PeerLog(LogEnd(3, 12), False))
        repair, replica = comparing(others, Tail.SUSPECT, ("a", "b", "c"))
        asked = asyncio.ensure_future(repair.ahead())
        await asyncio.sleep(1)
        assert repair.waits_for == ("c",)
        replica.partition = replica.partition._replace(isr=("a", "c"), epoch=Epoch(6))
        others.answers = {"b": PeerLog(LogEnd(0, 0), False), "c": PeerLog(LogEnd(3, 10), False)}
        assert await asyncio.wait_for(asked, 2) is None, "b has nothing any more"

    run(main())


def test_a_short_log_does_not_wait_for_brokers_that_are_in_the_cluster_no_more() -> None:
    """As after `cluster recover`, where the disks of all others count as lost."""

    async def main() -> None:
        repair, _ = comparing(Others("a"), Tail.SHORT, ("a",))
        assert await asyncio.wait_for(repair.ahead(), 10) is None
        repair, _ = comparing(Others("ac"), Tail.SHORT, ("a",))
        asked = asyncio.ensure_future(repair.ahead())
        await asyncio.sleep(30)
        assert repair.waits_for == ("c",)
        asked.cancel()

    run(main())


@pytest.mark.parametrize("tail", [Tail.SHORT, Tail.SUSPECT])
def test_who_had_no_more_need_not_be_there_at_the_same_time_as_the_others(tail: Tail) -> None:
    """b came back with another disk, has nothing, and is away again: nobody leads, so it has got nothing since."""

    async def main() -> None:
        others = Others("abc", b=PeerLog(LogEnd(0, 0), False))
        repair, replica = comparing(others, tail, ("a", "b", "c"))
        asked = asyncio.ensure_future(repair.ahead())
        await asyncio.sleep(1)
        others.answers = {}
        replica.partition = replica.partition._replace(epoch=Epoch(6))  # as b has started
        await asyncio.sleep(30)
        assert repair.waits_for == ("c",)
        asked.cancel()
        asked = asyncio.ensure_future(repair.ahead())  # under another leader epoch
        others.answers = {"c": PeerLog(LogEnd(3, 10), False)}
        assert await asyncio.wait_for(asked, 2) is None

    run(main())


def test_who_had_no_more_is_waited_for_once_another_one_was_named_leader() -> None:
    """It may have been fed."""

    async def main() -> None:
        others = Others("abc", b=PeerLog(LogEnd(0, 0), False))
        repair, _ = comparing(others, Tail.SHORT, ("a", "b", "c"))
        asked = asyncio.ensure_future(repair.ahead())
        await asyncio.sleep(1)
        asked.cancel()
        repair.not_to_lead()
        others.answers = {}
        asked = asyncio.ensure_future(repair.ahead())
        await asyncio.sleep(1)
        assert repair.waits_for == ("b", "c")
        asked.cancel()

    run(main())


def test_who_had_more_and_is_away_is_waited_for() -> None:
    async def main() -> None:
        others = Others("abc", b=PeerLog(LogEnd(3, 12), False))
        repair, replica = comparing(others, Tail.SHORT, ("a", "b", "c"))
        asked = asyncio.ensure_future(repair.ahead())
        await asyncio.sleep(1)
        others.answers = {"c": PeerLog(LogEnd(3, 10), False)}
        replica.partition = replica.partition._replace(epoch=Epoch(6))
        await asyncio.sleep(30)
        assert repair.waits_for == ("b",)
        asked.cancel()

    run(main())
