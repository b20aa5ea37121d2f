"""Calls that have been quiet for a while are looked into, and given up if somebody else leads."""

import asyncio
import gc
from collections.abc import Collection, Iterable, Sequence

import pytest

from bascule import limits
from bascule.client.values import Broker, Metadata, Partition, Stream
from bascule.client.watch import Waiter, Watch
from bascule.errors import Unavailable


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_WATCH_TICK_S", 0.01)


class Waiting(Waiter):
    def __init__(self, partition: int | None = 0, broker: str | None = "a") -> None:
        self.broker = broker
        self.partition = partition
        self.patience_s = 0.05
        self.since: float | None = asyncio.get_running_loop().time()
        self.reasons: list[str] = []

    def quiet_since(self) -> float | None:
        return self.since

    def awaited(self) -> Iterable[tuple[str, int | None]]:
        return [("s", self.partition)]

    def replaced(self, reason: str) -> None:
        self.reasons.append(reason)


class Others:
    """What they say, and how often they were asked."""

    def __init__(self, brokers: str = "abc", leader: str = "a") -> None:
        self.brokers = brokers
        self.leader = leader
        self.asked = 0
        self.fail = False

    async def ask(self, streams: Sequence[str], brokers: Collection[str]) -> Metadata | None:
        self.asked += 1
        assert (list(streams), set(brokers)) == (["s"], {"a"})
        if self.fail:
            raise Unavailable("none of them answers")
        partition = Partition(0, self.leader, tuple("abc"), tuple("abc"), -1, -1, paused=False, readonly=False)
        known = {each: Broker(each, "host", 1, 1, 1) for each in self.brokers}
        return Metadata(known, {"s": Stream("s", "s", {0: partition}, 0)})


async def until(others: Others, asked: int) -> None:
    async with asyncio.timeout(5):
        while others.asked < asked:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)


def test_a_call_to_a_broker_that_leads_no_more_is_given_up() -> None:
    async def main() -> None:
        others = Others(brokers="bc", leader="b")
        watch, waiting = Watch(others.ask), Waiting()
        watch.add(waiting)
        await until(others, 1)
        assert waiting.reasons == ["broker b leads partition 0 of stream s now, not a"]
        await watch.close()

    asyncio.run(main())


def test_while_nobody_else_leads_it_waits_and_asks_again() -> None:
    async def main() -> None:
        others = Others(brokers="bc", leader="a")  # they have not elected another one yet
        watch, waiting = Watch(others.ask), Waiting()
        watch.add(waiting)
        await until(others, 2)
        others.fail = True
        await until(others, others.asked + 1)
        assert waiting.reasons == []
        others.fail, others.leader = False, "b"
        await until(others, others.asked + 1)
        assert len(waiting.reasons) == 1
        await watch.close()

    asyncio.run(main())


def test_a_broker_that_need_not_lead_is_left_when_the_others_do_not_see_it() -> None:
    async def main() -> None:
        others = Others(leader="b")
        watch, waiting = Watch(others.ask), Waiting(partition=None)
        watch.add(waiting)
        await until(others, 1)
        assert waiting.reasons == []
        others.brokers = "bc"
        await until(others, others.asked + 1)
        assert "partitioned from the others" in waiting.reasons[0]
        await watch.close()

    asyncio.run(main())


def test_nobody_is_asked_while_something_arrives_or_nothing_is_awaited() -> None:
    async def main() -> None:
        others = Others(leader="b")
        watch = Watch(others.ask)
        busy, idle, unknown = Waiting(), Waiting(), Waiting(broker=None)
        idle.since = None
        for each in (busy, idle, unknown):
            watch.add(each)
        for _ in range(30):
            busy.since = asyncio.get_running_loop().time()
            await asyncio.sleep(0.01)
        assert others.asked == 0
        await watch.close()

    asyncio.run(main())


def test_a_call_that_is_over_or_dropped_is_forgotten() -> None:
    async def main() -> None:
        others = Others()
        watch = Watch(others.ask)
        over, dropped = Waiting(), Waiting()
        watch.add(over)
        watch.add(dropped)
        watch.remove(over)
        del dropped
        gc.collect()
        await asyncio.sleep(0.15)
        assert others.asked == 0
        assert len(asyncio.all_tasks()) == 1
        await watch.close()

    asyncio.run(main())
