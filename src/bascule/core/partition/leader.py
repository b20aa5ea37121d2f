"""The leader of one partition: assigns offsets, decides what is stored, and has the pending acks.

It knows its own log's end, the in-sync set and the clock readings of its events; it touches no file and no
socket. Events in, effects out, in the order append -> replicate -> (sync, elsewhere) -> acks ->
expose.

Rules:
- One decision per batch. Messages that need another answer than "stored" (too large, wrong expected offset) are
  singled out inside the kernel and come back as error acks; they never split a batch.
- An ack is pending from the append until its condition is met: LEADER when this broker's log has promised the record,
  ALL when the whole in-sync set has. A leader that is being removed from the cluster sends both when the whole set has:
  if it was replaced and does not know it yet, it acks nothing that its successor lacks.
- Offsets that were committed or exposed are not given again, also if the log lacks their records.
- When the log fails, no record that was not promised is acked as stored. Its publisher gets UNKNOWN, because followers
  may have the record already, and one of them may lead next.

The shape follows etcd's raft (step in, instructions out) and Kafka's partition leader (high watermark by in-sync set).
"""

from dataclasses import dataclass
from typing import NamedTuple

from bascule.core.partition.insync import InSync
from bascule.core.partition.pendingacks import PendingAcks, PendingAcksBound
from bascule.errors import AckError
from bascule.types import Epoch
from bascule.wire.kernels import encode_records, record_tail
from bascule.wire.pendingacks import with_error


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch NATS delivered (packed as `wire.kernels` says), with the clock's reading."""

    batch: bytes
    now: int


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
    | Tick
)


# The effects of every batch are not frozen dataclasses: these take three times as long to make.


@dataclass(slots=True)
class Append:
    records: bytes
    count: int
    next_offset: int
    last_timestamp: int


@dataclass(slots=True)
class Replicate:
    """Send these records, if the log took them, to the followers before they are synced here."""

    records: bytes
    first_offset: int
    """Where the log ended before. The first record is past it if exposed offsets are missing in this log."""
    next_offset: int


class SendAcks(NamedTuple):
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


Effect = Append | Replicate | SendAcks | Expose | DropAcks | AskShrink | AskExpand


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


class Leader:
    def __init__(
        self,
        identity: Identity,
        in_sync: InSync,
        end: int,
        last_timestamp: int,
        pending: PendingAcks | None = None,
        committed_end: int = 0,
    ) -> None:
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
            case Tick(now, heard):
                for replica, at in heard:
                    self.in_sync.heard(replica, self.end, at)
                return self._check_isr(now)

    @property
    def established(self) -> bool:
        """Everything we had when we became leader is committed: the high watermark we report only goes up."""
        return self.in_sync.hw_end >= self.leadership_end

    def _check_isr(self, now: int, only: str = "") -> list[Effect]:
        late = self.in_sync.lagging(now, self.identity.max_lag_ns, only)
        return [*(AskShrink(replica, self.in_sync.lacks(replica)) for replica in late), *self._check_recovered(now)]

    def _check_recovered(self, now: int) -> list[Effect]:
        return [AskExpand(replica) for replica in self.in_sync.recovered(now, self.identity.max_lag_ns)]

    def arrived(self, batch: bytes, now: int, may_store: bool = True) -> list[Effect]:
        """A batch that may not be stored is answered too, with errors."""
        if self.readonly:
            return []
        identity = self.identity
        records, count, end, last_timestamp, leader_pending, all_pending, error_pending = encode_records(
            batch,
            identity.origin,
            identity.subject,
            self._tail,
            max(self.end, self.committed_end),
            identity.epoch,
            now,
            self.last_timestamp,
            identity.max_message_bytes,
            identity.optimistic_concurrency,
            identity.refused_prefix,
        )
        if self.failed or not may_store:
            return self._refuse(leader_pending + all_pending + error_pending)
        effects: list[Effect] = []
        if count:
            assert end - count >= max(self.end, self.committed_end), "an offset is given once"
            first_offset, self.end = self.end, end
            self.last_timestamp = last_timestamp
            effects.append(Append(records, count, end, last_timestamp))
            effects.append(Replicate(records, first_offset, end))
            if leader_pending or all_pending:
                if self.being_removed:
                    leader_pending, all_pending = b"", leader_pending + all_pending
                dropped = self.pending.add(end, leader_pending, all_pending)
                if dropped:
                    effects += [DropAcks(*item) for item in dropped]
        if error_pending:
            effects.append(SendAcks(error_pending))
        return effects

    def promised(self, end: int) -> list[Effect]:
        assert end <= self.end, f"promised up to {end}, appended up to {self.end}"
        payable = self.pending.promised(end)
        return self._committed(self.in_sync.promised(end), payable)

    def fetched(self, replica: str, end: int, promised_end: int, now: int) -> list[Effect]:
        effects = self._committed(self.in_sync.fetched(replica, end, promised_end, self.end, now), [])
        if self.in_sync.lacks(replica):
            effects += self._check_isr(now, replica)
        elif self.in_sync.under_replicated:
            effects += self._check_recovered(now)
        return effects

    def _committed(self, risen: bool, payable: list[bytes]) -> list[Effect]:
        hw_end = self.in_sync.hw_end
        self.pending.committed(hw_end, payable)
        effects: list[Effect] = []
        acks = payable[0] if len(payable) == 1 else b"".join(payable)
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
