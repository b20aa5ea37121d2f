"""One Spark session and one broker for the tests of a module."""

from collections.abc import Iterator
from typing import Any

import pytest

from bascule.client import BlockingClient
from bascule.testing.processes import BrokerProcess, start_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("spark")) as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from bascule.spark import session

    spark = session("tests", master="local[2]", spark_sql_shuffle_partitions="2")
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def client(broker: BrokerProcess) -> Iterator[BlockingClient]:
    with BlockingClient(broker.address) as client:
        yield client
