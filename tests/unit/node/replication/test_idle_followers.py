"""Followers with nothing to report: they say so, at a price that does not depend on how many partitions there are; and
what gets lost meanwhile is noticed."""

import asyncio
from collections.abc import Callable

import pytest

from bascule.core.partition.insync import InSync
from bascule.core.partition.leader import AskShrink
from bascule.core.replication import feed as feed_machine
from bascule.core.replication import fetcher as fetcher_machine
from bascule.errors import Status
from bascule.node.replication.feeds import FeedDriver
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, decode_checked
from bascule.wire.nats import messages
from bascule.wire.pb import api_pb2 as api
from bascule.wire.replication import FetchRequest, decode_request
from tests.harness.led import replicated
from tests.harness.members import REPLICATION, Member, isr, leader_of, three, until
from tests.harness.replicas import alike

LAG = 15_000_000_000
SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def never_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may depend on it that everything is named from time to time."""
    monkeypatch.setattr(fetcher_machine, "IDLE_FULL_S", 1e9)


def requests_of(nats: MemoryNats) -> list[FetchRequest]:
    """What followers say, from now on."""
    heard: list[FetchRequest] = []

    def on_batch(batch: bytes, count: int) -> None:
        for message in messages(batch):
            payload = decode_checked(message.payload, MsgType.REPLICATION_REQUEST)
            if payload is not None:
                heard.append(decode_request(payload))

    nats.connect("spy").subscribe(b">", on_batch)
    return heard


def lose(member: Member, which: Callable[[FetchRequest], bool]) -> list[FetchRequest]:
    """The next request of this follower that is one of those does not arrive."""
    bus, lost = member.buses[REPLICATION], list[FetchRequest]()
    send_now = bus.send_now

    def send(commands: bytes) -> None:
        head, _, payload = commands.partition(b"\r\n")
        content = decode_checked(payload[:-2], MsgType.REPLICATION_REQUEST) if b"replicate." in head else None
        if content is not None and not lost and which(request := decode_request(content)):
            lost.append(request)
            return
        send_now(commands)

    bus.send_now = send  # type: ignore[method-assign]
    return lost


def test_an_idle_follower_names_nothing_and_stays_in_sync() -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        request = api.CreateStreamRequest(name="s", subject="s", partitions=30, replicationFactor=3)
        assert (await members["a"].call("CreateStream", request, timeout_s=30.0))[0] is Status.OK
        for partition in range(30):
            await members["a"].publish("s", b"v", partition=partition)
        await asyncio.sleep(3)
        heard = requests_of(nats)
        for _ in range(80):
            await asyncio.sleep(0.5)
            assert all(len(item.isr) == 3 for item in members["a"].broker.cluster.metadata.streams["s"])
        assert sum(len(request.positions) for request in heard) == 0
        assert 6 * 30 <= len(heard) <= 6 * 50, "six pairs of brokers, each about once a second"

    run(main())


def test_a_lost_report_is_noticed_though_the_follower_has_nothing_more_to_say() -> None:
    async def main() -> None:
        led = await replicated()
        leader, follower = led.leader, led.other
        await asyncio.sleep(1)
        lost = lose(follower, lambda request: not request.full and bool(request.positions))
        began = asyncio.get_running_loop().time()
        await leader.publish("s", b"whose report gets lost")
        assert lost
        assert asyncio.get_running_loop().time() - began < 3.0

    run(main())


def test_a_report_that_got_lost_is_missed_by_the_next_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And until everything was named nobody counts as alive."""

    async def main() -> None:
        led = await replicated()
        leader, follower = led.leader, led.other
        await asyncio.sleep(1)
        feed = leader.broker.manager.feeds._feeds[follower.name]
        replica = leader.broker.replicas.find("s", 0)
        assert replica is not None
        assert replica.leading is not None
        epoch, before, wake = replica.leading.epoch, feed.machine._progress, feed._feeds.wake
        known: list[bool] = []

        def woken(woken: FeedDriver) -> None:
            known.append(woken.knows(replica.key, epoch))
            wake(woken)

        monkeypatch.setattr(feed._feeds, "wake", woken)
        lost = lose(follower, lambda request: not request.full)
        fetcher = follower.broker.manager.fetchers._fetchers[leader.name]
        fetcher._due()
        assert lost
        assert feed.knows(replica.key, epoch)
        fetcher._due()
        await until(lambda: feed.machine._progress is not before, 0.5)  # everything was named
        assert known[0] is False, "what it had said counted no more"
        assert feed.knows(replica.key, epoch)

    run(main())


def test_a_full_request_that_got_lost_is_missed_by_the_reports_after_it() -> None:
    async def main() -> None:
        led = await replicated()
        leader, follower = led.leader, led.other
        fetcher = follower.broker.manager.fetchers._fetchers[leader.name]
        feed = leader.broker.manager.feeds._feeds[follower.name]
        fetcher.start_over()
        await asyncio.sleep(0.01)
        before = feed.machine._progress
        lost = lose(follower, lambda request: request.full)
        fetcher.start_over()
        fetcher.push()
        assert lost
        fetcher._due()  # the first report after it; the leader has had none since the full one before
        for _ in range(50):  # and no time passes, in which something else could be missed
            await asyncio.sleep(0)
        assert feed.machine._progress is not before, "everything was named"
        await leader.publish("s", b"second")
        await alike(led.members)

    run(main())


def test_an_idle_follower_that_was_taken_out_is_asked_in_again() -> None:
    async def main() -> None:
        led = await replicated()
        leader, follower = led.leader, led.other
        await asyncio.sleep(5)
        replica = leader.broker.replicas.find("s", 0)
        assert replica is not None
        await leader.broker.manager.isr_changes.ask(replica, AskShrink(follower.name, lacks=False))
        await until(lambda: len(isr(led.members)) == 2, 5.0)
        await until(lambda: len(isr(led.members)) == 3, 5.0)

    run(main())


def test_too_many_requests_that_wait_are_given_up_and_everything_is_named_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_machine, "FEED_SLICE", 1)
    monkeypatch.setattr(feed_machine, "FEED_WAITING_REQUESTS", 3)

    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", partitions=12, replicationFactor=3)
        assert (await members["a"].call("CreateStream", request, timeout_s=30.0))[0] is Status.OK
        await members["a"].publish("s", b"first")
        leader = leader_of(members, "s")
        follower = next(member for member in members.values() if member is not leader)
        fetcher = follower.broker.manager.fetchers._fetchers[leader.name]
        feed = leader.broker.manager.feeds._feeds[follower.name]
        fetcher.start_over()
        fetcher.push()
        for _ in range(20):
            fetcher._due()
        longest = 0
        for _ in range(200):
            longest = max(longest, len(feed.machine._requests))
            await asyncio.sleep(0)
        assert 1 < longest <= 4
        for partition in range(12):
            await leader.publish("s", b"v", partition=partition)
        await until(lambda: not feed.machine.missed, 3.0)

    run(main())


# --- the machine ---------------------------------------------------------------------------------------------------


def in_sync() -> InSync:
    known = InSync("a", "abc", "abc", 2, 0)
    known.start_watching(0)
    for replica in "bc":
        known.fetched(replica, 10, 10, 10, 1 * SECOND)
    return known


def test_who_lags_is_looked_at_when_it_can_have_changed() -> None:
    known = in_sync()
    assert known.due(2 * SECOND)
    assert known.lagging(2 * SECOND, LAG) == []
    looks = [second for second in range(3, 16) if known.due(second * SECOND)]
    assert looks == list(range(6, 16)), "a quarter of the lag later"
    for second in range(3, 16):
        if known.due(second * SECOND):
            assert known.lagging(second * SECOND, LAG) == []
    assert known.due(1 * SECOND + LAG + 1), "and at once when one has lagged for long enough"
    assert known.lagging(1 * SECOND + LAG + 1, LAG) == ["b", "c"]


def test_a_follower_that_stands_where_it_stood_does_not_lag() -> None:
    known = in_sync()
    known.heard("b", 10, 14 * SECOND)
    assert known.lagging(17 * SECOND, LAG) == ["c"]


def test_a_follower_that_stands_where_it_stood_while_the_leader_went_on_lags_from_then_on() -> None:
    known = in_sync()
    known.heard("b", 10, 5 * SECOND)
    known.heard("c", 10, 5 * SECOND)
    for second in range(6, 20):  # the leader has eleven records from here on
        known.heard("b", 11, second * SECOND)
        known.fetched("c", 11, 11, 11, second * SECOND)
    assert known.lagging(20 * SECOND, LAG) == []
    known.heard("b", 11, 21 * SECOND)
    known.fetched("c", 11, 11, 11, 21 * SECOND)
    assert known.lagging(21 * SECOND + 1, LAG) == ["b"], "it had all until the leader answered at 6 s"


def test_what_a_replica_said_before_it_was_taken_out_says_nothing() -> None:
    known = in_sync()
    known.changed(("a", "c"), now=5 * SECOND)
    known.heard("b", 10, 4 * SECOND)
    assert known.recovered(6 * SECOND, LAG) == []
    known.heard("b", 10, 6 * SECOND)
    assert known.recovered(6 * SECOND, LAG) == ["b"]


def test_a_follower_whose_disk_fails_does_not_count_as_alive_by_its_reports_on_other_partitions() -> None:
    known = in_sync()
    known.disk_failing("b", 10, 2 * SECOND)
    known.heard("b", 10, 3 * SECOND)
    assert known.lagging(3 * SECOND, LAG) == ["b"]


def test_a_request_out_of_the_set_that_failed_is_looked_at_again() -> None:
    known = in_sync()
    known.disk_failing("b", 10, 2 * SECOND)
    assert known.lagging(2 * SECOND, LAG) == ["b"]
    assert not known.due(3 * SECOND)
    known.shrink_failed("b", 3 * SECOND)
    assert known.due(4 * SECOND)
    assert known.lagging(4 * SECOND, LAG) == ["b"]
