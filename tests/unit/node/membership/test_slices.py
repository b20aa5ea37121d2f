"""What is to be done for many partitions at once is done some at a time: by turns of the event loop, not by time."""

import asyncio
import errno
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any, TypeVar, cast

import pytest

from bascule import limits
from bascule.core.metadata.codec import decode, decoding, encode, encoding
from bascule.core.metadata.commands import (
    BrokerDied,
    CreateStream,
    DeleteStream,
    ShrinkIsr,
)
from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Change, Metadata
from bascule.core.metadata.streams import Stream
from bascule.core.raft.ready import Ready
from bascule.core.replication import feed as feed_machine
from bascule.core.replication.feed import Feed
from bascule.errors import Status
from bascule.log.sync import GROUP, SyncScheduler
from bascule.node.membership import metadata as store_module
from bascule.node.membership import raft as raft_driver
from bascule.node.membership.metadata import MetadataCache, MetadataStore
from bascule.node.membership.raft import RaftDriver
from bascule.node.partition import manager
from bascule.node.partition.replica import Replica
from bascule.ports import Clock, Disk, Write
from bascule.testing.bus import MemoryNats
from bascule.testing.logs import NoReports
from bascule.testing.loop import VirtualLoop, run
from bascule.wire.pb import api_pb2 as api
from bascule.wire.raft_messages import Entry, EntryKind, Snapshot
from tests.harness.changes import NoChanges
from tests.harness.members import three, until

T = TypeVar("T")


def turn() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop.turns


class Log:
    """A member of a group commit that has one or more writes."""

    def __init__(self, number: int, told: list[tuple[int, int, list[OSError | None]]]) -> None:
        self._number = number
        self._told = told

    def take(self) -> list[Write]:
        return [Write(f"{self._number}/{each}", 0, [b"x"]) for each in range(1 + self._number % 3)]

    def finish(self, errors: list[OSError | None]) -> None:
        self._told.append((self._number, turn(), errors))

    take_unsynced, finish_synced = take, finish

    def fail(self, error: AssertionError) -> None:
        raise error


class FailingDisk:
    """Says for each write which one it was."""

    async def commit(self, writes: list[Write], sync: bool) -> list[OSError | None]:
        await asyncio.sleep(0.001)
        return [OSError(write.path) for write in writes]


class Reports:
    """Notes how many logs had been told when reports left."""

    def __init__(self, told: Sequence[object], pushes: list[int]) -> None:
        self._told, self._pushes = told, pushes

    def push(self) -> None:
        self._pushes.append(len(self._told))


class StillClock:
    def monotonic_ns(self) -> int:
        return 0


def test_logs_are_told_of_a_group_commit_some_at_a_time_each_what_is_its_own() -> None:
    count = 3 * limits.SYNC_RESULTS_SLICE + 1
    told: list[tuple[int, int, list[OSError | None]]] = []
    pushes: list[int] = []

    async def main() -> None:
        scheduler = SyncScheduler(
            cast(Disk, FailingDisk()),
            cast(Clock, StillClock()),
            GROUP,
            on_pressure=lambda pressed: None,
            reports=Reports(told, pushes),
            on_fatal=pytest.fail,
        )
        for number in range(count):
            scheduler.enqueue(Log(number, told))
        await scheduler.close()

    run(main())
    assert [number for number, _, _ in told] == list(range(count))
    for number, _, errors in told:
        assert [str(error) for error in errors] == [f"{number}/{each}" for each in range(1 + number % 3)]
    turns = Counter(at for _, at, _ in told)
    assert max(turns.values()) <= limits.SYNC_RESULTS_SLICE
    assert len(turns) >= 4
    assert pushes == [*range(limits.SYNC_RESULTS_SLICE, count, limits.SYNC_RESULTS_SLICE), count], (
        "reports leave with each slice"
    )


def test_a_group_commit_that_trips_over_an_error_of_ours_ends_the_process_with_the_reason() -> None:
    """What its logs had waiting would wait for good."""
    reasons: list[str] = []

    class Broken(Log):
        def take(self) -> list[Write]:
            raise AssertionError("a write behind the end")

    async def main() -> None:
        scheduler = SyncScheduler(
            cast(Disk, FailingDisk()),
            cast(Clock, StillClock()),
            GROUP,
            on_pressure=lambda pressed: None,
            reports=NoReports(),
            on_fatal=reasons.append,
        )
        scheduler.enqueue(Broken(0, []))
        await scheduler.close()

    run(main())
    (reason,) = reasons
    assert reason.startswith("the group commit ended unexpectedly: AssertionError('a write behind the end')")


class Turns:
    """Notes in which turn of the loop changes came."""

    def __init__(self, turns: list[int]) -> None:
        self._turns = turns

    def enqueue(self, changes: list[Change]) -> None:
        self._turns.append(turn())


def applied_in_turns(monkeypatch: pytest.MonkeyPatch, commands: list[bytes], partitions: int) -> list[int]:
    """The turn of the loop in which each of these commands was applied to a stream of that many partitions."""
    monkeypatch.setattr(raft_driver, "APPLY_SLICE", 100)
    metadata = Metadata()
    metadata.apply(1, CreateStream(Stream("s", "s", "", place(partitions, 3, ("a", "b", "c"), []))))
    turns: list[int] = []

    async def main() -> None:
        store = MetadataStore(MetadataCache(metadata), Turns(turns))
        nothing = cast(Any, None)
        driver = RaftDriver(nothing, nothing, nothing, store, 0, nothing)
        entries = [Entry(index, 1, EntryKind.COMMAND, command) for index, command in enumerate(commands, 2)]
        await driver._apply(Ready(committed=entries))
        assert metadata.index == len(commands) + 1

    run(main())
    return turns


def test_many_small_commands_are_applied_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a broker comes back and is let into a thousand in-sync sets."""
    shrink = [encode(ShrinkIsr("s", number, "b", "a", 1, 1)) for number in range(0, 300, 3)]
    turns = applied_in_turns(monkeypatch, shrink, 300)
    assert len(turns) == 100
    assert max(Counter(turns).values()) <= 100 / limits.COMMAND_WEIGHT


def test_commands_that_change_many_partitions_have_a_turn_each(monkeypatch: pytest.MonkeyPatch) -> None:
    died = [encode(BrokerDied("b", ("a", "c"))), encode(BrokerDied("c", ("a",)))]
    assert len(set(applied_in_turns(monkeypatch, died, 300))) == 2


def test_what_a_follower_says_of_many_partitions_is_taken_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_machine, "FEED_SLICE", 5)
    taken: Counter[tuple[Feed, int]] = Counter()
    place_one = Feed._place

    def counted(self: Feed, *args: Any) -> None:
        taken[self, turn()] += 1
        place_one(self, *args)

    monkeypatch.setattr(Feed, "_place", counted)

    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", partitions=90, replicationFactor=3)
        assert (await members["a"].call("CreateStream", request, timeout_s=30.0))[0] is Status.OK
        for partition in range(90):
            await members["b"].publish("s", b"v", partition=partition)
        members["c"].kill()
        await members["c"].start()
        await until(lambda: all(len(item.isr) == 3 for item in members["a"].broker.cluster.metadata.streams["s"]))
        for partition in range(90):
            await members["c"].publish("s", b"v", partition=partition)

    run(main())
    assert sum(taken.values()) > 90
    assert max(taken.values()) <= 5


def test_partitions_are_closed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "CLOSE_SLICE", 10)
    closed: list[int] = []
    close = Replica.close

    async def counted(self: Replica) -> None:
        closed.append(turn())
        await close(self)

    monkeypatch.setattr(Replica, "close", counted)

    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", partitions=60, replicationFactor=3)
        assert (await members["a"].call("CreateStream", request, timeout_s=30.0))[0] is Status.OK
        await members["b"].broker.stop()
        await members["b"].broker.close()

    run(main())
    assert len(closed) == 60
    assert max(Counter(closed).values()) <= 10


def slices_of(work: Generator[None, None, T]) -> tuple[int, T]:
    """How often it stopped, and its result."""
    stops = 0
    while True:
        try:
            next(work)
        except StopIteration as done:
            return stops, done.value
        stops += 1


def test_commands_and_snapshots_of_many_partitions_are_coded_some_at_a_time() -> None:
    count = 4 * limits.CODEC_SLICE
    command = CreateStream(Stream("s", "s", "", place(count, 3, ("a", "b", "c"), [])))
    stops, data = slices_of(encoding(command))
    assert stops == 4
    assert data == encode(command)
    stops, decoded = slices_of(decoding(data))
    assert stops == 4
    assert decoded == command == decode(data)
    metadata = Metadata()
    metadata.apply(1, command)
    stops, snapshot = slices_of(metadata.snapshotting())
    assert stops >= 4
    assert snapshot == metadata.snapshot()
    stops, restored = slices_of(Metadata.restoring(snapshot))
    assert stops >= 4
    assert restored.streams == metadata.streams


def test_a_snapshot_in_slices_is_of_the_moment_it_was_begun() -> None:
    metadata = Metadata()
    for index in (1, 2, 3):
        metadata.apply(index, CreateStream(Stream(f"s{index}", f"s{index}", "", place(2, 1, ("a",), []))))
    whole = metadata.snapshot()
    work = metadata.snapshotting()
    next(work)
    metadata.apply(4, BrokerDied("a"))
    metadata.apply(5, DeleteStream("s3"))
    assert slices_of(work)[1] == whole


def test_a_large_command_is_decoded_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CODEC_SLICE", 100)
    monkeypatch.setattr(store_module, "CODEC_SLICED_BYTES", 1000)
    create = encode(CreateStream(Stream("t", "t", "", place(1000, 3, ("a", "b", "c"), []))))
    began: list[int] = []

    async def main() -> None:
        store = MetadataStore(MetadataCache(Metadata()), NoChanges())
        began.append(turn())
        await store.apply(Entry(1, 1, EntryKind.COMMAND, create))
        began.append(turn())
        assert store.metadata.streams["t"].partition(999) is not None

    run(main())
    assert began[1] - began[0] >= 10


def test_a_snapshot_that_comes_while_one_is_taken_is_not_overtaken() -> None:
    """The log that it was taken of is gone by then."""

    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
        assert (await members["a"].call("CreateStream", request))[0] is Status.OK
        driver = next(m.broker.cluster.raft for m in members.values() if not m.broker.cluster.raft.is_leader)
        await until(lambda: driver.raft.log.applied == driver.raft.log.commit)
        driver._snapshot_threshold = 1
        compacting = asyncio.ensure_future(driver._compact())
        await asyncio.sleep(0)
        assert not compacting.done()
        log = driver.raft.log
        log.pending_snapshot = Snapshot(log.applied + 10, 1, driver.membership, b"")
        before = log.snapshot
        await compacting
        assert log.snapshot is before
        log.pending_snapshot = None

    run(main())


def test_a_snapshot_that_cannot_be_stored_is_not_taken_again_for_each_change(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        driver = next(m.broker.cluster.raft for m in members.values() if m.broker.cluster.raft.is_leader)
        driver._snapshot_threshold = 8

        async def full(snapshot: Snapshot) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(driver.storage, "compact", full)
            before, snapshot = driver.raft.log.applied, driver.raft.log.snapshot.index
            for number in range(24):
                name = f"s{number}"
                request = api.CreateStreamRequest(name=name, subject=name, replicationFactor=3)
                assert (await members["a"].call("CreateStream", request))[0] is Status.OK
            made = driver.raft.log.applied - before
            tries = len([each for each in caplog.records if "snapshot failed" in each.getMessage()])
            assert 2 <= tries <= made // 2 + 1
            assert driver.raft.log.snapshot.index == snapshot
        for number in range(2):
            request = api.CreateStreamRequest(name=f"t{number}", subject=f"t{number}", replicationFactor=3)
            assert (await members["a"].call("CreateStream", request))[0] is Status.OK
        assert driver.raft.log.snapshot.index > snapshot

    run(main())
