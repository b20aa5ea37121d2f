"""Partitions paused, resumed and set read-only, in the metadata."""

import pytest

from bascule.core.metadata.commands import BrokerDied, CreateStream, PauseStream, ResumeStream, SetStreamReadonly
from bascule.core.metadata.pausing import is_resumed, replicates
from bascule.core.metadata.state import Metadata, Rejected
from bascule.core.metadata.streams import EventTimes, Partition, Stream
from bascule.errors import FailedPrecondition
from bascule.types import Epoch, PartitionId


def made() -> Metadata:
    metadata = Metadata()
    partitions = tuple(Partition(PartitionId(number), ("a", "b"), "a", ("a", "b")) for number in range(3))
    metadata.apply(1, CreateStream(Stream("s", "s", "", partitions)))
    return metadata


def paused(metadata: Metadata) -> list[int]:
    return [item.id for item in metadata.streams["s"] if item.paused]


def test_a_resumed_partition_has_another_leader_epoch() -> None:
    metadata = made()
    metadata.apply(2, PauseStream("s", (1,), at=10))
    item = metadata.streams["s"].partitions[1]
    assert (item.paused, item.epoch, item.leader_epoch) == (True, 2, 1)
    metadata.apply(3, ResumeStream("s", (0, 1, 2), at=20))
    item = metadata.streams["s"].partitions[1]
    assert (item.paused, item.epoch, item.leader_epoch) == (False, 3, 3)
    assert item.pauses == EventTimes(10, 20)
    assert metadata.streams["s"].partitions[0].leader_epoch == 1, "it was not paused"
    assert Metadata.restore(metadata.snapshot()).streams == metadata.streams


def test_resuming_one_that_was_paused_to_resume_all_resumes_all() -> None:
    metadata = made()
    metadata.apply(2, PauseStream("s", (), resume_all=True))
    metadata.apply(3, PauseStream("s", (2,)))
    metadata.apply(4, ResumeStream("s", (2,)))
    assert paused(metadata) == [0, 1]
    metadata.apply(5, ResumeStream("s", (0,)))
    assert paused(metadata) == []
    assert metadata.apply(6, ResumeStream("s", (0,))) == []


def test_a_paused_partition_gets_another_leader_and_stays_paused() -> None:
    metadata = made()
    metadata.apply(2, PauseStream("s", (0,), resume_all=True, at=5))
    metadata.apply(3, SetStreamReadonly("s", (0,), True, at=6))
    metadata.apply(4, BrokerDied("a", ("b",)))
    item = metadata.streams["s"].partitions[0]
    assert (item.leader, item.leader_epoch, item.isr) == ("b", 4, ("b",))
    assert (item.paused, item.resume_all, item.readonly) == (True, True, True)
    assert (item.pauses, item.readonly_changes) == (EventTimes(5, 5), EventTimes(6, 6))


@pytest.mark.parametrize("leader", [("b", 1), ("a", 2)])
def test_a_leader_of_the_past_pauses_nothing(leader: tuple[str, int]) -> None:
    metadata = made()
    command = PauseStream("s", (0,), leader=leader[0], leader_epoch=leader[1])
    with pytest.raises(FailedPrecondition, match="does not lead partition 0 any more"):
        metadata.check(command)
    (outcome,) = metadata.apply(2, command)
    assert isinstance(outcome, Rejected)
    metadata.apply(3, PauseStream("s", (0,), leader="a", leader_epoch=1))
    assert paused(metadata) == [0]


@pytest.mark.parametrize(
    ("isr", "alive", "expected"),
    [
        (("a", "b"), ("a", "b", "c"), True),
        (("a", "b", "c"), ("a", "b", "c"), False),
        (("a", "b"), ("a", "b"), False),
        (("a",), ("a", "c", "d"), True),
        (("a", "b"), ("b", "c"), False),
        ((), ("a", "b", "c"), False),
    ],
)
def test_a_paused_partition_is_replicated_while_a_live_replica_is_not_in_sync_and_its_leader_is_alive(
    isr: tuple[str, ...], alive: tuple[str, ...], expected: bool
) -> None:
    item = Partition(PartitionId(0), ("a", "b", "c"), isr[0] if isr else "", isr, paused=True)
    assert replicates(item, alive) is expected


def test_what_a_resumption_waits_for() -> None:
    metadata = made()
    metadata.apply(2, PauseStream("s", (0, 1), resume_all=True))
    metadata.apply(3, PauseStream("s", (2,)))

    def waits_for(index: int, command: ResumeStream) -> list[int]:
        metadata.apply(index, command)
        return [item.id for item in metadata.streams["s"] if is_resumed(item, command, Epoch(index))]

    assert waits_for(4, ResumeStream("s", (2,))) == [2]
    assert waits_for(5, ResumeStream("s", (2,))) == [2], "somebody else may just have resumed it"
    assert waits_for(6, ResumeStream("s", (0,))) == [0, 1]
    assert waits_for(7, ResumeStream("s", ())) == [0, 1, 2]
