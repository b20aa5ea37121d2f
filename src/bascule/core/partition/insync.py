"""How far the replicas of a partition have come: the high watermark, and who counts for it.

A replica's *promised* end is what it guarantees to still have after a crash: its synced end under `group`, its written
end under the relaxed modes. The high watermark is the smallest promised end over the in-sync set, if that set is at
least min ISR large, and it only goes up.

The set itself is the metadata's business; a leader only asks for changes. Until it knows the outcome it commits with
the larger set: a replica it wants out still counts, one it wants in counts already. Nothing is then committed that
some outcome of the request would not have. It knows when the metadata changes the partition, whatever the change is:
a request is for the state it was made in, and comes too late for any other.

Caught up means: a replica has reached the end the leader had when it answered that replica's previous fetch. Plain
equality would flap under load, for the leader's end moves on while the answer travels.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Follower:
    end: int = 0
    promised_end: int = 0
    fetched_at: int = 0
    caught_up_at: int = 0
    caught_up: bool = False
    answered_end: int = -1
    """The leader's end at the last answer; -1 before the first."""


class InSync:
    def __init__(self, self_id: str, replicas: Iterable[str], isr: Iterable[str], min_isr: int, hw_end: int) -> None:
        self.hw_end = hw_end
        self.isr = tuple(isr)
        self.followers = {replica: Follower() for replica in replicas if replica != self_id}
        self._self_id = self_id
        self._promised_end = 0
        self._min_isr = max(1, min_isr)
        self._leaving: dict[str, None] = {}
        self._joining: dict[str, None] = {}
        self._counted = self._who_counts()
        assert self_id in self.isr, "a leader is a member of its own in-sync set"

    @property
    def below_min_isr(self) -> bool:
        return len(self.isr) < self._min_isr

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.followers) + 1

    # --- news ------------------------------------------------------------------------------------------------

    def promised(self, end: int) -> bool:
        """Our own log guarantees everything below `end`. True if the high watermark rose."""
        self._promised_end = max(end, self._promised_end)
        return self._advance()

    def fetched(self, replica: str, end: int, promised_end: int, leader_end: int, now: int) -> bool:
        """A follower asked from `end` on. True if the high watermark rose. Ends may fall: it may have been wiped."""
        follower = self.followers.get(replica)
        if follower is None:
            return False
        follower.caught_up = end >= leader_end or 0 <= follower.answered_end <= end
        if follower.caught_up:
            follower.caught_up_at = now
        follower.end, follower.promised_end = end, min(promised_end, end)
        follower.fetched_at = now
        follower.answered_end = leader_end
        return self._advance()

    def changed(self, isr: Iterable[str], replicas: Iterable[str] = (), now: int = 0) -> bool:
        """The metadata says who is in, and, if `replicas` says anything, who holds a copy at all. All that was asked is
        settled. True if the high watermark rose. Whoever went out has to show itself again: what it said before
        says nothing about whether it still lives."""
        before, self.isr = self.isr, tuple(isr)
        if held := tuple(replicas):
            known = self.followers
            self.followers = {
                replica: known.get(replica) or Follower(fetched_at=now, caught_up_at=now)
                for replica in held
                if replica != self._self_id
            }
        for replica in before:
            if replica not in self.isr and replica in self.followers:
                self.followers[replica].caught_up = False
                self.followers[replica].answered_end = -1
        self._leaving = {}
        self._joining = {}
        self._counted = self._who_counts()
        return self._advance()

    # --- who should be in --------------------------------------------------------------------------------------

    def start_watching(self, now: int) -> None:
        """A new leader knows nothing about anybody: each gets the full time to be heard of."""
        for follower in self.followers.values():
            follower.fetched_at = follower.caught_up_at = now

    def lagging(self, now: int, max_lag_ns: int) -> list[str]:
        """Members to ask out: silent, or not caught up, for too long; or without what they had promised, for their disk
        lost it. Each is named once per request. None that would leave the set smaller than its minimum: nothing could
        be committed without it either."""
        spare = len(self.isr) - len(self._leaving) - self._min_isr
        late = [
            replica
            for replica in self.isr
            if (follower := self.followers.get(replica))
            and replica not in self._leaving
            and (
                now - min(follower.fetched_at, follower.caught_up_at) > max_lag_ns
                or (follower.answered_end >= 0 and follower.promised_end < self.hw_end)
            )
        ]
        late = late[: max(spare, 0)]
        self._leaving.update(dict.fromkeys(late))
        return late

    def recovered(self, now: int, max_lag_ns: int) -> list[str]:
        """Replicas to ask in again: heard of, caught up, and with everything that is committed promised."""
        if not self.under_replicated:
            return []
        back = [
            replica
            for replica, follower in self.followers.items()
            if replica not in self.isr
            and replica not in self._joining
            and follower.caught_up
            and follower.promised_end >= self.hw_end
            and now - follower.fetched_at <= max_lag_ns
        ]
        if back:
            self._joining.update(dict.fromkeys(back))
            self._counted = self._who_counts()
        return back

    def shrink_failed(self, replica: str) -> None:
        """It is still in, or will turn out to be out: it may be asked out again."""
        self._leaving.pop(replica, None)

    def _advance(self) -> bool:
        if len(self.isr) < self._min_isr:
            return False
        reached = self._promised_end
        for follower in self._counted:
            if follower.promised_end < reached:
                reached = follower.promised_end
        if reached <= self.hw_end:
            return False
        self.hw_end = reached
        return True

    def _who_counts(self) -> list[Follower]:
        """Besides ourselves, for the high watermark."""
        return [self.followers[replica] for replica in (*self.isr, *self._joining) if replica != self._self_id]
