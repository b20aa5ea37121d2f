"""A broker that may open few files: segments and clients take turns, and nothing ever meets the limit."""

import asyncio
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bascule.errors import StartError
from bascule.limits import MAX_CONNECTIONS, MAX_OPEN_FILES, MIN_DESCRIPTORS, RESERVED_DESCRIPTORS
from bascule.log.disk import FileDisk
from bascule.log.files import OpenFile
from bascule.node.process.descriptors import WANTED, share_out
from bascule.ports import Write
from bascule.testing.probe import call
from bascule.testing.processes import HOST, BrokerProcess, poll
from bascule.wire.pb import api_pb2 as api

LIMIT = 64
PARTITIONS = 100
CLIENTS = 200


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "broker")
    broker.command = ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", *broker.command]
    with broker:
        broker.start().wait_ready()
        yield broker


def publish(broker: BrokerProcess, partition: int) -> int:
    request = api.PublishRequest(stream="s", partition=partition, value=b"v", ackPolicy=api.LEADER)
    return call(HOST, broker.port, "/proto.API/Publish", request.SerializeToString()).status


def create(broker: BrokerProcess) -> None:
    request = api.CreateStreamRequest(name="s", subject="s", partitions=PARTITIONS)
    assert call(HOST, broker.port, "/proto.API/CreateStream", request.SerializeToString()).status == 0


def test_more_segments_and_clients_than_descriptors_are_served_in_turns(broker: BrokerProcess) -> None:
    create(broker)
    assert [publish(broker, partition) for partition in range(PARTITIONS)] == [0] * PARTITIONS
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            stack.enter_context(socket.create_connection((HOST, broker.port), timeout=5))
        assert poll(lambda: len(os.listdir(f"/proc/{broker.pid}/fd")) < LIMIT, 5)

    def served() -> bool:
        try:
            return publish(broker, 0) == 0
        except OSError:
            return False

    assert poll(served, 5), broker.log_tail()
    assert [publish(broker, partition) for partition in range(PARTITIONS)] == [0] * PARTITIONS
    assert "ERROR" not in broker.logs()
    assert f"may open {LIMIT} files" in broker.logs()


def test_one_commit_of_more_files_than_may_be_open(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path, max_open_files=8)
    disk.lock()
    most = 0

    def count(*_: object) -> None:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")) - before)

    before = len(os.listdir("/proc/self/fd"))
    writes = [Write(f"{number}.log", 0, [b"x"], create=True) for number in range(PARTITIONS)]
    durable = disk._make_durable

    def make_durable(
        files: Sequence[OpenFile | None], folders: dict[str, list[int]], errors: Any, failures_before: int
    ) -> None:
        count()
        durable(files, folders, errors, failures_before)

    disk._make_durable = make_durable  # type: ignore[method-assign]
    try:
        assert asyncio.run(disk.commit(writes, sync=True)) == [None] * PARTITIONS
    finally:
        disk.close()
    assert 0 < most <= 16
    assert len(list(tmp_path.glob("*.log"))) == PARTITIONS


@pytest.mark.parametrize("limit", [MIN_DESCRIPTORS, 256, 1024, WANTED, 1 << 20])
def test_the_shares_leave_the_rest_to_others(limit: int) -> None:
    shares = share_out(limit)
    assert 0 < shares.files <= MAX_OPEN_FILES
    assert 0 < shares.connections <= MAX_CONNECTIONS
    assert shares.files + shares.connections + RESERVED_DESCRIPTORS <= limit


def test_too_few_descriptors_are_refused_with_what_to_do() -> None:
    with pytest.raises(StartError, match="ulimit -n"):
        share_out(MIN_DESCRIPTORS - 1)
