"""The events of the activity stream, in the metadata."""

from typing import Any

import pytest

from bascule.core.metadata import activity
from bascule.core.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    PauseStream,
    PublishActivity,
    ResumeStream,
    SetStreamReadonly,
)
from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import Partition, Stream
from bascule.types import PartitionId
from bascule.wire.pb import api_pb2 as api


def stream(name: str, partitions: int = 1) -> Stream:
    items = tuple(Partition(PartitionId(number), ("a",), "a", ("a",)) for number in range(partitions))
    return Stream(name, name, "", items)


def after(*commands: Command, enabled: bool = True) -> Metadata:
    metadata = Metadata()
    if enabled:
        metadata.apply(10, CreateStream(stream("__activity")))
    for number, command in enumerate(commands):
        metadata.apply(20 + 10 * number, command)
    return metadata


def events(metadata: Metadata) -> list[api.ActivityStreamEvent]:
    return [api.ActivityStreamEvent.FromString(event) for event in metadata.activity.unpublished.values()]


def test_the_first_event_is_the_creation_of_the_stream_itself() -> None:
    (event,) = events(after())
    assert event == api.ActivityStreamEvent(
        id=10, op=api.CREATE_STREAM, createStreamOp=api.CreateStreamOp(stream="__activity", partitions=[0])
    )


def test_without_the_stream_nothing_is_recorded() -> None:
    metadata = after(CreateStream(stream("s")), DeleteStream("s"), enabled=False)
    assert not metadata.activity.unpublished
    assert metadata.activity.to_wire() is None, "snapshots of clusters without it are as they were"


def test_each_change_has_its_event() -> None:
    metadata = after(
        CreateStream(stream("s", 3)),
        PauseStream("s", (1,), resume_all=True),
        PauseStream("s", ()),
        ResumeStream("s", (1, 2)),
        SetStreamReadonly("s", (2, 0), True),
        SetStreamReadonly("s", (), False),
        DeleteStream("s"),
    )
    found = events(metadata)[1:]
    assert [event.id for event in found] == list(range(20, 90, 10))
    expected: list[dict[str, Any]] = [
        {"op": api.CREATE_STREAM, "createStreamOp": api.CreateStreamOp(stream="s", partitions=[0, 1, 2])},
        {"op": api.PAUSE_STREAM, "pauseStreamOp": api.PauseStreamOp(stream="s", partitions=[1], resumeAll=True)},
        {"op": api.PAUSE_STREAM, "pauseStreamOp": api.PauseStreamOp(stream="s", partitions=[0, 1, 2])},
        {"op": api.RESUME_STREAM, "resumeStreamOp": api.ResumeStreamOp(stream="s", partitions=[1, 2])},
        {
            "op": api.SET_STREAM_READONLY,
            "setStreamReadonlyOp": api.SetStreamReadonlyOp(stream="s", partitions=[2, 0], readonly=True),
        },
        {
            "op": api.SET_STREAM_READONLY,
            "setStreamReadonlyOp": api.SetStreamReadonlyOp(stream="s", partitions=[0, 1, 2]),
        },
        {"op": api.DELETE_STREAM, "deleteStreamOp": api.DeleteStreamOp(stream="s")},
    ]
    for event, fields in zip(found, expected, strict=True):
        assert event == api.ActivityStreamEvent(id=event.id, **fields)


def test_what_changes_nothing_is_no_event() -> None:
    metadata = after(
        CreateStream(stream("s")),
        CreateStream(stream("s")),
        ResumeStream("s", (0,)),
        DeleteStream("nobody"),
        PauseStream("s", (0,), leader="b", leader_epoch=7),
    )
    assert [event.id for event in events(metadata)] == [10, 20]


def test_pausing_what_is_paused_is_an_event_again() -> None:
    metadata = after(CreateStream(stream("s")), PauseStream("s", (0,)), PauseStream("s", (0,)))
    assert [event.id for event in events(metadata)] == [10, 20, 30, 40]


def test_what_is_published_is_forgotten_and_stays_so() -> None:
    metadata = after(CreateStream(stream("s")), DeleteStream("s"), PublishActivity(20), PublishActivity(10))
    assert [event.id for event in events(metadata)] == [30]
    assert metadata.activity.published == 20


def test_a_snapshot_has_what_is_not_published_and_how_far_it_is() -> None:
    metadata = after(CreateStream(stream("s")), PublishActivity(10), DeleteStream("s"))
    restored = Metadata.restore(metadata.snapshot())
    assert restored.activity.unpublished == metadata.activity.unpublished
    assert restored.activity.published == 10
    for each in (metadata, restored):
        each.apply(100, PublishActivity(20))
        each.apply(110, CreateStream(stream("t")))
    assert restored.snapshot() == metadata.snapshot()


def test_the_oldest_events_are_dropped_where_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "UNPUBLISHED_EVENTS", 3)
    metadata = after(*(CreateStream(stream(f"s{number}")) for number in range(5)))
    assert [event.id for event in events(metadata)] == [40, 50, 60]
    assert metadata.activity.dropped == 3
    restored = Metadata.restore(metadata.snapshot())
    assert restored.activity.dropped == 3


def test_large_events_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "UNPUBLISHED_EVENT_BYTES", 5000)
    metadata = after(*(CreateStream(stream(f"s{number}", 2000)) for number in range(5)))
    assert [event.id for event in events(metadata)] == [60]
    metadata.apply(100, PublishActivity(60))
    metadata.apply(110, CreateStream(stream("t")))
    assert [event.id for event in events(metadata)] == [110]
