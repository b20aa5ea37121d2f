"""The ends of the replicas of a partition: the high watermark, and which replicas count for it.

A replica's *promised* end is what it guarantees to still have after a crash: its synced end under `group`, its written
end under the relaxed modes. The high watermark is the smallest promised end over the in-sync set, if that set is at
least min ISR large, and it only goes up.

The set itself is in the metadata; a leader only requests changes. Until it knows the outcome it commits with the larger
set: a replica that it wants out still counts, one that it wants in counts already. So whatever the outcome, every
member of the set has everything committed. The outcome is known when the metadata changes the partition, whatever the
change is: a request is valid for one partition epoch only.

Caught up means: a replica has *promised* the end the leader had when it last was caught up, or at its first report;
then the leader's end of that moment is awaited next. Plain equality would flap under load, because the leader's end
moves on while an answer is under way, and a disk syncs less often than a replica reports. What was received does not
count: the high watermark waits for promises, and a disk may hang without an error. A replica enters the set only if it
has also promised what the leader had when elected: the last leader may have committed any of that. It has to report
that after the last change of the partition: this may be the restart of its broker, without what it promised before.

A follower's report names a partition only if its position there has changed; a report about others means that this one
is unchanged. The leader takes that into account (`heard`) when it checks which replicas lag. While all replicas are in
sync it does that a few times in the time one may lag, and when one has lagged for that long.

The set may fall below its minimum; then nothing is committed. A refused change is requested again after a growing
pause, so that a leader and a controller that disagree about a replica do not fill the metadata with requests.
"""

from collections.abc import Iterable
from dataclasses import dataclass

ASK_AGAIN_FIRST_NS = 200_000_000
ASK_AGAIN_MAX_NS = 5_000_000_000
"""The pause before a refused change of the in-sync set is requested again."""
LOOKS = 4
"""Checks for lagging replicas in the time one may lag, if all are in sync."""


@dataclass(slots=True)
class Follower:
    end: int = 0
    promised_end: int = 0
    fetched_at: int = 0
    caught_up_at: int = 0
    caught_up: bool = False
    awaited_end: int = -1
    """It is caught up when it has promised this: the leader's end when it last was, or at its first report; -1 before
    that."""
    out_at: int = 0
    """When the partition last changed and it was not in the set: earlier reports do not show that it is still alive."""
    failing: bool = False
    """It reported that its disk takes no writes."""
    not_before: int = 0
    pause_ns: int = 0
    """When a refused change is requested again, and after which pause; 0 if none was refused."""


class InSync:
    def __init__(
        self,
        self_id: str,
        replicas: Iterable[str],
        isr: Iterable[str],
        min_isr: int,
        hw_end: int,
        leadership_end: int = 0,
        eligible: Iterable[str] = (),
    ) -> None:
        self.hw_end = hw_end
        self.isr = tuple(isr)
        self._eligible = tuple(eligible)
        self._leadership_end = leadership_end
        self.followers = {replica: Follower() for replica in replicas if replica != self_id}
        self._self_id = self_id
        self._promised_end = 0
        self._own_end = -1
        """Our own promised end, as it was when it was last looked at, and since when it is that."""
        self._own_since = 0
        self._min_isr = max(1, min_isr)
        self._asked_out: dict[str, None] = {}
        self._asked_in: dict[str, None] = {}
        self._counted = self._who_counts()
        self._look_at = 0
        """When to check which replicas lag, if all are in sync; else that is always due."""
        assert self_id in self.isr, "a leader is a member of its own in-sync set"

    @property
    def below_min_isr(self) -> bool:
        return len(self.isr) < self._min_isr

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.followers) + 1

    # --- news ------------------------------------------------------------------------------------------------

    @property
    def promised_end(self) -> int:
        """Of our own log."""
        return self._promised_end

    def promised(self, end: int) -> bool:
        """Our own log guarantees everything below `end`. True if the high watermark rose."""
        self._promised_end = max(end, self._promised_end)
        return self._advance()

    def fetched(self, replica: str, end: int, promised_end: int, leader_end: int, now: int) -> bool:
        """A follower asked from `end` on. True if the high watermark rose. Ends may fall: it may have been wiped."""
        follower = self.followers.get(replica)
        if follower is None:
            return False
        follower.end, follower.promised_end = end, min(promised_end, end)
        first = follower.awaited_end < 0
        awaited_end = leader_end if first else min(follower.awaited_end, leader_end)  # the leader's end may fall, too
        follower.caught_up = follower.promised_end >= awaited_end
        if follower.caught_up:
            follower.caught_up_at = now
        if follower.caught_up or first:
            follower.awaited_end = leader_end
        follower.fetched_at = now
        follower.failing = False
        return self._advance()

    def heard(self, replica: str, leader_end: int, at: int) -> None:
        """At that time a follower reported that its position is unchanged."""
        follower = self.followers.get(replica)
        if follower is not None and not follower.failing and at > max(follower.fetched_at, follower.out_at):
            risen = self.fetched(replica, follower.end, follower.promised_end, leader_end, at)
            assert not risen, "an unchanged position promises no more"

    def disk_failing(self, replica: str, promised_end: int, now: int) -> None:
        """A follower reports that its disk takes no writes. Its log was not compared with ours, so its promised end may
        go down by this, but never up."""
        if follower := self.followers.get(replica):
            follower.promised_end = min(promised_end, follower.promised_end)
            follower.failing, follower.caught_up = True, False
            follower.fetched_at = now

    def changed(
        self, isr: Iterable[str], replicas: Iterable[str] = (), now: int = 0, eligible: Iterable[str] = ()
    ) -> bool:
        """The metadata has this ISR and, unless empty, these `replicas`. All requests are resolved. True if the high
        watermark rose. A replica that is not in the set has to fetch again, whether it was before or not: earlier
        reports do not show that it is still alive, nor that it still has what it promised."""
        before, self.isr, self._eligible = self.isr, tuple(isr), tuple(eligible)
        assert self._self_id in self.isr, "a leader is a member of its own in-sync set"
        if held := tuple(replicas):
            known = self.followers
            self.followers = {
                replica: known.get(replica) or Follower(fetched_at=now, caught_up_at=now)
                for replica in held
                if replica != self._self_id
            }
        for replica, follower in self.followers.items():
            if replica not in self.isr:
                follower.caught_up = False
                follower.awaited_end = -1
                follower.out_at = now
        for replica in self.isr:
            if replica not in before and replica in self.followers:
                self.followers[replica].not_before = 0
                self.followers[replica].pause_ns = 0
        self._asked_out = {}
        self._asked_in = {}
        self._counted = self._who_counts()
        self._look_at = 0
        return self._advance()

    # --- who should be in --------------------------------------------------------------------------------------

    def start_watching(self, now: int) -> None:
        """A new leader has no reports yet: each follower gets the full lag time to send one."""
        for follower in self.followers.values():
            follower.fetched_at = follower.caught_up_at = now

    def due(self, now: int) -> bool:
        """Whether it is time to check which replicas lag, and which have caught up."""
        return now >= self._look_at or self.under_replicated

    def lagging(self, now: int, max_lag_ns: int, only: str = "") -> list[str]:
        """Members to request out: without a report, or not caught up, for too long; with a disk that takes no writes;
        or lacking promised records: these must not be eligible either. Each is returned once per request. After a
        report of one replica `only` that one is checked: what is known of the others may be old."""
        late = [
            replica
            for replica in self.isr
            if only in ("", replica)
            and (follower := self.followers.get(replica))
            and self._may_ask(replica, now)
            and (
                follower.failing
                or now - min(follower.fetched_at, follower.caught_up_at) > max_lag_ns
                or self.lacks(replica)
            )
        ]
        late += [replica for replica in self._eligible if self.lacks(replica) and self._may_ask(replica, now)]
        self._asked_out.update(dict.fromkeys(late))
        if only:
            return late
        seen = [min(follower.fetched_at, follower.caught_up_at) for follower in self.followers.values()]
        self._look_at = min(now + max_lag_ns // LOOKS, min(seen, default=now) + max_lag_ns + 1)
        return late

    def lacks(self, replica: str) -> bool:
        """It lacks records that it had promised: its disk lost them."""
        follower = self.followers.get(replica)
        return follower is not None and follower.awaited_end >= 0 and follower.promised_end < self.hw_end

    def hangs(self, end: int, now: int, max_lag_ns: int) -> bool:
        """Our own disk promises nothing for too long, of a log that ends at `end`, and all other members have promised
        more: without us they could commit it. True once in that time."""
        if self._promised_end >= end or self._promised_end != self._own_end:
            self._own_end, self._own_since = self._promised_end, now
            return False
        if now - self._own_since <= max_lag_ns or len(self.isr) <= self._min_isr:
            return False
        others = [follower for replica in self.isr if (follower := self.followers.get(replica))]
        if not all(follower.promised_end > self._promised_end for follower in others):
            return False
        self._own_since = now
        return bool(others)

    def recovered(self, now: int, max_lag_ns: int) -> list[str]:
        """Replicas to request in again: with a recent report, caught up, and with everything promised that is
        committed, or may have been under the last leader."""
        if not self.under_replicated:
            return []
        needed_end = max(self.hw_end, self._leadership_end)
        back = [
            replica
            for replica, follower in self.followers.items()
            if replica not in self.isr
            and replica not in self._asked_in
            and self._may_ask(replica, now)
            and follower.caught_up
            and follower.promised_end >= needed_end
            and now - follower.fetched_at <= max_lag_ns
        ]
        if back:
            self._asked_in.update(dict.fromkeys(back))
            self._counted = self._who_counts()
        return back

    def shrink_failed(self, replica: str, now: int = 0) -> None:
        """It is in or out, which the metadata will show: the request may be repeated after a pause."""
        self._asked_out.pop(replica, None)
        self._pause(replica, now)
        self._look_at = 0

    def expand_failed(self, replica: str, asked: bool, now: int) -> bool:
        """It is not in the ISR: the request may be repeated after a pause. If the controller was not `asked` it stops
        to count, and the high watermark may rise: True then; else it counts until the metadata changes."""
        self._pause(replica, now, grows=asked)
        if asked:
            return False
        self._asked_in.pop(replica, None)
        self._counted = self._who_counts()
        return self._advance()

    def _pause(self, replica: str, now: int, grows: bool = True) -> None:
        if follower := self.followers.get(replica):
            follower.pause_ns = min(2 * follower.pause_ns, ASK_AGAIN_MAX_NS) if grows else 0
            follower.pause_ns = follower.pause_ns or ASK_AGAIN_FIRST_NS
            follower.not_before = now + follower.pause_ns

    def _may_ask(self, replica: str, now: int) -> bool:
        return replica not in self._asked_out and now >= self.followers[replica].not_before

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
        return [self.followers[replica] for replica in (*self.isr, *self._asked_in) if replica != self._self_id]
