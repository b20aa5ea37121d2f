"""The logs of other replicas: how far they go, and records out of them, for a replica that lacks or doubts its own.

Every broker answers for every replica it has open, whatever its role there. It never reads past damage of its own: then
it says that it does not have everything. Records in an answer stand as they are in the log.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from bascule.core.metadata.streams import Key
from bascule.core.partition.candidate import Account
from bascule.errors import BusUnavailable, DeadlineExceeded, LogError, PeerError, PeerLacks
from bascule.limits import MAX_RECORD_BYTES
from bascule.log.commitlog import CommitLog
from bascule.node.membership.garbage import GarbageLog
from bascule.node.membership.requests import Requests
from bascule.node.membership.subjects import Subjects
from bascule.node.replication.feeds import Members
from bascule.node.runtime.jobs import Jobs
from bascule.ports import Bus
from bascule.wire.envelope import MsgType, decode_checked, encode
from bascule.wire.nats import messages, pub
from bascule.wire.repair import Question, Standing, Told, decode_question, decode_told, encode_question, encode_told
from bascule.wire.subjects import usable_subject

logger = logging.getLogger(__name__)

STANDING_S = 0.5
RECORDS_S = 1.0
TRIES = 2
ASKED_AT_ONCE = 64
"""Questions on their way: after a crash of all every partition has one."""
ANSWERED_AT_ONCE = 1024
"""Past this, questions go unanswered, and are asked again."""
READ_BYTES = 1024 * 1024
OVERHEAD_BYTES = 256
_KINDS = (MsgType.LEADER_EPOCH_OFFSET_REQUEST, MsgType.LEADER_EPOCH_OFFSET_RESPONSE)
_ABSENT = Told(False, False, Standing(0, 0), 0, b"")


class OpenReplica(Protocol):
    """A replica on this broker, whatever its role."""

    @property
    def log(self) -> CommitLog: ...

    @property
    def certain(self) -> bool:
        """It has everything it promised."""


class PeerLogs:
    def __init__(
        self,
        broker_id: str,
        subjects: Subjects,
        bus: Bus,
        requests: Requests,
        find: Callable[[Key], OpenReplica | None],
        members: Members,
        alive: Callable[[], list[str]],
        jobs: Jobs,
    ) -> None:
        """`members` of the cluster are answered; those of them that are `alive` are asked."""
        self._broker_id = broker_id
        self._subjects = subjects
        self._bus = bus
        self._requests = requests
        self._find = find
        self._members = members
        self._alive = alive
        self._answering = jobs.tasks("an answer to another replica", ANSWERED_AT_ONCE)
        self._garbage = GarbageLog(logger, "a question of another replica")
        self._asking = asyncio.Semaphore(ASKED_AT_ONCE)

    def listen(self) -> None:
        self._requests.listen()
        self._bus.subscribe(self._subject(self._broker_id), self._on_batch)

    def _subject(self, broker: str) -> bytes:
        return self._subjects.within(f"repair.{broker}")

    # --- asking ----------------------------------------------------------------------------------------------

    async def account(self, broker: str, key: Key) -> Account | None:
        """How far that broker's log goes; None if it has none open. PeerError if it does not say."""
        told = await self._ask(broker, Question(*key, 0, 0, 0, self._broker_id))
        return Account(told.standing, told.certain) if told.here else None

    async def fetch(self, broker: str, key: Key, start: int, end: int) -> bytes:
        """The first of that broker's records with offsets from `start` to before `end`, as many as it gives at once.
        PeerError if it does not say, PeerLacks if its log is damaged there. Whoever takes them verifies them."""
        records, total = b"", 1
        while len(records) < total:
            told = await self._range(broker, key, start, end, len(records))
            total = told.total
            records += told.piece
        return records

    async def _range(self, broker: str, key: Key, start: int, end: int, skip: int) -> Told:
        told = await self._ask(broker, Question(*key, start, end, skip, self._broker_id))
        if told.total > READ_BYTES + MAX_RECORD_BYTES:
            raise PeerError(f"{broker} says that {told.total} bytes come at once: that cannot be")
        if not told.here or (told.sound and told.total > skip and not told.piece):
            raise PeerError(f"{broker} cannot say yet what it has of offsets {start} to {end - 1}")
        if not told.sound:
            raise PeerLacks(f"{broker} does not have all of offsets {start} to {end - 1} either")
        return told

    async def _ask(self, broker: str, question: Question) -> Told:
        timeout_s = RECORDS_S if question.end > question.start else STANDING_S
        reason = "it has not been heard of"
        for _ in range(TRIES):
            if broker not in self._alive():
                break
            try:
                async with self._asking:
                    data = await self._requests.ask(
                        self._subject(broker), _KINDS[0], encode_question(question), _KINDS[1], timeout_s
                    )
                return decode_told(data)
            except (DeadlineExceeded, BusUnavailable) as error:
                reason = str(error)
        raise PeerError(f"{broker} does not answer: {reason}")

    # --- answering -------------------------------------------------------------------------------------------

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            payload = decode_checked(message.payload, _KINDS[0])
            if payload is None or not usable_subject(message.reply):
                continue
            try:
                question = decode_question(bytes(payload))
            except PeerError as error:
                self._garbage.say(error)
                continue
            if question.asker in self._members() and not self._answering.full:
                self._answering.start(self._answer(question, message.reply))

    async def _answer(self, question: Question, reply: bytes) -> None:
        try:
            told = await self._tell(question)
            self._bus.send(pub(reply, encode(_KINDS[1], encode_told(told), crc=True)))
        except (BusUnavailable, LogError) as error:
            logger.warning("no answer to %s: %s", question.asker, error)

    async def _tell(self, question: Question) -> Told:
        replica = self._find((question.stream_index, question.partition))
        if replica is None:
            return _ABSENT
        log = replica.log
        standing = Standing(log.last_epoch, log.promised_end)
        if question.start >= question.end:
            return Told(True, not log.damaged, standing, 0, b"", replica.certain)
        reader = log.reader(question.start, uncommitted=True, heals=False)
        records = await reader.read(READ_BYTES, question.end) or b""
        sound = not reader.skipped and not log.segments.lacks(question.start, question.end)
        room = max(1, self._bus.max_payload - OVERHEAD_BYTES)
        piece = records[question.skip : question.skip + room] if sound else b""
        return Told(True, sound, standing, len(records), piece)
