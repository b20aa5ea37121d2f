"""What the activity stream reports: the events that are not published yet, as the commands made them.

An event has the index of its command as its id. It is recorded here, by every broker alike, from the command that
creates the stream `__activity` on; the controller publishes it, and a command says so afterwards. So the next
controller goes on where the last one stopped: each event is published at least once, in order.

Bounded: while nothing can be published, or `activity.stream.enabled` is off again, the oldest events are dropped.
"""

from collections.abc import Iterable

from bascule.core.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    JoinGroup,
    LeaveGroup,
    PartitionsCommand,
    PauseStream,
    ResumeStream,
    SetStreamReadonly,
)
from bascule.core.metadata.streams import Stream
from bascule.limits import UNPUBLISHED_EVENT_BYTES, UNPUBLISHED_EVENTS
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import internal_pb2 as pb


class Activity:
    def __init__(self) -> None:
        self.published = 0
        """Every event up to this index is published."""
        self.dropped = 0
        """Events that were never published."""
        self._unpublished: dict[int, bytes] = {}
        self._nbytes = 0

    @property
    def unpublished(self) -> dict[int, bytes]:
        """The events by index, the oldest first."""
        return self._unpublished

    def record(self, index: int, event: api.ActivityStreamEvent) -> None:
        event.id = index
        data = event.SerializeToString(deterministic=True)
        self._unpublished[index] = data
        self._nbytes += len(data)
        while len(self._unpublished) > UNPUBLISHED_EVENTS or self._nbytes > UNPUBLISHED_EVENT_BYTES:
            self._remove(next(iter(self._unpublished)))
            self.dropped += 1

    def publish(self, index: int) -> None:
        """Everything up to this index is published."""
        self.published = max(self.published, index)
        while self._unpublished and (oldest := next(iter(self._unpublished))) <= index:
            self._remove(oldest)

    def _remove(self, index: int) -> None:
        self._nbytes -= len(self._unpublished.pop(index))

    def to_wire(self) -> pb.Activity | None:
        if not self.published and not self._unpublished and not self.dropped:
            return None
        return pb.Activity(
            published=self.published,
            unpublished=[pb.ActivityEvent(index=index, event=event) for index, event in self._unpublished.items()],
            dropped=self.dropped,
        )

    @classmethod
    def from_wire(cls, message: pb.Activity) -> "Activity":
        activity = cls()
        activity.published = message.published
        activity.dropped = message.dropped
        activity._unpublished = {item.index: item.event for item in message.unpublished}
        activity._nbytes = sum(map(len, activity._unpublished.values()))
        return activity


def event_of(command: Command, stream: Stream | None, changed: Iterable[int]) -> api.ActivityStreamEvent | None:
    """What a command did that is reported; None for all others. `stream` is the one it is about, and `changed` its
    partitions that it changed. A group that is created is reported as the joining of its first member."""
    match command:
        case CreateStream(created):
            op = api.CreateStreamOp(stream=created.name, partitions=[item.id for item in created])
            return api.ActivityStreamEvent(op=api.CREATE_STREAM, createStreamOp=op)
        case DeleteStream(name):
            return api.ActivityStreamEvent(op=api.DELETE_STREAM, deleteStreamOp=api.DeleteStreamOp(stream=name))
        case PauseStream(name, resume_all=resume_all):
            paused = api.PauseStreamOp(stream=name, partitions=_named(command, stream), resumeAll=resume_all)
            return api.ActivityStreamEvent(op=api.PAUSE_STREAM, pauseStreamOp=paused)
        case ResumeStream(name):
            numbers = list(changed)
            if not numbers:
                return None  # nothing was paused: another one has resumed it
            resumed = api.ResumeStreamOp(stream=name, partitions=numbers)
            return api.ActivityStreamEvent(op=api.RESUME_STREAM, resumeStreamOp=resumed)
        case SetStreamReadonly(name, readonly=readonly):
            flagged = api.SetStreamReadonlyOp(stream=name, partitions=_named(command, stream), readonly=readonly)
            return api.ActivityStreamEvent(op=api.SET_STREAM_READONLY, setStreamReadonlyOp=flagged)
        case JoinGroup(group, consumer, streams):
            joined = api.JoinConsumerGroupOp(groupId=group, consumerId=consumer, streams=streams)
            return api.ActivityStreamEvent(op=api.JOIN_CONSUMER_GROUP, joinConsumerGroupOp=joined)
        case LeaveGroup(group, consumer, expired):
            left = api.LeaveConsumerGroupOp(groupId=group, consumerId=consumer, expired=expired)
            return api.ActivityStreamEvent(op=api.LEAVE_CONSUMER_GROUP, leaveConsumerGroupOp=left)
        case _:
            return None


def _named(command: PartitionsCommand, stream: Stream | None) -> list[int]:
    if command.partitions or stream is None:
        return list(command.partitions)
    return [item.id for item in stream]
