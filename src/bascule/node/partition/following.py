"""A partition this broker follows: joins the follower machine to the log and to the fetcher of its leader's broker.

An assertion that fails here, in the machine or in what carries out its effects, ends this role; the leader is then
informed as if the disk of this replica had failed.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Protocol

from bascule.core.partition.follower import (
    Answered,
    Append,
    BeginAnew,
    Effect,
    Expose,
    Failed,
    Follower,
    IgnoreResponse,
    Promised,
    Reopened,
    Truncate,
    Truncated,
)
from bascule.errors import LogError
from bascule.log.segment import Segment
from bascule.node.partition.cleared import ClearedLog
from bascule.node.partition.ports import PartitionReplica
from bascule.node.partition.verification import Verification
from bascule.node.replication.fetchers import Fetchers
from bascule.wire.replication import Answer, Kind, Position

logger = logging.getLogger(__name__)

TRUNCATE_AGAIN_S = 5.0
TELL_AGAIN_S = 0.1


class FollowingReplica(PartitionReplica, Protocol):
    @property
    def verification(self) -> Verification: ...

    @property
    def certain_end(self) -> int:
        """Everything below is committed: no leader may ask us to truncate it."""

    @property
    def unhealed(self) -> list[Segment]:
        """Damaged segments that another replica may have undamaged."""

    @property
    def cleared(self) -> ClearedLog:
        """How far its log is cleared of what tombstones delete."""

    def follows(self, role: "Following") -> bool:
        """Whether this is still its role."""

    def begin_truncation(self, work: Coroutine[object, object, None]) -> None:
        """Calls `truncated` of this role when the work is done, if the role has not changed."""

    async def truncate(self, end: int) -> None: ...


class Following:
    def __init__(self, replica: FollowingReplica, fetchers: Fetchers) -> None:
        partition, log = replica.partition, replica.log
        self.leader = partition.leader
        self.key = replica.key
        self._replica = replica
        self._fetchers = fetchers
        self._log = log
        self._truncation_failed = False
        self._stopped = False
        self._machine = Follower(
            *replica.key,
            partition.leader_epoch,
            replica.epochs,
            log.end,
            log.promised_end,
            replica.certain_end,
            log.segments.floor,
        )
        self._caught_up_end: int | None = None
        """Where our log had reached the end of the leader's."""
        if log.failed is not None:
            self.log_failed()

    def start(self) -> None:
        self._fetchers.follow(self)

    def stop(self) -> None:
        self._stopped = True
        self._fetchers.unfollow(self)

    @property
    def hw_end(self) -> int:
        return self._machine.hw_end

    @property
    def position(self) -> Position | None:
        """Where to fetch from, or that the disk is failing; None while there is nothing to ask for."""
        failing = self._machine.failed or self._truncation_failed
        if self._machine.truncating and not failing:
            return None
        position = self._machine.position._replace(failing=failing)
        if self._replica.cleared.must_begin_anew:
            return position._replace(promised_end=0)  # none of these records stays
        if self._log.damaged and (unhealed := self._replica.unhealed):
            # Damaged records are not promised, as long as another replica may have them.
            undamaged_end = min(segment.base for segment in unhealed)
            position = position._replace(promised_end=min(position.promised_end, undamaged_end))
        return position

    def answered(self, answer: Answer) -> bool:
        """False if it is to be asked for again: it had records that were not appended."""
        try:
            return self._take(answer)
        except AssertionError as error:
            self._replica.assertion_failed(error)
            return True  # they are not fetched again

    def _take(self, answer: Answer) -> bool:
        machine = self._machine
        machine.start = self._log.segments.floor
        if self._replica.cleared.must_begin_anew:
            self._execute(machine.step(BeginAnew(answer)))
            return not answer.records
        effects = machine.step(Answered(answer))
        self._execute(effects)
        self._log.set_committed_end(machine.hw_end)
        if answer.kind is Kind.DATA and not (machine.truncating or machine.failed) and machine.end >= answer.leader_end:
            if self._caught_up_end is None:
                self._caught_up_end = machine.end
            self._verify()
        if answer.kind is Kind.DIVERGED and machine.waits_for_start:
            return False  # it is asked again
        return not answer.records or (not machine.failed and any(isinstance(each, Append) for each in effects))

    def _verify(self) -> None:
        """The log is verified when it has *stored* all that its leader has. Received is not enough: if its disk failed
        now it would lack those records again, and might lead without them."""
        reached = self._caught_up_end
        if reached is not None and self._log.promised_end >= reached and not self._replica.unhealed:
            self._replica.verification.confirm()

    def promised(self, end: int) -> None:
        try:
            self._execute(self._machine.step(Promised(end)))
            self._verify()
            self._fetchers.changed(self)
        except AssertionError as error:
            self._replica.assertion_failed(error)

    def damaged(self) -> None:
        """Damaged records are no longer promised: the leader is informed."""
        self._fetchers.changed(self)

    def healed(self) -> None:
        """Damage was repaired, or no replica has the missing records."""
        self._verify()
        self._fetchers.changed(self)

    def log_failed(self) -> None:
        """The log was truncated to its promised end, and takes no records until it is reopened. The leader, whose high
        watermark waits for us, is informed."""
        self._caught_up_end = None
        self._machine.step(Failed(self._log.end))
        self._fetchers.changed(self)

    def reopened(self) -> None:
        if self._machine.failed:
            self._machine.step(Reopened(self._log.end))
            self._fetchers.start_over(self)

    def changed(self) -> None:
        """The metadata of this partition changed, and we still follow the same leader. Nothing that a follower does
        depends on the ISR or on whether the partition is read-only: its leader decides by them."""

    def _execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self._stopped:
                return  # nothing is stored or exposed under a role that has ended
            match effect:
                case Append(records, count, next_offset, last_timestamp):
                    end = self._log.end
                    try:
                        self._log.append(records, count, next_offset, last_timestamp)
                    except LogError:
                        assert self._machine.failed, "a log that refuses an append has reported its failure"
                    else:
                        self._replica.appended(records, end, next_offset)
                    assert self._machine.end == self._log.end, "a follower's end is the end of its log"
                case Expose(hw_end):
                    assert hw_end <= self._log.promised_end, "a follower exposes only what its own log has promised"
                    self._log.set_visible_end(hw_end)
                case Truncate(end):
                    self._caught_up_end = None
                    anew = self._replica.cleared.must_begin_anew
                    self._replica.begin_truncation(self._begin_anew() if anew else self._truncate(end))
                case IgnoreResponse(reason):
                    logger.error("%s: an answer of leader %s is ignored: %s", self._replica.name, self.leader, reason)

    async def _truncate(self, end: int) -> None:
        logger.warning(
            "%s: the logs of this broker and of %s differ; truncating %d records from offset %d on, into quarantine/",
            self._replica.name,
            self.leader,
            self._log.end - end,
            end,
        )
        while True:
            try:
                # What expires meanwhile stays: it may have been exposed, and nobody reads it any more.
                await self._replica.truncate(min(max(end, self._log.segments.floor), self._log.end))
                break
            except (LogError, OSError, ValueError) as error:
                logger.error("%s cannot be truncated, and takes no records until it is: %s", self._replica.name, error)
            self._truncation_failed = True
            self._fetchers.changed(self)  # informs the leader, whose high watermark waits for us
            await asyncio.sleep(TRUNCATE_AGAIN_S)
            if not self._replica.follows(self):
                return  # the leader of the new epoch says where to truncate

    async def _begin_anew(self) -> None:
        """With nothing, when the metadata has it. Until then nothing is fetched."""
        while self._replica.follows(self):
            pause_s = TELL_AGAIN_S
            try:
                if await self._replica.cleared.begin_anew():
                    break
            except (LogError, OSError) as error:
                logger.error("%s cannot begin anew, and takes no records until it does: %s", self._replica.name, error)
                self._truncation_failed = True
                self._fetchers.changed(self)
                pause_s = TRUNCATE_AGAIN_S
            await asyncio.sleep(pause_s)

    def truncated(self) -> None:
        """The truncation is done, and this is still the role."""
        self._truncation_failed = False
        self._machine.step(Truncated(self._log.end))
        self._fetchers.start_over(self)


class FailedFollower:
    """Replaces the follower role of a replica that has failed: it reports to the leader that the disk is failing."""

    def __init__(self, replica: PartitionReplica) -> None:
        self.key = replica.key
        self.leader = replica.partition.leader
        self._replica = replica
        self._epoch = replica.partition.leader_epoch

    @property
    def position(self) -> Position:
        log, last_epoch = self._replica.log, self._replica.epochs.last_epoch
        return Position(*self.key, self._epoch, log.end, log.promised_end, last_epoch, failing=True)

    def answered(self, answer: Answer) -> bool:
        return True  # nothing is appended, nor fetched again
