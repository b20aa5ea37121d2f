"""What is done to a loaded cluster of three, each a number of times; used by the tests and, with larger numbers, by
`make faults`."""

import asyncio
import random
from pathlib import Path

from tests.faults.cluster_load import STREAM, Brokers, Load, Report, until

PAUSE_S = 3.0
"""Longer than every session and election timeout."""
CUT_S = 3.0


async def kill_leaders(folder: Path, rounds: int, seed: int = 1) -> Report:
    """kill -9 the leader of a loaded partition; every third time it is the controller too."""
    report = Report(f"kill -9 of {rounds} leaders")
    chance = random.Random(seed)
    with Brokers(folder) as brokers:
        async with Load(brokers) as load:
            for number in range(rounds):
                await asyncio.sleep(chance.uniform(0.2, 0.8))
                controller = brokers.controller()
                leaders = sorted({item.leader for item in await load.partitions()})
                others = [name for name in leaders if name != controller]
                victim = controller if number % 3 == 0 and controller in leaders else chance.choice(others or leaders)
                load.mark()
                await asyncio.to_thread(brokers[victim].kill9)
                await load.flowing()
                report.stalls_s.append(load.stall_s)
                await restart(brokers, victim)
                await load.whole()
            await load.finish(report)
    return report


async def kill_all(folder: Path, rounds: int, seed: int = 2) -> Report:
    """kill -9 all brokers at once."""
    report = Report(f"kill -9 of all three, {rounds} times")
    chance = random.Random(seed)
    with Brokers(folder) as brokers:
        async with Load(brokers) as load:
            for _ in range(rounds):
                await asyncio.sleep(chance.uniform(0.2, 0.8))
                load.mark()
                for broker in brokers.brokers.values():
                    await asyncio.to_thread(broker.kill9)
                for broker in brokers.brokers.values():
                    broker.start()
                await load.flowing()
                report.stalls_s.append(load.stall_s)
                await load.whole()
            await load.finish(report)
    return report


async def pause_leaders(folder: Path, rounds: int) -> Report:
    """SIGSTOP a leader past every timeout, then let it go on: it must find that it leads nothing any more."""
    report = Report(f"SIGSTOP of {rounds} leaders")
    with Brokers(folder) as brokers:
        async with Load(brokers) as load:
            for number in range(rounds):
                victim = brokers.controller() if number % 2 else await load.leader()
                load.mark()
                await asyncio.to_thread(brokers[victim].pause)
                await load.flowing()
                await asyncio.sleep(PAUSE_S)
                brokers[victim].resume()
                await load.flowing()
                report.stalls_s.append(load.stall_s)
                await load.whole()
            await load.finish(report)
    return report


async def restart_nats(folder: Path, rounds: int) -> Report:
    report = Report(f"{rounds} restarts of NATS")
    with Brokers(folder) as brokers:
        async with Load(brokers) as load:
            for _ in range(rounds):
                await asyncio.sleep(0.5)
                load.mark()
                await asyncio.to_thread(brokers.nats.kill9)
                await asyncio.sleep(0.5)
                brokers.nats.start()
                await asyncio.to_thread(brokers.nats.wait_ready)
                await load.flowing()
                report.stalls_s.append(load.stall_s)
                await load.whole()
            await load.finish(report)
    return report


async def wipe_each(folder: Path, rounds: int) -> Report:
    """One broker after the other, the seed first, loses its data folder and comes back with the same id and flags."""
    report = Report(f"{rounds} wiped data folders")
    with Brokers(folder) as brokers:
        async with Load(brokers) as load:
            for number in range(rounds):
                await asyncio.sleep(0.5)
                victim = "abc"[number % 3]
                load.mark()
                await asyncio.to_thread(brokers[victim].kill9)
                brokers.wipe(victim)
                await load.flowing()
                report.stalls_s.append(load.stall_s)
                await restart(brokers, victim)
                await load.whole()
            await load.finish(report)
    return report


async def cut_off(folder: Path, rounds: int) -> Report:
    """A leader cannot be heard, cannot hear, or neither, for a while."""
    report = Report(f"{rounds} leaders cut off from NATS")
    ways = [(True, True), (True, False), (False, True)]
    with Brokers(folder, proxied=True) as brokers:
        async with Load(brokers) as load:
            for number in range(rounds):
                await asyncio.sleep(0.5)
                victim = await load.leader()
                from_client, to_client = ways[number % 3]
                load.mark()
                brokers.proxies[victim].cut(from_client=from_client, to_client=to_client)
                await load.flowing()
                await asyncio.sleep(CUT_S)
                brokers.proxies[victim].heal()
                await load.flowing()
                report.stalls_s.append(load.stall_s)
                await load.whole()
            await load.finish(report)
    return report


async def rolling_restart(folder: Path, rounds: int) -> Report:
    """SIGTERM to one broker after the other: each hands over what it leads, and ends with 0."""
    report = Report(f"{rounds} rolling restarts")
    with Brokers(folder) as brokers:
        async with Load(brokers) as load:
            for _ in range(rounds):
                for name, broker in brokers.brokers.items():
                    load.mark()
                    code = await asyncio.to_thread(broker.terminate)
                    assert code == 0, f"{name} ended with {code}:\n{broker.log_tail()}"
                    await load.flowing()
                    await restart(brokers, name)
                    await load.whole()
                    report.stalls_s.append(load.stall_s)
            await load.finish(report)
    return report


async def restart(brokers: Brokers, name: str) -> None:
    brokers[name].start()
    await asyncio.to_thread(brokers[name].wait_ready)


async def recreate_while_down(folder: Path, rounds: int) -> Report:
    """The stream is deleted and made anew while a replica is down: it must come back with the new bytes only."""
    report = Report(f"{rounds} streams made anew while a replica is down")
    with Brokers(folder) as brokers:
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
                report.stalls_s.append(load.stall_s)
                await load.finish(report)
                await load.with_client(lambda client: client.delete_stream(STREAM, timeout=20.0))
                await gone(brokers)
    return report


async def gone(brokers: Brokers) -> None:
    """Nothing is left of the streams, on any disk."""
    folders = [broker.data_dir / "streams" for broker in brokers.brokers.values()]
    await until(lambda: not any(list(folder.iterdir()) for folder in folders), 20.0, "files of deleted streams stay")
