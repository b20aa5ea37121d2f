"""Up to where tombstones may go: no further than the logs of all replicas are cleared."""

from dataclasses import replace

import pytest

from bascule.core.metadata.commands import (
    At,
    BeginRemoval,
    BrokerDied,
    ClearedEnd,
    CreateStream,
    DiskLost,
    ElectLeader,
    ExpandIsr,
    GiveWay,
    RemoveBroker,
    ShrinkIsr,
    TellCleared,
)
from bascule.core.metadata.state import Metadata, Rejected
from bascule.core.metadata.streams import Cleared, Partition, Stream, StreamConfig
from bascule.core.metadata.tombstones import is_cleared, told
from bascule.types import PartitionId

ALL = ("a", "b", "c")


class World:
    """One partition of one stream, with three replicas."""

    def __init__(self, min_isr: int = 1) -> None:
        self.metadata = Metadata()
        item = Partition(PartitionId(0), ALL, "a", ALL)
        self.apply(CreateStream(Stream("s", "s", "", (item,), StreamConfig(min_isr=min_isr))))

    def apply(self, command: object) -> object:
        return self.metadata.apply(self.metadata.index + 1, command)  # type: ignore[arg-type]

    @property
    def item(self) -> Partition:
        return self.metadata.streams["s"].partitions[0]

    def told(self, replica: str, end: int, **other: object) -> ClearedEnd:
        known = told(self.item, replica)
        right = ClearedEnd("s", 1, 0, self.item.epoch, known.at if known else 0, end)
        return right._replace(**other)  # type: ignore[arg-type]

    def tell(self, replica: str, end: int, **other: object) -> object:
        return self.apply(TellCleared(replica, (self.told(replica, end, **other),)))

    def all_tell(self, *ends: int) -> None:
        for replica, end in zip(self.item.replicas, ends, strict=True):
            self.tell(replica, end)

    def change(self, replica: str) -> tuple[str, int, str, str, int, int]:
        return "s", 0, replica, self.item.leader, self.item.leader_epoch, self.item.epoch


def test_tombstones_go_below_the_least_end_of_all_replicas() -> None:
    world = World()
    world.tell("a", 30)
    world.tell("b", 10)
    assert world.item.tombstones_end == 0, "one of them has told nothing"
    world.tell("c", 20)
    assert world.item.tombstones_end == 10
    world.tell("b", 40)
    assert world.item.tombstones_end == 20


def test_a_replica_that_is_not_in_sync_holds_them_as_well() -> None:
    world = World()
    world.all_tell(10, 10, 10)
    world.apply(BrokerDied("c", ("a", "b")))
    assert world.item.isr == ("a", "b")
    world.tell("a", 90)
    world.tell("b", 90)
    assert world.item.tombstones_end == 10


def test_their_end_never_goes_down_and_what_is_told_does() -> None:
    world = World()
    world.all_tell(30, 30, 30)
    world.tell("b", 5)
    assert world.item.tombstones_end == 30
    assert told(world.item, "b") == Cleared("b", 5, world.metadata.index)
    world.tell("a", 60)
    world.tell("c", 60)
    assert world.item.tombstones_end == 30


@pytest.mark.parametrize(
    "other", [{"epoch": 99}, {"since": 77}, {"creation_index": 9}, {"partition": 1}, {"stream": "t"}]
)
def test_an_end_that_was_told_of_another_state_does_not_count(other: dict[str, object]) -> None:
    world = World()
    world.all_tell(10, 10, 10)
    before = world.item
    assert world.tell("a", 50, **other) == []
    assert world.item == before


def test_a_late_copy_of_an_end_does_not_count() -> None:
    """The log may have begun anew since, and told less: what was told first is of another log."""
    world = World()
    late = TellCleared("a", (world.told("a", 50),))
    world.tell("a", 50)
    world.tell("a", 0)
    world.apply(late)
    known = told(world.item, "a")
    assert known is not None
    assert known.end == 0


def test_an_end_that_was_told_for_other_replicas_does_not_count() -> None:
    world = World()
    world.tell("a", 10)
    world.tell("b", 10)
    late = TellCleared("c", (world.told("c", 10),))
    world.apply(BeginRemoval("b", (At("s", 0, "d"),)))
    world.apply(late)
    assert (world.item.replicas, world.item.tombstones_end) == (("a", "b", "c", "d"), 0)
    world.tell("c", 10)
    assert world.item.tombstones_end == 0, "the new one has told nothing"
    world.tell("d", 7)
    assert world.item.tombstones_end == 7


def test_one_that_is_no_replica_tells_nothing() -> None:
    world = World()
    assert world.apply(TellCleared("x", (ClearedEnd("s", 1, 0, world.item.epoch, 0, 10),))) == []


def test_what_a_replica_told_ends_with_its_assignment() -> None:
    world = World()
    world.all_tell(10, 10, 10)
    world.apply(RemoveBroker("c", ""))
    assert [each.replica for each in world.item.cleared] == ["a", "b"]
    assert world.item.tombstones_end == 10, "what is gone is gone"
    world.apply(BeginRemoval("b", (At("s", 0, "c"),)))
    world.tell("a", 50)
    world.tell("b", 50)
    assert world.item.tombstones_end == 10


def test_nobody_enters_the_in_sync_set_whose_log_is_not_known_to_be_cleared() -> None:
    world = World()
    world.apply(ShrinkIsr(*world.change("c")))
    world.tell("a", 20)
    world.tell("b", 20)
    world.tell("c", 20)
    world.tell("c", 10)
    (refused,) = world.metadata.apply(world.metadata.index + 1, ExpandIsr(*world.change("c")))
    assert isinstance(refused, Rejected)
    world.tell("c", 20)
    world.apply(ExpandIsr(*world.change("c")))
    assert world.item.isr == ("a", "b", "c")


def test_where_no_tombstone_goes_nobody_has_to_tell_anything() -> None:
    world = World()
    world.apply(ShrinkIsr(*world.change("c")))
    world.tell("a", 20)
    world.apply(ExpandIsr(*world.change("c")))
    assert world.item.isr == ("a", "b", "c")
    assert is_cleared(world.item, "c")


def elected(world: World, replica: str) -> None:
    item = world.item
    world.apply(ElectLeader(At("s", 0, replica), item.isr, item.eligible))


def test_an_election_with_accepted_loss_begins_again() -> None:
    world = World()
    world.all_tell(10, 10, 10)
    elected(world, "b")
    item = world.item
    assert (item.tombstones_end, item.cleared, item.tombstones_epoch) == (0, (), item.unclean_epoch)
    assert not is_cleared(item, "c"), "it has to tell of a log that began after this"
    world.tell("c", 0)
    assert is_cleared(world.item, "c")


def test_an_election_where_no_tombstone_went_lets_the_logs_count() -> None:
    world = World()
    world.tell("a", 10)
    elected(world, "b")
    assert (world.item.cleared, world.item.tombstones_epoch) == ((), 0)


def test_a_second_election_begins_again_although_nothing_was_told_since() -> None:
    world = World()
    world.all_tell(10, 10, 10)
    elected(world, "b")
    first = world.item.tombstones_epoch
    elected(world, "c")
    assert world.item.tombstones_epoch > first


def test_a_removal_with_accepted_loss_begins_again() -> None:
    world = World()
    world.all_tell(10, 10, 10)
    for broker in ("b", "c"):
        world.apply(DiskLost(broker, ("a",)))
    assert world.item.isr == ("a",)
    world.apply(RemoveBroker("a", "", (At("s", 0, "b"),)))
    assert (world.item.leader, world.item.tombstones_end) == ("b", 0)
    assert world.item.tombstones_epoch == world.item.unclean_epoch


def test_leadership_that_is_handed_to_a_log_which_is_not_known_to_be_cleared_begins_again() -> None:
    world = World()
    world.all_tell(10, 10, 10)
    world.apply(ShrinkIsr(*world.change("c")))
    world.tell("c", 3)
    world.apply(GiveWay(*world.change("c")))
    assert (world.item.leader, world.item.isr, world.item.tombstones_end) == ("c", ("c",), 0)
    assert world.item.tombstones_epoch == world.item.leader_epoch


def test_leadership_that_is_handed_to_a_cleared_log_changes_nothing() -> None:
    world = World()
    world.all_tell(10, 10, 10)
    world.apply(GiveWay(*world.change("b")))
    assert (world.item.leader, world.item.tombstones_end, world.item.tombstones_epoch) == ("b", 10, 0)
    world.apply(GiveWay(*world.change("b")))
    assert world.item.tombstones_end == 10, "to itself"


def test_what_was_told_does_not_end_an_isr_request_under_way() -> None:
    world = World()
    world.apply(ShrinkIsr(*world.change("c")))
    asked = ExpandIsr(*world.change("c"))
    world.tell("a", 10)
    world.apply(asked)
    assert "c" in world.item.isr


def test_a_snapshot_has_it() -> None:
    world = World()
    world.all_tell(10, 20, 30)
    elected(world, "b")
    world.all_tell(1, 2, 3)
    again = Metadata.restore(world.metadata.snapshot())
    assert again.streams == world.metadata.streams
    assert again.streams["s"].partitions[0].cleared
    plain = replace(world.metadata.streams["s"])
    assert plain == again.streams["s"]


def test_a_partition_that_had_one_replica_alone_begins_again_with_the_second() -> None:
    """It may have removed any tombstone, and the second broker may have an old log."""
    world = World()
    world.all_tell(10, 10, 10)
    world.apply(RemoveBroker("b", ""))
    world.apply(RemoveBroker("c", ""))
    assert (world.item.replicas, world.item.tombstones_end) == (("a",), 10)
    world.apply(BeginRemoval("a", (At("s", 0, "c"),)))
    assert (world.item.tombstones_end, world.item.tombstones_epoch) == (0, world.item.epoch)
