"""Acks that are pending: of one partition while this broker leads it, and of the whole broker, which has one bound.

An ack waits from the append until its promise holds: for a sync, that is milliseconds; of policy ALL also for the
in-sync set, and if that is below its minimum there is no end to it. So a partition that commits nothing collects acks
as long as somebody publishes to it, and what it holds is memory that a client chooses.

Rules:
- One bound for all partitions of a broker. Over it the largest holder loses its oldest acks, first of all one that
  stands still (the same ack was its oldest a tick ago): who waits there has given up most likely, and acks of
  partitions that commit are about to be paid. The messages stay stored; their publishers do not hear of it.
- A holder is a partition, not a client. What a partition holds is known per batch without looking at any ack. Who waits
  is known by inbox alone, and that is whatever a publisher says: a unary call has one of its own, and a program on NATS
  may name another one in each message.
- What waits for a gRPC call that is over is dropped when this becomes known, from partitions that stand still, so much
  at a time (the acks of others are paid before that would be worth it).

It touches no clock: ticks come from outside.
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
    """The calls known to be over when it was looked through last."""


class Gone(NamedTuple):
    """Calls that ended with acks outstanding."""

    prefix: bytes
    """Of all ack inboxes of this cluster."""
    tokens: dict[bytes, None]
    round: int
    """Another one whenever tokens were added; never 0."""


class PendingAcksBound:
    """What all partitions led by a broker may hold together."""

    def __init__(self, most: int = 0) -> None:
        self.most = most or PENDING_ACK_BYTES
        self.nbytes = 0
        self._holders: dict[PendingAcks, None] = {}

    def join(self, holder: "PendingAcks") -> None:
        self._holders[holder] = None

    def leave(self, holder: "PendingAcks") -> None:
        self._holders.pop(holder, None)

    def shed(self) -> list[tuple[str, int]]:
        """Drop so much that there is room for a while: whose acks, and how many bytes of them."""
        dropped = []
        enough = self.most // 4 * 3
        for holder in sorted(self._holders, key=lambda item: (item.stands_still, item.nbytes), reverse=True):
            if self.nbytes <= enough:
                break
            dropped.append((holder.name, holder.drop_oldest(self.nbytes - enough)))
        assert self.nbytes <= enough, "what is pending is pending by somebody"
        return dropped

    def tick(self) -> None:
        """Some time has passed."""
        for holder in self._holders:
            holder.tick()

    def forget(self, gone: Gone) -> bool:
        """Drop what waits for calls that are over. True: there is more to look through."""
        room = PENDING_SWEEP_BYTES
        for holder in self._holders:
            if holder.stands_still:
                room -= holder.forget(gone, room)
                if room <= 0:
                    return True
        return False


class PendingAcks:
    """What one partition owes. Close it when this broker leads the partition no more."""

    def __init__(self, name: str, bound: PendingAcksBound) -> None:
        self.name = name
        self.nbytes = 0
        """With what each batch takes beside its acks."""
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
        """What was to be paid when our log has promised it is paid when the in-sync set has."""
        for batch in self._unpromised:
            batch.leader, batch.all = b"", batch.leader + batch.all

    def promised(self, end: int) -> list[bytes]:
        """Our log has promised everything below `end`: the LEADER acks to pay."""
        payable: list[bytes] = []
        paid = 0
        unpromised = self._unpromised
        while unpromised and unpromised[0].end <= end:
            batch = unpromised.popleft()
            payable.append(batch.leader)
            paid += len(batch.leader)
            if batch.all:
                batch.leader = b""
                self._uncommitted.append(batch)
            else:
                paid += PENDING_BATCH_BYTES
        self._paid(paid)
        return payable

    def committed(self, hw_end: int, payable: list[bytes]) -> None:
        """Everything below `hw_end` is committed: the ALL acks to pay go behind `payable`."""
        paid = 0
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0].end <= hw_end:
            batch = uncommitted.popleft()
            payable.append(batch.all)
            paid += len(batch.all) + PENDING_BATCH_BYTES
        if paid:
            self._paid(paid)

    def failed(self, promised_end: int) -> bytes:
        """Our log ends at `promised_end` now: the acks of what lay beyond."""
        lost: list[bytes] = []
        while self._unpromised and self._unpromised[-1].end > promised_end:
            batch = self._unpromised.pop()
            lost.append(batch.leader + batch.all)
            self._paid(len(lost[-1]) + PENDING_BATCH_BYTES)
        return b"".join(reversed(lost))

    def tick(self) -> None:
        """Does the oldest ack that waits for the in-sync set wait still?"""
        oldest = self._uncommitted[0] if self._uncommitted else None
        self.stands_still = oldest is not None and oldest is self._oldest
        self._oldest = oldest

    def drop_oldest(self, nbytes: int) -> int:
        """At least so many bytes, or all; gives how many."""
        before = self.nbytes
        while self._uncommitted and before - self.nbytes < nbytes:
            self._paid(len(self._uncommitted.popleft().all) + PENDING_BATCH_BYTES)
        while self._unpromised and before - self.nbytes < nbytes:
            batch = self._unpromised.popleft()
            self._paid(len(batch.leader) + len(batch.all) + PENDING_BATCH_BYTES)
        return before - self.nbytes

    def forget(self, gone: Gone, room: int) -> int:
        """Drop what waits for calls that are over, looking through so many bytes, or a batch more; gives how many."""
        if not self._uncommitted or self._uncommitted[-1].round == gone.round:
            return 0  # the newest is looked through last
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
            self._paid(len(batch.all) - len(left))
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
                self._paid(PENDING_BATCH_BYTES)

    def close(self) -> None:
        """Nobody will pay them: another one leads, or nobody does."""
        self._unpromised.clear()
        self._uncommitted.clear()
        self._paid(self.nbytes)
        self._bound.leave(self)

    def _paid(self, nbytes: int) -> None:
        self.nbytes -= nbytes
        self._bound.nbytes -= nbytes
        assert 0 <= self.nbytes <= self._bound.nbytes, "more is paid than was pending"
