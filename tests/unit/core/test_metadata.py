"""The metadata machine: exact refusals, determinism, and snapshots that equal the commands they replace."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.core.metadata.codec import decode, encode
from bascule.core.metadata.commands import (
    BrokerDied,
    BrokerStarted,
    ChangeLeader,
    Command,
    CreateStream,
    DeleteStream,
    DiskLost,
    ExpandIsr,
    GiveWay,
    HandOver,
    SetStreamReadonly,
    ShrinkIsr,
)
from bascule.core.metadata.operations import Operation, Operations
from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Metadata, PartitionsChanged, Rejected, Repeated, StreamCreated, StreamDeleted
from bascule.core.metadata.streams import Stream, StreamConfig
from bascule.errors import AlreadyExists, CorruptError, FailedPrecondition, NotFound
from tests.harness.metadata import a_stream, commands


def test_creating_gives_epochs_and_a_creation_index_of_the_command() -> None:
    metadata = Metadata()
    (change,) = metadata.apply(5, CreateStream(a_stream()))
    assert isinstance(change, StreamCreated)
    assert change.stream.creation_index == 5
    assert [(item.epoch, item.leader_epoch) for item in change.stream] == [(5, 5), (5, 5)]
    assert metadata.partition("orders", 1) is not None
    assert metadata.partition("orders", 2) is None
    assert metadata.partition("orders", -1) is None


def test_refusals_have_the_protocols_texts() -> None:
    metadata = Metadata()
    metadata.apply(1, CreateStream(a_stream()))
    with pytest.raises(AlreadyExists, match=r"^stream already exists$"):
        metadata.check(CreateStream(a_stream()))
    with pytest.raises(NotFound, match=r"^stream does not exist$"):
        metadata.check(DeleteStream("other"))
    with pytest.raises(NotFound, match=r"^partition does not exist$"):
        metadata.check(SetStreamReadonly("orders", (0, 2), True))


def test_a_command_that_lost_a_race_changes_nothing() -> None:
    metadata = Metadata()
    metadata.apply(1, CreateStream(a_stream()))
    before = metadata.streams["orders"]
    (change,) = metadata.apply(2, CreateStream(a_stream(partitions=9)))
    assert isinstance(change, Rejected)
    assert isinstance(change.error, AlreadyExists)
    assert metadata.streams["orders"] == before
    assert metadata.index == 2


def test_a_recreated_stream_has_another_folder_index() -> None:
    metadata = Metadata()
    metadata.apply(1, CreateStream(a_stream()))
    (change,) = metadata.apply(2, DeleteStream("orders"))
    assert isinstance(change, StreamDeleted)
    metadata.apply(3, CreateStream(a_stream()))
    assert metadata.streams["orders"].creation_index == 3


def test_readonly_without_partitions_means_all() -> None:
    metadata = Metadata()
    metadata.apply(1, CreateStream(a_stream()))
    (change,) = metadata.apply(2, SetStreamReadonly("orders", (), True))
    assert isinstance(change, PartitionsChanged)
    assert change.partitions == (0, 1)
    assert all(item.readonly for item in metadata.streams["orders"])
    metadata.apply(3, SetStreamReadonly("orders", (1,), False))
    assert [item.readonly for item in metadata.streams["orders"]] == [True, False]


def test_unset_and_zero_stay_apart_in_stream_configuration() -> None:
    config = StreamConfig(retention_max_age=0, compact_enabled=False, min_isr=2)
    assert StreamConfig.from_wire(config.to_wire()) == config


def test_malformed_bytes_are_a_corrupt_error_not_a_crash() -> None:
    with pytest.raises(CorruptError):
        decode(b"\xff\xff\xff")
    with pytest.raises(CorruptError, match="newer version"):
        decode(b"\x08\x63")
    with pytest.raises(CorruptError):
        Metadata.restore(b"\xff\xff")


@settings(deadline=None)
@given(st.lists(commands, max_size=20))
def test_a_snapshot_at_any_prefix_equals_the_commands_it_replaces(history: list[Command]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Operations, "remembered", 2)
        compare_at_every_prefix(history)


def test_a_restored_snapshot_knows_which_changes_were_made() -> None:
    metadata = Metadata()
    create = CreateStream(a_stream("a"), Operation("o1", 0))
    metadata.apply(1, create)
    restored = Metadata.restore(metadata.snapshot())
    assert restored.apply(2, create) == metadata.apply(2, create) == [Repeated(1)]


def compare_at_every_prefix(history: list[Command]) -> None:
    whole = Metadata()
    for index, command in enumerate(history, 1):
        whole.apply(index, command)
    for cut in range(len(history) + 1):
        part = Metadata()
        for index, command in enumerate(history[:cut], 1):
            part.apply(index, decode(encode(command)))
        part = Metadata.restore(part.snapshot())
        for index, command in enumerate(history[cut:], cut + 1):
            part.apply(index, command)
        assert part.snapshot() == whole.snapshot()
        assert part.streams == whole.streams
        assert part.brokers == whole.brokers


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.lists(st.integers(1, 6), max_size=3),
    st.randoms(use_true_random=False),
)
def test_placement_spreads_replicas_and_leaders(partitions: int, factor: int, older: list[int], random: object) -> None:
    servers = ["s1", "s2", "s3", "s4", "s5"]
    streams: list[Stream] = []
    for number, count in enumerate(older):
        existing = place(count, 2, servers, streams)
        streams.append(Stream(f"old{number}", "x", "", existing))
    placed = place(partitions, factor, servers, streams)
    every = [item for stream in streams for item in stream] + list(placed)
    leaders = [sum(item.leader == server for item in every) for server in servers]
    replicas = [sum(server in item.replicas for item in every) for server in servers]
    assert max(replicas) - min(replicas) <= 1
    assert max(leaders) - min(leaders) <= 2
    for item in placed:
        assert len(set(item.replicas)) == factor
        assert item.leader in item.replicas
        assert item.isr == item.replicas


def test_three_brokers_six_partitions_give_two_leaders_each() -> None:
    placed = place(6, 3, ["a", "b", "c"], [])
    assert sorted(item.leader for item in placed) == ["a", "a", "b", "b", "c", "c"]


def replicated(partitions: int = 6) -> Metadata:
    metadata = Metadata()
    metadata.apply(1, CreateStream(a_stream(partitions=partitions, servers=("a", "b", "c"))))
    return metadata


def test_a_dead_broker_loses_its_leaderships_evenly_and_its_place_in_sync() -> None:
    metadata = replicated()
    metadata.apply(2, BrokerDied("a", ("b", "c")))
    partitions = metadata.streams["orders"].partitions
    assert sorted(item.leader for item in partitions) == ["b"] * 3 + ["c"] * 3
    assert all(set(item.isr) == {"b", "c"} for item in partitions)
    assert [item.leader_epoch for item in partitions if item.leader_epoch == 2] == [2, 2]
    assert all(item.epoch == 2 for item in partitions)
    assert all(set(item.replicas) == {"a", "b", "c"} for item in partitions)


def test_the_last_in_sync_replica_keeps_its_leadership_even_dead() -> None:
    metadata = replicated(1)
    (partition,) = metadata.streams["orders"].partitions
    for index, (broker, alive) in enumerate([("c", ("a", "b")), ("b", ("a",)), ("a", ("x",))], 2):
        metadata.apply(index, BrokerDied(broker, alive))
    assert metadata.streams["orders"].partitions[0].isr == ("a",)
    assert metadata.streams["orders"].partitions[0].leader == partition.leader == "a"


def test_nobody_waits_for_a_broker_that_has_handed_over() -> None:
    metadata = replicated()
    metadata.apply(2, HandOver("a", ("a", "b", "c")))
    partitions = metadata.streams["orders"].partitions
    assert all(item.leader != "a" and sorted(item.isr) == ["b", "c"] for item in partitions)


def test_who_starts_leads_under_new_epochs_and_leaves_only_the_sets_of_suspect_logs() -> None:
    metadata = replicated()
    before = metadata.streams["orders"].partitions
    led = [item.id for item in before if item.leader == "a"]
    metadata.apply(2, BrokerStarted("a", False, (("orders", led[0]),)))
    suspect, other = (metadata.streams["orders"].partitions[number] for number in led)
    assert suspect.leader != "a"
    assert "a" not in suspect.isr
    assert (other.leader, other.leader_epoch, other.isr) == ("a", 2, before[other.id].isr)
    assert [item for item in metadata.streams["orders"] if item.id not in led] == [
        item for item in before if item.id not in led
    ]
    metadata.apply(3, BrokerStarted("a", True))
    assert all("a" not in item.isr for item in metadata.streams["orders"])


def test_a_leader_gives_way_to_another_or_to_itself_under_a_new_epoch() -> None:
    metadata = replicated(1)
    metadata.apply(2, GiveWay("orders", 0, "b", "a", 1, 1))
    partition = metadata.streams["orders"].partitions[0]
    assert (partition.leader, partition.leader_epoch, sorted(partition.isr)) == ("b", 2, ["b", "c"])
    metadata.apply(3, GiveWay("orders", 0, "b", "b", 2, 2))
    partition = metadata.streams["orders"].partitions[0]
    assert (partition.leader, partition.leader_epoch, sorted(partition.isr)) == ("b", 3, ["b", "c"])
    with pytest.raises(FailedPrecondition, match="generation mismatch"):
        metadata.check(GiveWay("orders", 0, "c", "b", 2, 3))


def test_where_nobody_is_alive_everybody_in_sync_may_come_back_and_lead() -> None:
    metadata = replicated(1)
    metadata.apply(2, BrokerDied("a", ("somebody else",)))
    (partition,) = metadata.streams["orders"].partitions
    assert (partition.leader, partition.leader_epoch, partition.isr) == ("a", 2, ("a", "b", "c"))
    metadata.apply(3, BrokerDied("a", ("c",)))
    (partition,) = metadata.streams["orders"].partitions
    assert (partition.leader, partition.leader_epoch, partition.isr) == ("c", 3, ("b", "c"))


def test_a_lost_disk_is_in_sync_with_nothing_and_leads_nothing() -> None:
    metadata = replicated(1)
    metadata.apply(2, DiskLost("a", ("a", "c")))
    (partition,) = metadata.streams["orders"].partitions
    assert (partition.leader, partition.isr) == ("c", ("b", "c"))
    metadata.apply(3, BrokerDied("b", ("a", "c")))
    metadata.apply(4, DiskLost("c", ("a", "c")))
    (partition,) = metadata.streams["orders"].partitions
    assert (partition.leader, partition.isr) == ("", ()), "the last copy in sync is gone: somebody has to decide"


def test_a_leader_that_steps_down_gets_another_epoch_at_least() -> None:
    metadata = replicated(1)
    metadata.apply(2, ChangeLeader("orders", 0, "a", 1, ("a", "c")))
    (partition,) = metadata.streams["orders"].partitions
    assert (partition.leader, partition.leader_epoch, partition.isr) == ("c", 2, ("b", "c"))
    metadata.apply(3, ChangeLeader("orders", 0, "c", 2, ("c",)))
    (partition,) = metadata.streams["orders"].partitions
    assert (partition.leader, partition.leader_epoch, partition.isr) == ("c", 3, ("b", "c"))
    with pytest.raises(FailedPrecondition, match="Leader generation mismatch"):
        metadata.check(ChangeLeader("orders", 0, "c", 2, ("c",)))


def test_only_the_present_leader_changes_the_in_sync_set() -> None:
    metadata = replicated(1)
    partition = metadata.streams["orders"].partitions[0]
    follower = next(replica for replica in partition.replicas if replica != partition.leader)
    with pytest.raises(FailedPrecondition, match=r"^Leader generation mismatch, current leader: a epoch: 1, got"):
        metadata.check(ShrinkIsr("orders", 0, follower, partition.leader, 0, 1))
    with pytest.raises(FailedPrecondition, match="not a replica"):
        metadata.check(ExpandIsr("orders", 0, "unknown", partition.leader, 1, 1))
    with pytest.raises(FailedPrecondition, match="in sync with itself"):
        metadata.check(ShrinkIsr("orders", 0, partition.leader, partition.leader, 1, 1))
    metadata.apply(2, ShrinkIsr("orders", 0, follower, partition.leader, 1, 1))
    shrunk = metadata.streams["orders"].partitions[0]
    assert follower not in shrunk.isr
    assert (shrunk.leader_epoch, shrunk.epoch) == (1, 2)
    with pytest.raises(FailedPrecondition, match="changed since epoch 1"):
        metadata.check(ExpandIsr("orders", 0, follower, partition.leader, 1, 1))
    metadata.apply(3, ShrinkIsr("orders", 0, follower, partition.leader, 1, 2))
    assert metadata.streams["orders"].partitions[0].epoch == 3, "what was asked for in epoch 2 comes too late now"
    metadata.apply(4, ExpandIsr("orders", 0, follower, partition.leader, 1, 3))
    assert set(metadata.streams["orders"].partitions[0].isr) == set(partition.isr)
