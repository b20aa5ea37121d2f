"""One Spark session and one broker for the tests of a module."""

from collections.abc import Iterator
from typing import Any

import pytest

from bascule.client import BlockingClient
from bascule.errors import StartError
from bascule.testing.processes import BrokerProcess, start_broker
from tests.harness.java import OPTIONS, QUICK


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(OPTIONS, QUICK)
        yield


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("spark"), config={"cursors.stream.partitions": 1}) as running:
        yield running


@pytest.fixture(scope="session")
def spark(quick_java: None) -> Iterator[Any]:
    from bascule.spark.delta import delta_settings
    from bascule.spark.session import session

    settings = {"spark_sql_shuffle_partitions": "2"}
    try:
        settings |= delta_settings()
    except StartError:  # told by `delta`
        pass
    spark = session("tests", master="local[2]", **settings)
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def client(broker: BrokerProcess) -> Iterator[BlockingClient]:
    with BlockingClient(broker.address) as client:
        yield client


@pytest.fixture
def delta(spark: Any) -> Any:
    """The session, if it has Delta."""
    from bascule.spark.delta import delta_settings

    try:
        delta_settings()
    except StartError as error:
        pytest.skip(f"Delta is not there: {error}")
    return spark
