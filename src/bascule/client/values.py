"""What a client gets and gives: messages, acks, and the cluster's description, as plain immutable values.

Offsets here are the protocol's inclusive ones: a high watermark of -1 is an empty partition. Times are
nanoseconds since 1970; `Message.time`, `Ack.commit_time` and the like are the same as datetimes, truncated to
microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from bascule.errors import InvalidArgument
from bascule.wire.pb import api_pb2 as pb

DEFAULT_PORT = 9292

StartAt = Literal["new", "earliest", "latest"] | int | datetime
"""Where a subscription begins: a named position, an offset, or a time (the first message at or after it)."""

StopAt = Literal["latest"] | int | datetime | None
"""Where it ends, inclusive: the newest message there is now, an offset, a time, or never."""


def moment(timestamp: int) -> datetime:
    """Truncated to microseconds, of nanoseconds since 1970."""
    return datetime.fromtimestamp(timestamp // 1_000_000_000, UTC).replace(microsecond=timestamp // 1000 % 1_000_000)


class AckPolicy(IntEnum):
    """When a publish is acked: on the leader's disk, on the disk of every in-sync replica, or not at all."""

    LEADER = 0
    ALL = 1
    NONE = 2


class Message(NamedTuple):
    """One stored message, in the field order of `kernels.decode_records`. A message without a key has the key None; the
    protocol cannot tell an empty key from it. `headers` are the publisher's own: `subject` and `reply`, which servers
    add to them, are attributes."""

    offset: int
    key: bytes | None
    value: bytes
    timestamp: int
    stream: str
    partition: int
    subject: str
    reply: str
    headers: dict[str, bytes]

    @property
    def time(self) -> datetime:
        return moment(self.timestamp)


class Outgoing(NamedTuple):
    """A message to publish, where a bare value is not enough."""

    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] | None = None
    partition: int | None = None


class Ack(NamedTuple):
    """The ack of a message. `offset` is -1 under policy NONE, where there is no ack."""

    stream: str
    partition: int
    offset: int
    subject: str
    policy: AckPolicy
    reception_timestamp: int
    commit_timestamp: int

    @property
    def reception_time(self) -> datetime:
        return moment(self.reception_timestamp)

    @property
    def commit_time(self) -> datetime:
        return moment(self.commit_timestamp)


@dataclass(frozen=True, slots=True)
class Broker:
    id: str
    host: str
    port: int
    partition_count: int
    leader_count: int


@dataclass(frozen=True, slots=True)
class Partition:
    id: int
    leader: str
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    high_watermark: int
    newest_offset: int
    paused: bool
    readonly: bool
    eligible: tuple[str, ...] = ()
    """Of a Bascule broker: not in sync, and with everything that was committed."""


@dataclass(frozen=True, slots=True)
class Stream:
    name: str
    subject: str
    partitions: dict[int, Partition]
    creation_timestamp: int

    @property
    def creation_time(self) -> datetime:
        return moment(self.creation_timestamp)


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group."""

    id: str
    coordinator: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """The cluster as one broker saw it. Its high watermarks are that broker's own view, not the leader's."""

    brokers: dict[str, Broker] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    """Those that were asked for."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`host`, `host:port` or `[v6]:port`."""
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or "/" in text or port == 0:
        raise InvalidArgument(f"{text!r} is not a server address: write HOST:PORT, as in localhost:{DEFAULT_PORT}")
    return Address(host, DEFAULT_PORT if port is None else port)


def partition_of(message: pb.PartitionMetadata) -> Partition:
    return Partition(
        id=message.id,
        leader=message.leader,
        replicas=tuple(message.replicas),
        isr=tuple(message.isr),
        high_watermark=message.highWatermark,
        newest_offset=message.newestOffset,
        paused=message.paused,
        readonly=message.readonly,
        eligible=tuple(message.eligible),
    )


def metadata_of(response: pb.FetchMetadataResponse) -> Metadata:
    """Streams the broker does not know are left out."""
    brokers = {b.id: Broker(b.id, b.host, b.port, b.partitionCount, b.leaderCount) for b in response.brokers}
    streams = {
        s.name: Stream(
            name=s.name,
            subject=s.subject,
            partitions={number: partition_of(p) for number, p in sorted(s.partitions.items())},
            creation_timestamp=s.creationTimestamp,
        )
        for s in response.streamMetadata
        if s.error == pb.StreamMetadata.OK
    }
    groups = {
        g.groupId: Group(g.groupId, g.coordinator, g.epoch)
        for g in response.groupMetadata
        if g.error == pb.ConsumerGroupMetadata.OK
    }
    return Metadata(brokers, streams, groups)
