"""Brokers that are away for long, all of them at times, and come back in every order there is; and one whose last
records were damaged meanwhile. Real processes, for `make faults`.
"""

import asyncio
import itertools
import random
from pathlib import Path

from tests.harness.cluster_load import STREAM, Brokers, Load, Report
from tests.harness.cluster_scenarios import OnRound, ignore, restart

ORDERS = list(itertools.permutations("abc"))
SHORTEST_S, LONGEST_S = 8.0, 30.0
BEHIND_S = 3.0
"""Long enough for the others to go on without the one that is away."""
RESUME_BOUND_S = 20.0
"""I9: after the last broker is back, every partition takes writes again within this time."""
GAP_S = 1.5


async def away(folder: Path, rounds: int, on_round: OnRound = ignore) -> Report:
    """All are killed, one of them earlier in every other round; they come back one by one, the last after 8 to 30 s."""
    report = Report(f"{rounds} times away for long, in every order", on_round)
    with Brokers(folder) as brokers:
        async with Load(brokers) as load:
            for number in range(rounds):
                order = ORDERS[number % len(ORDERS)]
                load.mark()
                if number % 2:
                    await asyncio.to_thread(brokers[order[0]].kill9)  # who comes back first is behind
                    await asyncio.sleep(BEHIND_S)
                for name in order:
                    await asyncio.to_thread(brokers[name].kill9)
                await _come_back(brokers, order, _away_s(number, rounds))
                await load.flowing(RESUME_BOUND_S)
                report.ended(load.stall_s)
                await load.whole()
            await load.finish(report)
    return report


async def damaged_tail(folder: Path, rounds: int, on_round: OnRound = ignore, seed: int = 5) -> Report:
    """Two are in sync and one is behind when all are killed; the last record of one of the two is flipped or truncated.
    It comes back with the one that is behind, and the other one after 8 s or more: nobody may lead with less."""
    report = Report(f"{rounds} damaged ends, the whole copy away for long", on_round)
    chance = random.Random(seed)
    with Brokers(folder) as brokers:
        async with Load(brokers) as load:
            for number in range(rounds):
                whole, damaged, behind = ORDERS[number % len(ORDERS)]
                load.mark()
                await asyncio.to_thread(brokers[behind].kill9)
                await load.flowing()
                for name in (whole, damaged):
                    await asyncio.to_thread(brokers[name].kill9)
                for partition in range(len(load.shown)):
                    damage_last_record(brokers, damaged, partition, cut=bool(number % 2), chance=chance)
                first = (damaged, behind) if number % 4 < 2 else (behind, damaged)
                await _come_back(brokers, (*first, whole), _away_s(number, rounds))
                await load.flowing(RESUME_BOUND_S)
                report.ended(load.stall_s)
                await load.whole()
            await load.finish(report)
    return report


def _away_s(number: int, rounds: int) -> float:
    return SHORTEST_S + (LONGEST_S - SHORTEST_S) * number / max(1, rounds - 1)


async def _come_back(brokers: Brokers, order: tuple[str, ...], away_s: float) -> None:
    first, second, last = order
    brokers[first].start()
    await asyncio.sleep(GAP_S)
    brokers[second].start()
    await asyncio.sleep(away_s)
    await restart(brokers, last)


def damage_last_record(brokers: Brokers, name: str, partition: int, *, cut: bool, chance: random.Random) -> None:
    """In the last file of the partition, which its broker is not writing to."""
    (stream,) = (brokers[name].data_dir / "streams").glob(f"{STREAM}@*")
    path = sorted((stream / str(partition)).glob("*.log"))[-1]
    data = bytearray(path.read_bytes())
    start = position = 0
    while position < len(data):
        start = position
        position += 5 + int.from_bytes(data[position + 1 : position + 5], "big")
    if cut:
        path.write_bytes(data[:start])
    else:
        data[chance.randrange(start, len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
