"""A real broker whose files are truncated, replaced or removed while it runs."""

import itertools
import os
import shutil
import time
from functools import partial
from pathlib import Path

import grpc
import pytest

from bascule.testing.processes import BrokerProcess, poll, start_broker
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import health_pb2
from tests.harness.grpc_calls import create, publish, status_of, values, watch_health
from tests.harness.stub import Stub

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NOTICED_S = 10.0
"""Half a second on a machine with nothing else to do."""
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


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9], ids=["emptied", "truncated in half", "truncated near its end"])
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


def acked_until_refused(stub: Stub, first: int) -> tuple[int, str]:
    """How many more are acked, and what is said then."""
    deadline = time.monotonic() + NOTICED_S
    for number in itertools.count(first):
        status, text = status_of(partial(publish, stub, "orders", body(number), ackPolicy=api.ALL))
        if status is not grpc.StatusCode.OK:
            return number - first, text
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    raise AssertionError("nobody noticed")


def health_of(stub: Stub) -> int:
    return int(next(watch_health(stub, "")).status)


@pytest.mark.parametrize("what", ["segment", "sealed", "stream"])
def test_files_taken_away_are_noticed_before_more_is_lost(tmp_path: Path, what: str) -> None:
    with start_broker(tmp_path) as broker, Stub(broker.address) as stub:
        fill(stub)
        paths = segments(broker)
        path = {"segment": paths[-1], "sealed": paths[1], "stream": paths[0].parent.parent}[what]
        aside = tmp_path / "aside"
        path.rename(aside)
        began = time.monotonic()
        more, text = acked_until_refused(stub, COUNT)
        assert "removed, moved or replaced" in text
        assert str(path.name) in text or what == "stream"
        assert "takes no writes" in broker.logs()
        assert health_of(stub) == SERVING
        assert len(values(stub, "orders")) == COUNT + more  # it is open still
        assert not path.exists()
        assert time.monotonic() - began < NOTICED_S
        aside.rename(path)
        assert poll(lambda: status_of(lambda: publish(stub, "orders", b"and on", ackPolicy=api.ALL))[1] == "", 60)
        assert broker.terminate() == 0
        broker.start().wait_ready()
        assert values(stub, "orders")[: COUNT + more] == [body(number) for number in range(COUNT + more)]
        assert values(stub, "orders")[-1] == b"and on"


@pytest.mark.parametrize("what", ["moved", "removed"])
def test_a_broker_without_its_data_folder_does_not_serve(tmp_path: Path, what: str) -> None:
    with start_broker(tmp_path) as broker, Stub(broker.address) as stub:
        fill(stub)
        folder, aside = Path(broker.data_dir), tmp_path / "aside"
        if what == "moved":
            folder.rename(aside)
        else:
            shutil.rmtree(folder)
        _, text = acked_until_refused(stub, COUNT)
        assert "removed, moved or replaced" in text
        assert poll(lambda: health_of(stub) == NOT_SERVING, NOTICED_S)
        assert f"the data folder {folder} was removed or moved while this broker runs" in broker.logs()
        status, _ = status_of(lambda: create(stub, "another"))
        assert status is not grpc.StatusCode.OK
        assert not folder.exists()
        if what == "removed":
            assert broker.terminate() == 0
            return
        aside.rename(folder)
        assert poll(lambda: health_of(stub) == SERVING, NOTICED_S)
        assert poll(lambda: status_of(lambda: publish(stub, "orders", b"and on", ackPolicy=api.ALL))[1] == "", 60)
        assert values(stub, "orders")[:COUNT] == [body(number) for number in range(COUNT)]
