"""The leading side of replication: one conversation with each broker that follows partitions we lead.

A follower's request tells where it stands: that moves the high watermark of each partition named. It is then parked
until there is something to say: records it lacks, a new high watermark, or that the logs parted. An answer takes some
of every partition with news, at least one record each, beginning where the last answer stopped, so that no partition
starves.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from bascule.core.partition.follower import judge
from bascule.core.partition.leader import Fetched
from bascule.errors import BusUnavailable, LogError, PeerError
from bascule.log.reader import Reader
from bascule.node.fetchers import request_subject, response_subject
from bascule.node.garbage import GarbageLog
from bascule.ports import Bus, Clock
from bascule.wire.envelope import MsgType, decode_checked, encode
from bascule.wire.nats import messages, pub
from bascule.wire.replication import Answer, FetchRequest, Kind, Position, decode_request, encode_parts, encode_response

if TYPE_CHECKING:
    from bascule.node.replica import Key, Replica

logger = logging.getLogger(__name__)

ANSWER_BYTES = 4 * 1024 * 1024
PARTITION_BYTES = 1024 * 1024
IDLE_ANSWER_S = 1.0
"""A parked request is answered after this long even with nothing to say, so that a follower knows we live."""
WATERMARK_ALONE_S = 0.005
"""News of a high watermark alone wait this long for records to travel with."""
ENVELOPE_BYTES = 64
KEPT_SESSIONS = 64
"""Of one follower, over: so many restarts ago nothing is on its way any more."""

Find = Callable[["Key"], "Replica | None"]


class Feeds:
    def __init__(self, broker_id: str, namespace: str, bus: Bus, clock: Clock) -> None:
        self._broker_id = broker_id
        self._namespace = namespace
        self._bus = bus
        self._clock = clock
        self._find: Find = lambda key: None
        self._members: Callable[[], tuple[str, ...]] = tuple
        self._feeds: dict[str, Feed] = {}
        self._garbage = GarbageLog(logger, "a request of a follower")

    def listen(self, find: Find, members: Callable[[], tuple[str, ...]]) -> None:
        """`members` of the cluster are answered; strangers are not."""
        self._find = find
        self._members = members
        self._bus.subscribe(request_subject(self._namespace, self._broker_id), self._on_batch)

    def has_news(self, replica: "Replica") -> None:
        """A partition we lead has more records, or a higher watermark."""
        for feed in self._feeds.values():
            feed.has_news(replica)

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            payload = decode_checked(message.payload, MsgType.REPLICATION_REQUEST)
            if payload is None:
                continue
            try:
                request = decode_request(payload)
            except PeerError as error:
                self._garbage.say(error)
                continue
            if request.follower not in self._members():
                logger.debug("a fetch request of %r, who is no member", request.follower)
                continue
            feed = self._feeds.get(request.follower)
            if feed is None:
                subject = response_subject(self._namespace, request.follower, self._broker_id)
                feed = self._feeds[request.follower] = Feed(
                    request.follower, subject, self._bus, self._clock, self._find
                )
            feed.asked(request)


class Feed:
    """The conversation with one following broker."""

    def __init__(self, follower: str, subject: bytes, bus: Bus, clock: Clock, find: Find) -> None:
        self._follower = follower
        self._subject = subject
        self._bus = bus
        self._clock = clock
        self._find = find
        self._positions: dict[Key, Position] = {}
        self._readers: dict[Key, Reader] = {}
        self._told_hw: dict[Key, int] = {}
        self._news: dict[Key, None] = {}
        self._at_once: list[Answer] = []
        self._session = 0
        self._past_sessions: dict[int, None] = {}
        self._request_id = 0
        self._parked = False
        self._records_wait = False
        self._wake = asyncio.Event()
        """Set when the parked request is to be answered."""
        self._watermark_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._serve())

    def close(self) -> None:
        self._task.cancel()
        self._stop_timers()

    def has_news(self, replica: "Replica") -> None:
        key = replica.key
        position = self._positions.get(key)
        if position is None or replica.leading is None:
            return
        self._news[key] = None
        if replica.log.end > position.end:
            self._records_wait = True
        self._consider()

    # --- being asked -----------------------------------------------------------------------------------------

    def asked(self, request: FetchRequest) -> None:
        if request.session != self._session:
            if request.session in self._past_sessions:
                return  # late words of a life that ended: what it promised may be gone
            self._begin(request.session)
        elif request.request_id <= self._request_id:
            return  # late, or twice: a newer one is here
        if request.full:
            self._positions, self._readers, self._told_hw, self._news = {}, {}, {}, {}
        self._request_id = request.request_id
        self._parked = True
        now = self._clock.monotonic_ns()
        for position in request.positions:
            self._place(position, now)
        self._consider()

    def _begin(self, session: int) -> None:
        """The follower lives anew."""
        if self._session:
            self._past_sessions[self._session] = None
        while len(self._past_sessions) > KEPT_SESSIONS:
            del self._past_sessions[next(iter(self._past_sessions))]
        self._session = session
        self._request_id = 0

    def _place(self, position: Position, now: int) -> None:
        key = (position.stream_index, position.partition)
        replica = self._find(key)
        if replica is None or replica.leading is None or replica.leading.epoch != position.leader_epoch:
            self._at_once.append(Answer(*key, Kind.REFUSED, position.leader_epoch, 0, 0, *_asked(position), 0, 0, b""))
            self._positions.pop(key, None)
            return
        leading, log = replica.leading, replica.log
        parted = judge(position, replica.epochs, log.end)
        if parted is not None:
            self._at_once.append(
                Answer(*key, Kind.DIVERGED, leading.epoch, leading.hw_end, log.end, *_asked(position), *parted, b"")
            )
            self._positions.pop(key, None)
            return
        self._positions[key] = position
        leading.step(Fetched(self._follower, position.end, position.promised_end, now))
        if log.end > position.end:
            self._records_wait = True
            self._news[key] = None
        elif leading.hw_end > self._told_hw.get(key, -1):
            self._news[key] = None

    # --- answering -------------------------------------------------------------------------------------------

    def _consider(self) -> None:
        """Whether the parked request, if there is one, is answered now, soon, or when it has been idle for long."""
        if not self._parked:
            return
        if self._records_wait or self._at_once:
            self._wake.set()
        elif self._news:
            if self._watermark_timer is None:
                self._watermark_timer = self._loop.call_later(WATERMARK_ALONE_S, self._wake.set)
        elif self._idle_timer is None:
            self._idle_timer = self._loop.call_later(IDLE_ANSWER_S, self._wake.set)

    def _stop_timers(self) -> None:
        for timer in (self._watermark_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._watermark_timer = self._idle_timer = None

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._stop_timers()
            self._parked = False
            session, request_id = self._session, self._request_id
            try:
                self._send(session, request_id, await self._collect())
            except (BusUnavailable, LogError) as error:
                logger.debug("no answer to %s this time: %s", self._follower, error)
            except Exception:
                logger.exception("no answer to %s this time", self._follower)

    async def _collect(self) -> list[Answer]:
        answers, self._at_once = self._at_once, []
        news, self._news = list(self._news), {}
        self._records_wait = False
        room = ANSWER_BYTES
        for number, key in enumerate(news):
            if room <= 0:
                # The rest comes first next time.
                self._news = {**dict.fromkeys(news[number:]), **self._news}
                self._records_wait = True
                break
            answer = await self._answer(key, min(room, PARTITION_BYTES))
            if answer is not None:
                answers.append(answer)
                room -= len(answer.records)
        return answers

    async def _answer(self, key: "Key", max_bytes: int) -> Answer | None:
        replica, position = self._find(key), self._positions.get(key)
        if replica is None or replica.leading is None or position is None:
            return None
        leading, log = replica.leading, replica.log
        records = b""
        if log.end > position.end:
            reader = self._readers.get(key)
            if reader is None or reader.next_offset != position.end:
                reader = self._readers[key] = log.reader(position.end, uncommitted=True)
            # One epoch an answer: a follower notes where each begins.
            stop_end = replica.epochs.run_end(position.end, log.end)
            records = await _read(reader, max_bytes, stop_end)
            while not records and stop_end <= reader.next_offset < log.end:  # of that epoch all the rest is lost
                stop_end = replica.epochs.run_end(reader.next_offset, log.end)
                records = await _read(reader, max_bytes, stop_end)
            if replica.leading is not leading or self._positions.get(key) is not position:
                return None
            if records and reader.next_offset < log.end:
                self._news[key] = None
                self._records_wait = True
        hw_end = leading.hw_end
        self._told_hw[key] = hw_end
        return Answer(*key, Kind.DATA, leading.epoch, hw_end, log.end, *_asked(position), 0, 0, records)

    def _send(self, session: int, request_id: int, answers: list[Answer]) -> None:
        response = encode_response(answers)
        for part in encode_parts(session, request_id, response, self._bus.max_payload - ENVELOPE_BYTES):
            self._bus.send(pub(self._subject, encode(MsgType.REPLICATION_RESPONSE, part, crc=True)))


async def _read(reader: Reader, max_bytes: int, stop_end: int) -> bytes:
    """About `max_bytes`: what is on the disk, and on top of it what is on its way there."""
    pieces: list[bytes] = []
    while max_bytes > 0 and (piece := await reader.read(max_bytes, stop_end)):
        pieces.append(piece)
        max_bytes -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _asked(position: Position) -> tuple[int, int]:
    return position.end, position.last_epoch
