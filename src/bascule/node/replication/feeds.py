"""The leading side of replication, carried out: one conversation with each broker that follows partitions we lead.

`core/replication/feed.py` decides. Here requests are decoded and checked before they are handed to it; the progress of
followers goes to the leaders of the partitions; logs are read, responses are sent, and its timers run. The responses to
all followers in one turn of the event loop leave in one write.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, TypeVarTuple

from bascule.core.metadata.streams import Key
from bascule.core.partition import leader
from bascule.core.partition.epochs import EpochHistory
from bascule.core.replication.feed import (
    AppendFailed,
    Began,
    DiskFailing,
    Effect,
    Elapsed,
    Event,
    Feed,
    Fetched,
    LedPartition,
    Read,
    ReadFailed,
    Send,
    SendSoon,
    SetTimer,
    Started,
    StopTimer,
    TakeMore,
    TakeSoon,
    Timer,
    WasRead,
)
from bascule.errors import BusUnavailable, LogError
from bascule.limits import READS_FOR_FOLLOWERS
from bascule.log.commitlog import CommitLog
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import FETCH_REQUEST
from bascule.node.replication.reads import read_records
from bascule.node.runtime.jobs import Jobs
from bascule.ports import Bus, Clock
from bascule.wire.envelope import MsgType, encode_checked
from bascule.wire.nats import pub_pieces
from bascule.wire.replication import FetchRequest, decode_request, encode_parts, encode_response

logger = logging.getLogger(__name__)

Input = TypeVarTuple("Input")

ENVELOPE_BYTES = 64


class LeaderRole(LedPartition, Protocol):
    """What replication needs of a partition that this broker leads."""

    def feeds(self, broker: str) -> bool:
        """Whether that broker has a replica, as this leader knows."""

    def fetched(self, replica: str, end: int, promised_end: int, now: int) -> None:
        """A follower has everything below `end`, and promises everything below `promised_end`."""

    def step(self, event: leader.Event) -> None: ...


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


class LocalReplicas(Protocol):
    def get(self, key: Key) -> LocalReplica | None: ...

    def led(self, key: Key) -> LeaderRole | None:
        """None where this broker does not lead."""


Members = Callable[[], tuple[str, ...]]


class Feeds:
    def __init__(
        self,
        calls: Calls,
        bus: Bus,
        clock: Clock,
        session: int,
        replicas: LocalReplicas,
        members: Members,
        publishes: Bus,
        jobs: Jobs,
    ) -> None:
        """`bus` is the connection of `calls`: responses are written to it in pieces, and leave at once. Only `members`
        of the cluster get answers. `publishes` is the connection by which acks leave."""
        self._publishes = publishes
        self._session = session
        self._calls = calls
        self._bus = bus
        self._clock = clock
        self._replicas = replicas
        self._members = members
        self._feeds: dict[str, FeedDriver] = {}
        self.reads = jobs.tasks("a read for a follower", READS_FOR_FOLLOWERS)
        self._due: dict[FeedDriver, None] = {}
        self._soon: asyncio.Handle | None = None

    def listen(self) -> None:
        subject = self._calls.subjects.fetch_requests(self._calls.broker_id)
        self._calls.subscribe(subject, self._on_requests)

    def prepare(self) -> None:
        """Records are about to be appended. Called before, so that they leave for the followers before the group commit
        begins: the way to their disks is longer."""
        if self._soon is None and self._feeds:
            self._soon = asyncio.get_running_loop().call_soon(self._respond)

    def began(self, replica: LocalReplica) -> None:
        """A partition is led here from now on."""
        for feed in self._feeds.values():
            feed.step(Began(replica.key))

    def appended(self, replica: LocalReplica, records: bytes, first_offset: int, next_offset: int) -> None:
        """A partition we lead has more records, of our own epoch."""
        key = replica.key
        for feed in self._feeds.values():
            feed.take(feed.machine.appended, key, records, first_offset, next_offset)

    def advanced(self, replica: LocalReplica) -> None:
        """A partition we lead has a higher high watermark, or records that could not be read before."""
        key = replica.key
        for feed in self._feeds.values():
            feed.take(feed.machine.advanced, key)

    def append_failed(self, replica: LocalReplica) -> None:
        """Its log failed, and its last records are lost."""
        for feed in self._feeds.values():
            feed.step(AppendFailed(replica.key))

    def last_reports(self, key: Key, epoch: int) -> tuple[tuple[str, int], ...]:
        """The followers of this partition in this epoch, and when each last reported its position or that it has not
        changed."""
        feeds = self._feeds.items()
        return tuple([(name, feed.machine.heard_at) for name, feed in feeds if feed.knows(key, epoch)])

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    # --- requests of followers ---------------------------------------------------------------------------------

    def _on_requests(self, batch: bytes, count: int) -> None:
        for message in self._calls.received(batch, FETCH_REQUEST):
            with message as payload:
                self._on_request(decode_request(payload))
        self.batch_taken()

    def _on_request(self, request: FetchRequest) -> None:
        follower = request.follower
        if follower not in self._members():
            logger.debug("a fetch request of %r, which is not a member, is ignored", follower)
            return
        feed = self._feeds.get(follower)
        if feed is None or request.leader_session != self._session:
            subject = self._calls.subjects.fetch_responses(follower, self._calls.broker_id)
            if request.leader_session != self._session:
                self._introduce(subject, request)
                return
            feed = self._feeds[follower] = FeedDriver(follower, subject, self._session, self._bus, self._replicas, self)
        feed.asked(request, self._clock.monotonic_ns())

    def _introduce(self, subject: bytes, request: FetchRequest) -> None:
        """Send our session to a follower that does not know it, or that has the session of an earlier boot."""
        sessions = (request.session, self._session)
        for part in encode_parts(sessions, request.request_id, 0, [], self._bus.max_payload):
            try:
                self._bus.send(pub_pieces(subject, encode_checked(MsgType.REPLICATION_RESPONSE, part)))
            except BusUnavailable as error:
                logger.debug("no answer to %s this time: %s", request.follower, error)

    # --- for the conversations ---------------------------------------------------------------------------------

    def batch_taken(self) -> None:
        """Followers have reported: send the acks that this allows, and the next responses, without delay."""
        self._publishes.push()
        if self._soon is not None:
            self._soon.cancel()
            self._respond()

    def wake(self, feed: "FeedDriver") -> None:
        self._due[feed] = None
        self.prepare()

    def look(self, feed: "FeedDriver") -> None:
        """Called from time to time: end the feed to a broker that is not a member any more."""
        if feed.follower not in self._members() and self._feeds.get(feed.follower) is feed:
            feed.close()
            del self._feeds[feed.follower]
            self._due.pop(feed, None)

    def _respond(self) -> None:
        """Send the responses that are due to all followers in one write."""
        self._soon = None
        due, self._due = self._due, {}
        commands: list[bytes] = []
        for feed in due:
            try:
                commands += feed.respond()
            except AssertionError:
                feed.fail()
            except Exception:  # the other followers still get their responses
                logger.exception("no answer to %s this time", feed.follower)
        if commands:
            try:
                self._bus.send_now(b"".join(commands))
            except BusUnavailable as error:
                logger.debug("no answers this time: %s", error)


class _Fed:
    """What is led here and has a replica on one following broker. One that knows of its replica before the leader does
    gets nothing until then: compaction treats a log that nobody else has in another way."""

    def __init__(self, replicas: LocalReplicas, follower: str) -> None:
        self._replicas = replicas
        self._follower = follower

    def led(self, key: Key) -> LeaderRole | None:
        leading = self._replicas.led(key)
        return leading if leading is not None and leading.feeds(self._follower) else None


class FeedDriver:
    """Carries out the conversation with one following broker."""

    def __init__(
        self, follower: str, subject: bytes, own_session: int, bus: Bus, replicas: LocalReplicas, feeds: Feeds
    ) -> None:
        self.follower = follower
        self.machine = Feed(_Fed(replicas, follower))
        self._subject = subject
        self._own_session = own_session
        self._bus = bus
        self._replicas = replicas
        self._feeds = feeds
        self._loop = asyncio.get_running_loop()
        self._taking: asyncio.Handle | None = None
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        self._read: Read | None = None
        self._reading: asyncio.Task[None] | None = None
        self._commands: list[bytes] | None = None
        """Set while a response is built that leaves in one write with others."""
        self.closed = False
        self.step(Started(self._loop.time()))

    def close(self) -> None:
        self.closed = True
        for handle in (self._reading, self._taking, *self._timers.values()):
            if handle is not None:
                handle.cancel()

    def knows(self, key: Key, epoch: int) -> bool:
        return not self.closed and self.machine.knows(key, epoch)

    def asked(self, request: FetchRequest, heard_at: int) -> None:
        self.take(self.machine.asked, request, heard_at, self._loop.time())

    def respond(self) -> list[bytes]:
        """The next response, if all of it is buffered; otherwise it is sent when it has been read from the log."""
        commands: list[bytes] = []
        self._commands = commands
        try:
            self.take(self.machine.due, self._loop.time())
        finally:
            self._commands = None
        return commands

    # --- events to effects --------------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        self.take(self.machine.step, event)

    def take(self, entry: Callable[[*Input], list[Effect]], *given: *Input) -> None:
        """Call the machine, and carry out its effects."""
        if self.closed:
            return
        try:
            self._carry_out(entry(*given))
        except AssertionError:
            self.fail()

    def fail(self) -> None:
        """An assertion failed, in the machine or in what carries out its effects; called where it is caught."""
        self.close()
        logger.exception(
            "replication to %s ends: internal error: unexpected state, which is a bug. What this broker "
            "leads is not copied there any more: start this broker again; please report this",
            self.follower,
        )

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self.closed:
                return  # carrying out one of them has ended the conversation
            match effect:
                case Fetched(key, end, promised_end, heard_at):
                    leading = self._replicas.led(key)
                    if leading is not None:
                        leading.fetched(self.follower, end, promised_end, heard_at)
                case SendSoon():
                    self._feeds.wake(self)
                case Send():
                    self._send(effect)
                case SetTimer(timer, delay_s):
                    self._timers[timer] = self._loop.call_later(delay_s, self._elapsed, timer)
                case StopTimer(timer):
                    self._timers.pop(timer).cancel()
                case Read():
                    self._read = effect
                    if self._reading is None:
                        self._reading = self._feeds.reads.start(self._read_on())
                case TakeSoon():
                    self._taking = self._loop.call_soon(self._take_more)
                case DiskFailing(key, promised_end, heard_at):
                    leading = self._replicas.led(key)
                    if leading is not None:
                        leading.step(leader.DiskFailing(self.follower, promised_end, heard_at))

    def _take_more(self) -> None:
        self._taking = None
        self.step(TakeMore(self._loop.time()))
        self._feeds.batch_taken()

    def _elapsed(self, timer: Timer) -> None:
        del self._timers[timer]
        self.step(Elapsed(timer, self._loop.time()))
        if timer is Timer.IDLE:
            self._feeds.look(self)

    def _send(self, send: Send) -> None:
        max_part = self._bus.max_payload - ENVELOPE_BYTES
        sessions = (send.session, self._own_session)
        parts = encode_parts(sessions, send.request_id, send.number, encode_response(send.answers), max_part)
        commands = [pub_pieces(self._subject, encode_checked(MsgType.REPLICATION_RESPONSE, part)) for part in parts]
        if self._commands is not None:
            self._commands += commands
            return
        try:
            for command in commands:
                self._bus.send(command)
        except BusUnavailable as error:
            logger.debug("no answer to %s this time: %s", self.follower, error)

    # --- reading -------------------------------------------------------------------------------------------------

    async def _read_on(self) -> None:
        """Read one partition after the other, until the response is complete."""
        try:
            while (read := self._read) is not None:
                self._read = None
                self.step(await self._outcome(read))
        except AssertionError:
            self.fail()
        self._reading = None

    async def _outcome(self, read: Read) -> Event:
        replica = self._replicas.get(read.key)
        if replica is None:
            return WasRead(b"", read.offset, 0, read.offset, None)
        try:
            return await read_records(replica.log, replica.epochs, read)
        except LogError as error:
            logger.debug("no answer to %s this time: %s", self.follower, error)
        except AssertionError:
            raise
        except Exception:
            logger.exception("no answer to %s this time", self.follower)
        return ReadFailed()
