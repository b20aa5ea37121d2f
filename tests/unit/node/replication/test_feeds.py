"""Replication between three brokers in memory when NATS loses, repeats and delays what they say to each other."""

import asyncio
import random
from dataclasses import replace

import pytest

from bascule.core.replication import feed as feed_machine
from bascule.core.replication import progress
from bascule.errors import Status
from bascule.testing.bus import MemoryNats, NetworkConditions
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, decode_checked
from bascule.wire.nats import messages
from bascule.wire.pb import api_pb2 as api
from bascule.wire.replication import FetchRequest, decode_part, decode_request
from tests.harness.broker import DEFAULTS
from tests.harness.led import make_stream, replicated
from tests.harness.members import REPLICATION, isr, leader_of, three, until, within
from tests.harness.replicas import alike


@pytest.mark.parametrize("seed", range(6))
def test_whatever_gets_lost_repeated_or_late_the_logs_become_alike(seed: int) -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        await make_stream(members)
        chance = random.Random(seed)
        nats.conditions = NetworkConditions(chance, 0.0001, 0.002, drop=0.03, duplicate=0.03, reorder=0.03, late_s=0.05)
        acked: list[bytes] = []
        for number in range(150):
            value = b"%d." % number
            request = api.PublishRequest(stream="s", value=value, ackPolicy=api.ALL)
            status, _, _ = await members["abc"[number % 3]].call("Publish", request, 0.5)
            if status is Status.OK:
                acked.append(value)
            await asyncio.sleep(chance.choice((0, 0, 0.001, 0.02)))
        nats.conditions = None
        await asyncio.sleep(5)
        values = await leader_of(members, "s").read("s")
        assert set(acked) <= set(values)
        assert len(acked) > 75
        await alike(members)
        for member in members.values():
            assert await member.read("s", replica=True) == values

    run(main())


def test_replicas_that_had_nothing_to_copy_for_long_stay_in_sync() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await make_stream(members)
        changes: list[tuple[str, ...]] = []
        for _ in range(2):
            await members["a"].publish("s", b"x")
            for _ in range(400):
                await asyncio.sleep(0.1)
                partition = members["a"].broker.cluster.metadata.partition("s", 0)
                assert partition is not None
                changes.append(partition.isr)
        await members["a"].publish("s", b"x")
        await asyncio.sleep(1)
        assert {len(change) for change in changes} == {3}
        assert len(isr(members)) == 3

    run(main())


def test_a_lost_response_is_noticed_with_the_next_one() -> None:
    async def main() -> None:
        led = await replicated()
        leader, follower = led.leader, led.other
        follower.buses[REPLICATION].disconnect()
        led.nats.publish(b"s", b"lost on the way")
        await asyncio.sleep(0.01)
        follower.buses[REPLICATION].reconnect()
        began = asyncio.get_running_loop().time()
        await leader.publish("s", b"after it")
        assert asyncio.get_running_loop().time() - began < 2.0
        await alike(led.members)

    run(main())


def test_at_a_slow_pace_a_message_costs_each_follower_one_report() -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        await make_stream(members)
        requests: list[FetchRequest] = []
        responses: list[int] = []

        def on_requests(batch: bytes, count: int) -> None:
            for message in messages(batch):
                payload = decode_checked(message.payload, MsgType.REPLICATION_REQUEST)
                assert payload is not None
                requests.append(decode_request(payload))

        def on_responses(batch: bytes, count: int) -> None:
            for message in messages(batch):
                payload = decode_checked(message.payload, MsgType.REPLICATION_RESPONSE)
                assert payload is not None
                responses.append(decode_part(payload).number)

        leader = leader_of(members, "s")
        spy = nats.connect("spy")
        spy.subscribe(within(members, f"replicate.{leader.name}"), on_requests)
        spy.subscribe(within(members, f"replicated.*.{leader.name}"), on_responses)
        await asyncio.sleep(0.1)
        requests.clear()
        responses.clear()
        for _ in range(20):
            await leader.publish("s", b"x")
            await asyncio.sleep(0.02)
        assert sum(not request.full for request in requests) == 2 * 20
        assert len(responses) <= 2 * 2 * 20 + 2 * 2

    run(main())


def test_what_is_buffered_for_a_follower_that_is_away_is_bounded_and_it_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "FEED_BUFFERED_BYTES", 2000)

    async def main() -> None:
        led = await replicated()
        leader, away = led.leader, led.other
        away.buses[REPLICATION].disconnect()
        request = api.PublishRequest(stream="s", value=b"v" * 500, ackPolicy=api.LEADER)
        for _ in range(10):
            assert (await leader.call("Publish", request))[0] is Status.OK
        retained = [feed.machine.buffered_bytes for feed in leader.broker.manager.feeds._feeds.values()]
        assert 500 < max(retained) <= 2000
        away.buses[REPLICATION].reconnect()
        await alike(led.members)
        await leader.publish("s", b"last")
        await asyncio.sleep(0.1)
        assert {feed.machine.buffered_bytes for feed in leader.broker.manager.feeds._feeds.values()} == {0}

    run(main())


def test_nothing_is_buffered_for_brokers_that_are_away_for_long_and_those_removed_are_fed_no_more() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await make_stream(members)
        await members["a"].publish("s", b"first")
        leader = leader_of(members, "s")
        away, gone = (member for member in members.values() if member is not leader)
        served = leader.broker.manager.feeds._feeds
        assert sorted(served) == sorted((away.name, gone.name))
        for member in (away, gone):
            member.buses[REPLICATION].disconnect()
        request = api.PublishRequest(stream="s", value=b"v" * 500, ackPolicy=api.LEADER)
        for _ in range(3):
            assert (await leader.call("Publish", request))[0] is Status.OK
        assert all(feed.machine.buffered_bytes for feed in served.values())
        await asyncio.sleep(feed_machine.SILENCE_S + 2)
        assert (await leader.call("Publish", request))[0] is Status.OK
        assert not any(feed.machine.buffered_bytes for feed in served.values())
        here = leader.broker.manager.feeds
        here._members = lambda: (leader.name, away.name)
        fed = served[gone.name]
        await until(lambda: gone.name not in served)
        assert fed.closed
        assert all(timer.cancelled() for timer in fed._timers.values())
        here._members = lambda: (leader.name, away.name, gone.name)
        for member in (away, gone):
            member.buses[REPLICATION].reconnect()
        await alike(members)

    run(main())


@pytest.mark.parametrize("max_lag_s", [0.5, 1.0, 2.0, 3.0, 4.0, 6.0])
def test_idle_replicas_stay_in_sync_whatever_lag_is_allowed(max_lag_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a partition that is idle another one of the same brokers is written to, and then none."""
    monkeypatch.setattr("tests.harness.members.DEFAULTS", replace(DEFAULTS, max_lag_ns=int(max_lag_s * 1e9)))

    async def main() -> None:
        members = await three(MemoryNats())
        await make_stream(members)
        request = api.CreateStreamRequest(name="busy", subject="busy", partitions=3, replicationFactor=3)
        assert (await members["a"].call("CreateStream", request))[0] is Status.OK
        seen: set[int] = set()
        for turn in range(300):
            if turn < 150:
                await members["a"].publish("busy", b"x", partition=turn % 3)
            await asyncio.sleep(0.1)
            seen.add(len(isr(members)))
        assert seen == {3}

    run(main())
