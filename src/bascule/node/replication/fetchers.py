"""The following side of replication, carried out: one conversation with each broker that leads partitions we follow.

`core/replication/fetcher.py` decides. Here its requests are sent over NATS, with the present position of each
partition; responses are checked and handed to it and to the partitions; its timers run.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVarTuple

from bascule.core.metadata.streams import Key
from bascule.core.replication import fetcher as machine
from bascule.core.replication.fetcher import (
    Deliver,
    Effect,
    Elapsed,
    Event,
    Fetcher,
    Followed,
    Gather,
    Send,
    SendSoon,
    SetTimer,
    Started,
    StartOver,
    Timer,
    Unfollowed,
    Unsent,
)
from bascule.errors import BusUnavailable
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import FETCH_PART
from bascule.ports import Bus
from bascule.wire.envelope import MsgType, encode_checked
from bascule.wire.nats import pub_pieces
from bascule.wire.replication import Answer, FetchPart, FetchRequest, Position, decode_part, encode_request

logger = logging.getLogger(__name__)

Input = TypeVarTuple("Input")

LEAST_IDLE_S = 0.05
"""The least time between two reports of an idle follower, however small the allowed lag is."""


class FollowerRole(Protocol):
    """What replication needs of a partition that this broker follows."""

    @property
    def key(self) -> Key: ...

    @property
    def leader(self) -> str: ...

    @property
    def position(self) -> Position | None:
        """Where to fetch from; None while there is nothing to ask for."""

    def answered(self, answer: Answer) -> bool:
        """False if it had records that were not appended."""


class Fetchers:
    def __init__(self, calls: Calls, bus: Bus, timeout_s: float, session: int, max_lag_s: float) -> None:
        """`bus` is the connection of `calls`: requests leave over it at once."""
        self._session = session
        self._request_ids = itertools.count(1)
        """One counter for all leaders: a leader that is followed again must not take new requests for old ones."""
        self._calls = calls
        self._bus = bus
        self._idle_s = max(min(machine.IDLE_REPORT_S, max_lag_s / 3), LEAST_IDLE_S)
        self._timeout_s = min(timeout_s, machine.SILENCE_S)
        self._fetchers: dict[str, FetcherDriver] = {}
        self._closed = False
        self._gathering = False

    def listen(self) -> None:
        subject = self._calls.subjects.fetch_responses(self._calls.broker_id, "*")
        self._calls.subscribe(subject, self._on_parts)

    def follow(self, following: FollowerRole) -> None:
        if self._closed:
            return
        fetcher = self._fetchers.get(following.leader)
        if fetcher is None:
            own, subject = self._calls.broker_id, self._calls.subjects.fetch_requests(following.leader)
            conversation = Fetcher(self._session, self._timeout_s, self._idle_s)
            fetcher = FetcherDriver(
                conversation, following.leader, own, self._session, subject, self._bus, self._request_ids
            )
            self._fetchers[following.leader] = fetcher
            fetcher.gather(self._gathering)
        fetcher.follow(following)

    def unfollow(self, following: FollowerRole) -> None:
        fetcher = self._fetchers.get(following.leader)
        if fetcher is not None and fetcher.unfollow(following):
            del self._fetchers[following.leader]

    def changed(self, following: FollowerRole) -> None:
        fetcher = self._fetchers.get(following.leader)
        if fetcher is not None:
            fetcher.changed(following)

    def start_over(self, following: FollowerRole) -> None:
        fetcher = self._fetchers.get(following.leader)
        if fetcher is not None:
            fetcher.start_over()

    def gather(self, gathering: bool) -> None:
        """While many partitions change over several turns of the event loop, full fetch requests wait for the end: one
        request with all partitions, not one in every turn. Reports are still sent."""
        self._gathering = gathering
        for fetcher in self._fetchers.values():
            fetcher.gather(gathering)

    def push(self) -> None:
        """Send reports now that would wait for the end of this turn."""
        for fetcher in self._fetchers.values():
            fetcher.push()

    def close(self) -> None:
        """Stop following all partitions, for good."""
        self._closed = True
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()

    def _on_parts(self, batch: bytes, count: int) -> None:
        for message in self._calls.received(batch, FETCH_PART):
            with message as payload:
                part = decode_part(payload)
                fetcher = self._fetchers.get(message.subject.rpartition(b".")[2].decode("utf-8", "replace"))
                if fetcher is not None:
                    fetcher.received(part)


class FetcherDriver:
    """Carries out the conversation with one leading broker."""

    def __init__(
        self,
        conversation: Fetcher,
        leader: str,
        broker_id: str,
        session: int,
        subject: bytes,
        bus: Bus,
        request_ids: Iterator[int],
    ) -> None:
        self._machine = conversation
        self._leader = leader
        self._broker_id = broker_id
        self._session = session
        self._subject = subject
        self._bus = bus
        self._request_ids = request_ids
        self._loop = asyncio.get_running_loop()
        self._followings: dict[Key, FollowerRole] = {}
        self._soon: asyncio.Handle | None = None
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        self._closed = False
        self._step(Started(self._loop.time()))

    def follow(self, following: FollowerRole) -> None:
        self._followings[following.key] = following
        self._step(Followed(following.key))

    def unfollow(self, following: FollowerRole) -> bool:
        """True if nothing is left to fetch."""
        if self._followings.get(following.key) is following:
            del self._followings[following.key]
            self._step(Unfollowed(following.key))
        if self._followings:
            return False
        self.close()
        return True

    def changed(self, following: FollowerRole) -> None:
        if self._followings.get(following.key) is following:
            self._take(self._machine.changed, following.key)

    def start_over(self) -> None:
        self._step(StartOver())

    def gather(self, gathering: bool) -> None:
        self._step(Gather(gathering))

    def push(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._due()

    def received(self, part: FetchPart) -> None:
        """Raises PeerError for an invalid response."""
        self._take(self._machine.received, part, self._loop.time())

    def close(self) -> None:
        self._closed = True
        for handle in (self._soon, *self._timers.values()):
            if handle is not None:
                handle.cancel()

    # --- events to effects --------------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        self._take(self._machine.step, event)

    def _take(self, entry: Callable[[*Input], list[Effect]], *given: *Input) -> None:
        """Call the machine, and carry out its effects."""
        if self._closed:
            return
        try:
            self._carry_out(entry(*given))
        except AssertionError:
            self.close()
            logger.exception(
                "replication from %s ends: internal error: unexpected state, which is a bug. What that "
                "broker leads is not copied here any more: start this broker again; please report this",
                self._leader,
            )

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self._closed:
                return  # carrying out one of them has ended the conversation
            match effect:
                case SendSoon():
                    self._soon = self._loop.call_soon(self._due)
                case Send():
                    self._send(effect)
                case Deliver():
                    self._deliver(effect)
                case SetTimer(timer, delay_s):
                    self._timers[timer] = self._loop.call_later(delay_s, self._elapsed, timer)

    def _due(self) -> None:
        self._soon = None
        self._take(self._machine.due, self._loop.time(), next(self._request_ids))

    def _elapsed(self, timer: Timer) -> None:
        del self._timers[timer]
        self._step(Elapsed(timer, self._loop.time()))

    def _send(self, send: Send) -> None:
        ids = (self._session, send.leader_session, send.request_id, send.full_id, send.report, send.taken)
        request = FetchRequest(*ids, self._broker_id, send.full, self._positions(send.keys))
        try:
            payload = encode_checked(MsgType.REPLICATION_REQUEST, [encode_request(request)])
            self._bus.send_now(pub_pieces(self._subject, payload))
        except BusUnavailable:
            self._step(Unsent())

    def _positions(self, keys: Iterable[Key]) -> list[Position]:
        found = [self._followings[key].position for key in keys]
        return [position for position in found if position is not None]

    def _deliver(self, deliver: Deliver) -> None:
        accepted = rejected = False
        for answer in deliver.answers:
            following = self._followings.get(answer[:2])
            if following is None:
                continue  # an earlier answer ended its role
            if following.answered(answer):
                accepted = True
            else:
                rejected = True
        request_id, quiet = deliver.request_id, deliver.quiet
        self._take(self._machine.delivered, request_id, quiet, accepted, rejected, self._loop.time())
