"""Consumer groups in the metadata: who joins and leaves, who coordinates, what a deleted stream leaves behind."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule import limits
from bascule.core.groups import changes
from bascule.core.metadata.commands import (
    BrokerDied,
    ChangeCoordinator,
    Command,
    CreateStream,
    DeleteStream,
    DrainBroker,
    HandOver,
    JoinGroup,
    LeaveGroup,
)
from bascule.core.metadata.operations import Operation
from bascule.core.metadata.state import Metadata, Rejected, Repeated
from bascule.errors import FailedPrecondition, InvalidArgument, NotFound, Outdated, ResourceExhausted
from tests.harness.metadata import a_stream
from tests.harness.metadata import commands as any_commands

ALIVE = ("x", "y", "z")


def made(*commands: Command) -> Metadata:
    metadata = Metadata()
    for index, command in enumerate(
        (
            CreateStream(a_stream("bar", 2, ALIVE)),
            CreateStream(a_stream("foo", 2, ALIVE)),
            *commands,
        ),
        1,
    ):
        for change in metadata.apply(index, command):
            assert not isinstance(change, Rejected), change.error
    return metadata


def joining(consumer: str, *streams: str, group: str = "g", alive: tuple[str, ...] = ALIVE) -> JoinGroup:
    return JoinGroup(group, consumer, streams, alive=alive)


def held(metadata: Metadata, group: str = "g") -> dict[str, dict[str, tuple[int, ...]]]:
    return {name: member.assigned for name, member in metadata.groups[group].members.items()}


def refused(metadata: Metadata, command: Command) -> Exception:
    before = metadata.snapshot(), metadata.groups.copy()
    (change,) = metadata.apply(metadata.index + 1, command)
    assert isinstance(change, Rejected)
    assert metadata.groups == before[1]
    return change.error


def test_the_example_of_the_protocol_and_its_epochs() -> None:
    metadata = made(joining("c1", "foo", "bar"))
    assert held(metadata) == {"c1": {"foo": (0, 1), "bar": (0, 1)}}
    group = metadata.groups["g"]
    assert (group.epoch, group.created, group.coordinator_epoch, group.partitions) == (3, 3, 3, 4)
    metadata.apply(4, joining("c2", "foo"))
    assert held(metadata) == {"c1": {"bar": (0, 1)}, "c2": {"foo": (0, 1)}}
    assert (metadata.groups["g"].epoch, metadata.groups["g"].created) == (4, 3)
    metadata.apply(5, LeaveGroup("g", "c2"))
    assert held(metadata) == {"c1": {"foo": (0, 1), "bar": (0, 1)}}
    metadata.apply(6, LeaveGroup("g", "c1"))
    assert metadata.groups == {}
    metadata.apply(7, joining("c1", "foo"))
    assert metadata.groups["g"].epoch == 7, "the epochs of a group that is made again do not begin anew"


def test_the_first_epoch_is_also_zero_and_no_later_one() -> None:
    metadata = made(joining("c1", "foo"))
    assert [metadata.groups["g"].is_at(epoch) for epoch in (0, 3, 2, 4)] == [True, True, False, False]
    metadata.apply(4, joining("c2", "foo"))
    assert [metadata.groups["g"].is_at(epoch) for epoch in (0, 3, 4)] == [False, False, True]


def test_what_cannot_join_or_leave() -> None:
    metadata = made(joining("c", "foo"))
    assert isinstance(refused(metadata, joining("c", "foo")), FailedPrecondition)
    assert str(refused(metadata, joining("d", "foo", "gone"))) == "stream does not exist"
    assert str(refused(metadata, joining("d", "gone", group="new"))) == "stream does not exist"
    assert isinstance(refused(metadata, joining("d")), InvalidArgument)
    assert isinstance(refused(metadata, joining("", "foo")), InvalidArgument)
    assert isinstance(refused(metadata, joining("d" * 201, "foo")), InvalidArgument)
    assert isinstance(refused(metadata, LeaveGroup("x", "c")), NotFound)
    assert isinstance(refused(metadata, LeaveGroup("g", "d")), FailedPrecondition)


def test_what_was_asked_twice_is_made_once() -> None:
    metadata = made(JoinGroup("g", "c", ("foo",), Operation("j", 2), ALIVE))
    assert metadata.apply(4, JoinGroup("g", "c", ("foo",), Operation("j", 2), ALIVE)) == [Repeated(3)]
    metadata.apply(5, LeaveGroup("g", "c", operation=Operation("l", 4)))
    assert metadata.apply(6, JoinGroup("g", "c", ("foo",), Operation("j", 2), ALIVE)) == [Repeated(3)]
    assert metadata.groups == {}, "a late copy brings nobody back"
    metadata.apply(7, joining("c", "foo"))
    assert isinstance(refused(metadata, LeaveGroup("g", "c", operation=Operation("late", 6))), Outdated)


def test_an_expired_member_leaves_the_epoch_it_was_silent_in_or_none() -> None:
    metadata = made(joining("c1", "foo"), joining("c2", "foo"))
    assert isinstance(refused(metadata, LeaveGroup("g", "c1", expired=True, epoch=3)), FailedPrecondition)
    metadata.apply(6, LeaveGroup("g", "c1", expired=True, epoch=4))
    assert held(metadata) == {"c2": {"foo": (0, 1)}}


def test_a_deleted_stream_is_taken_from_its_members_and_from_nobody_else() -> None:
    metadata = made(joining("c1", "foo", "bar"), joining("c2", "foo"), joining("d", "bar", group="h"))
    metadata.apply(6, DeleteStream("foo"))
    assert held(metadata) == {"c1": {"bar": (0, 1)}, "c2": {}}
    assert {name: member.streams for name, member in metadata.groups["g"].members.items()} == {"c1": ("bar",), "c2": ()}
    assert (metadata.groups["g"].epoch, metadata.groups["g"].partitions) == (6, 2)
    assert metadata.groups["h"].epoch == 5
    metadata.apply(7, CreateStream(a_stream("foo", 2, ALIVE)))
    assert held(metadata)["c2"] == {}
    metadata.apply(8, joining("c3", "bar"))
    assert held(metadata) == {"c1": {"bar": (0,)}, "c2": {}, "c3": {"bar": (1,)}}


def test_the_coordinator_is_the_least_loaded_that_is_alive_and_does_not_drain() -> None:
    metadata = made(joining("c", "foo", group="g1"), joining("c", "foo", group="g2"), DrainBroker("z"))
    metadata.apply(6, joining("c", "foo", group="g3"))
    assert [metadata.groups[name].coordinator for name in ("g1", "g2", "g3")] == ["x", "y", "x"]
    metadata.apply(7, joining("c", "foo", group="g4", alive=("z",)))
    assert metadata.groups["g4"].coordinator == "z", "nobody else is there"


@pytest.mark.parametrize("kind", [BrokerDied, HandOver])
def test_with_a_broker_go_its_coordinations(kind: type[BrokerDied]) -> None:
    metadata = made(*(joining("c", "foo", group=f"g{number}", alive=("x",)) for number in range(4)))
    metadata.apply(7, joining("c", "foo", group="other", alive=("y",)))
    metadata.apply(8, kind("x", ("y", "z")))
    groups = metadata.groups
    assert sorted(groups[f"g{number}"].coordinator for number in range(4)) == ["y", "y", "z", "z"] or sorted(
        groups[name].coordinator for name in groups
    ) == ["y", "y", "z", "z", "z"]
    assert [(groups[f"g{number}"].epoch, groups[f"g{number}"].coordinator_epoch) for number in range(4)] == [(8, 8)] * 4
    assert (groups["other"].epoch, groups["other"].coordinator) == (7, "y")


def test_a_coordinator_stays_if_nobody_else_is_alive() -> None:
    metadata = made(joining("c", "foo", alive=("x",)))
    metadata.apply(4, BrokerDied("x", ("x",)))
    assert (metadata.groups["g"].coordinator, metadata.groups["g"].epoch) == ("x", 3)
    error = refused(metadata, ChangeCoordinator("g", 3, ("x",)))
    assert (type(error), str(error)) == (FailedPrecondition, "No group coordinator candidates")
    assert isinstance(refused(metadata, ChangeCoordinator("g", 2, ALIVE)), FailedPrecondition)
    metadata.apply(8, ChangeCoordinator("g", 3, ALIVE))
    group = metadata.groups["g"]
    assert (group.coordinator, group.epoch, group.coordinator_epoch, group.created) == ("y", 8, 8, 3)
    assert held(metadata) == {"c": {"foo": (0, 1)}}


BOUNDS = [
    ("MAX_GROUPS", 1, joining("d", "foo", group="new")),
    ("MAX_GROUP_MEMBERS", 1, joining("d", "foo")),
    ("MAX_SUBSCRIPTIONS", 1, joining("d", "foo", group="new")),
    ("MAX_GROUP_SUBSCRIPTIONS", 2, joining("d", "foo", "bar")),
    ("MAX_GROUP_PARTITIONS", 3, joining("d", "bar")),
    ("MAX_ASSIGNED_PARTITIONS", 3, joining("d", "foo", group="new")),
]


@pytest.mark.parametrize(("bound", "most", "command"), BOUNDS, ids=[bound for bound, _, _ in BOUNDS])
def test_everything_is_bounded(bound: str, most: int, command: JoinGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, bound, most)
    metadata = made(joining("c", "foo"))
    assert isinstance(refused(metadata, command), ResourceExhausted)
    monkeypatch.setattr(changes, bound, getattr(limits, bound))
    assert metadata.apply(metadata.index + 1, command) == []


def assignments(metadata: Metadata) -> Iterator[tuple[str, int, str, int]]:
    for name, group in metadata.groups.items():
        for member in group.members.values():
            for stream, numbers in member.assigned.items():
                assert stream in member.streams
                for number in numbers:
                    yield name, group.epoch, stream, number


@given(st.lists(any_commands, max_size=40))
def test_a_partition_has_one_reader_in_an_epoch_and_every_one_has_it(commands: list[Command]) -> None:
    metadata = made()
    for index, command in enumerate(commands, 3):
        metadata.apply(index, command)
        read = list(assignments(metadata))
        assert len(read) == len(set(read))
        for name, group in metadata.groups.items():
            assert group.members
            assert group.partitions == sum(1 for each in read if each[0] == name)
            subscribed = {stream for member in group.members.values() for stream in member.streams}
            assert subscribed <= set(metadata.streams)
            for stream in subscribed:
                numbers = [number for g, _, s, number in read if (g, s) == (name, stream)]
                assert sorted(numbers) == list(range(len(metadata.streams[stream].partitions)))
        assert Metadata.restore(metadata.snapshot()).groups == metadata.groups


@given(st.lists(any_commands, max_size=30))
def test_nobody_reads_a_change_that_is_half_made(commands: list[Command]) -> None:
    """In slices of one step: what is there stays as it is until the last one."""
    metadata = made(joining("c1", "foo", "bar"), joining("c2", "foo"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bascule.core.groups.assignment.ASSIGN_SLICE", 1)
        patch.setattr(changes, "GROUPS_SLICE", 1)
        for index, command in enumerate(commands, 5):
            before = metadata.index, dict(metadata.groups), dict(metadata.streams)
            for _ in metadata.applying(index, command):
                assert (metadata.index, metadata.groups, metadata.streams) == before
            assert metadata.index == index


def test_a_large_group_is_assigned_in_slices() -> None:
    metadata = Metadata()
    metadata.apply(1, CreateStream(a_stream("large", 10_000, ("x",))))
    for number in range(10):
        slices = list(metadata.applying(2 + number, joining(f"c{number}", "large")))
        assert len(slices) >= 10_000 // limits.ASSIGN_SLICE, "each of at most so many steps"
    assert metadata.groups["g"].partitions == 10_000
    assert {member.partitions for member in metadata.groups["g"].members.values()} == {1000}
