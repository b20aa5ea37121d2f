"""Rows that are written again are stored once: the same batch, a task that died, a driver that was killed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from bascule.client import BlockingClient, Outgoing
from bascule.testing.processes import BrokerProcess
from tests.harness.spark_crash import STEP, STEPS
from tests.harness.spark_sink import start, stored, write

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

ROWS = 120_000
DRIVER = """
import sys
from bascule.spark import session
servers, source, sink, checkpoint = sys.argv[1:]
spark = session("killed", master="local[2]", spark_sql_shuffle_partitions="2")
from tests.harness.spark_crash import STEP, STEPS
from tests.harness.spark_sink import start
start(spark, servers, source, sink, checkpoint).awaitTermination()
"""


def values(client: BlockingClient, stream: str, partitions: int) -> Counter[bytes]:
    return Counter(each.value for number in range(partitions) for each in stored(client, stream, number))


def end(client: BlockingClient, stream: str, partitions: int) -> int:
    return sum(client.log_bounds(stream, number).end for number in range(partitions))


def fill(client: BlockingClient, source: str, sink: str) -> Counter[bytes]:
    client.create_stream(source, partitions=2)
    client.create_stream(sink, partitions=2)
    rows = [b"%d" % number for number in range(ROWS)]
    for number in range(2):
        client.publish_many(source, rows[number::2], partition=number)
    return Counter(rows)


def kill_workers() -> None:
    """Those that run tasks: forked by a daemon, which goes on."""
    daemons = [each for each in psutil.Process().children(recursive=True) if "pyspark.daemon" in " ".join(_line(each))]
    pids = {each.pid for each in daemons}
    forked = [each for each in daemons if _parent(each) in pids]
    assert forked, "tasks run in workers"
    for each in forked:
        each.kill()


def _line(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has ended
        return []


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return 0


def until_in_a_batch(client: BlockingClient, sink: str, beyond: int) -> None:
    """The sink has some rows of a batch, and not all; or everything, if that is too late."""
    deadline = time.monotonic() + 300  # a driver takes its time to start on a machine with other work
    while (there := end(client, sink, 2)) <= beyond or (there % 40_000 == 0 and there < ROWS):
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.002)


def test_a_batch_with_a_producer_id_is_stored_once_and_another_one_is_told_apart(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    client.create_stream("once", partitions=2)
    frame = spark.range(0, 40_000, numPartitions=3).selectExpr("string(id) AS value", "string(id % 7) AS key")
    for _ in range(2):
        write(frame, broker, stream="once", producerId="load 1")
        assert values(client, "once", 2) == Counter(b"%d" % number for number in range(40_000))
    other = spark.range(0, 40_000, numPartitions=3).selectExpr("string(id + 1) AS value", "string(id % 7) AS key")
    with pytest.raises(Exception, match="has other rows than when it was run before: task"):
        write(other, broker, stream="once", producerId="load 1")
    with pytest.raises(Exception, match=r"and 1\d* are stored of it|not the same ones"):
        write(frame.where("id < 20000"), broker, stream="once", producerId="load 1")
    with pytest.raises(Exception, match=r"has 2 tasks, and had task 2 when it was run before|has other rows"):
        write(frame.coalesce(2), broker, stream="once", producerId="load 1")
    assert end(client, "once", 2) < 80_000
    write(frame, broker, stream="once", producerId="load 2")
    assert set(values(client, "once", 2).values()) >= {2}


def test_rows_that_a_shuffle_gives_in_another_order_are_the_same_batch(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    client.create_stream("shuffled")
    rows = spark.range(300).selectExpr("string(id) AS value", "id AS order").repartition(2, "order")
    frames = [rows.sortWithinPartitions(rows.order), rows.sortWithinPartitions(rows.order.desc())]
    for frame in frames:
        write(frame, broker, stream="shuffled", producerId="load shuffled", orderBy="order")
    assert values(client, "shuffled", 1) == Counter(b"%d" % n for n in range(300))
    write(frames[0].drop("order"), broker, stream="shuffled", producerId="load as it came")
    with pytest.raises(Exception, match=r'name columns that tell rows apart, .option\("orderBy", "id"\)'):
        write(frames[1].drop("order"), broker, stream="shuffled", producerId="load as it came")


def test_a_stream_may_be_shuffled_before_it_is_written(
    spark: Any, broker: BrokerProcess, client: BlockingClient, tmp_path: Path
) -> None:
    """Spark does not sort the rows of a stream itself."""
    client.create_stream("to-shuffle")
    client.create_stream("shuffled-stream")
    client.publish_many("to-shuffle", [b"%d" % n for n in range(200)])
    source = {"servers": broker.address, "streams": "to-shuffle", "startingOffsets": "earliest", "minPartitions": "3"}
    for _ in range(2):
        frame = spark.readStream.format("liftbridge").options(**source).load().repartition(2, "offset")
        frame = frame.selectExpr("value", "offset")
        writer = frame.writeStream.format("liftbridge").options(servers=broker.address, stream="shuffled-stream")
        writer = writer.option("orderBy", "offset").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        shutil.rmtree(tmp_path / "checkpoint" / "commits")  # the driver died before it
    assert values(client, "shuffled-stream", 1) == Counter(b"%d" % n for n in range(200))


def test_values_that_end_with_their_own_checksum_are_told_apart(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    """Any CRC-32 over such values depends on nothing but their lengths."""
    client.create_stream("sealed")
    sealed = "concat(text, reverse(unhex(lpad(hex(crc32(text)), 8, '0')))) AS value"
    texts = spark.range(100, 200, numPartitions=1)
    first = texts.selectExpr("binary(string(id)) AS text").selectExpr(sealed)
    write(first, broker, stream="sealed", producerId="load sealed")
    other = texts.selectExpr("binary(string(id + 1)) AS text").selectExpr(sealed)
    with pytest.raises(Exception, match="has other rows than when it was run before: task"):
        write(other, broker, stream="sealed", producerId="load sealed")


def test_a_batch_is_refused_when_its_stream_was_made_again(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    client.create_stream("remade")
    frame = spark.range(10).selectExpr("string(id) AS value")
    write(frame, broker, stream="remade", producerId="load remade")
    client.delete_stream("remade")
    client.create_stream("remade", partitions=2)
    with pytest.raises(Exception, match="wrote to a stream remade that was deleted since, and made again"):
        write(frame, broker, stream="remade", producerId="load remade")
    assert values(client, "remade", 2) == Counter()


def test_a_batch_of_many_is_stored_once_and_an_older_one_is_told(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    client.create_stream("of-many")

    def batch(number: int) -> None:
        frame = spark.range(10 * number, 10 * number + 10).selectExpr("string(id) AS value")
        write(frame, broker, stream="of-many", producerId="load many", producerBatch=str(number))

    for number in (0, 1, 1, 2, 2):
        batch(number)
        assert values(client, "of-many", 1) == Counter(b"%d" % n for n in range(10 * number + 10))
    with pytest.raises(Exception, match="batch 1 of load many is not the latest one: a later one was written already"):
        batch(1)
    client.delete_stream("spark-writes")  # the partition knows it all the same
    with pytest.raises(Exception, match="batch 1 of load many is not the latest one: a later one was written already"):
        batch(1)
    assert values(client, "of-many", 1) == Counter(b"%d" % n for n in range(30))


def test_a_batch_that_is_not_registered_any_more_is_not_called_another_one(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    client.create_stream("unregistered")
    frame = spark.range(10).selectExpr("string(id) AS value")
    write(frame, broker, stream="unregistered", producerId="load unregistered")
    client.delete_stream("spark-writes")
    with pytest.raises(Exception, match="was run before, and stream spark-writes does not know it any more"):
        write(frame, broker, stream="unregistered", producerId="load unregistered")
    assert values(client, "unregistered", 1) == Counter(b"%d" % n for n in range(10))


def test_a_worker_that_is_killed_in_a_batch_leaves_nothing_twice(
    spark: Any, broker: BrokerProcess, client: BlockingClient, tmp_path: Path
) -> None:
    expected = fill(client, "kill-worker", "kill-worker-sink")
    checkpoint = str(tmp_path / "checkpoint")
    query = start(spark, broker.address, "kill-worker", "kill-worker-sink", checkpoint)
    until_in_a_batch(client, "kill-worker-sink", 0)
    kill_workers()
    with suppress(Exception):  # a task is tried once in a local session, and this one may just have ended
        query.awaitTermination()
    start(spark, broker.address, "kill-worker", "kill-worker-sink", checkpoint).awaitTermination()
    assert values(client, "kill-worker-sink", 2) == expected


@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_in_a_batch_leaves_nothing_twice(
    spark: Any, broker: BrokerProcess, client: BlockingClient, tmp_path: Path
) -> None:
    expected = fill(client, "kill-driver", "kill-driver-sink")
    arguments = [broker.address, "kill-driver", "kill-driver-sink", str(tmp_path / "checkpoint")]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *arguments], start_new_session=True)
    try:
        until_in_a_batch(client, "kill-driver-sink", 40_000)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    start(spark, *arguments).awaitTermination()
    assert values(client, "kill-driver-sink", 2) == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_that_dies_at_each_step_of_a_batch_in_turn_leaves_nothing_twice(
    spark: Any, broker: BrokerProcess, client: BlockingClient, tmp_path: Path
) -> None:
    """Each driver finds what the one before left of the same batch."""
    client.create_stream("each-step", partitions=2)
    client.create_stream("each-step-sink", partitions=2)
    values = [b"%0200d" % n for n in range(40_000)]  # several bulk writes of each task
    for number in range(2):
        rows = [Outgoing(value, b"%d" % number) for value in values[number::2]]
        client.publish_many("each-step", rows, partition=number)
    checkpoint = tmp_path / "checkpoint"
    arguments = [broker.address, "each-step", "each-step-sink", str(checkpoint)]
    for step in STEPS:
        with (tmp_path / "driver.log").open("ab") as log:
            command = [sys.executable, "-m", "tests.harness.spark_crash", *arguments]
            environment = {**os.environ, STEP: step}
            driver = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log, env=environment)
            assert driver.wait(240) == -signal.SIGKILL, (step, (tmp_path / "driver.log").read_text()[-3000:])
        assert not list((checkpoint / "commits").glob("[0-9]*")), step
    start(spark, *arguments).awaitTermination()
    found: dict[bytes | None, list[bytes]] = {}
    for number in range(2):
        for each in stored(client, "each-step-sink", number):
            found.setdefault(each.key, []).append(each.value)
    assert found == {b"0": values[0::2], b"1": values[1::2]}
