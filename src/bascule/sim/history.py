"""The history of the clients: every message sent, with all that is known about it, and the streams.

Each message carries a unique token, so that a record can be traced to its send. The outcome of a send is pending,
acked, refused (an answer said that it will not be stored) or unknown; `unknown` is neither success nor failure, and
such a message may appear at any time later.
"""

import random
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from bascule.sim.trace import Part
from bascule.testing.bus import matches
from bascule.wire.pure.compaction import TOMBSTONE_HEADER
from bascule.wire.record import Record
from bascule.wire.subjects import partition_subject

KEYED = 0.95
"""How many of the records of a stream with keys have one."""
DELETING = 0.15
"""How many of these are tombstones."""
TOMBSTONE = TOMBSTONE_HEADER.decode()
"""The header has the token of the message, which has no value."""


class Outcome(Enum):
    PENDING = "pending"
    ACKED = "acked"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Producer(NamedTuple):
    """An idempotent producer in one of its epochs."""

    name: str
    id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.name} in epoch {self.epoch}"


@dataclass(slots=True)
class Sent:
    """One message that was sent; a second try with the same content is another one."""

    token: bytes
    value: bytes
    target: Part
    session: str
    """Messages of one session use the same connections, in the order of their `serial`; "" = no session."""
    serial: int
    floor: int
    """Records of the target that clients had read or had acks for before it was sent are below this offset."""
    expected_offset: int | None = None
    outcome: Outcome = Outcome.PENDING
    stored: dict[Part, int] = field(default_factory=dict)
    """By partition, the offset where it was seen first."""
    producer: Producer | None = None
    """The one that sent it, perhaps several times."""
    sequence: int = 0
    batch: "list[Sent]" = field(default_factory=list, repr=False, compare=False)
    """The messages of its atomic batch, in order; none if it is in none."""
    key: bytes = b""
    tombstone: bool = False
    """It has no value, and deletes its key."""

    @property
    def fields(self) -> dict[str, Any]:
        """What a message or a publish request has of it."""
        fields: dict[str, Any] = {"value": self.value}
        if self.key:
            fields["key"] = self.key
        if self.tombstone:
            fields["headers"] = {TOMBSTONE: self.token}
        return fields

    @property
    def nbytes(self) -> int:
        """In a batch, at most."""
        return len(self.value) + len(self.key) + (50 if self.tombstone else 20)


@dataclass(slots=True)
class StreamInfo:
    name: str
    subject: str
    partitions: int
    replication: int = 1
    min_isr: int = 1
    optimistic: bool = False
    incarnation: int = 1
    group: str = ""
    """The load-balance group."""
    keys: int = 0
    """Clients write records with so many different keys; 0: they draw none."""

    def parts(self) -> list[Part]:
        return [Part(self.name, self.incarnation, number) for number in range(self.partitions)]

    def subject_of(self, number: int) -> str:
        return partition_subject(self.subject, number)

    def part_of(self, message_subject: str) -> Part | None:
        """The partition of this subject."""
        for part in self.parts():
            if matches(self.subject_of(part.number).encode(), message_subject.encode()):
                return part
        return None


class History:
    def __init__(self, chance: random.Random, value_bytes: tuple[int, ...]) -> None:
        self.sent: dict[bytes, Sent] = {}
        self.streams: dict[str, StreamInfo] = {}
        self.replicas_move = False
        """A broker was removed: a partition with one replica had two for a while, and only the leader may have what it
        acked then by the policy LEADER."""
        self._chance = chance
        self._value_bytes = value_bytes
        self._sent_to: dict[Part, list[Sent]] = {}

    def send(
        self, target: Part, floor: int, session: str = "", expected_offset: int | None = None, keyed: bool = True
    ) -> Sent:
        serial = len(self.sent)
        token = b"m%d" % serial
        size = self._chance.choice(self._value_bytes)
        value = token + b"|" + self._chance.randbytes(size)
        sent = Sent(token, value, target, session, serial, floor, expected_offset)
        stream = self.streams.get(target.stream)
        if keyed and stream is not None and stream.keys:
            self._give_key(sent, stream.keys)
        self.sent[token] = sent
        self._sent_to.setdefault(target, []).append(sent)
        return sent

    def sent_to(self, target: Part) -> list[Sent]:
        """In their order."""
        return self._sent_to.get(target, [])

    def _give_key(self, sent: Sent, keys: int) -> None:
        """Some keys are written more often than others; a few records have none."""
        if self._chance.random() < KEYED:
            sent.key = b"key%d" % min(self._chance.randrange(keys), self._chance.randrange(keys))
            if self._chance.random() < DELETING:
                sent.value, sent.tombstone = b"", True

    def answers(self, stream: str, asked: str) -> bool:
        """Whether an ack of `stream` answers a publish to `asked`."""
        if stream == asked:
            return True
        one, other = self.streams.get(stream), self.streams.get(asked)
        return one is not None and other is not None and bool(one.group) and one.group == other.group

    def is_gone(self, part: Part) -> bool:
        """Its stream was deleted."""
        stream = self.streams.get(part.stream)
        return stream is not None and stream.incarnation > part.incarnation

    def replication(self, part: Part) -> int:
        least = 2 if self.replicas_move else 1
        return max(self.streams[part.stream].replication, least)

    def find(self, record: Record) -> Sent | None:
        token = record.headers.get(TOMBSTONE) if not record.value else record.value.partition(b"|")[0]
        return None if token is None else self.sent.get(token)
