"""Reads the log ends and records of other replicas, for a replica whose own log is damaged or suspect.

Every broker answers for every replica it has open, in any role. It never reads past damage of its own: then it answers
that it does not have all records. Records in an answer have the bytes of the log.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from bascule.core.metadata.streams import Key
from bascule.core.partition.candidate import PeerLog
from bascule.errors import BusUnavailable, DeadlineExceeded, LogError, PeerError, PeerLacks, PeerNotCleared
from bascule.limits import MAX_RECORD_BYTES
from bascule.log.commitlog import CommitLog
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import OTHER_LOG
from bascule.node.replication.feeds import Members
from bascule.node.runtime.jobs import Jobs
from bascule.wire.repair import Cleared, LogAnswer, LogEnd, Question

logger = logging.getLogger(__name__)

LOG_END_S = 0.5
RECORDS_S = 1.0
TRIES = 2
ASKED_AT_ONCE = 64
"""Requests in flight: after a crash of all brokers every partition has one."""
ANSWERED_AT_ONCE = 1024
"""Requests beyond this are not answered, and are sent again."""
READ_BYTES = 1024 * 1024
OVERHEAD_BYTES = 256
_ABSENT = LogAnswer(False, False, LogEnd(0, 0), 0, b"")


class ClearedEnd(Protocol):
    @property
    def said(self) -> Cleared: ...


class OpenReplica(Protocol):
    """A replica on this broker, in any role."""

    @property
    def log(self) -> CommitLog: ...

    @property
    def certain(self) -> bool:
        """Its log has everything that it promised."""

    @property
    def cleared(self) -> ClearedEnd:
        """How far its log is cleared of what tombstones delete."""


class PeerLogs:
    def __init__(
        self,
        broker_id: str,
        calls: Calls,
        find: Callable[[Key], OpenReplica | None],
        members: Members,
        alive: Callable[[], list[str]],
        jobs: Jobs,
    ) -> None:
        """Requests of `members` of the cluster are answered; requests go to brokers that are `alive`."""
        self._broker_id = broker_id
        self._calls = calls
        self._find = find
        self._members = members
        self._alive = alive
        self._answering = jobs.tasks("an answer to another replica", ANSWERED_AT_ONCE)
        self._asking = asyncio.Semaphore(ASKED_AT_ONCE)

    def listen(self) -> None:
        self._calls.listen()
        self._calls.subscribe(self._calls.subjects.repair(self._broker_id), self._on_questions)

    def is_member(self, broker: str) -> bool:
        return broker in self._members()

    # --- asking ----------------------------------------------------------------------------------------------

    async def describe(self, broker: str, key: Key) -> PeerLog | None:
        """The end of that broker's log; None if it has none open. PeerError if it does not answer."""
        answer = await self._ask(broker, Question(*key, 0, 0, 0, self._broker_id))
        if isinstance(answer.log_end, Cleared):
            raise PeerError(f"{broker} was asked for the end of its log, and says how far it is cleared")
        return PeerLog(answer.log_end, answer.certain) if answer.here else None

    async def fetch(self, broker: str, key: Key, start: int, end: int, least: Cleared | None = None) -> bytes:
        """The first of that broker's records with offsets from `start` to before `end`, as many as it sends at once.
        PeerError if it does not answer, PeerLacks if its log is damaged there, PeerNotCleared if it is not known to be
        cleared to what is `least`. The caller verifies the records."""
        records, total = b"", 1
        while len(records) < total:
            answer = await self._range(broker, key, start, end, len(records))
            if least is not None and not _reaches(answer.log_end, least):
                raise PeerNotCleared(f"{broker} may have records that tombstones below offset {least.end} delete")
            total = answer.total
            records += answer.piece
        return records

    async def _range(self, broker: str, key: Key, start: int, end: int, skip: int) -> LogAnswer:
        answer = await self._ask(broker, Question(*key, start, end, skip, self._broker_id))
        if answer.total > READ_BYTES + MAX_RECORD_BYTES:
            raise PeerError(f"{broker} announces an answer of {answer.total} bytes, which is over the limit")
        if not answer.here or (answer.undamaged and answer.total > skip and not answer.piece):
            raise PeerError(f"{broker} cannot read offsets {start} to {end - 1} yet")
        if not answer.undamaged:
            raise PeerLacks(f"{broker} does not have all of offsets {start} to {end - 1} either")
        return answer

    async def _ask(self, broker: str, question: Question) -> LogAnswer:
        timeout_s = RECORDS_S if question.end > question.start else LOG_END_S
        reason = "it sends no heartbeats"
        for _ in range(TRIES):
            if broker not in self._alive():
                break
            try:
                async with self._asking:
                    return await self._calls.ask(self._calls.subjects.repair(broker), OTHER_LOG, question, timeout_s)
            except (DeadlineExceeded, BusUnavailable) as error:
                reason = str(error)
        raise PeerError(f"{broker} does not answer: {reason}")

    # --- answering -------------------------------------------------------------------------------------------

    def _on_questions(self, batch: bytes, count: int) -> None:
        """Brokers that are not members of the cluster get no answer; others ask again."""
        for message in self._calls.received(batch, OTHER_LOG.question):
            with message as payload:
                question = OTHER_LOG.question.decode(payload)
                if not self._answering.full and question.asker in self._members():
                    self._answering.start(self._answer(question, message.reply))

    async def _answer(self, question: Question, reply: bytes) -> None:
        try:
            answer = await self._look(question)
        except LogError as error:
            logger.warning("no answer to %s: %s", question.asker, error)
        else:
            self._calls.tell(reply, OTHER_LOG.answer, answer)

    async def _look(self, question: Question) -> LogAnswer:
        replica = self._find((question.stream_index, question.partition))
        if replica is None:
            return _ABSENT
        log = replica.log
        log_end = LogEnd(log.last_epoch, log.promised_end)
        if question.start >= question.end:
            return LogAnswer(True, not log.damaged, log_end, 0, b"", replica.certain)
        before = replica.cleared.said
        reader = log.reader(question.start, uncommitted=True, heals=False)
        records = await reader.read(READ_BYTES, question.end) or b""
        undamaged = not reader.skipped and not log.segments.lacks(question.start, question.end)
        room = max(1, self._calls.max_payload - OVERHEAD_BYTES)
        piece = records[question.skip : question.skip + room] if undamaged else b""
        after = replica.cleared.said  # a pass, or the beginning of another log, may have come between
        cleared = min(before, after) if before.epoch == after.epoch else Cleared(0, 0)
        return LogAnswer(True, undamaged, cleared, len(records), piece)


def _reaches(cleared: Cleared | LogEnd, least: Cleared) -> bool:
    """A broker of an older release does not say how far its log is cleared, which may be not at all."""
    return isinstance(cleared, Cleared) and cleared.epoch == least.epoch and cleared.end >= least.end
