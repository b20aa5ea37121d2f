"""A real broker whose files are cut, replaced or taken away while it runs."""

import os
from pathlib import Path

import pytest

from bascule.testing.processes import BrokerProcess, start_broker
from bascule.wire.pb import api_pb2 as api
from tests.faults.peer import create, publish, values
from tests.interop.stub import Stub

SEGMENT_BYTES = 2_000
COUNT = 60


def body(number: int) -> bytes:
    return b"%05d" % number * 20


def fill(stub: Stub, stream: str = "orders") -> None:
    create(stub, stream, segmentMaxBytes=api.NullableInt64(value=SEGMENT_BYTES))
    for number in range(COUNT):
        publish(stub, stream, body(number), ackPolicy=api.ALL)


def segments(broker: BrokerProcess, stream: str = "orders") -> list[Path]:
    return sorted(Path(broker.data_dir).glob(f"streams/{stream}@*/0/*.log"))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9], ids=["emptied", "cut in half", "cut near its end"])
def test_a_closed_segment_that_became_shorter_holds_nobody_up(tmp_path: Path, share: float) -> None:
    with start_broker(tmp_path) as broker, Stub(broker.address) as stub:
        fill(stub)
        path = segments(broker)[1]
        os.truncate(path, int(path.stat().st_size * share))
        found = values(stub, "orders")
        assert 0 < COUNT - len(found) < 30
        assert found == [value for value in map(body, range(COUNT)) if value in found]
        publish(stub, "orders", b"and on", ackPolicy=api.ALL)
        assert values(stub, "orders")[-1] == b"and on"
        assert "the file has become shorter" in broker.logs()
        assert broker.terminate() == 0
