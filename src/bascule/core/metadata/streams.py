"""What the cluster knows about a stream and its partitions. Values only; `state` changes them.

A stream may have ten thousand partitions. What turns them into bytes and back is written as a generator that stops
after some of them, so that whoever drives it can let others in between; `finish` does it all at once.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from bascule import limits
from bascule.types import Epoch, PartitionId
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.subjects import partition_subject, subjects_overlap

T = TypeVar("T")

ACTIVITY = "__activity"
CURSORS = "__cursors"
RESERVED_STREAMS = (ACTIVITY, CURSORS)
"""No client creates or deletes them."""
Key = tuple[int, int]
"""A stream's creation index and a partition: unlike a name, never used twice."""


def finish(work: Generator[None, None, T]) -> T:
    """The result of work that is done in slices, at once."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """Per-stream overrides. None means: whatever the broker's configuration says. Durations in milliseconds."""

    retention_max_bytes: int | None = None
    retention_max_messages: int | None = None
    retention_max_age: int | None = None
    cleaner_interval: int | None = None
    segment_max_bytes: int | None = None
    segment_max_age: int | None = None
    compact_max_goroutines: int | None = None
    compact_enabled: bool | None = None
    auto_pause_time: int | None = None
    auto_pause_disable_if_subscribers: bool | None = None
    min_isr: int | None = None
    optimistic_concurrency_control: bool | None = None
    encryption: bool | None = None
    flatbuffers_draft: bool | None = None
    compact_min_lag: int | None = None
    compact_tombstone_delay: int | None = None

    @classmethod
    def from_wire(cls, message: Any) -> "StreamConfig":
        """From any message with the nullable fields of CreateStreamRequest."""
        return cls(
            **{
                name: getattr(message, wire_name).value if message.HasField(wire_name) else None
                for name, wire_name in _CONFIG_FIELDS
            }
        )

    def to_wire(self) -> pb.StreamConfig:
        message = pb.StreamConfig()
        for name, wire_name in _CONFIG_FIELDS:
            value = getattr(self, name)
            if value is not None:
                wrapper = getattr(message, wire_name)
                wrapper.SetInParent()
                wrapper.value = value
        return message


NO_EPOCH = Epoch(0)


def camel(name: str) -> str:
    """A name as protobuf files of this protocol spell it."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


_CONFIG_FIELDS = tuple((item.name, camel(item.name)) for item in fields(StreamConfig))


class EventTimes(NamedTuple):
    """When something happened first and last, in ns by the controller's clock; 0 is never."""

    first: int = 0
    latest: int = 0

    def at(self, time: int) -> "EventTimes":
        return EventTimes(self.first or time, time)


NEVER = EventTimes()


class Hold(NamedTuple):
    """Nothing at or above this offset is removed from the partition, whatever expires."""

    name: str
    offset: int
    at: int
    """When it was set or raised last, in ns by the controller's clock."""


class Cleared(NamedTuple):
    """What a replica has told of its log: of every tombstone below `end` no older record of its key is left in it."""

    replica: str
    end: int
    at: int
    """The command by which it did."""


class Partition(NamedTuple):
    """One partition as the cluster agreed on it. `epoch` and `leader_epoch` are indexes of commands. A frozen dataclass
    would take three times as long to make, and a command may change ten thousand."""

    id: PartitionId
    replicas: tuple[str, ...]
    leader: str
    isr: tuple[str, ...]
    leader_epoch: Epoch = NO_EPOCH
    epoch: Epoch = NO_EPOCH
    paused: bool = False
    readonly: bool = False
    unclean_epoch: Epoch = NO_EPOCH
    """The last leader epoch that began with a leader who was not in sync: what was committed before may be gone."""
    eligible: tuple[str, ...] = ()
    """Not in sync, but with everything that was committed: they may lead if no in-sync replica is alive."""
    resume_all: bool = False
    """Resuming this partition resumes every paused one of its stream."""
    pauses: EventTimes = NEVER
    """Pauses and resumptions."""
    readonly_changes: EventTimes = NEVER
    start: int = 0
    """Everything below has expired, or was deleted: it is served nowhere."""
    holds: tuple[Hold, ...] = ()
    """In the order of their names."""
    cleared: tuple[Cleared, ...] = ()
    """Of the replicas that have told it, in the order of their names."""
    tombstones_end: int = 0
    """No replica has an older record of the key of any tombstone below: these tombstones may go (`tombstones`)."""
    tombstones_epoch: Epoch = NO_EPOCH
    """The command since which the log of a replica that is not in sync or eligible counts only if it began after it."""

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def complete(self) -> tuple[str, ...]:
        """The replicas that have everything committed, by the metadata."""
        return (*self.isr, *self.eligible)

    def is_led_by(self, broker: str, leader_epoch: int) -> bool:
        """Whether that broker leads it, in that leader epoch."""
        return (self.leader, self.leader_epoch) == (broker, leader_epoch)

    @classmethod
    def from_wire(cls, message: pb.Partition) -> "Partition":
        return cls(
            id=PartitionId(message.id),
            replicas=tuple(message.replicas),
            leader=message.leader,
            isr=tuple(message.isr),
            leader_epoch=Epoch(message.leaderEpoch),
            epoch=Epoch(message.epoch),
            paused=message.paused,
            readonly=message.readonly,
            unclean_epoch=Epoch(message.uncleanEpoch),
            eligible=tuple(message.eligible),
            resume_all=message.resumeAll,
            pauses=_times(message.pauses) if message.HasField("pauses") else NEVER,
            readonly_changes=_times(message.readonlyChanges) if message.HasField("readonlyChanges") else NEVER,
            start=message.start,
            holds=tuple(Hold(each.name, each.offset, each.at) for each in message.holds),
            cleared=tuple(Cleared(each.replica, each.end, each.at) for each in message.cleared),
            tombstones_end=message.tombstonesEnd,
            tombstones_epoch=Epoch(message.tombstonesEpoch),
        )

    def to_wire(self) -> pb.Partition:
        return pb.Partition(
            id=self.id,
            replicas=self.replicas,
            leader=self.leader,
            isr=self.isr,
            leaderEpoch=self.leader_epoch,
            epoch=self.epoch,
            paused=self.paused,
            readonly=self.readonly,
            uncleanEpoch=self.unclean_epoch,
            eligible=self.eligible,
            resumeAll=self.resume_all,
            pauses=pb.EventTimes(**self.pauses._asdict()) if self.pauses.first else None,
            readonlyChanges=pb.EventTimes(**self.readonly_changes._asdict()) if self.readonly_changes.first else None,
            start=self.start,
            holds=[pb.Hold(**hold._asdict()) for hold in self.holds],
            cleared=[pb.Cleared(**cleared._asdict()) for cleared in self.cleared],
            tombstonesEnd=self.tombstones_end,
            tombstonesEpoch=self.tombstones_epoch,
        )


def _times(message: pb.EventTimes) -> EventTimes:
    return EventTimes(message.first, message.latest)


@dataclass(frozen=True, slots=True)
class Stream:
    name: str
    subject: str
    group: str
    partitions: tuple[Partition, ...]
    config: StreamConfig = field(default_factory=StreamConfig)
    creation_timestamp: int = 0
    creation_index: int = 0
    """Of the command that made it: the data folder carries it, so a re-created stream never sees old bytes."""

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions)

    def partition(self, partition: int) -> Partition | None:
        return self.partitions[partition] if 0 <= partition < len(self.partitions) else None

    def listens_on(self, subject: str) -> bool:
        """Whether a partition of it takes messages of this subject, which may have wildcards."""
        if subjects_overlap(subject, self.subject):
            return True
        numbered = range(1, len(self.partitions))
        return subjects_overlap(subject, f"{self.subject}.*") and any(
            subjects_overlap(subject, partition_subject(self.subject, number)) for number in numbered
        )

    def with_partitions(self, changed: dict[int, Partition]) -> "Stream":
        partitions = list(self.partitions)
        for number, partition in changed.items():
            partitions[number] = partition
        return replace(self, partitions=tuple(partitions))

    def created_at(self, index: int) -> "Stream":
        """This stream as the command at `index` makes it: its epochs are that index."""
        epoch = Epoch(index)
        partitions = tuple([item._replace(epoch=epoch, leader_epoch=epoch) for item in self.partitions])
        return replace(self, creation_index=index, partitions=partitions)

    @classmethod
    def reading(cls, message: pb.Stream) -> Generator[None, None, "Stream"]:
        """From the wire, in slices."""
        partitions: list[Partition] = []
        for item in message.partitions:
            partitions.append(Partition.from_wire(item))
            if len(partitions) % limits.CODEC_SLICE == 0:
                yield
        return cls(
            name=message.name,
            subject=message.subject,
            group=message.partitions[0].group if message.partitions else "",
            partitions=tuple(partitions),
            config=StreamConfig.from_wire(message.config),
            creation_timestamp=message.creationTimestamp,
            creation_index=message.creationIndex,
        )

    def writing(self) -> Generator[None, None, pb.Stream]:
        """To the wire, in slices."""
        message = pb.Stream(
            name=self.name,
            subject=self.subject,
            config=self.config.to_wire(),
            creationTimestamp=self.creation_timestamp,
            creationIndex=self.creation_index,
        )
        for count, item in enumerate(self.partitions, 1):
            partition = item.to_wire()
            partition.group = self.group
            partition.stream = self.name
            message.partitions.append(partition)
            if count % limits.CODEC_SLICE == 0:
                yield
        return message
