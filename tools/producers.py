"""Idempotent producers of three real brokers: one that repeats messages up to a whole window later, over NATS and over
gRPC, beside many others, while leaders are killed. Each sequence must be stored once.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from tests.harness.numbered_load import repeat_over_kills


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.producers", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of leaders")
    parser.add_argument("--others", type=int, default=1000, help="producers beside the one that repeats")
    parser.add_argument("--messages", type=int, default=40_000, help="of the one that repeats, at least")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = asyncio.run(repeat_over_kills(Path(folder), given.kills, given.others, given.messages))
    print(outcome)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
