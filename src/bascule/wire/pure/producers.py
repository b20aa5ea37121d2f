"""Which sequences of which idempotent producers a partition has stored, and at which offsets.

A producer numbers its messages to a partition without gaps, so what it has stored is everything below `next`. Its runs
say where: a run is sequences in a row at offsets in a row. They cover the last PRODUCER_WINDOW sequences, unless a
partition has too many of them. The log is the truth: what is observed is taken as it is, also if it has gaps.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

from bascule.limits import (
    MAX_PRODUCER_RUNS,
    PRODUCER_EXPIRY_NS,
    PRODUCER_WINDOW,
)
from bascule.wire.pure.protobuf import Buffer, MalformedError, read_varint, varint
from bascule.wire.pure.record import record_fields

PRODUCER_TAG = 2001 << 3 | 2
ACCEPTED, STORED = 0, -1  # no errors of acks
SEQUENCE_GAP, UNKNOWN_PRODUCER, FENCED, DUPLICATE, OVERLAP = 100, 101, 102, 103, 104
MIN_FIELD_BYTES, MAX_FIELD_BYTES = 12, 48
_PRODUCER = struct.Struct("<QQQqI")
_RUN = struct.Struct("<qII")
_SEQUENCE = struct.Struct("<Q")
_LOW = 0xFFFFFFFF
_LAST_SEQUENCE = (1 << 63) - 1


class Numbered(NamedTuple):
    """What field 2001 of a message says."""

    id: int
    epoch: int
    creation: int
    partition: int
    sequence: int


def read_numbered(content: bytes) -> Numbered | None:
    """None if it is not what a producer writes."""
    if not MIN_FIELD_BYTES <= len(content) <= MAX_FIELD_BYTES:
        return None
    numbers, position, end = [], 0, len(content) - _SEQUENCE.size
    try:
        for _ in range(4):
            number, position = read_varint(content, position, end)
            numbers.append(number)
    except MalformedError:
        return None
    return Numbered(*numbers, *_SEQUENCE.unpack_from(content, end)) if position == end else None


def is_about(content: bytes, creation: int, partition: int) -> bool:
    """Whether it numbers a message for this partition, of the stream with this creation index."""
    said = read_numbered(content)
    return said is not None and (said.creation, said.partition) == (creation, partition)


def is_about_another(content: bytes, creation: int, partition: int) -> bool:
    """Whether it numbers a message for this partition of a stream with another creation index: one of the same name."""
    said = read_numbered(content)
    return said is not None and said.partition == partition and said.creation != creation


def producer_field(content: bytes) -> bytes:
    return varint(PRODUCER_TAG) + varint(len(content)) + content


class _Run:
    __slots__ = ("count", "offset", "sequence")

    def __init__(self, offset: int, sequence: int, count: int) -> None:
        self.offset = offset
        self.sequence = sequence
        self.count = count


class _Producer:
    __slots__ = ("epoch", "next", "runs", "timestamp")

    def __init__(self, epoch: int, following: int, timestamp: int) -> None:
        self.epoch = epoch
        self.next = following
        self.timestamp = timestamp
        self.runs: list[_Run] = []

    def trim(self) -> None:
        """What is below the window."""
        least = self.next - PRODUCER_WINDOW
        while self.runs and self.runs[0].sequence < least:
            run = self.runs[0]
            below = least - run.sequence
            if run.count > below:
                run.offset, run.sequence, run.count = run.offset + below, least, run.count - below
            else:
                del self.runs[0]


class ProducerTable:
    """The producers of one partition, of the stream with this creation index, at most so many."""

    def __init__(self, creation: int, partition: int, most: int) -> None:
        self.ready = True
        """Whether it is known what they have stored."""
        self.end = 0
        """The offset after the last record that is taken in."""
        self._scope = (creation, partition)
        self._most = most
        self._producers: dict[int, _Producer] = {}
        self._duplicates = 0
        self._counted = self._added = 0
        """Runs when they were counted last, and those that were added since. Some may be gone by now."""

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def scope(self) -> tuple[int, int]:
        """The creation index of the stream, and the partition."""
        return self._scope

    @property
    def runs(self) -> int:
        return sum(len(each.runs) for each in self._producers.values())

    @property
    def duplicates(self) -> int:
        return self._duplicates

    def expire(self, now: int) -> None:
        """Forget producers whose last record is too old at this time."""
        for id in [id for id, each in self._producers.items() if now - each.timestamp > PRODUCER_EXPIRY_NS]:
            del self._producers[id]

    def take(self, other: ProducerTable) -> None:
        """Become what the other one is, which is empty then."""
        self._producers, other._producers = other._producers, {}
        self._counted, self._added = self.runs, 0
        self.end = other.end

    def numbered(self, content: bytes) -> Numbered | None:
        """What a message says that is about this partition."""
        numbered = read_numbered(content)
        return numbered if numbered and (numbered.creation, numbered.partition) == self._scope else None

    def judge(self, numbered: Numbered, now: int, count: int = 1) -> tuple[int, int]:
        """ACCEPTED, STORED with its offset, or an error. Of `count` sequences in a row, which are stored together: if
        only the first of them are stored, or what is known of them shows that they are not in a row, it is an OVERLAP.
        If it is not known of all of them where they are, for compaction has removed some, they are a DUPLICATE."""
        known = self._producers.get(numbered.id)
        if known is None or now - known.timestamp > PRODUCER_EXPIRY_NS:
            return (UNKNOWN_PRODUCER if numbered.sequence else ACCEPTED), 0
        if numbered.epoch < known.epoch:
            return FENCED, 0
        if numbered.epoch > known.epoch:
            return (SEQUENCE_GAP if numbered.sequence else ACCEPTED), 0
        if numbered.sequence == known.next:
            fits = numbered.sequence < _LAST_SEQUENCE and count <= _LAST_SEQUENCE - numbered.sequence
            return (ACCEPTED if fits else SEQUENCE_GAP), 0
        if numbered.sequence > known.next:
            return SEQUENCE_GAP, 0
        if known.next - numbered.sequence < count:
            return OVERLAP, 0
        self._duplicates += 1
        first, end = numbered.sequence, numbered.sequence + count
        covered, ahead = 0, 0
        """Of the sequences, and how far offsets are ahead of them."""
        for run in known.runs[max(bisect_right(known.runs, first, key=lambda run: run.sequence) - 1, 0) :]:
            if run.sequence >= end:
                break
            there = min(run.sequence + run.count, end) - max(run.sequence, first)
            if there > 0:
                if covered and run.offset - run.sequence != ahead:
                    return OVERLAP, 0
                covered, ahead = covered + there, run.offset - run.sequence
        return (STORED, first + ahead) if covered == count else (DUPLICATE, 0)

    def expected(self, id: int, epoch: int, now: int) -> int:
        """The sequence that a producer goes on with; -1 if it is fenced."""
        known = self._producers.get(id)
        if known is None or now - known.timestamp > PRODUCER_EXPIRY_NS or known.epoch < epoch:
            return 0
        return known.next if known.epoch == epoch else -1

    def offset_of(self, id: int, epoch: int, sequence: int) -> int:
        """Where a sequence is stored; -1 if it is not, or that is not known."""
        known = self._producers.get(id)
        if known is None or known.epoch != epoch:
            return -1
        number = bisect_right(known.runs, sequence, key=lambda run: run.sequence) - 1
        run = known.runs[number] if number >= 0 else None
        return -1 if run is None or sequence - run.sequence >= run.count else run.offset + sequence - run.sequence

    def observe(self, numbered: Numbered, offset: int, timestamp: int) -> None:
        """A record that the log has."""
        id, epoch, _, _, sequence = numbered
        known = self._producers.get(id)
        if known is None:
            if len(self._producers) >= self._most:
                self._drop_oldest()
            known = self._producers[id] = _Producer(epoch, sequence, timestamp)
        goes_on = known.epoch == epoch and known.next <= sequence and timestamp - known.timestamp <= PRODUCER_EXPIRY_NS
        if not goes_on or sequence - known.next > PRODUCER_WINDOW:
            known.runs = []
        if not goes_on:
            known.epoch, known.next = epoch, sequence
        last, added = known.runs[-1] if known.runs else None, False
        if last and sequence == known.next == last.sequence + last.count and last.offset + last.count == offset:
            last.count += 1
        else:
            known.runs.append(_Run(offset, sequence, 1))
            added = True
        known.next, known.timestamp = sequence + 1, timestamp
        known.trim()
        self._added += added
        if self._added > MAX_PRODUCER_RUNS - self._counted and self._too_many_runs():
            for each in self._producers.values():
                del each.runs[: len(each.runs) // 2]

    def _drop_oldest(self) -> None:
        """Those that were not used for longest. Many at once: to look for one costs as much, and a sender who uses a
        new id for each message makes that happen each time."""
        last = sorted(each.timestamp for each in self._producers.values())[max(self._most // 8 - 1, 0)]
        for id in [id for id, each in self._producers.items() if each.timestamp <= last]:
            del self._producers[id]

    def _too_many_runs(self) -> bool:
        self._counted, self._added = self.runs, 0
        return self._counted > MAX_PRODUCER_RUNS

    def snapshot(self) -> bytes:
        """Its state as bytes, the same for equal tables: `restore` reads them."""
        parts = []
        for id, known in sorted(self._producers.items()):
            parts.append(_PRODUCER.pack(id, known.epoch, known.next, known.timestamp, len(known.runs)))
            parts += [_RUN.pack(run.offset, run.sequence & _LOW, run.count) for run in known.runs]
        return b"".join(parts)

    def restore(self, data: bytes) -> None:
        """What `snapshot` gave. ValueError, and an empty table, if these bytes are something else."""
        self._producers = {}
        producers: dict[int, _Producer] = {}
        position, last = 0, -1
        while len(data) - position >= _PRODUCER.size:
            id, epoch, following, timestamp, count = _PRODUCER.unpack_from(data, position)
            end = position + _PRODUCER.size + count * _RUN.size
            if id <= last or len(producers) >= self._most or end > len(data):
                break
            last = id
            known = producers[id] = _Producer(epoch, following, timestamp)
            for offset, low, length in _RUN.iter_unpack(data[position + _PRODUCER.size : end]):
                known.runs.append(_Run(offset, following - ((following - low) & _LOW), length))
            position = end
        if position != len(data):
            raise ValueError("these are not the producers of a partition, as they are stored")
        self._producers = producers
        self._counted, self._added = self.runs, 0


def observe_producers(producers: ProducerTable, records: Buffer, start: int, end: int) -> None:
    """Takes in what whole, verified records say of their producers."""
    for offset, timestamp, content in record_fields(records, start, end):
        numbered = producers.numbered(content)
        if numbered is not None:
            producers.observe(numbered, offset, timestamp)
        producers.end = offset + 1
