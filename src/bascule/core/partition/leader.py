"""The leader of one partition: assigns offsets, decides what is stored, and has the pending acks.

It knows its own log's end, the in-sync set and the clock readings of its events; it touches no file and no
socket. Events in, effects out, in the order append -> replicate -> (sync, elsewhere) -> acks ->
expose.

Rules:
- One decision per batch. Messages that need another answer than "stored" (too large, wrong expected offset) are
  singled out inside the kernel and come back as error acks; they never split a batch. Not so in a bulk write: its
  batches are stored whole, with one ack each, or refused.
- An ack is pending from the append until its condition is met: LEADER when this broker's log has promised the record,
  ALL when the whole in-sync set has. A leader that is being removed from the cluster sends both when the whole set has:
  if it was replaced and does not know it yet, it acks nothing that its successor lacks.
- A message that an idempotent producer sends again is not stored again. Its ack has its first offset, and waits until
  everything is promised, or committed, that the log had when it came: its record is among that.
- A bulk write may be numbered by a producer, too. What the log has of a batch is not stored again, and its one ack
  waits as that of a message does.
- An atomic batch is one append, and so are all appends of replicas and recovered logs: whole batches. So every log ends
  at the end of a batch, and the high watermark, which is the end of a log, does too.
- Offsets that were committed or exposed are not given again, also if the log lacks their records.
- A refusal, such as a wrong expected offset or a gap in a producer's sequence, is an effect of its own (`Refuse`): it
  is the truth only if this broker still leads. A leader that was replaced and does not know it yet receives the
  messages that its successor stores.
- When the log fails, no record that was not promised is acked as stored. Its publisher gets UNKNOWN, because followers
  may have the record already, and one of them may lead next.

The shape follows etcd's raft (step in, instructions out) and Kafka's partition leader (high watermark by in-sync set).
"""

from dataclasses import dataclass
from typing import NamedTuple

from bascule.core.partition.insync import InSync
from bascule.core.partition.pendingacks import PendingAcks, PendingAcksBound
from bascule.errors import AckError, FailedPrecondition, InvalidArgument, Unavailable
from bascule.limits import ATOMIC_MESSAGE_BYTES, BULK_WRITE_HEADERS, MAX_MESSAGE_FIELDS
from bascule.types import Epoch
from bascule.wire.kernels import ProducerTable, encode_messages, encode_records, record_tail
from bascule.wire.pendingacks import pending_ack, unconfirmed, with_error
from bascule.wire.producers import INVALID_PRODUCER, REFUSALS, numbered, producer_prefix


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch NATS delivered (packed as `wire.kernels` says), with the clock's reading."""

    batch: bytes
    now: int


class Producer(NamedTuple):
    """Who numbers the messages of a bulk write."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Written:
    """A batch of a bulk write: framed messages, as `wire.kernels` says."""

    messages: bytes
    count: int
    inbox: bytes
    correlation_id: bytes
    """Of its one ack."""
    to_all: bool
    """The ack waits for the whole in-sync set."""
    atomic: bool = False
    """All of it is stored or nothing, whatever happens."""
    producer: bytes = b""
    """What the first message of an atomic batch says of its producer; the others have the sequences after it."""
    numbered: Producer | None = None
    """Who numbers a batch that is not atomic. A part of it may be in the log."""
    sequence: int = 0
    """Of its first message then."""


@dataclass(frozen=True, slots=True)
class Promised:
    """Our own log guarantees everything below `end`."""

    end: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Our own log cannot be written, and ends at `promised_end` now. Followers may have later records."""

    promised_end: int


@dataclass(frozen=True, slots=True)
class Reopened:
    """The log can be written again, from here on."""

    end: int
    last_timestamp: int


@dataclass(frozen=True, slots=True)
class SetReadonly:
    readonly: bool


@dataclass(frozen=True, slots=True)
class SetBeingRemoved:
    """Whether this broker is being removed from the cluster: others are about to lead its partitions."""

    being_removed: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """A follower has everything below `end` and promises everything below `promised_end`."""

    replica: str
    end: int
    promised_end: int
    now: int


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """The cluster changed the partition; these are its in-sync set, its replicas, and who is eligible."""

    isr: tuple[str, ...]
    replicas: tuple[str, ...] = ()
    now: int = 0
    eligible: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShrinkFailed:
    """A request to remove this replica from the ISR failed: it may still be in."""

    replica: str
    now: int = 0


@dataclass(frozen=True, slots=True)
class ExpandFailed:
    """A request to add this replica to the ISR failed: the controller was `asked` and took it out, or was not asked,
    because the replica is not alive."""

    replica: str
    asked: bool
    now: int


@dataclass(frozen=True, slots=True)
class DiskFailing:
    """A follower reports that its disk takes no writes."""

    replica: str
    promised_end: int
    now: int


@dataclass(frozen=True, slots=True)
class Tick:
    now: int
    heard: tuple[tuple[str, int], ...] = ()
    """Followers, and when each of them last reported that its position is unchanged."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The answer to `Refuse`: whether this broker led the partition all the time until after these refusals."""

    refused: bytes
    leads: bool


Event = (
    Arrived
    | Promised
    | Failed
    | Reopened
    | SetReadonly
    | SetBeingRemoved
    | Fetched
    | DiskFailing
    | IsrChanged
    | ShrinkFailed
    | ExpandFailed
    | Confirmed
    | Tick
)


# The effects of every batch are not frozen dataclasses: these take three times as long to make.


@dataclass(slots=True)
class Append:
    records: bytes
    count: int
    next_offset: int
    last_timestamp: int
    taken: int = 1
    """Messages from NATS that these records are of: an atomic batch is one."""


@dataclass(slots=True)
class Replicate:
    """Send these records, if the log took them, to the followers before they are synced here."""

    records: bytes
    first_offset: int
    """Where the log ended before. The first record is past it if exposed offsets are missing in this log."""
    next_offset: int


class SendAcks(NamedTuple):
    pending: bytes


class Refuse(NamedTuple):
    """Acks with errors, of messages that are not stored: to be sent when it is confirmed that this broker still leads
    the partition."""

    pending: bytes


class Expose(NamedTuple):
    """Readers may see everything below `hw_end`."""

    hw_end: int


@dataclass(frozen=True, slots=True)
class DropAcks:
    """Too many acks are pending on this broker, most of them of this partition, perhaps another one: its messages stay
    stored, but their publishers get no ack."""

    partition: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class AskShrink:
    replica: str
    lacks: bool = False
    """It has lost records that it had promised: it is not eligible to lead either."""


@dataclass(frozen=True, slots=True)
class AskExpand:
    replica: str


Effect = Append | Replicate | SendAcks | Refuse | Expose | DropAcks | AskShrink | AskExpand


@dataclass(frozen=True, slots=True)
class Identity:
    """What never changes while this broker leads this partition."""

    origin: bytes
    """The encoded stream and partition fields every record carries."""
    subject: bytes
    """The NATS subject the partition listens on (it may hold wildcards)."""
    epoch: Epoch
    max_message_bytes: int
    optimistic_concurrency: bool
    refused_prefix: bytes
    """Subjects never stored: the cluster's own (a stream on `>` would record its own replication without end)."""
    max_lag_ns: int = 15_000_000_000
    flatbuffers: bool = False
    """Messages of the FlatBuffers draft are understood."""


class Leader:
    def __init__(
        self,
        identity: Identity,
        in_sync: InSync,
        end: int,
        last_timestamp: int,
        pending: PendingAcks | None = None,
        committed_end: int = 0,
        producers: ProducerTable | None = None,
    ) -> None:
        """`producers` has what the log has of idempotent producers; without it what they say is ignored."""
        self.identity = identity
        self.pending = pending or PendingAcks("the partition", PendingAcksBound())
        self.in_sync = in_sync
        self.end = end
        self.leadership_end = end
        """Our end when we became leader. The old leader may have exposed any of it: until the high watermark is there,
        clients that saw ours would see it go back."""
        self.committed_end = committed_end
        """The committed end before this leadership, if known. It is past our end only if records were lost."""
        self.last_timestamp = last_timestamp
        self.producers = producers
        self.readonly = False
        self.being_removed = False
        self.failed = False
        self._tail = record_tail(identity.origin, identity.subject, b"")

    def step(self, event: Event) -> list[Effect]:
        """Events of every batch have a method of their own, too: `arrived`, `promised` and `fetched`."""
        match event:
            case Arrived(batch, now):
                return self.arrived(batch, now)
            case Promised(end):
                return self.promised(end)
            case Failed(promised_end):
                return self._fail(promised_end)
            case Reopened(end, last_timestamp):
                assert self.failed, "a log is opened again after it has failed"
                self.failed = False
                self.end = end
                self.last_timestamp = max(last_timestamp, self.last_timestamp)
                return []
            case SetReadonly(readonly):
                self.readonly = readonly
                return []
            case SetBeingRemoved(being_removed):
                self.being_removed = being_removed
                if being_removed:
                    self.pending.wait_for_all()
                return []
            case Fetched(replica, end, promised_end, now):
                return self.fetched(replica, end, promised_end, now)
            case DiskFailing(replica, promised_end, now):
                self.in_sync.disk_failing(replica, promised_end, now)
                return self._check_isr(now, replica)
            case IsrChanged(isr, replicas, now, eligible):
                return self._committed(self.in_sync.changed(isr, replicas, now, eligible), [])
            case ShrinkFailed(replica, now):
                self.in_sync.shrink_failed(replica, now)
                return []
            case ExpandFailed(replica, asked, now):
                return self._committed(self.in_sync.expand_failed(replica, asked, now), [])
            case Confirmed(refused, leads):
                return [SendAcks(refused if leads else unconfirmed(refused))]
            case Tick(now, heard):
                for replica, at in heard:
                    self.in_sync.heard(replica, self.end, at)
                return self._check_isr(now)

    @property
    def established(self) -> bool:
        """Everything we had when we became leader is committed: the high watermark we report only goes up."""
        return self.in_sync.hw_end >= self.leadership_end

    @property
    def _next_offset(self) -> int:
        return max(self.end, self.committed_end)

    def _check_isr(self, now: int, only: str = "") -> list[Effect]:
        late = self.in_sync.lagging(now, self.identity.max_lag_ns, only)
        return [*(AskShrink(replica, self.in_sync.lacks(replica)) for replica in late), *self._check_recovered(now)]

    def _check_recovered(self, now: int) -> list[Effect]:
        return [AskExpand(replica) for replica in self.in_sync.recovered(now, self.identity.max_lag_ns)]

    def arrived(self, batch: bytes, now: int, may_store: bool = True) -> list[Effect]:
        """A batch that may not be stored is answered too, with errors."""
        if self.readonly:
            return []
        identity, takes = self.identity, may_store and not self.failed
        records, count, end, last_timestamp, leader_pending, all_pending, error_pending, taken = encode_records(
            batch,
            identity.origin,
            identity.subject,
            self._tail,
            self._next_offset,
            identity.epoch,
            now,
            self.last_timestamp,
            identity.max_message_bytes,
            identity.optimistic_concurrency,
            identity.refused_prefix,
            self.producers if takes else None,
            identity.flatbuffers,
        )
        if not takes:
            return self._refuse(leader_pending + all_pending + error_pending)
        effects: list[Effect] = []
        if count:
            effects = self._append(records, count, end, last_timestamp, leader_pending, all_pending, taken)
        elif leader_pending or all_pending:
            effects = self._repeated(leader_pending, all_pending)
        if error_pending:
            effects.append(Refuse(error_pending) if self.in_sync.followers else SendAcks(error_pending))
        return effects

    def written(self, batch: Written, now: int) -> list[Effect]:
        """Its messages are stored, all of them, or InvalidArgument says why none is. The caller knows that this leader
        stores messages: it is not readonly, has a lease, and its log takes writes."""
        assert not self.readonly, "a batch is not given to a partition that is readonly"
        assert not self.failed, "a batch is not given to a leader whose log has failed"
        identity, stored_before, producer = self.identity, 0, batch.producer
        if batch.numbered is not None:
            stored_before = self._stored_of(batch, batch.numbered, now)
            if stored_before == batch.count:
                return self._repeated(*self._ack_of(batch, max(self.end - 1, 0), now))
            producer = self._says(batch.numbered, batch.sequence + stored_before)
        wanted = batch.count - stored_before
        producers = self.producers if producer else None
        if producer and (producers is None or not producers.ready):
            raise Unavailable("what producers have stored is being read from the log again: send the batch again")
        records, count, end, last_timestamp, problem = encode_messages(
            after_messages(batch.messages, stored_before),
            identity.subject,
            self._tail,
            self._next_offset,
            identity.epoch,
            now,
            self.last_timestamp,
            identity.max_message_bytes,
            wanted,
            batch.atomic,
            producer,
            producers,
        )
        if problem in REFUSALS:
            raise FailedPrecondition(REFUSALS[problem])
        stored = problem == _STORED
        if not stored and (problem or count != wanted):
            number = stored_before + count
            raise InvalidArgument(_refusal(problem, number, batch.count, identity.max_message_bytes))
        last = count + batch.count - 1 if stored else end - 1
        leader_pending, all_pending = self._ack_of(batch, last, now if stored else last_timestamp)
        if stored:
            return self._repeated(leader_pending, all_pending)
        return self._append(records, count, end, last_timestamp, leader_pending, all_pending, 1)

    def expected(self, producer: Producer, now: int) -> int:
        """The sequence that this producer goes on with. Unavailable while that is not known."""
        if self.producers is None or not self.producers.ready:
            raise Unavailable("what producers have stored is being read from the log again: try again")
        timestamp = max(now, self.last_timestamp + 1)
        following = self.producers.expected(producer.id, producer.epoch, timestamp)
        if following < 0:
            raise FailedPrecondition(REFUSALS[AckError.FENCED])
        return following

    def offset_of(self, producer: Producer, sequence: int) -> int:
        """Of a message that is in the log; -1 if that is not known any more."""
        return -1 if self.producers is None else self.producers.offset_of(producer.id, producer.epoch, sequence)

    def _stored_of(self, batch: Written, producer: Producer, now: int) -> int:
        """How many messages of the batch, its first ones, the log has already."""
        following = self.expected(producer, now)
        if batch.sequence > following:
            raise FailedPrecondition(REFUSALS[AckError.SEQUENCE_GAP if following else AckError.UNKNOWN_PRODUCER])
        return min(following - batch.sequence, batch.count)

    def _says(self, producer: Producer, sequence: int) -> bytes:
        assert self.producers is not None, "a batch with numbers is judged by what producers have stored"
        return numbered(producer_prefix(producer.id, producer.epoch, *self.producers.scope), sequence)

    def _ack_of(self, batch: Written, offset: int, reception: int) -> tuple[bytes, bytes]:
        """For the leader, and for all."""
        ack = pending_ack(offset, reception, int(batch.to_all), batch.inbox, batch.correlation_id)
        return (b"", ack) if batch.to_all else (ack, b"")

    def _append(
        self,
        records: bytes,
        count: int,
        end: int,
        last_timestamp: int,
        leader_pending: bytes,
        all_pending: bytes,
        taken: int,
    ) -> list[Effect]:
        assert end - count >= max(self.end, self.committed_end), "an offset is given once"
        first_offset, self.end = self.end, end
        self.last_timestamp = last_timestamp
        effects: list[Effect] = [
            Append(records, count, end, last_timestamp, taken),
            Replicate(records, first_offset, end),
        ]
        if leader_pending or all_pending:
            effects += self._add_pending(leader_pending, all_pending)
        return effects

    def _repeated(self, leader_pending: bytes, all_pending: bytes) -> list[Effect]:
        """Only duplicates. Their acks wait for everything that the log has now, which may be committed already."""
        effects = self._add_pending(leader_pending, all_pending)
        return effects + self._committed(False, self.pending.promised(self.in_sync.promised_end))

    def _add_pending(self, leader_pending: bytes, all_pending: bytes) -> list[Effect]:
        """These acks are pending until everything that the log has now is promised, or committed."""
        if self.being_removed:
            leader_pending, all_pending = b"", leader_pending + all_pending
        return [DropAcks(*item) for item in self.pending.add(self.end, leader_pending, all_pending)]

    def promised(self, end: int) -> list[Effect]:
        assert end <= self.end, f"promised up to {end}, appended up to {self.end}"
        sendable = self.pending.promised(end)
        return self._committed(self.in_sync.promised(end), sendable)

    def fetched(self, replica: str, end: int, promised_end: int, now: int) -> list[Effect]:
        effects = self._committed(self.in_sync.fetched(replica, end, promised_end, self.end, now), [])
        if self.in_sync.lacks(replica):
            effects += self._check_isr(now, replica)
        elif self.in_sync.under_replicated:
            effects += self._check_recovered(now)
        return effects

    def _committed(self, risen: bool, sendable: list[bytes]) -> list[Effect]:
        hw_end = self.in_sync.hw_end
        self.pending.committed(hw_end, sendable)
        effects: list[Effect] = []
        acks = sendable[0] if len(sendable) == 1 else b"".join(sendable)
        if acks:
            effects.append(SendAcks(acks))
        if risen:
            assert hw_end <= self.end, f"committed up to {hw_end}, appended up to {self.end}"
            effects.append(Expose(hw_end))
        return effects

    def _fail(self, promised_end: int) -> list[Effect]:
        assert promised_end <= self.end, f"promised up to {promised_end}, appended up to {self.end}"
        self.failed = True
        self.end = promised_end
        return self._refuse(self.pending.failed(promised_end))

    def _refuse(self, pending: bytes) -> list[Effect]:
        return [SendAcks(with_error(pending, AckError.UNKNOWN))] if pending else []


def after_messages(framed: bytes, count: int) -> bytes:
    """These framed messages without the first ones."""
    position = 0
    for _ in range(count):
        if len(framed) - position < 5:
            return b""  # torn: its count tells
        position += 5 + int.from_bytes(framed[position + 1 : position + 5], "big")
    return framed[position:]


_STORED = -1
"""The problem of a batch that its producer has sent before."""


def _refusal(problem: int, number: int, count: int, max_bytes: int) -> str:
    """Why a batch is not stored; `number` is that of the message with the problem."""
    match problem:
        case 1:
            return (
                f"message {number} of the batch is torn: no gRPC frame without compression begins there; send it again"
            )
        case 2:
            return f"message {number} of the batch is no proto.Message, or a string in it is not UTF-8"
        case 3:
            return (
                f"message {number} of the batch is larger than the cluster replicates, which is {max_bytes} bytes "
                "(clustering.replication.max.bytes)"
            )
        case 5:
            return (
                f"message {number} of the batch has too many headers: a message may have {MAX_MESSAGE_FIELDS}, and the "
                f"messages of a batch {BULK_WRITE_HEADERS} together; send fewer, or combine them"
            )
        case 6:
            return (
                f"with message {number} the batch takes more bytes than an atomic one may, which is as many as the "
                f"largest message, {max_bytes} (clustering.replication.max.bytes): those of its messages, with "
                f"the subject and {ATOMIC_MESSAGE_BYTES} more for each. Send it in parts"
            )
        case 8:
            return INVALID_PRODUCER
        case _:
            has = f"more than {count}" if problem == 4 else str(number)
            return f"the batch says that it has {count} messages, and has {has}"
