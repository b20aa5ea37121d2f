"""A follower of one partition: it has a copy of its leader's log, byte for byte.

It knows the ends and epochs of its own log and the answers of its leader; it touches no file and no socket. Its driver
fetches from `position` on, and carries out the effects.

Rules:
- Records are appended as they are, after one kernel call has verified them all. Records that do not verify are not
  taken, nor any that do not begin where our log ends: the leader sends ahead, and one answer of several may be lost.
- It truncates its log only after an answer of the leader that says where the logs differ, and never below its exposed
  end: those records were committed, and a leader that lacks them is not valid.
- Answers of another leader epoch than the one it follows are ignored. So are all answers while the log has failed: no
  record may be stored after one that was not.
"""

from dataclasses import dataclass

from bascule.core.partition.epochs import EpochHistory
from bascule.types import Epoch
from bascule.wire.kernels import scan_records
from bascule.wire.replication import Answer, Kind, Position


@dataclass(frozen=True, slots=True)
class Answered:
    answer: Answer


@dataclass(frozen=True, slots=True)
class Promised:
    """Our own log guarantees everything below `end`."""

    end: int


@dataclass(frozen=True, slots=True)
class Truncated:
    """The log now ends here, as a Truncate asked."""

    end: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Our own log cannot be written, and ends here now: records that it had not promised are dropped."""

    end: int


@dataclass(frozen=True, slots=True)
class Reopened:
    """The log can be written again, from here on."""

    end: int


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """The leader has answered, and this log may have records that no other may get: none of them stays."""

    answer: Answer


Event = Answered | Promised | Truncated | Failed | Reopened | BeginAnew


@dataclass(frozen=True, slots=True)
class Append:
    records: bytes
    count: int
    next_offset: int
    last_timestamp: int
    epoch: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log to `end`, the rest to quarantine; then say Truncated."""

    end: int


@dataclass(frozen=True, slots=True)
class Expose:
    hw_end: int


@dataclass(frozen=True, slots=True)
class IgnoreResponse:
    """What the leader sent cannot be right; nothing was taken."""

    reason: str


Effect = Append | Truncate | Expose | IgnoreResponse

_WHOLE = 0


class Follower:
    def __init__(
        self,
        stream_index: int,
        partition: int,
        leader_epoch: Epoch,
        epochs: EpochHistory,
        end: int,
        promised_end: int,
        hw_end: int,
        start: int = 0,
    ) -> None:
        self.leader_epoch = leader_epoch
        self.end = end
        self.promised_end = promised_end
        self.hw_end = hw_end
        """The high watermark of the leader; our log may end before it."""
        self.truncating = False
        self.failed = False
        self._stream_index = stream_index
        self._partition = partition
        self._epochs = epochs
        self._exposed_end = 0
        self.start = start
        """Everything below has expired in our log, which the driver keeps up to date."""

    @property
    def position(self) -> Position:
        return Position(
            self._stream_index,
            self._partition,
            self.leader_epoch,
            self.end,
            self.promised_end,
            self._epochs.last_epoch,
        )

    @property
    def waits_for_start(self) -> bool:
        """It has no record, and begins where the partition does: a leader that takes it for another log is about to
        learn where that is. A log whose records cannot be read has none either, but ends above its start: it is
        truncated."""
        return not self._epochs.last_epoch and self.end == self.start

    def step(self, event: Event) -> list[Effect]:
        match event:
            case Answered(answer):
                return self._answered(answer)
            case BeginAnew(answer):
                return self._begin_anew(answer)
            case Promised(end):
                assert end <= self.end, f"promised up to {end}, appended up to {self.end}"
                self.promised_end = max(self.promised_end, end)
                return self._expose()
            case Truncated(end):
                assert self.truncating, "a log is truncated because a Truncate asked for it"
                assert end <= self.end, f"truncated to {end}, which is past {self.end}"
                self.truncating = False
                return self._ends_at(end)
            case Failed(end):
                assert end <= self.end, f"a log that failed at {end} had ended at {self.end}"
                self.failed = True
                return self._ends_at(end)
            case Reopened(end):
                assert self.failed, "a log is opened again after it has failed"
                self.failed = False
                return self._ends_at(end)

    def _ends_at(self, end: int) -> list[Effect]:
        self.end = end
        self.promised_end = min(self.promised_end, end)
        self._epochs.truncate(end)
        return []

    def _counts(self, answer: Answer) -> bool:
        ignored = answer.leader_epoch != self.leader_epoch or self.truncating or self.failed
        return not ignored and answer.kind is not Kind.REFUSED

    def _answered(self, answer: Answer) -> list[Effect]:
        if not self._counts(answer):
            return []
        if answer.kind is Kind.DIVERGED:
            return self._diverged(answer)
        effects: list[Effect] = []
        if answer.records:
            effects += self._take(answer)
        if answer.hw_end > self.hw_end:
            self.hw_end = answer.hw_end
            effects += self._expose()
        return effects

    def _begin_anew(self, answer: Answer) -> list[Effect]:
        """What the answer says is not looked at: it is of the leader of this epoch, which will feed us."""
        if not self._counts(answer):
            return []
        self.truncating = True
        return [Truncate(self.start)]

    def _take(self, answer: Answer) -> list[Effect]:
        records = answer.records
        if (answer.asked_end, answer.asked_epoch) != (self.end, self._epochs.last_epoch):
            return []
        position, count, first, end, last_timestamp, epoch, status = scan_records(records, 0, len(records), 0)
        if status != _WHOLE or position != len(records) or not count:
            return [IgnoreResponse(f"records from offset {self.end} on do not verify")]
        if first < self.end:
            return [IgnoreResponse(f"records from offset {first} on, but the log ends at {self.end}")]
        if epoch < self._epochs.last_epoch or epoch > self.leader_epoch:
            return [
                IgnoreResponse(f"records of epoch {epoch} after {self._epochs.last_epoch} under {self.leader_epoch}")
            ]
        self._epochs.begin(epoch, self.end)  # also if its leader skipped offsets that had been exposed
        self.end = end
        return [Append(records, count, end, last_timestamp, epoch, first)]

    def _diverged(self, answer: Answer) -> list[Effect]:
        """Truncate to where both logs have `answer.epoch`; if they still differ there, the next answer says so. Not
        below the start: nobody reads what has expired, and a leader whose log begins there knows no epoch before."""
        if (answer.asked_end, answer.asked_epoch) != (self.end, self._epochs.last_epoch):
            return []  # about another log than the one we have now
        if self.end == self.start:
            # By the start that we know, not by the leader's: until then readers could be shown what we have.
            self._epochs.truncate(0)
            return []
        _, own_end = self._epochs.end_of(answer.epoch, self.end)
        end = max(min(answer.epoch_end, own_end), self.start)
        if end >= self.end:
            return [IgnoreResponse(f"asked to truncate to {end}, but the log ends at {self.end}")]
        if end < self._exposed_end:
            return [
                IgnoreResponse(f"asked to truncate to {end}, but everything below {self._exposed_end} was committed")
            ]
        self.truncating = True
        return [Truncate(end)]

    def _expose(self) -> list[Effect]:
        """Readers of a replica see what is committed and here."""
        reached = min(self.hw_end, self.promised_end)
        if reached <= self._exposed_end:
            return []
        assert reached <= self.end, f"exposed up to {reached}, but the log ends at {self.end}"
        self._exposed_end = reached
        return [Expose(reached)]
