"""`make faults`: real brokers under every fault, as often as it takes to believe it. Exits 1 if anything acked is lost,
stored twice, out of order or withdrawn."""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.faults import cluster_scenarios as scenarios
from tests.faults.cluster_load import Report

ROUNDS: dict[Callable[[Path, int], Coroutine[Any, Any, Report]], int] = {
    scenarios.kill_leaders: 30,
    scenarios.kill_all: 10,
    scenarios.pause_leaders: 6,
    scenarios.restart_nats: 5,
    scenarios.wipe_each: 6,
    scenarios.recreate_while_down: 3,
    scenarios.cut_off: 9,
    scenarios.rolling_restart: 3,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--rounds", type=int, default=0, help="instead of the usual number")
    arguments = parser.parse_args()
    clean = True
    for scenario, usual in ROUNDS.items():
        if arguments.only not in scenario.__name__:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bascule-faults-") as folder:
            report = asyncio.run(scenario(Path(folder), arguments.rounds or usual))
        print(f"{report} seconds={time.monotonic() - began:.0f}", flush=True)
        clean = clean and report.clean
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
