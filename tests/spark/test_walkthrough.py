"""The code of docs/spark.md, from its first line to its last, as a reader would run it."""

import re
from pathlib import Path
from typing import Any

import pytest

from bascule.client import BlockingClient, Outgoing
from bascule.testing.processes import BrokerProcess
from tests.harness.paths import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "spark.md").read_text(), re.S)
ORDERS = 500
STREAMS = ("orders", "totals", "shouted")
"""Of the document; the broker is shared, so they have other names here."""


FOLDERS = ("checkpoint", "checkpoint-shouted", "orders.parquet")
"""Relative to where the JVM was started, so they have whole paths here."""


def here(block: str, broker: BrokerProcess, folder: Path) -> str:
    for name in STREAMS:
        block = block.replace(f'"{name}"', f'"walk-{name}"')
    for name in FOLDERS:
        block = block.replace(f'"{name}"', f'"{folder / name}"')
    return block.replace("localhost:9292", broker.address)


def test_the_walkthrough_runs_and_does_what_it_says(
    spark: Any,
    broker: BrokerProcess,
    client: BlockingClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in STREAMS:
        client.create_stream(f"walk-{name}")
    client.publish_many("walk-orders", [Outgoing(b"order %d" % n, b"%d" % n if n % 2 else None) for n in range(ORDERS)])
    names: dict[str, Any] = {}
    try:
        for block in BLOCKS:
            exec(here(block, broker, tmp_path), names)
        names["query"].processAllAvailable()  # it has begun, at the latest
        client.publish("walk-orders", b"one more")
        shouted = client.subscribe("walk-shouted", stop=0)
        assert next(iter(shouted)).value == b"ONE MORE"
    finally:
        for query in spark.streams.active:
            query.stop()
    assert names["orders"].count() == ORDERS, "the range of a DataFrame is fixed when it is planned"
    assert spark.read.parquet(str(tmp_path / "orders.parquet")).count() == ORDERS
    assert client.fetch_cursor("lake", "walk-orders") == ORDERS - 1
    assert client.log_bounds("walk-totals").end == ORDERS // 2
    assert re.search(rf"message\|\s*{ORDERS}\|", capsys.readouterr().out)
