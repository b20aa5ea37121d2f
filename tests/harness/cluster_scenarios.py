"""What is done to a loaded cluster of three, each a number of times; used by the tests and, with larger numbers, by
`make faults`."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bascule.testing.probe import call
from bascule.testing.processes import HOST, BrokerProcess
from bascule.wire.pb import api_pb2 as api
from tests.harness.cluster_load import SETTLE_S, STREAM, Brokers, Load, Report, until

PAUSE_S = 3.0
"""Longer than every session and election timeout."""
LONG_PAUSE_S = 17.0
"""Longer than every timeout there is: NATS gives a silent connection up after 10 s, a leader its followers after 15."""
CUT_S = 3.0
CONTROLLERS = 3
"""Of so many leaders one must be the controller too."""
CHANGES = 20
"""Streams made and deleted in a round."""
CHANGE_TIMEOUT_S = 20.0
MORE_ROUNDS = 2
"""So many times the rounds asked for at most, until enough of them have struck a controller."""

OnRound = Callable[[float], None]


def ignore(stall_s: float) -> None:
    pass


@asynccontextmanager
async def loaded(
    folder: Path, report: Report, *, peers: bool = True, proxied: bool = False
) -> AsyncIterator[tuple[Brokers, Load]]:
    """Three brokers under load; what was written is checked at the end, into the report. Without `peers` the first
    one is the seed."""
    with Brokers(folder, peers=peers, proxied=proxied) as brokers:
        async with Load(brokers) as load:
            yield brokers, load
            await load.finish(report)


async def end_round(load: Load, report: Report) -> None:
    """Messages flow again, and in the end every replica is in sync."""
    await load.flowing()
    report.ended(load.stall_s)
    await load.whole()


async def all_vote(brokers: Brokers) -> None:
    await until(lambda: brokers.voters() == ["a", "b", "c"], SETTLE_S, "a vote is missing")


async def kill_leaders(folder: Path, rounds: int, on_round: OnRound = ignore, seed: int = 1) -> Report:
    """kill -9 the leader of a loaded partition; a third of them are the controller too."""
    report = Report(f"kill -9 of {rounds} leaders", on_round)
    chance = random.Random(seed)
    wanted = (rounds + CONTROLLERS - 1) // CONTROLLERS
    async with loaded(folder, report) as (brokers, load):
        for number in range(rounds * MORE_ROUNDS):
            if number >= rounds and report.controllers >= wanted:
                break
            await asyncio.sleep(chance.uniform(0.2, 0.8))
            controller = brokers.controller()
            leaders = sorted({item.leader for item in await load.partitions()})
            others = [name for name in leaders if name != controller]
            both = controller in leaders and (report.controllers < wanted or not others)
            victim = controller if both else chance.choice(others)
            report.controllers += victim == controller
            load.mark()
            await asyncio.to_thread(brokers[victim].kill9)
            await load.flowing()
            report.ended(load.stall_s)
            await restart(brokers, victim)
            await load.whole()
    return report


async def kill_controllers(folder: Path, rounds: int, on_round: OnRound = ignore, seed: int = 3) -> Report:
    """kill -9 the controller while streams are made and deleted through another broker: each change is made, once."""
    report = Report(f"kill -9 of {rounds} controllers while streams are made", on_round)
    chance = random.Random(seed)
    async with loaded(folder, report) as (brokers, load):
        for number in range(rounds):
            victim = brokers.controller()
            asked = brokers[chance.choice([name for name in brokers.brokers if name != victim])]
            load.mark()
            changes = asyncio.create_task(asyncio.to_thread(make_and_delete, asked, f"made-{number}"))
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            await asyncio.to_thread(brokers[victim].kill9)
            await changes
            await load.flowing()
            report.controllers += 1
            report.ended(load.stall_s)
            await restart(brokers, victim)
            await load.whole()
    return report


def make_and_delete(broker: BrokerProcess, name: str) -> None:
    """With no second try: an answer must come, and be OK."""
    for number in range(CHANGES):
        stream = f"{name}-{number}"
        create = api.CreateStreamRequest(name=stream, subject=stream, partitions=2, replicationFactor=3)
        for method, request in (("CreateStream", create), ("DeleteStream", api.DeleteStreamRequest(name=stream))):
            answer = call(HOST, broker.port, f"/proto.API/{method}", request.SerializeToString(), CHANGE_TIMEOUT_S)
            assert answer.status == 0, f"{method} {stream}: {answer.status} {answer.text}"


async def kill_all(folder: Path, rounds: int, on_round: OnRound = ignore, seed: int = 2) -> Report:
    """kill -9 all brokers at once."""
    report = Report(f"kill -9 of all three, {rounds} times", on_round)
    chance = random.Random(seed)
    async with loaded(folder, report, peers=False) as (brokers, load):
        for _ in range(rounds):
            await asyncio.sleep(chance.uniform(0.2, 0.8))
            load.mark()
            for broker in brokers.brokers.values():
                await asyncio.to_thread(broker.kill9)
            for broker in brokers.brokers.values():
                broker.start()
            await end_round(load, report)
    return report


async def pause_leaders(folder: Path, rounds: int, on_round: OnRound = ignore, long_too: bool = False) -> Report:
    """SIGSTOP a leader past every timeout, then let it go on: it must find that it leads nothing any more."""
    report = Report(f"SIGSTOP of {rounds} leaders", on_round)
    async with loaded(folder, report) as (brokers, load):
        for number in range(rounds):
            victim = brokers.controller() if number % 2 else await load.leader()
            report.controllers += victim == brokers.controller()
            load.mark()
            await asyncio.to_thread(brokers[victim].pause)
            await load.flowing()
            await asyncio.sleep(LONG_PAUSE_S if long_too and number < 2 else PAUSE_S)
            brokers[victim].resume()
            await end_round(load, report)
    return report


async def restart_nats(folder: Path, rounds: int, on_round: OnRound = ignore) -> Report:
    report = Report(f"{rounds} restarts of NATS", on_round)
    async with loaded(folder, report) as (brokers, load):
        for _ in range(rounds):
            await asyncio.sleep(0.5)
            load.mark()
            await asyncio.to_thread(brokers.nats.kill9)
            await asyncio.sleep(0.5)
            brokers.nats.start()
            await asyncio.to_thread(brokers.nats.wait_ready)
            await end_round(load, report)
    return report


async def wipe_each(folder: Path, rounds: int, on_round: OnRound = ignore) -> Report:
    """One broker after the other, the seed first, loses its data folder and comes back with the same id and flags."""
    report = Report(f"{rounds} wiped data folders", on_round)
    async with loaded(folder, report, peers=False) as (brokers, load):
        for number in range(rounds):
            await asyncio.sleep(0.5)
            victim = "abc"[number % 3]
            load.mark()
            await asyncio.to_thread(brokers[victim].kill9)
            brokers.wipe(victim)
            await load.flowing()
            report.ended(load.stall_s)
            await restart(brokers, victim)
            await load.whole()
            await all_vote(brokers)
    return report


async def wiped_founders(folder: Path, rounds: int, on_round: OnRound = ignore, seed: int = 4) -> Report:
    """kill -9 of all, and one that has everything comes back first, without its disk and with its usual configuration:
    half of the rounds as one of a list of peers, with the broker that was away, half as the seed, before the others."""
    report = Report(f"{rounds} founders that lost their disks", on_round)
    chance = random.Random(seed)
    async with loaded(folder / "peers", report) as (brokers, load):
        for number in range((rounds + 1) // 2):
            load.mark()
            await wiped_peer(brokers, load, *(("abc" * 2)[number % 3 :][:3]))
            report.ended(load.stall_s)
    async with loaded(folder / "seed", report, peers=False) as (brokers, load):
        for _ in range(rounds // 2):
            load.mark()
            await wiped_seed(brokers, chance.uniform(1.5, 6.0))
            await end_round(load, report)
            await all_vote(brokers)
    return report


async def wiped_peer(brokers: Brokers, load: Load, away: str, wiped: str, last: str) -> None:
    await asyncio.to_thread(brokers[away].kill9)
    await load.flowing()
    await asyncio.sleep(0.5)  # acked by the other two
    for name in (wiped, last):
        await asyncio.to_thread(brokers[name].kill9)
    brokers.wipe(wiped)
    brokers[wiped].start()
    await asyncio.sleep(1.5)
    brokers[away].start()
    await asyncio.sleep(4.0)  # longer than every election
    brokers[last].start()
    await load.flowing()
    await load.whole()
    await all_vote(brokers)


async def wiped_seed(brokers: Brokers, late_s: float) -> None:
    for broker in brokers.brokers.values():
        await asyncio.to_thread(broker.kill9)
    brokers.wipe("a")
    brokers["a"].start()
    await asyncio.sleep(late_s)
    for name in "bc":
        brokers[name].start()
    # It had nobody to ask and founded another cluster: it meets the old one, and says what to do.
    await until(lambda: not brokers["a"].running, SETTLE_S, "the second cluster did not end")
    assert "founded this one by mistake" in brokers["a"].logs(), brokers["a"].log_tail()
    brokers.wipe("a")
    brokers["a"].start()


async def cut_off(folder: Path, rounds: int, on_round: OnRound = ignore) -> Report:
    """A leader cannot send, cannot receive, or neither, for a while."""
    report = Report(f"{rounds} leaders partitioned from NATS", on_round)
    ways = [(True, True), (True, False), (False, True)]
    async with loaded(folder, report, proxied=True) as (brokers, load):
        for number in range(rounds):
            await asyncio.sleep(0.5)
            victim = await load.leader()
            report.controllers += victim == brokers.controller()
            from_client, to_client = ways[number % 3]
            load.mark()
            brokers.proxies[victim].cut(from_client=from_client, to_client=to_client)
            await load.flowing()
            await asyncio.sleep(CUT_S)
            brokers.proxies[victim].heal()
            await end_round(load, report)
    return report


async def rolling_restart(folder: Path, rounds: int, on_round: OnRound = ignore) -> Report:
    """SIGTERM to one broker after the other: each hands over what it leads, and ends with 0."""
    report = Report(f"{rounds} rolling restarts", on_round)
    async with loaded(folder, report) as (brokers, load):
        for _ in range(rounds):
            load.mark()
            for name, broker in brokers.brokers.items():
                code = await asyncio.to_thread(broker.terminate)
                assert code == 0, f"{name} ended with {code}:\n{broker.log_tail()}"
                await load.flowing()
                await restart(brokers, name)
                await load.whole()
            report.ended(load.stall_s)
    return report


async def restart(brokers: Brokers, name: str) -> None:
    brokers[name].start()
    await asyncio.to_thread(brokers[name].wait_ready)


async def recreate_while_down(folder: Path, rounds: int, on_round: OnRound = ignore) -> Report:
    """The stream is deleted and made anew while a replica is down: it must come back with the new bytes only."""
    report = Report(f"{rounds} streams made anew while a replica is down", on_round)
    with Brokers(folder, peers=True) as brokers:
        for number in range(rounds):
            victim = "cba"[number % 3]
            async with Load(brokers) as old:
                await old.whole()
                await asyncio.to_thread(brokers[victim].kill9)
                await old.flowing()
            await old.with_client(lambda client: client.delete_stream(STREAM, timeout=20.0))
            async with Load(brokers) as load:
                load.mark()
                await load.flowing()
                await restart(brokers, victim)
                await load.flowing()
                report.ended(load.stall_s)
                await load.finish(report)
                await load.with_client(lambda client: client.delete_stream(STREAM, timeout=20.0))
                await gone(brokers)
    return report


async def gone(brokers: Brokers) -> None:
    """Nothing is left of the streams, on any disk."""
    folders = [broker.data_dir / "streams" for broker in brokers.brokers.values()]
    await until(lambda: not any(list(folder.iterdir()) for folder in folders), 20.0, "files of deleted streams stay")
