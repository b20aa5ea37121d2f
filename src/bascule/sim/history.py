"""The history of the clients: every message sent, with all that is known about it, and the streams.

Each message carries a unique token, so that a record can be traced to its send. The outcome of a send is pending,
acked, refused (an answer said that it will not be stored) or unknown; `unknown` is neither success nor failure, and
such a message may appear at any time later.
"""

import random
from dataclasses import dataclass, field
from enum import Enum

from bascule.sim.trace import Part
from bascule.testing.bus import matches
from bascule.wire.subjects import partition_subject


class Outcome(Enum):
    PENDING = "pending"
    ACKED = "acked"
    REFUSED = "refused"
    UNKNOWN = "unknown"


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
        self._chance = chance
        self._value_bytes = value_bytes

    def send(self, target: Part, floor: int, session: str = "", expected_offset: int | None = None) -> Sent:
        serial = len(self.sent)
        token = b"m%d" % serial
        size = self._chance.choice(self._value_bytes)
        value = token + b"|" + self._chance.randbytes(size)
        sent = Sent(token, value, target, session, serial, floor, expected_offset)
        self.sent[token] = sent
        return sent

    def answers(self, stream: str, asked: str) -> bool:
        """Whether an ack of `stream` answers a publish to `asked`."""
        if stream == asked:
            return True
        one, other = self.streams.get(stream), self.streams.get(asked)
        return one is not None and other is not None and bool(one.group) and one.group == other.group

    def replication(self, part: Part) -> int:
        return self.streams[part.stream].replication

    def find(self, value: bytes) -> Sent | None:
        return self.sent.get(value.partition(b"|")[0])
