"""The leading side of replication: one conversation with each broker that follows partitions we lead.

A follower's request tells where it stands: that moves the high watermark of each partition named. From then on it is
sent what it lacks as it comes, without asking: records as soon as they are appended, so that its disk works beside
ours, and a new high watermark with the next records or a little later alone. After records the leader waits until a
request says that they were taken, which a follower says when it has synced them; what comes meanwhile goes out in one.
Records that are new are kept at hand until then; what a follower lacks beyond these is read from the log.

Responses are numbered. A follower that misses one asks for everything in full, and is sent again what lies beyond its
end. Requests are counted too: while none is missing, a partition that is not named stands where it stood; a leader that
misses one leaves out a number, and is told everything. What a follower says of thousands of partitions at once is taken
some at a time, and what it says next waits for that. A response takes some of every partition with news, at least one
record each, beginning where the last one stopped, so that no partition starves.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Protocol, TypeVar

from bascule.core.metadata.streams import Key
from bascule.core.partition.epochs import EpochHistory
from bascule.core.partition.follower import judge
from bascule.core.partition.leader import DiskFailing, Event
from bascule.errors import BusUnavailable, LogError, PeerError
from bascule.limits import FEED_PARTITION_BYTES, FEED_SLICE, FEED_WAITING_REQUESTS
from bascule.log.commitlog import CommitLog
from bascule.node.membership.garbage import GarbageLog
from bascule.node.membership.subjects import Subjects
from bascule.node.replication.fetchers import request_subject, response_subject
from bascule.node.replication.places import Place, Room
from bascule.ports import Bus, Clock
from bascule.wire.envelope import MsgType, decode_checked, encode_checked
from bascule.wire.nats import messages, pub_pieces
from bascule.wire.replication import Answer, FetchRequest, Kind, Position, decode_request, encode_parts, encode_response

logger = logging.getLogger(__name__)

ANSWER_BYTES = 4 * 1024 * 1024
IDLE_ANSWER_S = 1.0
"""After this long without a word there is an empty one, so that a follower knows we live."""
WATERMARK_ALONE_S = 0.005
"""News of a high watermark alone wait this long for records to travel with."""
ENVELOPE_BYTES = 64
KEPT_SESSIONS = 64
"""Of one follower, over: so many restarts ago nothing is on its way any more."""
SILENCE_S = 10.0
"""A life that seemed over and speaks on is believed when the one that followed it has been silent for so long: that was
a copy of its folder, started by mistake. What a dead one had still on its way has arrived long before."""

T = TypeVar("T")


class LeaderRole(Protocol):
    """What replication needs of a partition that this broker leads."""

    @property
    def epoch(self) -> int: ...

    @property
    def hw_end(self) -> int: ...

    def fetched(self, replica: str, end: int, promised_end: int, now: int) -> None:
        """A follower has everything below `end`, and promises everything below `promised_end`."""

    def step(self, event: Event) -> None: ...


class LocalReplica(Protocol):
    """A replica on this broker; it leads or it does not."""

    @property
    def key(self) -> Key: ...

    @property
    def log(self) -> CommitLog: ...

    @property
    def epochs(self) -> EpochHistory: ...

    @property
    def leading(self) -> LeaderRole | None: ...


Find = Callable[[Key], LocalReplica | None]
Members = Callable[[], tuple[str, ...]]


class Feeds:
    def __init__(
        self,
        broker_id: str,
        subjects: Subjects,
        bus: Bus,
        clock: Clock,
        session: int,
        find: Find,
        members: Members,
        on_reported: Callable[[], None],
    ) -> None:
        """`members` of the cluster are answered; strangers are not. `on_reported` is called when followers have
        reported and the acks that were owed are sent."""
        self._on_reported = on_reported
        self._session = session
        self._broker_id = broker_id
        self._subjects = subjects
        self._bus = bus
        self._clock = clock
        self._find = find
        self._members = members
        self._feeds: dict[str, Feed] = {}
        self._garbage = GarbageLog(logger, "a request of a follower")
        self._due: dict[Feed, None] = {}
        self._soon: asyncio.Handle | None = None

    def listen(self) -> None:
        self._bus.subscribe(request_subject(self._subjects, self._broker_id), self._on_batch)

    def has_news(self, replica: LocalReplica) -> None:
        """A partition we lead has a higher watermark."""
        for feed in self._feeds.values():
            feed.has_news(replica)

    def prepare(self) -> None:
        """Something is about to be appended. Called before, so that it leaves for the followers before the group commit
        begins: their disks are the longer way."""
        if self._soon is None and self._feeds:
            self._soon = asyncio.get_running_loop().call_soon(self._respond)

    def _respond(self) -> None:
        """What is to be said to all of them now leaves in one write."""
        self._soon = None
        due, self._due = self._due, {}
        commands: list[bytes] = []
        for feed in due:
            try:
                commands += feed.respond()
            except Exception:  # one follower's answer must not keep the others from theirs
                logger.exception("no answer to %s this time", feed.follower)
        if commands:
            try:
                self._bus.send_now(b"".join(commands))
            except BusUnavailable as error:
                logger.debug("no answers this time: %s", error)

    def wake(self, feed: "Feed") -> None:
        self._due[feed] = None
        self.prepare()

    def appended(self, replica: LocalReplica, records: bytes, first_offset: int, next_offset: int) -> None:
        """A partition we lead has more records, of our own epoch."""
        for feed in self._feeds.values():
            feed.appended(replica, records, first_offset, next_offset)

    def went_back(self, replica: LocalReplica) -> None:
        """Its last records could not be stored."""
        for feed in self._feeds.values():
            feed.went_back(replica)

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

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
            subject = response_subject(self._subjects, request.follower, self._broker_id)
            if request.leader_session != self._session:
                self._introduce(subject, request)
                continue
            feed = self._feeds.get(request.follower)
            if feed is None:
                feed = self._feeds[request.follower] = Feed(
                    request.follower, subject, self._session, self._bus, self._clock, self._find, self
                )
            feed.asked(request)
        self.reported()

    def reported(self) -> None:
        """A publisher may wait for the acks that this allows, and a follower for what comes next."""
        self._on_reported()
        if self._soon is not None:
            self._soon.cancel()
            self._respond()

    def heard(self, key: Key, epoch: int) -> tuple[tuple[str, int], ...]:
        """Who follows this partition, in this term, and when each last said where it stands or that it stands there."""
        return tuple([(name, feed.heard_at) for name, feed in self._feeds.items() if feed.knows(key, epoch)])

    def look(self, feed: "Feed") -> None:
        """From time to time: whoever is no member any more is fed no more."""
        if feed.follower not in self._members() and self._feeds.get(feed.follower) is feed:
            feed.close()
            del self._feeds[feed.follower]
            self._due.pop(feed, None)

    def _introduce(self, subject: bytes, request: FetchRequest) -> None:
        """Say who we are to who does not know, or speaks to an earlier life of ours."""
        sessions = (request.session, self._session)
        for part in encode_parts(sessions, request.request_id, 0, [], self._bus.max_payload):
            try:
                self._bus.send(pub_pieces(subject, encode_checked(MsgType.REPLICATION_RESPONSE, part)))
            except BusUnavailable as error:
                logger.debug("no answer to %s this time: %s", request.follower, error)


class Feed:
    """The conversation with one following broker."""

    def __init__(
        self,
        follower: str,
        subject: bytes,
        own_session: int,
        bus: Bus,
        clock: Clock,
        find: Find,
        feeds: Feeds,
    ) -> None:
        self._feeds = feeds
        self._own_session = own_session
        self.follower = follower
        self._subject = subject
        self._bus = bus
        self._clock = clock
        self._find = find
        self._places: dict[Key, Place] = {}
        self._room = Room()
        self._news: dict[Key, None] = {}
        self._at_once: list[Answer] = []
        self._session = 0
        self._past_sessions: dict[int, int] = {}
        """With the last request of each."""
        self._request_id = 0
        self.heard_at = 0
        """When its last request came of those that have been taken, by the clock that peers are judged by."""
        self._requests: deque[tuple[FetchRequest, int]] = deque()
        self._first = 0
        """Requests with the time they came, and how many positions of the first of them have been taken."""
        self._rest: asyncio.Handle | None = None
        self._full_id = self._reports = 0
        self._missed = False
        """A report got lost, and everything has not been named since."""
        self._unread: dict[Key, None] = {}
        """What lacks records that could not be read."""
        self._fulls = 0
        """How often everything was asked for: what was collected before is not taken after."""
        self._number = self._taken = self._awaited = 0
        """Of the last response sent, of the last one that arrived, and of the last one with records."""
        self._records_wait = False
        self._loop = asyncio.get_running_loop()
        self._watermark_timer: asyncio.TimerHandle | None = None
        self._idle_timer = self._loop.call_later(IDLE_ANSWER_S, self._check_idle)
        self._sent_at = self._asked_at = self._loop.time()
        self._reading: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._idle_timer.cancel()
        for handle in (self._watermark_timer, self._rest):
            if handle is not None:
                handle.cancel()

    def has_news(self, replica: LocalReplica) -> None:
        key = replica.key
        place = self._places.get(key)
        if place is None or replica.leading is None:
            return
        self._news[key] = None
        if _records_end(replica.log) > place.end:
            self._records_wait = True
        self._consider()

    def appended(self, replica: LocalReplica, records: bytes, first_offset: int, next_offset: int) -> None:
        key = replica.key
        place = self._places.get(key)
        if place is not None:
            place.keep(records, first_offset, next_offset)
            self._news[key] = None
            self._records_wait = True
            self._consider()

    def went_back(self, replica: LocalReplica) -> None:
        place = self._places.get(replica.key)
        if place is not None:
            place.set_end(place.end, place.last_epoch)

    # --- being asked -----------------------------------------------------------------------------------------

    def asked(self, request: FetchRequest) -> None:
        if request.full or len(self._requests) >= FEED_WAITING_REQUESTS:
            self._drop_waiting()
        self._requests.append((request, self._clock.monotonic_ns()))
        if self._rest is None:
            self._take_some()

    def _drop_waiting(self) -> None:
        """What waits says less than what comes now; or it is too much, and then it counts as lost."""
        while len(self._requests) > 1:
            self._requests.pop()

    def _take_some(self) -> None:
        self._rest = None
        room = FEED_SLICE
        while self._requests and room > 0:
            request, now = self._requests[0]
            some = request.positions[self._first : self._first + room]
            if self._first or self._begins(request):
                for position in some:
                    self._place(position, now)
                room -= 1 + len(some)
                self._first += len(some)
                if self._first < len(request.positions):
                    break
                self.heard_at = now
            self._requests.popleft()
            self._first = 0
        if self._requests:
            self._rest = self._loop.call_soon(self._take_more)
        self._consider()

    def _take_more(self) -> None:
        self._take_some()
        self._feeds.reported()

    def _begins(self, request: FetchRequest) -> bool:
        """Whether this request counts: it is not late, nor here already."""
        if request.session != self._session:
            if self._is_over(request):
                return False  # late words of a life that ended: what it promised may be gone
            self._begin(request.session)
        elif request.request_id <= self._request_id:
            return False  # late, or twice: a newer one is here
        self._request_id, self._asked_at = request.request_id, self._loop.time()
        if request.full:
            self._start_over()
        else:
            if self._taken < request.taken <= self._number:
                self._taken = request.taken
            if (request.full_id, request.report) != (self._full_id, self._reports + 1):
                self._miss()
        self._full_id, self._reports = request.full_id, request.report
        return True

    def _miss(self) -> None:
        """A report got lost. With a number left out the follower misses a response, and names everything."""
        if not self._missed:
            self._missed = True
            self._number += 1
            self._feeds.wake(self)

    def knows(self, key: Key, epoch: int) -> bool:
        """Whether it stands, in this term, where we think it stands."""
        place = self._places.get(key)
        return place is not None and not self._missed and place.position.leader_epoch == epoch

    def _is_over(self, request: FetchRequest) -> bool:
        last = self._past_sessions.get(request.session)
        return last is not None and (request.request_id <= last or self._loop.time() < self._asked_at + SILENCE_S)

    def _begin(self, session: int) -> None:
        """The follower lives anew."""
        self._past_sessions.pop(session, None)
        if self._session:
            self._past_sessions[self._session] = self._request_id
        while len(self._past_sessions) > KEPT_SESSIONS:
            del self._past_sessions[next(iter(self._past_sessions))]
        self._session = session
        self._request_id = 0
        self._start_over()

    def _start_over(self) -> None:
        """Nothing that was sent before is taken any more, and the next response is the first one."""
        self._fulls += 1
        self._places, self._room = {}, Room()
        self._news, self._at_once, self._records_wait = {}, [], False
        self._unread, self._missed = {}, False
        self._number = self._taken = self._awaited = 0

    def _place(self, position: Position, now: int) -> None:
        key, asked = (position.stream_index, position.partition), (position.end, position.last_epoch)
        replica = self._find(key)
        if replica is None or replica.leading is None or replica.leading.epoch != position.leader_epoch:
            self._at_once.append(Answer(*key, Kind.REFUSED, position.leader_epoch, 0, 0, *asked, 0, 0, b""))
            self._forget(key)
            return
        leading, log = replica.leading, replica.log
        if position.failing:
            self._forget(key)
            leading.step(DiskFailing(self.follower, position.promised_end, now))
            return
        parted = judge(position, replica.epochs, log.end)
        if parted is not None:
            self._at_once.append(
                Answer(*key, Kind.DIVERGED, leading.epoch, leading.hw_end, log.end, *asked, *parted, b"")
            )
            self._forget(key)
            return
        place = self._places.get(key)
        if place is not None and place.continues(position):
            place.position = position
        else:
            self._forget(key)
            place = self._places[key] = Place(position, self._room)
        records_end = _records_end(log)
        end, promised_end = (log.end if each >= records_end else each for each in (position.end, position.promised_end))
        leading.fetched(self.follower, end, promised_end, now)
        if records_end > place.end:
            self._records_wait = True
            self._news[key] = None
        elif leading.hw_end > place.told_hw:
            self._news[key] = None

    def _forget(self, key: Key) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            place.set_end(place.end, place.last_epoch)

    # --- answering -------------------------------------------------------------------------------------------

    def _consider(self) -> None:
        """Whether something is sent now, or soon, or nothing as yet."""
        if self._taken < self._awaited:
            return
        if self._records_wait or self._at_once:
            self._feeds.wake(self)
        elif self._news and self._watermark_timer is None:
            self._watermark_timer = self._loop.call_later(WATERMARK_ALONE_S, self._tell_watermarks)

    def _tell_watermarks(self) -> None:
        self._watermark_timer = None
        if self._news and self._taken >= self._awaited:
            self._feeds.wake(self)

    def _check_idle(self) -> None:
        left_s = self._sent_at + IDLE_ANSWER_S - self._loop.time()
        if left_s <= 0:
            left_s = IDLE_ANSWER_S
            if self._taken >= self._awaited:
                # What could not be read before may have been healed by now.
                unread, self._unread = self._unread, {}
                self._news.update((key, None) for key in unread if key in self._places and self._lacks_records(key))
                self._feeds.wake(self)
        if self._loop.time() - self._asked_at >= SILENCE_S:
            self._keep_nothing()
        self._idle_timer = self._loop.call_later(left_s, self._check_idle)
        self._feeds.look(self)

    def _keep_nothing(self) -> None:
        """It has been away for long: when it is back what it lacks is read from the log."""
        for place in self._places.values():
            if place.at_hand:
                place.set_end(place.end, place.last_epoch)

    def _lacks_records(self, key: Key) -> bool:
        replica = self._find(key)
        return replica is not None and _records_end(replica.log) > self._places[key].end

    def respond(self) -> list[bytes]:
        """The next response, if all of it is at hand; else it goes out by itself when it has been read."""
        if self._reading is not None:
            return []
        self._sent_at = self._loop.time()
        if self._watermark_timer is not None:
            self._watermark_timer.cancel()
            self._watermark_timer = None
        if any(map(self._must_read, self._news)):
            self._reading = self._loop.create_task(self._read_and_send())
            return []
        return self._encode(drive(self._collect()))

    def _must_read(self, key: Key) -> bool:
        place = self._places.get(key)
        return place is not None and not place.at_hand and self._lacks_records(key)

    async def _read_and_send(self) -> None:
        fulls = self._fulls
        try:
            answers = await self._collect()
            if fulls == self._fulls:
                for command in self._encode(answers):
                    self._bus.send(command)
        except (BusUnavailable, LogError) as error:
            logger.debug("no answer to %s this time: %s", self.follower, error)
        except Exception:
            logger.exception("no answer to %s this time", self.follower)
        self._reading = None
        self._consider()

    async def _collect(self) -> list[Answer]:
        """What there is to say. The number of the response is taken before: if it does not go out, the follower misses
        it and asks again."""
        self._number += 1
        answers, self._at_once = self._at_once, []
        news, self._news = list(self._news), {}
        self._records_wait = False
        fulls, room = self._fulls, ANSWER_BYTES
        for number, key in enumerate(news):
            if room <= 0:
                # The rest comes first next time.
                self._news = {**dict.fromkeys(news[number:]), **self._news}
                self._records_wait = True
                break
            answer = await self._answer(key, min(room, FEED_PARTITION_BYTES))
            if fulls != self._fulls:
                break  # it asked anew meanwhile, and would not take this any more
            if answer is not None:
                answers.append(answer)
                room -= len(answer.records)
        return answers

    async def _answer(self, key: Key, max_bytes: int) -> Answer | None:
        replica, place = self._find(key), self._places.get(key)
        if replica is None or replica.leading is None or place is None:
            return None
        leading, log = replica.leading, replica.log
        if place.position.leader_epoch != leading.epoch:
            return None  # of an earlier term of ours
        records, asked = b"", (place.end, place.last_epoch)
        if place.at_hand:
            records = place.at_hand[0] if len(place.at_hand) == 1 else b"".join(place.at_hand)
            place.set_end(place.at_hand_end, leading.epoch)
        elif _records_end(log) > place.end:
            records = await self._read(replica, place, max_bytes)
            if replica.leading is not leading or self._places.get(key) is not place:
                return None
        if records and log.end > place.end and (place.reader is None or place.reader.next_offset < log.end):
            self._news[key] = None
            self._records_wait = True
        elif _records_end(log) > place.end:
            self._unread[key] = None
        hw_end = place.told_hw = leading.hw_end
        return Answer(*key, Kind.DATA, leading.epoch, hw_end, _records_end(log), *asked, 0, 0, records)

    async def _read(self, replica: LocalReplica, place: Place, max_bytes: int) -> bytes:
        """About `max_bytes` of what it lacks: from the disk, and on top of that what is on its way there."""
        reader = place.reader
        if reader is None or reader.next_offset < place.end:
            reader = place.reader = replica.log.reader(place.end, uncommitted=True)
        # One epoch an answer: a follower notes where each begins.
        epoch, stop_end = replica.epochs.run_at(reader.next_offset, replica.log.end)
        pieces: list[bytes] = []
        while max_bytes > 0:
            piece = await reader.read(max_bytes, stop_end)
            if piece:
                pieces.append(piece)
                max_bytes -= len(piece)
            elif pieces or not stop_end <= reader.next_offset < replica.log.end:
                break
            else:  # of that epoch all the rest is lost
                epoch, stop_end = replica.epochs.run_at(reader.next_offset, replica.log.end)
        if pieces:
            place.set_end(reader.given_end, epoch)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _encode(self, answers: list[Answer]) -> list[bytes]:
        """The response as commands for NATS."""
        if any(answer.records for answer in answers):
            self._awaited = self._number
        max_part = self._bus.max_payload - ENVELOPE_BYTES
        sessions = (self._session, self._own_session)
        parts = encode_parts(sessions, self._request_id, self._number, encode_response(answers), max_part)
        if self._records_wait or self._at_once or self._news:
            self._consider()
        return [pub_pieces(self._subject, encode_checked(MsgType.REPLICATION_RESPONSE, part)) for part in parts]


def _records_end(log: CommitLog) -> int:
    """Where the log ends for a follower. The last offsets of a log that was the only replica may be lost for good: they
    come to nobody, and who has all before them has everything."""
    last = log.segments[-1] if log.segments else None
    if last is None or not last.empty or log.damaged:
        return log.end
    return next((each.appended.end for each in reversed(log.segments) if each.first_offset >= 0), 0)


def drive(work: Coroutine[object, object, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise AssertionError("it waited for something")
