"""Processes that end, are paused or start late, and clocks that are wrong."""

import asyncio
from collections.abc import Callable

from bascule.errors import PeerError
from bascule.sim.faults.kinds import Family, fault
from bascule.sim.faults.strikes import Faults
from bascule.sim.host import Host
from bascule.wire.raft import decode_message
from bascule.wire.raft_messages import VoteRequest

AWAY_S = (8.0, 30.0)
"""Longer than every timeout."""
MAX_DRIFT = 0.002
CRASH = Family("crash", likely=0.9)
RELAXED = Family("relaxed", likely=1.0)
AWAY = Family("away", likely=0.18)
PAUSE = Family("pause", likely=0.35)
CLOCK = Family("clock", likely=0.4)
CONTEST = Family("contest", likely=0.4)


@fault(CRASH, weight=2)
async def kill(faults: Faults, host: Host) -> None:
    faults.note("kill", f"kill -9 {host.name}")
    faults.kill(host)
    await faults.come_back(host)


@fault(CRASH, weight=3, needs_sync=True)
async def power(faults: Faults, host: Host) -> None:
    if faults.chance.random() < 0.7:
        await faults.ask(host)  # what a client was sent at the last moment must hold too
    await faults.amid_write(host)
    faults.note("power", f"power loss of {host.name}")
    faults.cut_power(host)
    await faults.come_back(host)
    for _ in range(20):
        if host.broker is not None:
            await faults.ask(host)
            return
        await asyncio.sleep(0.02)


@fault(CRASH, weight=3)
async def crash_in_swap(faults: Faults, host: Host) -> None:
    """The process ends, or the power goes, while small segments are merged."""
    if not await faults.amid_swap(host):
        return
    if faults.world.scenario.sync.relaxed or faults.chance.random() < 0.5:
        faults.note("crash_in_swap", f"kill -9 {host.name}, which merges segments")
        faults.kill(host)
    else:
        faults.note("crash_in_swap", f"power loss of {host.name}, which merges segments")
        faults.cut_power(host)
    await faults.come_back(host)


@fault(CRASH, needs_sync=True)
async def double(faults: Faults, host: Host) -> None:
    """The power goes again while the broker recovers."""
    faults.counts["double"] += 1
    for _ in range(faults.chance.randint(2, 4)):
        await power(faults, host)
        await asyncio.sleep(faults.chance.uniform(0, 0.05))


@fault(CRASH)
async def restart(faults: Faults, host: Host) -> None:
    faults.note("restart", f"clean restart of {host.name}")
    await host.stop()
    host.boot()


@fault(CRASH, several=True)
async def several(faults: Faults, host: Host) -> None:
    hosts = [other for other in faults.world.cluster.hosts.values() if faults.chance.random() < 0.6]
    faults.note("several", f"kill -9 {', '.join(other.name for other in hosts)}")
    for other in hosts:
        faults.kill(other)
    for other in hosts:
        await faults.come_back(other)


@fault(CRASH, weight=2, several=True, needs_sync=True)
async def blackout(faults: Faults, host: Host) -> None:
    """All brokers lose power at once, and start again one by one."""
    faults.note("blackout", "power loss of all")
    hosts = list(faults.world.cluster.hosts.values())
    await faults.amid_write(*hosts)
    for other in hosts:
        faults.cut_power(other)
    faults.chance.shuffle(hosts)
    for other in hosts:
        await faults.come_back(other)


@fault(RELAXED, weight=6, several=True, relaxed=True, needs_copies=True)
async def power_of_one(faults: Faults, host: Host) -> None:
    """Under relaxed sync one broker loses power, and with it what was not synced: the others have it."""
    if not await faults.claimed(host):
        return
    faults.note("power_of_one", f"power loss of {host.name}, which does not sync")
    faults.cut_power(host)
    await faults.come_back(host)
    await faults.recovered()


@fault(AWAY, weight=4)
async def away(faults: Faults, host: Host) -> None:
    """One broker is down for longer than every timeout."""
    away_s = faults.chance.uniform(*AWAY_S)
    faults.note("away", f"{host.name} is away for {away_s:.1f} s")
    await _leave(faults, host)
    await faults.last(away_s)
    host.boot()


@fault(AWAY, weight=2, several=True)
async def return_late(faults: Faults, host: Host) -> None:
    """All brokers stop, one after the other or at once, and start again in any order."""
    chance, loop = faults.chance, asyncio.get_running_loop()
    hosts = list(faults.world.cluster.hosts.values())
    chance.shuffle(hosts)
    at_once = chance.random() < 0.5
    faults.note("return_late", f"all go, {'at once' if at_once else 'one after the other'}, and come back late")
    for other in hosts:
        await _leave(faults, other)
        if not at_once:
            await asyncio.sleep(chance.choice((0.0, 0.3, 2.0)))
    chance.shuffle(hosts)
    at_s = loop.time()
    for number, other in enumerate(hosts):
        at_s += chance.choice((0.0, 0.5, 3.0)) if number + 1 < len(hosts) else chance.uniform(0, AWAY_S[1] / 2)
        await faults.last(at_s - loop.time())
        other.boot()


async def _leave(faults: Faults, host: Host) -> None:
    match faults.chance.randrange(3):
        case 0 if not faults.world.scenario.sync.relaxed:
            faults.cut_power(host)
        case 1:
            await host.stop()
        case _:
            faults.kill(host)


@fault(PAUSE)
async def pause(faults: Faults, host: Host) -> None:
    pause_s = faults.chance.choice((0.1, 1.0, 6.0))
    faults.note("pause", f"{host.name} is paused for {pause_s} s")
    host.pause()
    await asyncio.sleep(pause_s)
    host.resume()


@fault(CLOCK)
async def clock(faults: Faults, host: Host) -> None:
    jump_ns = int(faults.chance.uniform(-3600, 3600) * 1e9)
    faults.note("clock", f"the clock of {host.name} jumps by {jump_ns / 1e9:.3f} s")
    host.clock.skew_ns += jump_ns


@fault(CLOCK, weight=2)
async def drift(faults: Faults, host: Host) -> None:
    """Its clocks run faster or slower than the others'."""
    rate = 1 + faults.chance.uniform(-MAX_DRIFT, MAX_DRIFT)
    faults.note("drift", f"the clocks of {host.name} run {rate:.5f} times as fast")
    host.clock.run_at(rate)


@fault(CONTEST, weight=2, several=True, needs_sync=True)
async def contest(faults: Faults, host: Host) -> None:
    """Two candidates that are partitioned from each other ask the third broker for its vote. The voter loses power as
    soon as it has voted for one, and then receives the request of the other: a voter that forgets its vote votes
    twice."""
    hosts = list(faults.world.cluster.hosts.values())
    if len(hosts) != 3 or any(not other.buses for other in hosts):
        return
    faults.chance.shuffle(hosts)
    hosts.sort(key=lambda other: other.raft is not None and other.raft.is_leader)
    first, second, voter = hosts
    faults.note("contest", f"{first.name} and {second.name} contest the vote of {voter.name}")
    nats, late = faults.world.nats, second.buses[0]
    pairs = ((first.name, second.name), (second.name, first.name))
    for pair in pairs:
        nats.sever(*pair)
    faults.cut_power(voter)
    late.up.hold("contest")
    # The voter would learn of its vote from messages of the leader, so it receives only requests for votes.
    nats.swallows = lambda source, target, message: (
        (source, target) == (first.name, voter.name) and not _asks_for_a_vote(message.payload)
    )
    await asyncio.sleep(1.2)
    voter.boot()
    await _soon(lambda: first.raft is not None and first.raft.is_leader)
    faults.cut_power(voter)
    voter.boot()
    await _soon(lambda: voter.raft is not None)
    await asyncio.sleep(faults.chance.uniform(0.05, 0.4))
    late.up.release("contest")
    await asyncio.sleep(1.0)
    nats.swallows = None
    for pair in pairs:
        nats.rejoin(*pair)


async def _soon(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.001)


def _asks_for_a_vote(payload: bytes) -> bool:
    try:
        return isinstance(decode_message(payload), VoteRequest)
    except PeerError:
        return False
