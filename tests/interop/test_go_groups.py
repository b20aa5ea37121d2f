"""Consumers of go-liftbridge share a stream that is written all the time: one is killed, then their coordinator. Every
message is read, and twice at most what came after the last checkpoint."""

import threading
from itertools import cycle
from pathlib import Path
from typing import Self

import pytest

from bascule.testing.jsonlines import Event, JsonProcess, JsonProgram
from bascule.testing.probe import call
from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from tests.harness.cluster_load import Brokers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PARTITIONS = 4
GROUP = "readers"
# The client fetches its assignments every 0.4 timeouts, and 2 s after a fetch that found another epoch, which is no
# heartbeat; a member that has expired never joins again.
SETTINGS = {
    "groups.consumer.timeout": "8s",
    "groups.coordinator.timeout": "3s",
    "cursors.stream.partitions": 2,
    "cursors.stream.replication.factor": 3,
}
Read = tuple[int, int]
"""Partition and offset."""


class Readers:
    """The consumers, and what they have read, in the order in which it is noticed."""

    def __init__(self) -> None:
        self.processes: dict[str, JsonProcess] = {}
        self.read: list[Read] = []
        self.errors: list[Event] = []

    def look(self) -> None:
        for process in self.processes.values():
            self._take(process)

    def have(self, everything: set[Read]) -> bool:
        self.look()
        return everything <= set(self.read)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.close()
        self._take(process)

    def close(self) -> None:
        for process in self.processes.values():
            process.close()

    def _take(self, process: JsonProcess) -> None:
        for event in process.so_far():
            if event["event"] == "message":
                self.read.append((event["partition"], event["offset"]))
            elif event["event"] != "joined":
                self.errors.append(event)


class Writer:
    """Publishes to all partitions, through one broker after the other, until it is stopped."""

    def __init__(self, go_program: Path, brokers: Brokers) -> None:
        self.stored: set[Read] = set()
        """What was acked."""
        self._program = go_program
        self._brokers = brokers
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _write(self) -> None:
        for name, partition in zip(cycle("abc"), cycle(range(PARTITIONS)), strict=False):
            if self._stopped.wait(0.05):
                return
            if self._brokers[name].running:
                go = JsonProgram([str(self._program)], address=self._brokers[name].address)
                events = go("publish", stream="shared", partition=partition, count=10, policy="all", timeout="5s")
                acked = {(partition, event["offset"]) for event in events if event["event"] == "ack"}
                self.stored = self.stored | acked  # another set: the test looks at this one

    def has_written(self, more: int) -> bool:
        goal = len(self.stored) + more
        return poll(lambda: len(self.stored) >= goal, 60.0)


class Group:
    """As any broker that runs has it."""

    def __init__(self, go_program: Path, brokers: Brokers) -> None:
        self._program = go_program
        self._brokers = brokers

    @property
    def address(self) -> str:
        return next(broker.address for broker in self._brokers.brokers.values() if broker.running)

    @property
    def coordinator(self) -> str:
        host, _, port = self.address.rpartition(":")
        request = api.FetchMetadataRequest(streams=["shared"], groups=[GROUP])
        answer = call(host, int(port), "/proto.API/FetchMetadata", request.SerializeToString(), 5.0)
        return api.FetchMetadataResponse.FromString(answer.message).groupMetadata[0].coordinator

    def checkpoints(self) -> dict[int, int]:
        """By partition, the last offset that is not to be read again; -1 if there is none."""
        go, found = JsonProgram([str(self._program)], address=self.address), {}
        for partition in range(PARTITIONS):
            event = go.one("cursor", stream="shared", partition=partition, cursor=f"__group:{GROUP}")
            found[partition] = event["offset"] if event["event"] == "cursor" else -2
        return found

    def has_passed(self, checkpoints: dict[int, int]) -> bool:
        newer = self.checkpoints()
        return all(newer[partition] > offset for partition, offset in checkpoints.items())


def read_again(readers: Readers, before: int, checkpoints: dict[int, int]) -> list[Read]:
    """Behind the first `before` reads: what had been read by then, and a checkpoint too."""
    known = set(readers.read[:before])
    return [item for item in readers.read[before:] if item in known and item[1] <= checkpoints[item[0]]]


def test_every_message_is_read_though_a_consumer_and_the_coordinator_are_killed(
    tmp_path: Path, go_program: Path
) -> None:
    readers = Readers()
    with Brokers(tmp_path, peers=True, config=SETTINGS) as brokers:
        go = JsonProgram([str(go_program)], address=brokers["a"].address)
        group = Group(go_program, brokers)
        assert go.one("create", stream="shared", partitions=PARTITIONS, replication_factor=3)["event"] == "created"
        try:
            for name in ("one", "two"):
                readers.processes[name] = go.start(
                    "consume", stream="shared", group=GROUP, consumer=name, checkpoint="500ms", timeout="220s"
                )
                readers.processes[name].next("joined")
            with Writer(go_program, brokers) as writer:
                assert poll(lambda: group.has_passed(dict.fromkeys(range(PARTITIONS), -1)), 60.0), (
                    group.checkpoints(),
                    readers.errors,
                )
                first = group.checkpoints()
                readers.kill("one")
                before_first = len(readers.read)
                assert writer.has_written(100)
                assert poll(lambda: group.has_passed(first), 60.0), (group.checkpoints(), readers.errors)
                second = group.checkpoints()
                killed = group.coordinator
                brokers[killed].kill9()
                readers.look()
                before_second = len(readers.read)
                assert poll(lambda: group.coordinator not in ("", killed), 30.0)
                assert writer.has_written(100)
            assert poll(lambda: readers.have(writer.stored), 90.0), readers.errors
            assert read_again(readers, before_first, first) == []
            assert read_again(readers, before_second, second) == []
            assert {partition for partition, _ in writer.stored} == set(range(PARTITIONS))
            assert len(set(readers.read)) >= len(writer.stored) > 200
        finally:
            readers.close()
