"""`readFromReplicas` on three real brokers: followers give what they have, and every message comes once."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bascule.client import BlockingClient, LogRange, Outgoing
from bascule.pipelines import restore
from bascule.pipelines.flow import make_stream
from bascule.spark.options import read_options
from bascule.spark.source import LiftbridgeReader
from bascule.testing.processes import poll
from tests.harness.cluster_load import Brokers
from tests.harness.spark_sink import start

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]
PARTITIONS, EACH = 3, 20_000


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with Brokers(tmp_path_factory.mktemp("replicas"), peers=True) as running:
        yield running


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many records each broker gave; those of leaders have no name."""
    found: Counter[str] = Counter()
    real = BlockingClient.read_range

    def noted(client: BlockingClient, *where: Any, **how: Any) -> Iterator[LogRange]:
        for each in real(client, *where, **how):
            found[how.get("replica", "")] += each.count
            yield each

    monkeypatch.setattr(BlockingClient, "read_range", noted)
    return found


def rows(brokers: Brokers, stream: str) -> list[tuple[int, int, bytes]]:
    options = {"servers": ",".join(brokers.addresses), "streams": stream, "readFromReplicas": "true"}
    reader = LiftbridgeReader(read_options({**options, "minPartitions": "6"}), ["partition", "offset", "value"])
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    return [(row["partition"], row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()]


def expected() -> list[tuple[int, int, bytes]]:
    return [(number, n, b"%d" % n) for number in range(PARTITIONS) for n in range(EACH)]


def test_followers_give_most_of_a_stream_and_the_leader_what_they_cannot(brokers: Brokers, given: Counter[str]) -> None:
    with BlockingClient(brokers.addresses) as client:
        client.create_stream("wide", partitions=PARTITIONS, replication_factor=3)
        for number in range(PARTITIONS):
            client.publish_many("wide", [b"%d" % n for n in range(EACH)], partition=number)
        assert sorted(rows(brokers, "wide")) == expected()
        named = {each for each in given if each}
        assert named <= set("abc")
        assert named
        assert sum(given[each] for each in named) > given[""], given
        leader = client.fetch_metadata(["wide"]).streams["wide"].partitions[0].leader
        dead = next(each for each in "abc" if each != leader)
        brokers[dead].kill9()  # it is in sync, as far as anybody knows
        try:
            assert sorted(rows(brokers, "wide")) == expected()
        finally:
            brokers[dead].start().wait_ready()


def test_a_compacted_stream_is_read_from_its_leader(brokers: Brokers, given: Counter[str]) -> None:
    with BlockingClient(brokers.addresses) as client:
        settings: Any = {"compact_enabled": True, "cleaner_interval_ms": 50, "segment_max_bytes": 4000}
        client.create_stream("narrow", replication_factor=3, **settings)
        for turn in range(10):
            client.publish_many("narrow", [Outgoing(b"%d" % turn, b"k%d" % (n % 20)) for n in range(100)])
        assert poll(lambda: sum(each.count for each in client.read_range("narrow")) < 500, 60), "it was not compacted"
        given.clear()
        found = rows(brokers, "narrow")
        newest = [value for _, _, value in sorted(found)[-20:]]
        assert newest == [b"9"] * 20
        assert len({offset for _, offset, _ in found}) == len(found) < 500
    assert given[""] >= len(found)


def test_streams_that_pipelines_make_have_the_replicas_of_what_they_read(brokers: Brokers) -> None:
    servers = ",".join(brokers.addresses)
    with BlockingClient(brokers.addresses) as client:
        client.create_stream("safe-one", replication_factor=3)
        client.create_stream("safe-two", replication_factor=2)

        def replicas(stream: str) -> int:
            return len(client.fetch_metadata([stream]).streams[stream].partitions[0].replicas)

        make_stream(read_options({"servers": servers, "streams": "safe-one"}), "safe-one.dlq")
        make_stream(read_options({"servers": servers, "streamPattern": "safe-two.*"}), "safe-totals")
        assert (replicas("safe-one.dlq"), replicas("safe-totals")) == (3, 2)
        make_stream(read_options({"servers": servers, "streams": "safe-two"}), "safe-one.dlq")
        assert replicas("safe-one.dlq") == 3, "one that is there is left as it is"
        restore.make(client, "safe-back", 2, 3)
        assert replicas("safe-back") == 3


def test_a_query_writes_each_row_once_when_the_leader_is_killed_in_a_batch(
    spark: Any, brokers: Brokers, tmp_path: Path
) -> None:
    rows = 60_000
    with BlockingClient(brokers.addresses) as client:
        client.create_stream("led", replication_factor=3)
        client.create_stream("led-sink", replication_factor=3)
        client.publish_many("led", [Outgoing(b"%d" % n, b"k%d" % (n % 7)) for n in range(rows)])
        query = start(spark, ",".join(brokers.addresses), "led", "led-sink", str(tmp_path / "checkpoint"))
        assert poll(lambda: query.exception() is not None or client.log_bounds("led-sink").end > 0, 120)
        assert client.log_bounds("led-sink").end < rows, "it was too late"
        killed = client.fetch_metadata(["led-sink"]).streams["led-sink"].partitions[0].leader
        brokers[killed].kill9()
        try:
            query.awaitTermination()
        finally:
            brokers[killed].start().wait_ready()
        written = [each.value for piece in client.read_range("led-sink") for each in piece.messages()]
    assert written == [b"%d" % n for n in range(rows)]
