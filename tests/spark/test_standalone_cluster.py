"""A real standalone cluster: what `docs/spark.md` says about shipping is what executors need, and nothing else."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import yaml
from click.testing import CliRunner

from bascule.cli.pipeline import pipeline
from bascule.client import BlockingClient, Outgoing
from bascule.testing.processes import BrokerProcess, poll
from tests.harness import spark_job
from tests.harness.spark_cluster import StandaloneCluster
from tests.harness.spark_sink import stored

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

COUNT = 5000


def piped(cluster: StandaloneCluster, shipped: Path, folder: Path, name: str, **given: object) -> dict[str, Any]:
    """What a pipeline that was submitted prints, which is JSON and nothing else."""
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(given))
    program = Path(CliRunner().invoke(pipeline, ["script"]).output.strip())
    driver = cluster.submit(folder / f"{name}.log", shipped, program, name, "--config", str(config), "--json")
    with driver.start():
        assert poll(lambda: not driver.running, 300), driver.log_tail()
    assert driver.exit_code == 0, driver.log_tail()
    assert "Warning: " not in driver.logs()
    (answer,) = [line for line in driver.logs().splitlines() if line.startswith('{"')]
    found: dict[str, Any] = json.loads(answer)
    return found


def test_two_executors_read_and_write_with_what_is_shipped_and_one_is_killed(
    broker: BrokerProcess, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_stream("spread", partitions=2)
    client.create_stream("spread-sink", partitions=2)
    for number in range(2):
        values = [Outgoing(b"%d/%d" % (number, n), b"%d" % n) for n in range(COUNT)]
        client.publish_many("spread", values, partition=number)
    shipped = tmp_path / "bascule.zip"
    assert CliRunner().invoke(pipeline, ["ship", str(shipped)], catch_exceptions=False).exit_code == 0
    given = {"servers": broker.address, "streams": "spread", "table": str(tmp_path / "lake")}
    arguments = (broker.address, "spread", "spread-sink", str(tmp_path))
    with StandaloneCluster(tmp_path) as cluster:
        driver = cluster.submit(tmp_path / "driver.log", shipped, Path(spark_job.__file__), *arguments)
        with driver.start():
            assert poll(lambda: not driver.running or client.log_bounds("spread-sink").end > 0, 600), driver.log_tail()
            cluster.kill_executor()  # in the middle of a write, or right after a part of it
            assert poll(lambda: not driver.running, 600), driver.log_tail()
        assert driver.exit_code == 0, driver.log_tail()
        archived = piped(cluster, shipped, tmp_path, "archive", **given, maxOffsetsPerTrigger=6000, hold=False)
        audited = piped(cluster, shipped, tmp_path, "audit", **given)
    assert (archived["rows"], archived["batches"]) == (2 * COUNT, 2)
    assert (audited["ok"], audited["records"]) == (True, 2 * COUNT)
    (answer,) = [line for line in driver.logs().splitlines() if line.startswith("[{")]
    tasks = json.loads(answer)
    assert sum(task["rows"] for task in tasks) == 2 * COUNT
    assert len({task["executor"] for task in tasks}) == 2
    assert {task["python"] for task in tasks} == {str(cluster.python)}
    assert {task["kernels"] for task in tasks} == {"compiled"}
    assert all(task["package"].startswith(f"{task['executor']}/bascule/") for task in tasks), "it was shipped"
    table = ds.dataset(tmp_path / "table").to_table(columns=["partition", "offset", "value"]).to_pylist()
    log = [(number, n, b"%d/%d" % (number, n)) for number in range(2) for n in range(COUNT)]
    assert sorted((row["partition"], row["offset"], row["value"]) for row in table) == log
    written = Counter(each.value for number in range(2) for each in stored(client, "spread-sink", number))
    assert written == Counter({value: 2 for _, _, value in log}), "by the query once, and by the batch once"
