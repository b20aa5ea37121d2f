"""The commands of an administrator, decided without a cluster: what they do, and what they refuse."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bascule.core.metadata import plans
from bascule.core.metadata.brokers import Brokers
from bascule.core.metadata.codec import decode, encode
from bascule.core.metadata.commands import (
    AlterStream,
    At,
    BeginRemoval,
    BrokerDied,
    Command,
    CreateStream,
    DiskLost,
    DrainBroker,
    ElectLeader,
    ExpandIsr,
    RemoveBroker,
    UndrainBroker,
)
from bascule.core.metadata.placement import place
from bascule.core.metadata.plans import Members
from bascule.core.metadata.state import Metadata, Rejected
from bascule.core.metadata.streams import Partition, Stream, StreamConfig
from bascule.errors import FailedPrecondition, NotFound
from bascule.limits import REMOVED_BROKERS
from tests.harness.metadata import a_stream, commands

ABC = ("a", "b", "c")


def cluster(partitions: int = 6, factor: int = 3, servers: tuple[str, ...] = ABC) -> Metadata:
    metadata = Metadata()
    placed = place(partitions, factor, servers, [])
    metadata.apply(1, CreateStream(Stream("s", "s", "", placed)))
    return metadata


def the(metadata: Metadata, partition: int = 0) -> Partition:
    return metadata.streams["s"].partitions[partition]


def done(metadata: Metadata, command: Command) -> None:
    """Applied as every broker applies it: from its bytes."""
    changes = metadata.apply(metadata.index + 1, decode(encode(command)))
    assert not any(isinstance(change, Rejected) for change in changes), changes


def everybody(*alive: str) -> Members:
    return Members(ABC, alive=alive or ABC)


# --- draining ---------------------------------------------------------------------------------------------------


def test_a_drained_broker_leads_nothing_and_stays_in_sync() -> None:
    metadata = cluster()
    done(metadata, plans.drain(metadata, everybody(), "a"))
    assert {item.leader for item in metadata.streams["s"]} == {"b", "c"}
    assert all("a" in item.isr and "a" in item.replicas for item in metadata.streams["s"])
    moved = [item for item in metadata.streams["s"] if item.leader_epoch == 2]
    assert len(moved) == 2
    assert sorted(item.leader for item in moved) == ["b", "c"]


def test_draining_twice_changes_nothing_more() -> None:
    metadata = cluster()
    done(metadata, DrainBroker("a"))
    before = metadata.streams["s"]
    done(metadata, DrainBroker("a"))
    assert metadata.streams["s"] == before
    assert metadata.brokers.draining == ("a",)


def test_what_only_the_drained_broker_has_it_keeps_and_that_is_said() -> None:
    metadata = cluster(3, factor=1)
    done(metadata, plans.drain(metadata, everybody(), "a"))
    (retained,) = plans.not_movable(metadata, "a")
    assert (retained.stream, retained.reason) == ("s", "it has no other replica")
    assert plans.due(metadata, ()) == []


def test_what_could_not_be_moved_goes_as_soon_as_another_is_in_sync() -> None:
    metadata = cluster(1)
    for broker in ("b", "c"):
        done(metadata, BrokerDied(broker))
    done(metadata, plans.drain(metadata, everybody(), "a"))
    assert "nobody else is in sync" in plans.not_movable(metadata, "a")[0].reason
    done(metadata, ExpandIsr("s", 0, "b", "a", the(metadata).leader_epoch, the(metadata).epoch))
    assert plans.due(metadata, ("b",)) == []
    assert plans.due(metadata, ()) == ["a"]
    done(metadata, DrainBroker("a"))
    assert the(metadata).leader == "b"


def test_nothing_is_handed_to_who_drains_or_is_absent() -> None:
    metadata = cluster(1)
    done(metadata, DrainBroker("b"))
    done(metadata, DrainBroker("a", avoid=("c",)))
    assert the(metadata).leader == "a"
    assert "drain or are away" in plans.not_movable(metadata, "a", ("c",))[0].reason
    done(metadata, BrokerDied("a"))
    assert the(metadata).leader == "c"
    done(metadata, BrokerDied("c"))
    assert the(metadata).leader == "b", "one that drains leads before nobody does"


def test_the_last_broker_that_could_lead_is_not_drained() -> None:
    metadata = cluster()
    with pytest.raises(FailedPrecondition, match="nobody would be left to lead"):
        plans.drain(metadata, Members(("a",), alive=("a",)), "a")
    done(metadata, DrainBroker("b"))
    with pytest.raises(FailedPrecondition, match="undrain"):
        plans.drain(metadata, everybody("a", "b"), "a")
    plans.drain(metadata, everybody("a", "b"), "b")
    with pytest.raises(NotFound, match="no broker 'x' in this cluster; it has a, b, c"):
        plans.drain(metadata, everybody(), "x")


def test_new_partitions_go_elsewhere_while_a_broker_drains() -> None:
    placed = place(6, 2, ABC, [], draining=("a",))
    assert all(item.replicas in (("b", "c"), ("c", "b")) for item in placed)
    for item in place(6, 3, ABC, [], draining=("a",)):
        assert item.leader != "a"
        assert sorted(item.isr) == ["a", "b", "c"]


def test_undraining_makes_it_a_broker_like_any_other() -> None:
    metadata = cluster()
    done(metadata, DrainBroker("a"))
    done(metadata, UndrainBroker("a"))
    done(metadata, UndrainBroker("a"))
    assert metadata.brokers.draining == ()
    done(metadata, BrokerDied("b"))
    assert "a" in {item.leader for item in metadata.streams["s"]}


# --- removing ---------------------------------------------------------------------------------------------------


def test_a_broker_that_is_alive_is_drained_before_it_is_removed() -> None:
    metadata = cluster()
    with pytest.raises(FailedPrecondition, match=r"is alive: .* `bascule cluster drain a`"):
        plans.may_remove(metadata, everybody(), "a")
    plans.may_remove(metadata, everybody("b", "c"), "a")
    done(metadata, DrainBroker("a"))
    plans.may_remove(metadata, everybody(), "a")


def test_the_last_voter_and_the_one_a_majority_needs_stay() -> None:
    metadata = cluster()
    with pytest.raises(FailedPrecondition, match="last voter"):
        plans.may_remove(metadata, Members(("a",), ("b",), ("b",)), "a")
    done(metadata, DrainBroker("a"))
    with pytest.raises(FailedPrecondition, match="2 of 2 voters are needed and 1 live; start c first"):
        plans.may_remove(metadata, everybody("a", "b"), "a")
    with pytest.raises(NotFound):
        plans.may_remove(metadata, everybody(), "x")


def test_others_get_what_it_holds_before_it_goes() -> None:
    metadata = cluster(4, factor=2, servers=("a", "b"))
    done(metadata, DrainBroker("a"))
    members = Members(ABC, alive=ABC)
    done(metadata, plans.begin_removal(metadata, members, "a"))
    assert all(item.replicas[-1] == "c" and "c" not in item.isr for item in metadata.streams["s"])
    assert len(plans.removal_waits(metadata, members, "a")) == 4
    assert plans.removal_waits(metadata, Members(ABC, alive=("b", "c")), "a") == []
    for number in range(4):
        item = the(metadata, number)
        done(metadata, ExpandIsr("s", number, "c", item.leader, item.leader_epoch, item.epoch))
    assert plans.removal_waits(metadata, members, "a") == []
    done(metadata, plans.removal(metadata, members, "a", ""))
    assert all(sorted(item.replicas) == sorted(item.isr) == ["b", "c"] for item in metadata.streams["s"])
    assert metadata.brokers.removed == (("a", ""),)
    assert metadata.brokers.draining == metadata.brokers.removing == ()


def test_with_too_few_brokers_the_replica_lists_shrink() -> None:
    metadata = cluster()
    done(metadata, BrokerDied("a"))
    members = everybody("b", "c")
    begin = plans.begin_removal(metadata, members, "a")
    assert begin.additions == ()
    done(metadata, begin)
    done(metadata, plans.removal(metadata, members, "a", ""))
    assert all(sorted(item.replicas) == ["b", "c"] for item in metadata.streams["s"])


def test_the_last_in_sync_copy_is_never_dropped_silently() -> None:
    metadata = cluster(1)
    for broker in ("b", "c"):
        done(metadata, BrokerDied(broker))
    losses = plans.removal_losses(metadata, "a")
    with pytest.raises(FailedPrecondition, match=r"last good copy of s/0 \(what b, c lack is lost\).*remove a --force"):
        plans.refuse_losses("a", losses)
    (change,) = metadata.apply(metadata.index + 1, RemoveBroker("a", ""))
    assert isinstance(change, Rejected)
    assert "s/0" in str(change.error)
    assert the(metadata).isr == ("a",)
    (change,) = metadata.apply(metadata.index + 1, RemoveBroker("a", "", (At("s", 0, "a"),)))
    assert isinstance(change, Rejected), "to name the broker itself is no way around"


def test_where_nobody_is_in_sync_no_copy_is_dropped_silently() -> None:
    """The last one in sync lost its disk: any of the others may have the most of what is left."""
    metadata = cluster(1)
    for broker in ("b", "c", "a"):
        done(metadata, BrokerDied(broker, ("a",)) if broker != "a" else DiskLost("a", ABC))
    assert (the(metadata).leader, the(metadata).isr) == ("", ())
    losses = plans.removal_losses(metadata, "b")
    with pytest.raises(FailedPrecondition, match=r"s/0 \(nobody is in sync, and b may have more than a, c\)"):
        plans.refuse_losses("b", losses)
    assert isinstance(metadata.apply(metadata.index + 1, RemoveBroker("b", ""))[0], Rejected)
    assert "b" in the(metadata).replicas
    done(metadata, plans.removal(metadata, everybody("a", "c"), "b", "", losses))
    assert (the(metadata).leader, the(metadata).isr, the(metadata).replicas) == ("", (), ("a", "c"))
    done(metadata, ElectLeader(At("s", 0, "c"), ()))
    assert the(metadata).leader == "c"


def test_by_force_a_partition_with_nobody_in_sync_and_no_other_replica_begins_empty() -> None:
    metadata = cluster(1, 1)
    done(metadata, DiskLost("a", ABC))
    assert (the(metadata).leader, the(metadata).isr, the(metadata).replicas) == ("", (), ("a",))
    done(metadata, plans.removal(metadata, everybody("b"), "a", "", plans.removal_losses(metadata, "a")))
    assert (the(metadata).leader, the(metadata).isr, the(metadata).replicas) == ("b", ("b",), ("b",))


def test_by_force_a_replica_that_is_alive_leads_next_and_the_epoch_says_so() -> None:
    metadata = cluster(1)
    for broker in ("b", "c"):
        done(metadata, BrokerDied(broker))
    members = everybody("c")
    done(metadata, plans.removal(metadata, members, "a", "", plans.removal_losses(metadata, "a")))
    item = the(metadata)
    assert (item.leader, item.isr, item.replicas) == ("c", ("c",), ("b", "c"))
    assert item.unclean_epoch == item.leader_epoch == metadata.index


def test_by_force_the_only_replica_is_replaced_by_an_empty_one() -> None:
    metadata = cluster(3, factor=1)
    losses = plans.removal_losses(metadata, "a")
    assert [loss.reason for loss in losses] == ["everything in it is lost"]
    done(metadata, plans.removal(metadata, everybody("c"), "a", "", losses))
    item = the(metadata, losses[0].partition)
    assert (item.leader, item.isr, item.replicas) == ("c", ("c",), ("c",))


def test_a_removal_is_called_off_by_undraining() -> None:
    metadata = cluster()
    done(metadata, BeginRemoval("a"))
    assert metadata.brokers == Brokers(draining=("a",), removing=("a",))
    done(metadata, UndrainBroker("a"))
    assert metadata.brokers == Brokers()


def test_removed_brokers_are_remembered_up_to_a_bound() -> None:
    metadata = Metadata()
    for number in range(REMOVED_BROKERS + 5):
        done(metadata, RemoveBroker("a", f"incarnation {number}"))
    assert len(metadata.brokers.removed) == REMOVED_BROKERS
    assert metadata.brokers.removed[-1] == ("a", f"incarnation {REMOVED_BROKERS + 4}")


# --- electing ---------------------------------------------------------------------------------------------------


def dead_leader() -> Metadata:
    metadata = cluster(1)
    for broker in ("b", "c", "a"):
        done(metadata, BrokerDied(broker))
    return metadata


def test_an_elected_leader_is_alone_in_sync_under_a_new_epoch() -> None:
    metadata = dead_leader()
    assert plans.electable(the(metadata), "s", ("b", "c")) == ["b", "c"]
    done(metadata, ElectLeader(At("s", 0, "b"), the(metadata).isr))
    item = the(metadata)
    assert (item.leader, item.isr, sorted(item.replicas)) == ("b", ("b",), ["a", "b", "c"])
    assert item.leader_epoch == item.epoch == item.unclean_epoch == metadata.index


def test_elections_nobody_needs_or_nobody_can_win_are_refused() -> None:
    metadata = dead_leader()
    with pytest.raises(FailedPrecondition, match="a is in sync and alive, and nothing need be lost"):
        plans.electable(the(metadata), "s", ABC)
    with pytest.raises(FailedPrecondition, match=r"no replica of s/0 is alive: start one of .* \(a\)"):
        plans.electable(the(metadata), "s", ("d",))
    item = the(metadata)._replace(isr=("a",), eligible=("c",))
    with pytest.raises(FailedPrecondition, match="c is eligible to lead and alive, and nothing need be lost"):
        plans.electable(item, "s", ("b", "c"))
    assert plans.electable(item, "s", ("b",)) == ["b"]
    with pytest.raises(FailedPrecondition, match=r"best one that was in sync or is eligible \(a, c\)"):
        plans.electable(item, "s", ())


@pytest.mark.parametrize(
    ("at", "isr", "says"),
    [
        (At("x", 0, "b"), None, "no such stream: x"),
        (At("s", 7, "b"), None, "no such partition: stream s has 1"),
        (At("s", -1, "b"), None, "no such partition"),
        (At("s", 0, "d"), None, "d is no replica of s/0"),
        (At("s", 0, "b"), ("a", "c"), "in sync with s/0 is a by now, not a, c"),
    ],
)
def test_what_cannot_be_elected_is_told(at: At, isr: tuple[str, ...] | None, says: str) -> None:
    metadata = dead_leader()
    before = metadata.streams["s"]
    (change,) = metadata.apply(metadata.index + 1, ElectLeader(at, the(metadata).isr if isr is None else isr))
    assert isinstance(change, Rejected)
    assert says in str(change.error)
    assert metadata.streams["s"] == before


# --- always -----------------------------------------------------------------------------------------------------


AN_ELIGIBLE_REPLICA_LEADS: list[Command] = [
    CreateStream(a_stream("a", 1, ABC)),
    AlterStream("a", StreamConfig(min_isr=2)),
    RemoveBroker("b", ""),
    BrokerDied("a"),
    RemoveBroker("c", ""),
]


@settings(deadline=None)
@given(st.lists(commands, max_size=20))
@example(AN_ELIGIBLE_REPLICA_LEADS)
def test_whatever_is_asked_every_partition_has_a_leader_in_sync_among_its_replicas(history: list[Command]) -> None:
    metadata = Metadata()
    for index, command in enumerate(history, 1):
        before = metadata.streams.copy()
        metadata.apply(index, command)
        for stream in metadata.streams.values():
            for item in stream:
                assert item.leader in item.isr or (item.leader, item.isr) == ("", ()), "only a lost disk leaves nobody"
                assert set(item.isr) <= set(item.replicas)
                assert len(set(item.replicas)) == len(item.replicas)
                assert len(set(item.isr)) == len(item.isr)
            if stream.name in before and before[stream.name].creation_index == stream.creation_index:
                for item, old in zip(stream, before[stream.name], strict=True):
                    assert item.epoch >= old.epoch
                    assert item.isr or not old.isr or isinstance(command, DiskLost)
                    if item.unclean_epoch == old.unclean_epoch and not isinstance(command, ExpandIsr):
                        elected = {item.leader} & set(old.eligible)
                        assert set(item.isr) - elected <= set(old.isr), "only its leader brings a replica into sync"
                    if item.leader != old.leader:
                        assert item.leader_epoch == index


def test_health_names_what_is_not_as_it_should_be() -> None:
    metadata = cluster(1)
    assert plans.health(metadata, ABC, lambda _: 2) == plans.Health((), (), ())
    for broker in ("b", "c"):
        done(metadata, BrokerDied(broker))
    found = plans.health(metadata, ("b", "c"), lambda config: config.min_isr or 2)
    assert [str(each) for each in found.under_replicated] == ["s/0 (not in sync: a, b, c)"]
    assert [str(each) for each in found.offline] == ["s/0 (in sync: a; leader a is away)"]
    assert [str(each) for each in found.below_min_isr] == ["s/0 (0 in sync, 2 needed: nothing is committed)"]
    done(metadata, DiskLost("a", ABC))
    lost = plans.health(metadata, ("b", "c"), lambda _: 1)
    assert [str(each) for each in lost.offline] == ["s/0 (in sync: nobody; nobody leads)"]
    away = plans.health(cluster(1), ("a", "b"), lambda _: 3)
    assert [str(each) for each in away.under_replicated] == ["s/0 (not in sync: c)"], "it is away, though it is listed"
    assert [str(each) for each in away.below_min_isr] == ["s/0 (2 in sync, 3 needed: nothing is committed)"]
    assert StreamConfig().min_isr is None
