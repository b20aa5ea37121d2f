"""A Spark query from one stream to another, and to a table, while drivers, workers and leaders are killed. Afterwards
the table is the range of the log that it is of, row by row, and the stream that was written has the rows of each key
once, in their order.

Three brokers, a driver in a process of its own, two streams of two partitions. Every round waits for a random moment,
kills one of them with SIGKILL, and sees that rows arrive again. Workers are killed in the middle of their tasks; tasks
are tried four times.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from bascule.client import BlockingClient, Message, Outgoing
from bascule.errors import BasculeError
from tests.harness.cluster_load import Brokers

SOURCE, SINK = "faults-source", "faults-sink"
PARTITIONS, KEYS = 2, 7
SETTLE_S = 400.0


def drive(servers: str, folder: str, once: bool) -> None:
    """The driver."""
    from bascule.spark import session

    spark = session("faults", master="local[2,4]", spark_sql_shuffle_partitions="2")
    options = {"servers": servers, "streams": SOURCE, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20000"}
    source = spark.readStream.format("liftbridge").options(**options)
    trigger = {"availableNow": True} if once else {"processingTime": "0 seconds"}
    table = source.load().select("partition", "offset", "key", "value").writeStream.format("parquet")
    queries = [
        table.option("checkpointLocation", f"{folder}/table-checkpoint").trigger(**trigger).start(f"{folder}/table"),
        source.load()
        .select("key", "value")
        .writeStream.format("liftbridge")
        .options(servers=servers, stream=SINK, checkpointLocation=f"{folder}/sink-checkpoint")
        .trigger(**trigger)
        .start(),
    ]
    if not once:
        spark.streams.awaitAnyTermination()  # with the error of the first one that fails
    for query in queries:
        query.awaitTermination()
    if once:
        rows = spark.read.parquet(f"{folder}/table").orderBy("partition", "offset").collect()
        with open(f"{folder}/rows", "wb") as out:
            for row in rows:
                out.write(b"%d %d %s\n" % (row["partition"], row["offset"], row["value"]))


class Driver:
    def __init__(self, servers: str, folder: Path, once: bool = False) -> None:
        command = [sys.executable, "-m", "tools.spark_faults", "--drive", servers, "--folder", str(folder)]
        self._log = (folder / "driver.log").open("ab")
        self.process = subprocess.Popen(
            [*command, *(["--once"] if once else [])], start_new_session=True, stdout=self._log, stderr=self._log
        )

    def kill(self) -> None:
        """Its workers, which have a group of their own, go on until they notice."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


def kill_worker(driver: int, chance: random.Random) -> bool:
    """One that runs tasks, if there is one."""
    try:
        children = psutil.Process(driver).children(recursive=True)
        daemons = [each for each in children if "pyspark.daemon" in " ".join(each.cmdline())]
        pids = {each.pid for each in daemons}
        forked = [each for each in daemons if each.ppid() in pids]
        if forked:
            chance.choice(forked).kill()
        return bool(forked)
    except psutil.Error:
        return False


class Publisher(threading.Thread):
    """Numbers each row, and stores it once."""

    def __init__(self, servers: list[str]) -> None:
        super().__init__(daemon=True)
        self._servers = servers
        self._over = threading.Event()
        self.rows = [0] * PARTITIONS

    def run(self) -> None:
        with BlockingClient(self._servers) as client:
            while not self._over.is_set():
                for number in range(PARTITIONS):
                    first = self.rows[number]
                    values = [Outgoing(b"%d/%d" % (number, n), key_of(number, n)) for n in range(first, first + 2000)]
                    client.publish_many(SOURCE, values, partition=number, retry_s=120.0)
                    self.rows[number] += len(values)
                self._over.wait(0.5)

    def end(self) -> None:
        self._over.set()
        self.join()


def end_of(client: BlockingClient, stream: str) -> int:
    try:
        return sum(client.log_bounds(stream, number).end for number in range(PARTITIONS))
    except BasculeError:
        return -1


def read(client: BlockingClient, stream: str, number: int) -> list[Message]:
    return [message for piece in client.read_range(stream, number, 0) for message in piece.messages()]


def run(folder: Path, rounds: int, seed: int) -> int:
    chance, kills = random.Random(seed), Counter[str]()
    with Brokers(folder) as brokers, BlockingClient(brokers.addresses) as client:
        servers = ",".join(brokers.addresses)
        for stream in (SOURCE, SINK):
            client.create_stream(stream, partitions=PARTITIONS, replication_factor=3)
        publisher = Publisher(brokers.addresses)
        publisher.start()
        driver = Driver(servers, folder)
        there = restarts = 0
        while sum(kills.values()) < rounds:
            deadline = time.monotonic() + SETTLE_S
            while end_of(client, SINK) <= there:
                if driver.process.poll() is not None:
                    restarts += 1
                    print(f"a driver ended by itself: {reason_of(folder / 'driver.log')}", flush=True)
                    driver = Driver(servers, folder)
                assert time.monotonic() < deadline, f"nothing was written: see {folder}/driver.log"
                time.sleep(0.05)
            time.sleep(chance.random() * 1.5)
            there = end_of(client, SINK)
            what = chance.choice(("driver", "worker", "worker", "worker", "leader"))
            if what == "driver":
                driver.kill()
                driver = Driver(servers, folder)
            elif what == "worker" and not kill_worker(driver.process.pid, chance):
                continue
            elif what == "leader":
                name = client.fetch_metadata([SINK]).streams[SINK].partitions[chance.randrange(PARTITIONS)].leader
                brokers[name].kill9()
                brokers[name].start().wait_ready()
            kills[what] += 1
            print(f"{sum(kills.values())}: {what} killed, {there} rows written", flush=True)
        publisher.end()
        driver.kill()
        ends = Driver(servers, folder, once=True).process.wait()
        assert ends == 0, (folder / "driver.log").read_text()[-4000:]
        print(f"{dict(kills)}; drivers that ended by themselves: {restarts}")
        return judge(client, folder, publisher.rows)


def reason_of(log: Path) -> str:
    """The last error in it."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [line.strip() for line in lines if re.search(r"\b(bascule\.errors|org\.apache\.spark)\.\S+: ", line)]
    return (errors or lines or ["it wrote nothing"])[-1][:500]


def judge(client: BlockingClient, folder: Path, rows: list[int]) -> int:
    table = (folder / "rows").read_bytes().splitlines()
    log = [b"%d %d %s" % (n, each.offset, each.value) for n in range(PARTITIONS) for each in read(client, SOURCE, n)]
    published: dict[bytes, list[bytes]] = {}
    for number in range(PARTITIONS):
        for row in range(rows[number]):
            published.setdefault(key_of(number, row), []).append(b"%d/%d" % (number, row))
    sink = [each for number in range(PARTITIONS) for each in read(client, SINK, number)]
    wrong = wrong_of(published, by_key(sink))
    print(
        f"{len(log)} records, {len(table)} rows in the table, {len(sink)} in the stream that was written; table "
        f"{'equals' if table == log else 'DIFFERS FROM'} the log; {'; '.join(wrong) or 'each row once, in order'}"
    )
    return int(table != log or bool(wrong))


def key_of(partition: int, row: int) -> bytes:
    """Of a row of the source: a key has one partition there, and one where it is written to."""
    return b"%d/%d" % (partition, row % KEYS)


def by_key(messages: Iterable[Message]) -> dict[bytes, list[bytes]]:
    """The values of each key, in the order in which they are stored: a key has one partition."""
    found: dict[bytes, list[bytes]] = {}
    for each in messages:
        found.setdefault(each.key or b"", []).append(each.value)
    return found


def wrong_of(published: Mapping[bytes, list[bytes]], there: Mapping[bytes, list[bytes]]) -> list[str]:
    """What is lost, there twice or foreign, or in another order, of each key."""
    wrong = []
    for key in sorted(published.keys() | there.keys()):
        wanted, found = published.get(key, []), there.get(key, [])
        lost, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
        if lost or more:
            wrong.append(f"key {key!r}: {lost.total()} lost, {more.total()} twice or foreign")
        elif wanted != found:
            first = next(number for number, pair in enumerate(zip(wanted, found, strict=True)) if pair[0] != pair[1])
            wrong.append(f"key {key!r}: out of order from row {first} on")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.spark_faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        drive(given.drive, given.folder, given.once)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder), given.kills, given.seed)


if __name__ == "__main__":
    raise SystemExit(main())
