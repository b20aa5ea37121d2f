"""Compaction by a real broker: of many keyed records, with a map of keys that has room for a quarter of the keys, while
publishing continues: how much longer acks take, how much memory it takes, and whether the newest record of each key is
left, by a model. Then of a smaller log, with kill -9 at random moments of it.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from tests.harness.keyed_load import Outcome, compact_beside_publishing, kill_amid_compaction

MOST_KILLED_RECORDS = 100_000
MOST_RATIO = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.compaction", description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000, help="before publishing continues")
    parser.add_argument("--keys", type=int, default=2_000_000, help="of them; the map has room for a quarter")
    parser.add_argument("--kills", type=int, default=50, help="of a log of a fiftieth of it")
    parser.add_argument("--seconds", type=float, default=20.0, help="of publishing before and after the compaction")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", default="/var/tmp", help="where data goes: a real disk")
    given = parser.parse_args()
    if not 0 < given.keys <= given.records:
        parser.error(f"{given.keys} keys of {given.records} records: there must be a record for each key, at least")
    outcomes: list[Outcome] = []
    if given.seconds > 0:
        with tempfile.TemporaryDirectory(dir=given.dir) as folder:
            beside = compact_beside_publishing(Path(folder), given.records, given.keys, given.seed, given.seconds)
            outcomes.append(asyncio.run(beside))
        print(outcomes[-1], flush=True)
    if given.kills:
        records = min(given.records, MOST_KILLED_RECORDS)
        keys = max(records * given.keys // given.records, 1)
        with tempfile.TemporaryDirectory(dir=given.dir) as folder:
            outcomes.append(asyncio.run(kill_amid_compaction(Path(folder), records, keys, given.seed, given.kills)))
        print(outcomes[-1], flush=True)
    slow = any(each.p99_ms and each.ratio > MOST_RATIO for each in outcomes)
    return 1 if slow or any(each.wrong for each in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
