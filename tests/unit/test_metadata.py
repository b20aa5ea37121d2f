"""The metadata machine: exact refusals, determinism, and snapshots that equal the commands they replace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.core.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    SetStreamReadonly,
    decode,
    encode,
)
from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Metadata, PartitionsChanged, Rejected, StreamCreated, StreamDeleted
from bascule.core.metadata.streams import Stream, StreamConfig
from bascule.errors import AlreadyExists, CorruptError, NotFound


def a_stream(name: str = "orders", partitions: int = 2, servers: tuple[str, ...] = ("a",)) -> Stream:
    return Stream(
        name=name,
        subject=f"{name}.in",
        group="",
        partitions=place(partitions, len(servers), servers, []),
        config=StreamConfig(
            segment_max_bytes=1024, optimistic_concurrency_control=False, retention_max_age=0
        ),
        creation_timestamp=7,
    )


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


def test_garbage_is_a_corrupt_error_not_a_crash() -> None:
    with pytest.raises(CorruptError):
        decode(b"\xff\xff\xff")
    with pytest.raises(CorruptError, match="newer version"):
        decode(b"\x08\x63")
    with pytest.raises(CorruptError):
        Metadata.restore(b"\xff\xff")


names = st.sampled_from(["a", "b", "c"])
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(CreateStream, st.builds(a_stream, names, st.integers(1, 3))),
    st.builds(DeleteStream, names),
    st.builds(SetStreamReadonly, names, st.lists(st.integers(0, 2), max_size=2).map(tuple), st.booleans()),
)


@given(st.lists(commands, max_size=20))
def test_a_snapshot_at_any_prefix_equals_the_commands_it_replaces(history: list[Command]) -> None:
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


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.lists(st.integers(1, 6), max_size=3),
    st.randoms(use_true_random=False),
)
def test_placement_spreads_replicas_and_leaders(
    partitions: int, factor: int, older: list[int], random: object
) -> None:
    servers = ["s1", "s2", "s3", "s4", "s5"]
    streams = []
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
