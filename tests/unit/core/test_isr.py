"""Who is in sync, who is eligible to lead, and who leads next: each command, each way a replica leaves."""

from collections import Counter
from dataclasses import replace

import pytest

from bascule.core.metadata.codec import decode, encode
from bascule.core.metadata.commands import (
    At,
    BrokerDied,
    BrokerStarted,
    ChangeLeader,
    Command,
    CreateStream,
    DiskLost,
    ElectLeader,
    ExpandIsr,
    GiveWay,
    HandOver,
    RemoveBroker,
    ShrinkIsr,
)
from bascule.core.metadata.isr import ClusterState, Departure, giving_way, leave
from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Metadata, Rejected
from bascule.core.metadata.streams import Partition, Stream, StreamConfig
from bascule.types import PartitionId


def led(min_isr: int = 2) -> Metadata:
    """One partition on a, b and c, led by a."""
    metadata = Metadata()
    config = StreamConfig(min_isr=min_isr)
    metadata.apply(1, CreateStream(Stream("s", "s", "", place(1, 3, ("a", "b", "c"), []), config)))
    return metadata


def do(metadata: Metadata, *commands: Command) -> Partition:
    for command in commands:
        changes = metadata.apply(metadata.index + 1, decode(encode(command)))
        assert not any(isinstance(change, Rejected) for change in changes), changes
    return the(metadata)


def the(metadata: Metadata) -> Partition:
    return metadata.streams["s"].partitions[0]


def sets(item: Partition) -> tuple[str, str, str]:
    return item.leader, "".join(sorted(item.isr)), "".join(sorted(item.eligible))


def expand(metadata: Metadata, replica: str) -> ExpandIsr:
    item = the(metadata)
    return ExpandIsr("s", 0, replica, item.leader, item.leader_epoch, item.epoch)


def shrink(metadata: Metadata, replica: str, lacks: bool = False) -> ShrinkIsr:
    item = the(metadata)
    return ShrinkIsr("s", 0, replica, item.leader, item.leader_epoch, item.epoch, lacks)


def test_whose_leaving_takes_the_set_below_its_minimum_is_eligible_until_it_is_reached_again() -> None:
    metadata = led()
    assert sets(do(metadata, BrokerDied("c", ("a", "b")))) == ("a", "ab", ""), "two are enough"
    assert sets(do(metadata, BrokerDied("b", ("a",)))) == ("a", "a", "b")
    assert sets(do(metadata, expand(metadata, "c"))) == ("a", "ac", ""), "from here on b may lack something"
    assert Metadata.restore(metadata.snapshot()).streams == metadata.streams


def test_all_of_three_needed_and_one_dies() -> None:
    metadata = led(3)
    assert sets(do(metadata, BrokerDied("c", ("a", "b")))) == ("a", "ab", "c")
    assert sets(do(metadata, BrokerDied("b", ("a",)))) == ("a", "a", "bc"), "it left while the set was below"
    assert sets(do(metadata, expand(metadata, "b"))) == ("a", "ab", "c")
    assert sets(do(metadata, expand(metadata, "c"))) == ("a", "abc", "")


def test_the_last_member_stays_listed_and_the_first_eligible_one_to_live_leads() -> None:
    metadata = led()
    do(metadata, BrokerDied("c", ("a", "b")), BrokerDied("b", ("a",)))
    item = do(metadata, BrokerDied("a", ("c",)))
    assert sets(item) == ("a", "a", "b"), "c lacks what a and b committed"
    assert item.leader_epoch == metadata.index
    assert sets(do(metadata, BrokerDied("a", ("b", "c")))) == ("b", "b", "a"), "a has everything too"
    assert sets(do(metadata, expand(metadata, "c"))) == ("b", "bc", "")


def test_with_a_minimum_of_one_nobody_is_eligible() -> None:
    metadata = led(1)
    do(metadata, BrokerDied("c", ("a", "b")), BrokerDied("b", ("a",)))
    assert sets(do(metadata, BrokerDied("a", ("b", "c")))) == ("a", "a", "")


def test_who_stops_in_good_order_is_eligible_and_all_three_may_stop() -> None:
    metadata = led()
    do(metadata, HandOver("a", ("b", "c")))
    assert sets(do(metadata, HandOver("b", ("c",)))) == ("c", "c", "b")
    assert sets(do(metadata, HandOver("c", ("x",)))) == ("c", "c", "b")
    assert sets(do(metadata, BrokerDied("c", ("a", "b")))) == ("b", "b", "c")


@pytest.mark.parametrize("member", [True, False])
def test_a_replica_that_lost_what_it_promised_is_not_eligible(member: bool) -> None:
    metadata = led()
    do(metadata, BrokerDied("c", ("a", "b")))
    if not member:
        assert sets(do(metadata, shrink(metadata, "b"))) == ("a", "a", "b")
    assert sets(do(metadata, shrink(metadata, "b", lacks=True))) == ("a", "a", "")


@pytest.mark.parametrize("leader", [True, False])
def test_a_lost_disk_is_in_no_set(leader: bool) -> None:
    metadata = led()
    do(metadata, BrokerDied("c", ("a", "b")), BrokerDied("b", ("a",)))
    item = do(metadata, DiskLost("a" if leader else "b", ("c",)))
    assert sets(item) == (("b", "b", "") if leader else ("a", "a", "")), "b is named, though it is away"
    assert sets(do(metadata, DiskLost("b" if leader else "a", ("c",)))) == ("", "", ""), "somebody has to decide"


def test_a_damaged_log_leaves_even_if_the_others_are_away_where_two_must_be_in_sync() -> None:
    started = BrokerStarted("a", False, (("s", 0),), ("a",))
    metadata = led()
    assert sets(do(metadata, started)) == ("b", "bc", ""), "they have everything, and are waited for"
    metadata = led()
    do(metadata, BrokerDied("c", ("a", "b")), BrokerDied("b", ("a",)))
    assert sets(do(metadata, started)) == ("b", "b", "")
    assert sets(do(metadata, BrokerStarted("b", False, (("s", 0),), ("b",)))) == ("b", "b", ""), "the last one stays"
    metadata = led(1)
    item = do(metadata, started)
    assert sets(item) == ("a", "abc", ""), "where one is enough it may be all there is"
    assert item.leader_epoch == metadata.index
    assert sets(do(metadata, replace(started, alive=("a", "c")))) == ("c", "bc", "")


def test_an_unclean_start_under_relaxed_sync_waits_for_nobody_who_is_away_and_is_never_eligible() -> None:
    metadata = led()
    assert sets(do(metadata, BrokerStarted("a", True, (), ("a",)))) == ("a", "abc", "")
    assert sets(do(metadata, BrokerStarted("a", True, (), ("a", "b")))) == ("b", "bc", "")
    metadata = led()
    do(metadata, BrokerDied("c", ("a", "b")), BrokerDied("b", ("a",)))
    assert sets(do(metadata, BrokerStarted("b", True, (), ("a", "b")))) == ("a", "a", "")


def test_a_leader_that_steps_down_stays_eligible_and_an_eligible_one_takes_over() -> None:
    metadata = led()
    do(metadata, BrokerDied("c", ("a", "b")), BrokerDied("b", ("a",)))
    term = the(metadata).leader_epoch
    assert sets(do(metadata, ChangeLeader("s", 0, "a", term, ("a",)))) == ("a", "a", "b")
    term = the(metadata).leader_epoch
    assert sets(do(metadata, ChangeLeader("s", 0, "a", term, ("a", "b")))) == ("b", "b", "a")


def test_who_gives_way_with_all_it_promised_is_eligible_and_only_the_one_it_names_leads() -> None:
    metadata = led(3)
    item = the(metadata)
    asked = giving_way(item, GiveWay("s", 0, "c", "a", item.leader_epoch, item.epoch), whole=True)
    assert sets(do(metadata, asked)) == ("c", "bc", "a"), "b has no more leaderships than c"
    assert sets(do(metadata, DiskLost("c", ("a",)))) == ("a", "a", "b")


def test_whom_a_leader_gives_way_to_is_in_sync_or_eligible_or_it_leaves_the_sets() -> None:
    metadata = led()
    item = do(metadata, BrokerDied("c", ("a", "b")), BrokerDied("b", ("a",)))
    for replica, whole in (("c", True), ("b", False), ("a", True)):
        asked = GiveWay("s", 0, replica, "a", item.leader_epoch, item.epoch)
        assert giving_way(item, asked, whole) is asked
    asked = GiveWay("s", 0, "b", "a", item.leader_epoch, item.epoch)
    assert sets(do(metadata, giving_way(item, asked, whole=True))) == ("b", "b", "a")


def test_who_gives_way_is_in_no_set() -> None:
    metadata = led()
    do(metadata, BrokerDied("c", ("a", "b")), BrokerDied("b", ("a",)))
    item = the(metadata)
    assert sets(do(metadata, GiveWay("s", 0, "b", "a", item.leader_epoch, item.epoch))) == ("b", "b", "")


def test_a_removed_broker_is_in_no_set_and_an_eligible_one_leads_what_it_led() -> None:
    metadata = led()
    do(metadata, BrokerDied("c", ("a", "b")), BrokerDied("b", ("a",)))
    assert sets(do(metadata, RemoveBroker("a", ""))) == ("b", "b", "")
    (change,) = metadata.apply(metadata.index + 1, RemoveBroker("b", ""))
    assert isinstance(change, Rejected), "its is the last good copy"


def test_an_election_with_loss_names_what_was_seen_and_may_choose_a_member_that_waits() -> None:
    metadata = led()
    do(metadata, BrokerDied("c", ("a", "b")), BrokerDied("b", ("a",)))
    (change,) = metadata.apply(metadata.index + 1, ElectLeader(At("s", 0, "c"), ("a",)))
    assert isinstance(change, Rejected)
    assert "eligible for s/0 is b by now, not nobody" in str(change.error)
    assert sets(do(metadata, ElectLeader(At("s", 0, "a"), ("a",), ("b",)))) == ("a", "a", "")
    assert the(metadata).unclean_epoch == metadata.index


@pytest.mark.parametrize(
    "event",
    [
        DiskLost("c", ("a", "b")),
        BrokerStarted("c", False, (), ("a", "b", "c")),
        BrokerStarted("c", False, (("s", 0),), ("a", "b", "c")),
        BrokerStarted("c", True, (), ("a", "b", "c")),
        RemoveBroker("c", ""),
    ],
    ids=["its disk was lost", "it was restarted", "a suspect log", "an unclean one", "it was removed"],
)
@pytest.mark.parametrize("eligible", [True, False])
def test_what_was_asked_for_a_replica_before_something_befell_it_comes_too_late(event: Command, eligible: bool) -> None:
    metadata = led(3 if eligible else 2)
    do(metadata, BrokerDied("c", ("a", "b")))
    asked = expand(metadata, "c")
    item = the(metadata)
    way = GiveWay("s", 0, "c", "a", item.leader_epoch, item.epoch)
    do(metadata, event)
    for late in (asked, way):
        (change,) = metadata.apply(metadata.index + 1, late)
        assert isinstance(change, Rejected)
    assert "c" not in the(metadata).isr


def test_an_eligible_leader_is_alone_in_sync_and_the_least_loaded_one_is_taken() -> None:
    item = Partition(PartitionId(0), ("a", "b", "c", "d"), "a", ("a", "b"), eligible=("c", "d"))
    now = ClusterState(9, ("c", "d", "x"))
    moved = leave(item, "a", Departure.WHOLE, 3, now, Counter({"a": 1, "c": 2, "d": 1}))
    assert (moved.leader, moved.isr, sorted(moved.eligible)) == ("d", ("d",), ["a", "b", "c"])
    drained = leave(item, "a", Departure.WHOLE, 3, replace(now, draining=("d",)), Counter({"c": 2}))
    assert drained.leader == "c"
    assert leave(item, "x", Departure.WHOLE, 3, now, Counter()) is item
