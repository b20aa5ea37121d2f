"""Acks that are pending: of one partition while this broker leads it, and of the whole broker, which has one bound.

An ack is pending from the append until its condition is met: milliseconds for a sync; under policy ALL it also waits
for the in-sync set, without end if that is below its minimum. So a partition that commits nothing collects acks as
long as clients publish to it, and clients decide how much memory that takes.

Rules:
- One bound for all partitions of a broker. Over it the partition with the most pending bytes loses its oldest acks, a
  stalled one (the same ack was its oldest a tick ago) before others: its publishers have most likely given up, and acks
  of partitions that commit are about to be sent. The messages stay stored; their publishers get no ack.
- Bytes are counted by partition, not by client: per batch, without parsing any ack. The only name of a client is its
  inbox, and that is whatever a publisher says: a unary call has one of its own, and a program on NATS may name another
  one in each message.
- Acks for a gRPC call that is over are dropped from stalled partitions, so many bytes at a time (other partitions send
  theirs before that would be worth it).

It reads no clock: ticks are events.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from bascule.limits import PENDING_ACK_BYTES, PENDING_BATCH_BYTES, PENDING_SWEEP_BYTES
from bascule.wire.kernels import drop_gone


@dataclass(slots=True)
class _Batch:
    """Of one append: what is pending when our log has promised it, and when the in-sync set has."""

    end: int
    leader: bytes
    all: bytes
    round: int = 0
    """`Gone.round` when it was last searched."""


class Gone(NamedTuple):
    """Calls that ended with acks outstanding."""

    prefix: bytes
    """Of all ack inboxes of this cluster."""
    tokens: dict[bytes, None]
    round: int
    """Another one whenever tokens were added; never 0."""


class PendingAcksBound:
    """The bound of all partitions led by a broker together."""

    def __init__(self, most: int = 0) -> None:
        self.most = most or PENDING_ACK_BYTES
        self.nbytes = 0
        self._holders: dict[PendingAcks, None] = {}

    def join(self, holder: "PendingAcks") -> None:
        self._holders[holder] = None

    def leave(self, holder: "PendingAcks") -> None:
        self._holders.pop(holder, None)

    def shed(self) -> list[tuple[str, int]]:
        """Drop acks down to three quarters of the bound; gives the partitions and the bytes dropped."""
        dropped = []
        enough = self.most // 4 * 3
        for holder in sorted(self._holders, key=lambda item: (item.stands_still, item.nbytes), reverse=True):
            if self.nbytes <= enough:
                break
            dropped.append((holder.name, holder.drop_oldest(self.nbytes - enough)))
        assert self.nbytes <= enough, "every pending byte belongs to a partition"
        return dropped

    def tick(self) -> None:
        """Some time has passed."""
        for holder in self._holders:
            holder.tick()

    def forget(self, gone: Gone) -> bool:
        """Drop acks for calls that are over. True if more are to be searched."""
        room = PENDING_SWEEP_BYTES
        for holder in self._holders:
            if holder.stands_still:
                room -= holder.forget(gone, room)
                if room <= 0:
                    return True
        return False


class PendingAcks:
    """The pending acks of one partition. Close it when this broker does not lead the partition any more."""

    def __init__(self, name: str, bound: PendingAcksBound) -> None:
        self.name = name
        self.nbytes = 0
        """With the overhead of each batch."""
        self.stands_still = False
        self._bound = bound
        self._unpromised: deque[_Batch] = deque()
        self._uncommitted: deque[_Batch] = deque()
        self._oldest: _Batch | None = None
        bound.join(self)

    def add(self, end: int, leader: bytes, to_all: bytes) -> list[tuple[str, int]]:
        """Records below `end` are appended, and these acks pending. Gives what had to be dropped, here or elsewhere."""
        self._unpromised.append(_Batch(end, leader, to_all))
        bound = self._bound
        size = len(leader) + len(to_all) + PENDING_BATCH_BYTES
        self.nbytes += size
        bound.nbytes += size
        return bound.shed() if bound.nbytes > bound.most else []

    def wait_for_all(self) -> None:
        """LEADER acks wait for the in-sync set from now on, too."""
        for batch in self._unpromised:
            batch.leader, batch.all = b"", batch.leader + batch.all

    def promised(self, end: int) -> list[bytes]:
        """Our log has promised everything below `end`: gives the LEADER acks to send."""
        sendable: list[bytes] = []
        freed = 0
        unpromised = self._unpromised
        while unpromised and unpromised[0].end <= end:
            batch = unpromised.popleft()
            sendable.append(batch.leader)
            freed += len(batch.leader)
            if batch.all:
                batch.leader = b""
                self._uncommitted.append(batch)
            else:
                freed += PENDING_BATCH_BYTES
        self._release(freed)
        return sendable

    def committed(self, hw_end: int, sendable: list[bytes]) -> None:
        """Everything below `hw_end` is committed: adds the ALL acks to send to `sendable`."""
        freed = 0
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0].end <= hw_end:
            batch = uncommitted.popleft()
            sendable.append(batch.all)
            freed += len(batch.all) + PENDING_BATCH_BYTES
        if freed:
            self._release(freed)

    def failed(self, promised_end: int) -> bytes:
        """Our log ends at `promised_end` now: gives the acks of all later records."""
        lost: list[bytes] = []
        while self._unpromised and self._unpromised[-1].end > promised_end:
            batch = self._unpromised.pop()
            lost.append(batch.leader + batch.all)
            self._release(len(lost[-1]) + PENDING_BATCH_BYTES)
        return b"".join(reversed(lost))

    def tick(self) -> None:
        """Note whether the oldest ack that waits for the in-sync set is the same as at the last tick."""
        oldest = self._uncommitted[0] if self._uncommitted else None
        self.stands_still = oldest is not None and oldest is self._oldest
        self._oldest = oldest

    def drop_oldest(self, nbytes: int) -> int:
        """At least so many bytes, or all; gives how many."""
        before = self.nbytes
        while self._uncommitted and before - self.nbytes < nbytes:
            self._release(len(self._uncommitted.popleft().all) + PENDING_BATCH_BYTES)
        while self._unpromised and before - self.nbytes < nbytes:
            batch = self._unpromised.popleft()
            self._release(len(batch.leader) + len(batch.all) + PENDING_BATCH_BYTES)
        return before - self.nbytes

    def forget(self, gone: Gone, room: int) -> int:
        """Drop acks for calls that are over, searching so many bytes, or a batch more; gives how many."""
        if not self._uncommitted or self._uncommitted[-1].round == gone.round:
            return 0  # the newest is searched last
        looked_through = 0
        emptied = False
        for batch in self._uncommitted:
            if looked_through >= room:
                break
            if batch.round == gone.round:
                continue
            batch.round = gone.round
            looked_through += len(batch.all)
            left = drop_gone(batch.all, gone.prefix, gone.tokens)
            self._release(len(batch.all) - len(left))
            batch.all = left
            emptied = emptied or not left
        if emptied:
            self._uncommitted = deque(self._without_empty(self._uncommitted))
        return looked_through

    def _without_empty(self, batches: Iterable[_Batch]) -> Iterable[_Batch]:
        for batch in batches:
            if batch.all:
                yield batch
            else:
                self._release(PENDING_BATCH_BYTES)

    def close(self) -> None:
        """They are never sent: this broker does not lead any more."""
        self._unpromised.clear()
        self._uncommitted.clear()
        self._release(self.nbytes)
        self._bound.leave(self)

    def _release(self, nbytes: int) -> None:
        self.nbytes -= nbytes
        self._bound.nbytes -= nbytes
        assert 0 <= self.nbytes <= self._bound.nbytes, "more is released than was pending"
