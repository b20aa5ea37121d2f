"""The start of a partition only rises, and never above a hold; holds are set, raised and removed."""

import pytest

from bascule.core.metadata.commands import CreateStream, NewStart, RaiseStarts, RemoveHold, SetHold
from bascule.core.metadata.state import Metadata, PartitionsChanged, Rejected
from bascule.core.metadata.streams import Partition, Stream
from bascule.errors import FailedPrecondition, InvalidArgument, NotFound
from bascule.limits import MAX_HOLD_NAME_BYTES, MAX_HOLDS
from bascule.types import PartitionId


def made() -> Metadata:
    metadata = Metadata()
    partitions = tuple(Partition(PartitionId(number), ("a", "b"), "a", ("a", "b")) for number in range(2))
    metadata.apply(1, CreateStream(Stream("s", "s", "", partitions)))
    return metadata


def starts(metadata: Metadata) -> list[int]:
    return [item.start for item in metadata.streams["s"]]


def raised(start: int, partition: int = 0, *, leader: str = "a", epoch: int = 1, index: int = 1) -> RaiseStarts:
    return RaiseStarts(leader, (NewStart("s", index, partition, epoch, start),))


def test_a_start_rises_for_good() -> None:
    metadata = made()
    (change,) = metadata.apply(2, RaiseStarts("a", (NewStart("s", 1, 0, 1, 5), NewStart("s", 1, 1, 1, 7))))
    assert isinstance(change, PartitionsChanged)
    assert starts(metadata) == [5, 7]
    assert metadata.apply(3, raised(4)) == []
    assert starts(metadata) == [5, 7]
    assert Metadata.restore(metadata.snapshot()).streams == metadata.streams


@pytest.mark.parametrize(
    "command",
    [
        raised(5, leader="b"),
        raised(5, epoch=2),
        raised(5, index=9),
        raised(5, partition=2),
        RaiseStarts("a", (NewStart("t", 1, 0, 1, 5),)),
    ],
    ids=["another leads", "another epoch", "another stream of that name", "no such partition", "no such stream"],
)
def test_what_a_leader_of_the_past_lets_expire_stays(command: RaiseStarts) -> None:
    metadata = made()
    assert metadata.apply(2, command) == []
    assert starts(metadata) == [0, 0]


def test_the_partition_epoch_stays_so_that_changes_under_way_still_fit() -> None:
    metadata = made()
    metadata.apply(2, raised(5))
    metadata.apply(3, SetHold("s", 0, "archive", 6))
    item = metadata.streams["s"].partitions[0]
    assert (item.epoch, item.leader_epoch) == (1, 1)


def test_nothing_at_or_above_the_lowest_hold_goes() -> None:
    metadata = made()
    metadata.apply(2, SetHold("s", 0, "slow", 10, at=1))
    metadata.apply(3, SetHold("s", 0, "fast", 20, at=2))
    assert metadata.apply(4, raised(11)) == []
    metadata.apply(5, raised(10))
    assert starts(metadata) == [10, 0]
    metadata.apply(6, SetHold("s", 0, "slow", 30, at=3))
    metadata.apply(7, raised(20))
    assert metadata.apply(8, raised(21)) == []
    metadata.apply(9, RemoveHold("s", 0, "fast"))
    metadata.apply(10, raised(30))
    assert starts(metadata) == [30, 0]
    assert [hold.name for hold in metadata.streams["s"].partitions[0].holds] == ["slow"]
    assert Metadata.restore(metadata.snapshot()).streams == metadata.streams


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        (SetHold("s", 0, "h", 4), FailedPrecondition, "begins at offset 5"),
        (SetHold("s", 0, "there", 7), FailedPrecondition, "is at offset 8, and is never lowered"),
        (SetHold("s", 0, "", 9), InvalidArgument, "from 1 to"),
        (SetHold("s", 0, "x" * (MAX_HOLD_NAME_BYTES + 1), 9), InvalidArgument, "from 1 to"),
        (SetHold("s", 2, "h", 9), NotFound, "partition does not exist"),
        (SetHold("t", 0, "h", 9), NotFound, "partition does not exist"),
        (RemoveHold("s", 0, "h"), NotFound, "there is no hold 'h'"),
    ],
)
def test_what_is_refused(command: SetHold | RemoveHold, error: type[Exception], text: str) -> None:
    metadata = made()
    metadata.apply(2, raised(5))
    metadata.apply(3, SetHold("s", 0, "there", 8))
    with pytest.raises(error, match=text):
        metadata.check(command)
    (outcome,) = metadata.apply(4, command)
    assert isinstance(outcome, Rejected)


def test_holds_are_bounded() -> None:
    metadata = made()
    for number in range(MAX_HOLDS):
        metadata.apply(number + 2, SetHold("s", 0, f"h{number}", 1))
    with pytest.raises(FailedPrecondition, match="at most"):
        metadata.check(SetHold("s", 0, "one more", 1))
    metadata.check(SetHold("s", 0, "h0", 2))
