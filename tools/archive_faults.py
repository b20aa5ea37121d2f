"""A continuous `bascule pipeline archive` while its driver, its workers and leaders are killed. Afterwards the
table is the log, row by row, the holds are at its end, and `audit` finds nothing.

Three brokers, a stream of two partitions that never rests. Every round waits for another batch and then for a random
moment, so that all steps of a batch are met: the folder of the table tells where a driver was. Of half of the drivers
only Python is killed: their Java goes on for a moment, beside the next driver.
"""

import argparse
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import yaml

from bascule.client import BlockingClient
from bascule.client.columns import batch_of_range
from bascule.pipelines.ledger import Ledger
from bascule.testing.processes import script
from tests.harness.archives import holds_of
from tests.harness.cluster_load import Brokers
from tools.spark_faults import PARTITIONS, SETTLE_S, SOURCE, Publisher, kill_worker, reason_of

COLUMNS = ("offset", "timestamp_ns", "key", "value", "subject", "leaderEpoch")
HOLD = "lake"


class Driver:
    def __init__(self, config: Path, pipeline: str = "archive") -> None:
        self.log = (config.parent / "driver.log").open("ab")
        command = [str(script("bascule")), "pipeline", pipeline, "--config", str(config)]
        self.process = subprocess.Popen(command, start_new_session=True, stdout=self.log, stderr=self.log)

    def kill(self, with_java: bool) -> None:
        if with_java:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait()
        self.log.close()


def step_of(ledger: Ledger) -> str:
    """What a driver that is dead was at."""
    last = ledger.last()
    staged = [each.name for each in ledger.staging.iterdir()] if ledger.staging.is_dir() else []
    if last is not None and last.staged in staged:
        return "its batch was committed and not all in the table"
    return "its batch was being written" if staged else "between two batches"


def configured(folder: Path, servers: str, **more: object) -> Path:
    config = folder / "archive.yaml"
    given: dict[str, object] = {"servers": servers, "streams": SOURCE, "table": str(folder / "table"), "hold": HOLD}
    given |= {"maxOffsetsPerTrigger": 20_000, "interval": "50ms", "spark": {"master": "local[2,4]"}}
    config.write_text(yaml.safe_dump({**given, **more}))
    return config


def run(folder: Path, rounds: int, seed: int) -> int:
    chance, kills, steps = random.Random(seed), Counter[str](), Counter[str]()
    with Brokers(folder) as brokers, BlockingClient(brokers.addresses) as client:
        client.create_stream(SOURCE, partitions=PARTITIONS, replication_factor=3)
        publisher = Publisher(brokers.addresses)
        publisher.start()
        config = configured(folder, ",".join(brokers.addresses), trigger="continuous")
        ledger = Ledger(folder / "table")
        driver, batches, restarts = Driver(config), 0, 0
        while sum(kills.values()) < rounds:
            deadline = time.monotonic() + SETTLE_S
            while len(ledger.numbers()) <= batches:
                if driver.process.poll() is not None:
                    restarts += 1
                    print(f"a driver ended by itself: {reason_of(folder / 'driver.log')}", flush=True)
                    driver = Driver(config)
                assert time.monotonic() < deadline, f"nothing was archived: see {folder}/driver.log"
                time.sleep(0.02)
            time.sleep(chance.random() * 1.5)
            batches = len(ledger.numbers())
            what = chance.choice(("driver", "driver and its Java", "worker", "leader"))
            if what.startswith("driver"):
                driver.kill(with_java=what != "driver")
                steps[step_of(ledger)] += 1
                driver = Driver(config)
            elif what == "worker" and not kill_worker(driver.process.pid, chance):
                continue
            elif what == "leader":
                name = client.fetch_metadata([SOURCE]).streams[SOURCE].partitions[chance.randrange(PARTITIONS)].leader
                brokers[name].kill9()
                brokers[name].start().wait_ready()
            kills[what] += 1
            print(f"{sum(kills.values())}: {what} killed, {batches} batches in the table", flush=True)
        publisher.end()
        driver.kill(with_java=True)
        print(f"{dict(kills)}; of the drivers: {dict(steps)}; that ended by themselves: {restarts}", flush=True)
        return judge(client, folder, brokers, publisher.rows)


def judge(client: BlockingClient, folder: Path, brokers: Brokers, published: list[int]) -> int:
    servers = ",".join(brokers.addresses)
    log = folder / "driver.log"
    assert Driver(configured(folder, servers, trigger="once")).process.wait() == 0, log.read_text()[-4000:]
    audit = folder / "audit.yaml"
    audit.write_text(yaml.safe_dump({"servers": servers, "streams": SOURCE, "table": str(folder / "table")}))
    undamaged = Driver(audit, "audit").process.wait() == 0
    holds = holds_of(next(iter(brokers.brokers.values())), SOURCE)
    wrong = []
    for number in range(PARTITIONS):
        there, wanted = table_of(folder / "table", number), log_of(client, number)
        print(f"{SOURCE}/{number}: {wanted.num_rows} records, {there.num_rows} rows, {published[number]} acked")
        if not there.equals(wanted) or wanted.num_rows != published[number]:
            wrong.append(f"the table differs from the log of partition {number}")
        if holds[number, HOLD] != wanted.num_rows:
            wrong.append(f"the hold of partition {number} is at {holds[number, HOLD]}")
    if not undamaged:
        wrong.append(f"audit has findings: {log.read_text()[-2000:]}")
    print("; ".join(wrong) or "the table is the log, row by row; the holds are at its end; audit finds nothing")
    return int(bool(wrong))


def table_of(table: Path, number: int) -> pa.Table:
    rows = pyarrow.dataset.dataset(table, partitioning="hive", format="parquet")
    found = rows.to_table(columns=list(COLUMNS), filter=pyarrow.dataset.field("partition") == number)
    return found.sort_by("offset").replace_schema_metadata().combine_chunks()


def log_of(client: BlockingClient, number: int) -> pa.Table:
    pieces = [batch_of_range(COLUMNS, SOURCE, number, each) for each in client.read_range(SOURCE, number, 0)]
    return pa.Table.from_batches([each for each in pieces if each.num_rows]).combine_chunks()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.archive_faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder), given.kills, given.seed)


if __name__ == "__main__":
    raise SystemExit(main())
