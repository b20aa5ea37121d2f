"""Streams over TLS: a broker that wants certificates of its clients, and executors that have them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bascule.client import BlockingClient
from bascule.net.tls import client_context
from bascule.testing.processes import BrokerProcess
from tests.harness.certificates import Authority
from tests.harness.tls_broker import server_config, start

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
COUNT = 50
Options = dict[str, str]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secured(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start(tmp_path_factory.mktemp("tls"), server_config(authority, clients=authority)) as broker:
        yield broker


@pytest.fixture(scope="module")
def options(authority: Authority, secured: BrokerProcess) -> Options:
    cert, key = authority.issue("spark")
    tls = {"tlsCa": str(authority.path), "tlsCert": str(cert), "tlsKey": str(key)}
    with BlockingClient(secured.address, tls=client_context(str(authority.path), str(cert), str(key))) as client:
        client.create_stream("secret", partitions=2)
        for number in range(2):
            client.publish_many("secret", [b"%d" % n for n in range(COUNT)], partition=number)
        client.create_stream("copied")
    return {"servers": secured.address, **tls}


def test_a_stream_is_read_written_and_read_as_a_stream_over_tls(spark: Any, options: Options, tmp_path: Path) -> None:
    secret = spark.read.format("liftbridge").options(**options, streams="secret").load()
    rows = sorted((row.partition, row.offset, row.value) for row in secret.collect())
    assert rows == [(p, n, b"%d" % n) for p in range(2) for n in range(COUNT)]
    secret.select("value").write.format("liftbridge").options(**options, stream="copied").mode("append").save()
    query = (
        spark.readStream.format("liftbridge")
        .options(**options, streams="copied", startingOffsets="earliest")
        .load()
        .writeStream.format("memory")
        .queryName("over_tls")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [bytes(row.value) for row in spark.sql("SELECT value FROM over_tls").collect()]
    assert sorted(found) == sorted(value for _, _, value in rows)


def test_who_is_not_let_in_is_told_why(spark: Any, options: Options, secured: BrokerProcess, tmp_path: Path) -> None:
    def count(**changed: str) -> int:
        given = {**options, "streams": "secret", **changed}
        return int(spark.read.format("liftbridge").options(**{k: v for k, v in given.items() if v}).load().count())

    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    cert, key = (str(each) for each in other.issue("spark"))
    assert count() == 2 * COUNT
    with pytest.raises(Exception, match="certificates of tlsCa, tlsCert and tlsKey cannot be read on this machine"):
        count(tlsCa=str(tmp_path / "nowhere.pem"))
    for changed in ({"tlsCa": str(other.path)}, {"tlsCert": "", "tlsKey": ""}, {"tlsCert": cert, "tlsKey": key}):
        with pytest.raises(Exception, match=r"(?i)certificate|tls"):
            count(**changed)
