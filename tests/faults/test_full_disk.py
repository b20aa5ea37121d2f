"""A real broker on a file system without a free byte."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from bascule.testing.processes import poll, start_broker
from bascule.wire.pb import api_pb2 as api
from tests.harness.grpc_calls import create, publish, status_of, values
from tests.harness.stub import Stub

COUNT = 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_up(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(65_536))
        except OSError:
            pass
        try:
            while True:
                file.write(b"x")
        except OSError:
            pass
    return ballast


def test_a_broker_started_without_a_free_byte_serves_reads_and_says_why_it_takes_no_writes(small: Path) -> None:
    with start_broker(small) as broker, Stub(broker.address) as stub:
        create(stub, "orders")
        for number in range(COUNT):
            publish(stub, "orders", b"%d" % number, ackPolicy=api.ALL)
        assert broker.terminate() == 0
        ballast = fill_up(small)
        broker.log = small.parent / "bascule.log"
        broker.start().wait_ready()
        assert values(stub, "orders") == [b"%d" % number for number in range(COUNT)]

        def refusal() -> str:
            return status_of(lambda: publish(stub, "orders", bytes(100_000), ackPolicy=api.ALL))[1]

        assert poll(lambda: "No space left" in refusal())
        status, text = status_of(lambda: create(stub, "another"))
        assert status is grpc.StatusCode.OK or "No space left" in text
        assert len(values(stub, "orders")) == COUNT
        ballast.unlink()
        assert poll(lambda: refusal() == "", 60)
        assert broker.terminate() == 0
