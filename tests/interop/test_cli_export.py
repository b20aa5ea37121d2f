"""`bascule export`: a stream as Parquet files, which a second run goes on with."""

import json
from pathlib import Path

import pyarrow.parquet as pq

from bascule.client import BlockingClient
from bascule.testing.processes import BrokerProcess
from tests.harness.command import bascule


def test_a_stream_is_exported_and_the_next_run_appends(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream, partitions=2)
        client.publish_many(stream, [b"v"] * 100, spread=True)
        done = bascule("export", stream, str(tmp_path / "out"), "--columns", "offset, value", "-s", broker.address)
        assert done.stdout.startswith(f"100 messages of {stream} in 2 files in {tmp_path}/out: ")
        client.publish_many(stream, [b"w"] * 10, partition=1)
        again = bascule(
            "export", stream, str(tmp_path / "out"), "--columns", "offset,value", "--json", "-s", broker.address
        )
    report = json.loads(again.stdout)
    assert (report["messages"], len(report["files"]), report["remaining"]) == (10, 1, 0)
    values = [
        value
        for path in (tmp_path / "out").glob("*.parquet")
        for value in pq.ParquetFile(path).read()["value"].to_pylist()
    ]
    assert sorted(values) == [b"v"] * 100 + [b"w"] * 10


def test_what_is_wrong_is_one_line(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    refused = bascule("export", "nowhere", str(tmp_path), "-s", broker.address, code=1)
    assert refused.stderr == "error: no such stream: nowhere; `bascule stream list` shows those there are\n"
    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
    unknown = bascule("export", stream, str(tmp_path), "--columns", "colour", "-s", broker.address, code=1)
    assert unknown.stderr.startswith('error: there is no column "colour": there are stream, partition, offset')
