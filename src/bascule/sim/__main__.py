"""`make simulate`: many seeds, one line at the end; the first violation is reported with its timeline and the command
that repeats it."""

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from bascule.sim.bugs import BUGS
from bascule.sim.faults.every import KINDS
from bascule.sim.run import Result, run_seed

MAX_SHOWN = 12
"""Violations of one seed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bascule.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--bug", default="", choices=["", *BUGS], help="plant this bug; finding it ends the run")
    parser.add_argument("--brokers", type=int, default=0, help="this many; 0 = three or five, as the seed says")
    parser.add_argument(
        "--faults", default="", help="families of faults, with commas between them; else as the seed says"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes to spread the seeds over")
    parser.add_argument("--all", action="store_true", help="go on after a violation")
    parser.add_argument("--verbose", action="store_true", help="a line per seed")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    families = tuple(filter(None, options.faults.split(",")))
    total = Total()
    for result in results(seeds, options.bug, options.brokers, families, options.jobs):
        total.add(result)
        if options.verbose:
            print(f"seed={result.seed} {line(result)} faults={result.faults} digest={result.digest[:16]}", flush=True)
        if result.violations:
            report(result, options.bug, options.brokers, options.faults)
            if not options.all:
                break
    print(total.faults)
    print(total)
    return 1 if total.violations else 0


def results(seeds: Iterable[int], bug: str, brokers: int, families: tuple[str, ...], jobs: int) -> Iterator[Result]:
    """In the order of the seeds, however many processes work on them."""
    if jobs <= 1:
        yield from (run_seed(seed, bug, brokers, families) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(partial(run_seed, bug=bug, brokers=brokers, families=families), seeds)


def report(result: Result, bug: str, brokers: int, faults: str) -> None:
    print(f"\nseed {result.seed} violates the contract:")
    for violation in result.violations[:MAX_SHOWN]:
        print(f"  {violation}")
    print("\nthe last events around it (time in seconds, partition, offset):")
    for event in result.timeline:
        print(event)
    more = f" BUG={bug}" * bool(bug) + f" BROKERS={brokers}" * bool(brokers) + f" FAULTS={faults}" * bool(faults)
    print(f"\nsee it again: make simulate SEEDS=1 FIRST_SEED={result.seed}{more}")


def line(result: Result) -> str:
    return (
        f"commits={result.commits} crashes={result.crashes} splits={result.splits} elections={result.elections} "
        f"tombstones={result.tombstones} violations={len(result.violations)}"
    )


class Total:
    def __init__(self) -> None:
        self.seeds = self.commits = self.crashes = self.splits = self.elections = self.tombstones = self.violations = 0
        self._kinds: Counter[str] = Counter()
        self._digest = hashlib.sha256()

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.commits += result.commits
        self.crashes += result.crashes
        self.splits += result.splits
        self.elections += result.elections
        self.tombstones += result.tombstones
        self.violations += len(result.violations)
        self._kinds.update(result.kinds)
        self._digest.update(result.digest.encode())

    @property
    def faults(self) -> str:
        """How often each kind of fault happened, with those that never did."""
        return "faults: " + " ".join(f"{kind}={self._kinds[kind]}" for kind in KINDS)

    def __str__(self) -> str:
        return (
            f"seeds={self.seeds} commits={self.commits} crashes={self.crashes} splits={self.splits} "
            f"elections={self.elections} tombstones={self.tombstones} violations={self.violations} "
            f"digest={self._digest.hexdigest()[:32]}"
        )


if __name__ == "__main__":
    sys.exit(main())
