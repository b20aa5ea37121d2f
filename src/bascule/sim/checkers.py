"""The invariants of the contract, checked during the run, only with what clients see.

The numbers are those of docs/guarantees.md. A checker knows, for each partition, which message is at which offset:
every ack and every record that was read adds to it. From that follow:

- I1, I4: what was acked or read is in every later read that covers its offset, and below the end of every full one.
- I2: an offset names one message for ever.
- I3: the high watermark that clients ask for never falls below what they knew before they asked.
- I5: one broker commits for a partition and epoch.
- I6: a message sent after another was acked or read has a higher offset; messages of one connection keep their order.
- I7, as far as it applies: where nothing repeats messages, each is stored once; a refused one never.
- Each sequence of an idempotent producer is stored once, in its order, without gaps, however often it is sent ("once").
- I9 is the runner's: it tries to publish after the faults have stopped.
- I16: an ack given to a gRPC publisher that named a stream is of that stream, or of one of its load-balance group.

- I12: of a compacted stream a read lacks nothing but what a later exposed record of the same key supersedes, and what a
  tombstone deletes does not return.

Besides: what is read was sent by somebody, byte for byte; timestamps rise with offsets. A record that a bit flip
damaged may be missing, but never wrong.
"""

from dataclasses import dataclass, field

from bascule.sim.history import History, Outcome, Sent
from bascule.sim.keys import Keys, Snapshot
from bascule.sim.sequences import Forgotten, Sequences
from bascule.sim.trace import Part, Trace, Violation
from bascule.wire.kernels import decode_records, scan_records
from bascule.wire.pb import api_pb2 as api
from bascule.wire.record import FRAME_PREFIX_BYTES, Record

MAX_VIOLATIONS = 10


@dataclass(slots=True)
class Known:
    """What clients know about one partition."""

    names: dict[int, Sent] = field(default_factory=dict)
    timestamps: dict[int, int] = field(default_factory=dict)
    top: int = 0
    """Exclusive end of what was acked or read."""
    hw_end: int = 0
    """The highest watermark that clients have seen, or may conclude."""
    start: int = 0
    """Everything below has expired, by the newest metadata."""
    damaged: dict[int, None] = field(default_factory=dict)
    torn: dict[int, None] = field(default_factory=dict)
    """Offsets written and not synced at a power loss, under relaxed sync: these may be missing."""


class Checker:
    def __init__(self, history: History, trace: Trace) -> None:
        self.history = history
        self.violations: list[Violation] = []
        self.keeps_order = True
        """Whether the bus keeps the order of messages: not in harsh conditions."""
        self.repeats = False
        """Whether the bus may repeat messages."""
        self.producers_known = 0
        """A partition knows a producer as long as fewer others than this were used since; 0: always."""
        self._trace = trace
        self.compacted: dict[Part, Keys] = {}
        """Partitions from which compaction removes records."""
        self._known: dict[Part, Known] = {}
        self._committers: dict[tuple[Part, int], str] = {}
        self._forgotten: list[Forgotten] = []

    def known(self, part: Part) -> Known:
        return self._known.setdefault(part, Known())

    @property
    def committed(self) -> int:
        """Different records that clients saw or have an ack for."""
        return sum(len(known.names) for known in self._known.values())

    def violate(self, invariant: str, text: str, part: Part | None = None, offset: int = -1) -> None:
        violation = Violation(invariant, text, part, offset)
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(violation)
            self._trace.note("violation", f"{invariant} {text}", part, offset)

    # --- publishing -------------------------------------------------------------------------------------------

    def acked(self, sent: Sent, ack: api.Ack, named_stream: bool) -> None:
        """`named_stream`: the publisher named a stream, not a subject."""
        stream = self.history.streams.get(ack.stream)
        if named_stream and not self.history.answers(ack.stream, sent.target.stream):
            text = f"{sent.token!r} was published to {sent.target.stream} and is acked by {ack.stream}"
            self.violate("I16", text, sent.target, ack.offset)
        part = stream.part_of(ack.msgSubject) if stream else None
        if stream is None or part is None:
            self.violate("invalid", f"an ack of {sent.token!r} names stream {ack.stream}, subject {ack.msgSubject}")
            return
        if part.stream == sent.target.stream:
            part = sent.target
            sent.outcome = Outcome.ACKED
            if sent.expected_offset is not None and ack.offset != sent.expected_offset:
                text = f"{sent.token!r} was to be at {sent.expected_offset} or nowhere"
                self.violate("expected offset", text, part, ack.offset)
        self._trace.note("acked", f"{sent.token!r} policy {ack.ackPolicy}", part, ack.offset)
        copies = self.history.replication(part)
        if ack.ackPolicy == api.LEADER and copies > 1:
            return  # only one broker has it, and it may be lost with that broker: the policy allows it
        self._name(part, ack.offset, sent)
        if ack.ackPolicy == api.ALL or copies == 1:
            known = self.known(part)
            known.hw_end = max(known.hw_end, ack.offset + 1)

    def refused(self, sent: Sent, reason: str) -> None:
        self._trace.note("refused", f"{sent.token!r}: {reason}", sent.target)
        sent.outcome = Outcome.REFUSED
        if sent.target in sent.stored and not self.repeats:
            self.violate("I7", f"{sent.token!r} was refused and is stored", sent.target, sent.stored[sent.target])

    def unknown(self, sent: Sent, reason: str) -> None:
        self._trace.note("unknown", f"{sent.token!r}: {reason}", sent.target)
        if sent.outcome is Outcome.PENDING:
            sent.outcome = Outcome.UNKNOWN

    def forgotten(self, sent: Sent, acked: int) -> None:
        """Its producer is told that its partition does not know it, though a record of it was acked, at this offset."""
        self._forgotten.append(Forgotten(sent, acked, len(self.history.sent)))

    # --- what an offset names -----------------------------------------------------------------------------------

    def _name(self, part: Part, offset: int, sent: Sent) -> None:
        known = self.known(part)
        before = known.names.get(offset)
        if before is sent:
            return
        if before is not None:
            self.violate("I2", f"named {before.token!r} and now names {sent.token!r}", part, offset)
            return
        known.names[offset] = sent
        known.top = max(known.top, offset + 1)
        first = sent.stored.setdefault(part, offset)
        if sent.producer is not None:
            self._once(part, offset, sent)
        elif first != offset and not self.repeats:
            self.violate("I7", f"{sent.token!r} is stored here and at {first}", part, offset)
        if (
            part.stream == sent.target.stream
            and part != sent.target
            and sent.target in sent.stored
            and not self.repeats
        ):
            self.violate("I7", f"{sent.token!r} of {sent.target}, deleted since, is in its successor", part, offset)
        if part == sent.target:
            if offset < sent.floor:
                text = f"{sent.token!r} was sent when offset {sent.floor - 1} was known already"
                self.violate("I6", text, part, offset)
            if sent.outcome is Outcome.REFUSED and not self.repeats:
                self.violate("I7", f"{sent.token!r} was refused and is stored", part, offset)

    def _once(self, part: Part, offset: int, sent: Sent) -> None:
        """A producer sends it again, and a stream that stores a copy of everything stores it again. Whether a partition
        may have forgotten the producer is known in the end (`Sequences`)."""
        known = self.known(part)
        first = sent.stored[part]
        if part == sent.target and first != offset and not (self.producers_known or known.damaged or known.torn):
            self.violate("once", f"{sent.token!r}, of {sent.producer}, is stored here and at {first}", part, offset)

    def was_read(self, part: Part, record: Record) -> None:
        sent = self.history.find(record)
        if sent is None or sent.value != record.value or sent.key != record.key:
            text = f"no client sent {record.value[:40]!r} with the key {record.key!r}"
            self.violate("invalid", text, part, record.offset)
            return
        known = self.known(part)
        self._name(part, record.offset, sent)
        known.hw_end = max(known.hw_end, record.offset + 1)
        if known.timestamps.setdefault(record.offset, record.timestamp) != record.timestamp:
            self.violate("I2", "read again with another timestamp", part, record.offset)

    def watermark(self, part: Part, floor: int, metadata: api.PartitionMetadata) -> None:
        """`floor` is what `known(part).hw_end` was when the question was asked."""
        hw_end = metadata.highWatermark + 1
        self._trace.note("watermark", f"{hw_end} of {metadata.newestOffset + 1}", part)
        if hw_end < floor:
            self.violate("I3", f"the high watermark is {hw_end - 1}, but it was {floor - 1} before", part, floor - 1)
        if metadata.newestOffset + 1 < hw_end:
            self.violate("I3", f"the high watermark {hw_end - 1} is past the newest, {metadata.newestOffset}", part)
        known = self.known(part)
        known.hw_end = max(known.hw_end, hw_end)

    def commits(self, part: Part, epoch: int, broker: str) -> None:
        other = self._committers.setdefault((part, epoch), broker)
        if other != broker:
            self.violate("I5", f"{other} and {broker} both commit in epoch {epoch}", part)

    @property
    def changes_of_leaders(self) -> int:
        return len(self._committers) - len({part for part, _ in self._committers})

    # --- at the end -----------------------------------------------------------------------------------------------

    def check_order(self) -> None:
        for part, known in self._known.items():
            last: dict[str, Sent] = {}
            sequences = Sequences(self.producers_known, gaps=part in self.compacted or self.history.is_gone(part))
            time = -1
            for offset in sorted(known.names):
                sent = known.names[offset]
                timestamp = known.timestamps.get(offset, time + 1)
                if timestamp <= time:
                    self.violate("order", "its timestamp is not above the one before it", part, offset)
                time = timestamp
                self._check_sequence(part, offset, sent, sequences)
                if not self.keeps_order or not sent.session or sent.producer is not None:
                    continue
                before = last.get(sent.session)
                if before is not None and before.serial > sent.serial:
                    text = f"{sent.token!r} was sent before {before.token!r} on the same connection"
                    self.violate("I6", text, part, offset)
                last[sent.session] = sent
        self._check_forgotten()

    def _check_forgotten(self) -> None:
        for told in self._forgotten:
            part, known = told.sent.target, self.known(told.sent.target)
            if known.damaged or known.torn or part in self.compacted or self.history.is_gone(part):
                continue
            others = told.others(known.names, self.history.sent_to(part))
            if others < self.producers_known:
                text = f"{told.sent.producer} is unknown, and only {others} others were used since {told.acked}"
                self.violate("once", text, part, told.acked)

    def _check_sequence(self, part: Part, offset: int, sent: Sent, sequences: Sequences) -> None:
        """What a producer has stored is in its order, and nothing is left out; but for what compaction removed, or its
        stream was deleted with, before a client saw it."""
        known = self.known(part)
        if sent.producer is None or part != sent.target or known.damaged or known.torn:
            return
        if wrong := sequences.take(sent.producer, sent.sequence):
            self.violate("once", wrong, part, offset)


class View:
    """One read of a partition, by one client."""

    def __init__(self, checker: Checker, part: Part) -> None:
        self.part = part
        self.seen: dict[int, Sent | None] = {}
        self.last = -1
        self._checker = checker
        known = checker.known(part)
        self.top = known.top
        """Everything known below it must be there."""
        self.took_s = 0.0
        """For so long it went forwards: what it read first may be gone when it ends."""
        self._keys = checker.compacted.get(part)
        self._exposed = None if self._keys is None else Snapshot(self._keys)

    def take(self, frames: bytes, reverse: bool = False) -> int:
        """Records as they came; gives how many."""
        records = bytes(frames)
        while records[:FRAME_PREFIX_BYTES] == bytes(FRAME_PREFIX_BYTES):  # the handshake
            records = records[FRAME_PREFIX_BYTES:]
        decoded = decode_records(records, 0, len(records), 1 << 30)[1]
        self._verify(records, reverse)
        for entry in decoded:
            record = Record._make(entry)
            self._place(record, reverse)
            self._checker.was_read(self.part, record)
            self.seen[record.offset] = None
        return len(decoded)

    def _verify(self, records: bytes, reverse: bool) -> None:
        """Verify the checksums of the records, as a client or Spark does."""
        position = 0
        while position < len(records):
            if reverse:
                size = FRAME_PREFIX_BYTES + int.from_bytes(records[position + 1 : position + 5], "big")
                good = scan_records(records, position, min(position + size, len(records)), 0)[0]
            else:
                good = scan_records(records, position, len(records), 0)[0]
            if good == position:
                self._checker.violate("invalid", "a record was served whose checksum is wrong", self.part, self.last)
                return
            position = good

    def _place(self, record: Record, reverse: bool) -> None:
        if (record.stream, record.partition) != (self.part.stream, self.part.number):
            text = f"a record of {record.stream}/{record.partition} was served"
            self._checker.violate("invalid", text, self.part, record.offset)
        if self.seen and (record.offset >= self.last if reverse else record.offset <= self.last):
            self._checker.violate("order", f"served after {self.last}", self.part, record.offset)
        self.last = record.offset

    def expired_below(self, start: int, newest: int) -> None:
        """The broker that served this knew of `start` when it was asked; `newest` is the highest start that any broker
        knows of by now."""
        known = self._checker.known(self.part)
        known.start = max(known.start, newest)
        first = min(self.seen, default=start)
        if first < start:
            text = f"served by a broker that knew that everything below {start} had expired"
            self._checker.violate("expired", text, self.part, first)

    def without_holes(self, when: str) -> None:
        """A full read has every offset: an offset without a record is a record that got lost."""
        damaged, torn = self._checker.known(self.part).damaged, self._checker.known(self.part).torn
        offsets = range(self._checker.known(self.part).start, max(self.seen, default=-1))
        missing = [each for each in offsets if each not in self.seen and each not in torn and not self._may_lack(each)]
        if missing and not damaged:
            text = f"{when} {len(missing)} offsets name nothing, and later ones do"
            self._checker.violate("hole", text, self.part, missing[0])

    def whole_batches(self, when: str) -> None:
        """A full read has every message of an atomic batch, one after the other, or none; but for records that were
        damaged, or have expired."""
        known = self._checker.known(self.part)
        for offset in self.seen:
            sent = known.names.get(offset)
            if sent is None or not sent.batch or sent.target != self.part:
                continue
            first = offset - [each is sent for each in sent.batch].index(True)
            offsets = range(first, first + len(sent.batch))
            if first < known.start or any(each in known.damaged or each in known.torn for each in offsets):
                continue
            missing = [
                each
                for each in offsets
                if (each not in self.seen and not self._may_lack(each)) or known.names.get(each, sent) not in sent.batch
            ]
            if missing:
                text = (
                    f"{when} {sent.token!r} is there, and its atomic batch from {first} to {offsets[-1]} is not whole"
                )
                self._checker.violate("whole", text, self.part, missing[0])
                return

    def covered(self, low: int, high: int) -> None:
        """The read claims to have everything from `low` to before `high`."""
        known = self._checker.known(self.part)
        low = max(low, known.start)
        for offset, sent in known.names.items():
            if (
                low <= offset < high
                and offset not in self.seen
                and offset not in known.damaged
                and not self._may_lack(offset)
            ):
                how = "acked" if sent.outcome is Outcome.ACKED else "known"
                text = f"{sent.token!r} was {how}, and is not in a read of {low} to {high - 1}"
                self._checker.violate("I1/I4", text, self.part, offset)
        self._without(low, high)

    # --- compaction -------------------------------------------------------------------------------------------

    def differs(self, other: "View") -> list[int]:
        """What one of two reads of the same records has, and the other one not, though compaction may not have removed
        it in between."""
        different = self.seen.keys() ^ other.seen.keys()
        return sorted(offset for offset in different if not self._may_lack(offset))

    def _may_lack(self, offset: int) -> bool:
        return self._keys is not None and self._keys.may_lack(offset)

    def _without(self, low: int, high: int) -> None:
        """The read claims to have everything from `low` to before `high` that compaction has left, of what was exposed
        when it began. It may be so slow that a tombstone goes before the read comes to it, when it has read what that
        deletes: if it takes as long as tombstones stay at least."""
        if self._keys is None or self._exposed is None:
            return
        known = self._checker.known(self.part)
        lost = {**known.damaged, **known.torn}
        low = max(low, known.start)
        for offset in self._exposed.missing(low, high, self.seen):
            if offset not in lost:
                text = f"the newest record of its key, or one without a key, is not in a read of {low} to {high - 1}"
                self._checker.violate("I12", text, self.part, offset)
                return
        if self.took_s >= self._keys.delay_s:
            return
        for offset, tombstone in self._exposed.returned(low, high, self.seen):
            if tombstone not in lost:
                text = f"a read of {low} to {high - 1} has it, and not {tombstone}, which deletes its key"
                self._checker.violate("I12", text, self.part, offset)
                return
