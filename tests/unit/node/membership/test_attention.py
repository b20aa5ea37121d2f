"""A late event loop: a live broker is not taken for dead by one that was paused."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from bascule.node.membership.activeclock import ActiveClock
from bascule.node.membership.lease import LEASE_WAIT_S
from bascule.node.membership.peers import HEARTBEAT_S, SESSION_S
from bascule.node.membership.raft import ELECTION_TICKS, TICK_S
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.clocks import Now
from tests.harness.members import Member, three, until

EVERY_NS = int(HEARTBEAT_S * 1e9)
PAUSES_S = (0.5, 2.0, 10.0, 20.0)


def test_time_passes_as_usual_while_the_loop_is_in_time() -> None:
    now = Now()
    active_clock = ActiveClock(now)
    began, chance = active_clock.monotonic_ns() - now.ns, random.Random(1)
    for _ in range(1000):
        now.ns += int(EVERY_NS * chance.uniform(0.3, 1.4))
        assert active_clock.monotonic_ns() - now.ns == began
        active_clock.turned()


def test_of_a_pause_little_counts_and_time_never_goes_back() -> None:
    now = Now()
    active_clock = ActiveClock(now)
    active_clock.turned()
    before = last = active_clock.monotonic_ns()
    chance = random.Random(2)
    for _ in range(100):
        now.pass_s(chance.uniform(5.0, 50.0))
        for _ in range(3):
            assert active_clock.monotonic_ns() >= last
            last = active_clock.monotonic_ns()
            now.ns += chance.randrange(1000)
        active_clock.turned()
        assert active_clock.monotonic_ns() >= last
    assert last - before <= 100 * 2 * EVERY_NS
    assert active_clock.monotonic_ns() < now.ns


def test_a_loop_that_is_always_late_still_finds_the_dead() -> None:
    now = Now()
    active_clock = ActiveClock(now)
    active_clock.turned()
    before = active_clock.monotonic_ns()
    for _ in range(int(2 * SESSION_S / HEARTBEAT_S)):
        now.pass_s(10.0)
        active_clock.turned()
    assert active_clock.monotonic_ns() - before > SESSION_S * 1e9


async def two() -> dict[str, Member]:
    """While the controller stands still no other one is elected: there is no majority without it."""
    nats = MemoryNats()
    members = {name: Member(name, nats, seed=name == "a") for name in "ab"}
    for member in members.values():
        await member.start()
    await until(lambda: all(len(m.broker.cluster.servers) == 2 for m in members.values()))
    request = api.CreateStreamRequest(name="s", subject="s", partitions=4, replicationFactor=2)
    await members["a"].call("CreateStream", request)
    await in_sync(members["a"])
    return members


async def in_sync(member: Member) -> None:
    await until(lambda: partitions(member) and all(len(item.isr) == 2 for item in partitions(member)))


def partitions(member: Member) -> tuple[Any, ...]:
    stream = member.broker.cluster.metadata.stream("s")
    return stream.partitions if stream else ()


def controller(members: dict[str, Member]) -> Member:
    return next(m for m in members.values() if m.broker.controller.active)


async def stand_still(member: Member, seconds: float) -> None:
    assert member.process is not None
    member.process.pause()
    await asyncio.sleep(seconds)
    member.process.resume()


@pytest.mark.parametrize("pause_s", PAUSES_S)
def test_a_paused_controller_fences_nobody_and_takes_nobody_out(
    pause_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        members = await two()
        for offset in range(10):
            await asyncio.sleep(1.0 + offset * HEARTBEAT_S / 10)
            lead = controller(members)
            await in_sync(lead)  # the other one did not sleep
            before = [item for item in partitions(lead) if item.leader == lead.name]
            assert before
            await stand_still(lead, pause_s)
            await asyncio.sleep(3.0)
            after = [item for item in partitions(lead) if item.leader == lead.name]
            assert after == before, f"stood still for {pause_s} s"
            await until(lambda: any(m.broker.controller.active for m in members.values()))
        assert "it is fenced" not in caplog.text

    run(main())


def test_a_controller_that_was_late_for_less_than_an_election_stays_controller() -> None:
    """What its voters said waits in its sockets: it is read before their silence is counted."""

    async def main() -> None:
        members = await two()
        lead = controller(members)
        for step in range(60):
            await asyncio.sleep(1.0 + step * TICK_S * ELECTION_TICKS / 60)
            term = lead.broker.cluster.raft.raft.term
            await stand_still(lead, TICK_S * (ELECTION_TICKS - 1))
            for _ in range(100):
                assert lead.broker.cluster.raft.raft.is_leader, f"{step}"
                await asyncio.sleep(0.01)
            assert lead.broker.cluster.raft.raft.term == term

    run(main())


def test_who_dies_while_the_controller_stands_still_is_found_soon_after() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        lead = controller(members)
        dies, stays = (m for m in members.values() if m is not lead)
        assert lead.process is not None
        assert stays.process is not None
        lead.process.pause()
        stays.process.pause()  # or another one would be elected, and find it
        dies.kill()
        await asyncio.sleep(10.0)
        lead.process.resume()
        stays.process.resume()
        began = asyncio.get_running_loop().time()
        await until(lambda: all(dies.name not in item.isr for item in partitions(lead)), SESSION_S + 3.0)
        assert asyncio.get_running_loop().time() - began > SESSION_S / 2, "it got the time that was left to it"

    run(main())


def test_a_broker_that_was_paused_receives_the_heartbeats_of_the_others_and_its_own() -> None:
    async def main() -> None:
        members = await two()
        lead = controller(members)
        other = next(m for m in members.values() if m is not lead)
        await stand_still(lead, 10.0)
        wrong: list[Callable[[], str]] = []
        for _ in range(100):
            if [peer.id for peer in lead.broker.cluster.peers.alive()] != [other.name]:
                wrong.append(lambda: "it forgot the other one")
            if lead.broker.cluster.peers._misses_own:
                wrong.append(lambda: "it thinks that it cannot receive")
            await asyncio.sleep(0.01)
        assert not wrong

    run(main())


def test_leases_of_others_run_while_the_loop_stands_still() -> None:
    """A controller that stood still for as long as a lease lasts waits for none of them any more."""

    async def main() -> None:
        members = await three(MemoryNats())
        lead = controller(members)
        lead.kill()
        del members[lead.name]
        await until(lambda: any(m.broker.controller.active for m in members.values()))
        lead = controller(members)
        leases = lead.broker.controller.executor._leases
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.wait_for(leases.until_all_over(), 2 * LEASE_WAIT_S)
        assert loop.time() - began > LEASE_WAIT_S / 2, "a new controller gives everybody a whole lease"
        leases.begin()
        await stand_still(lead, LEASE_WAIT_S + 0.1)
        began = loop.time()
        await asyncio.wait_for(leases.until_all_over(), 2 * LEASE_WAIT_S)
        assert loop.time() - began < LEASE_WAIT_S / 2

    run(main())
