"""The following side of replication: one conversation with each broker that leads partitions we follow.

A request names the partitions whose position changed. It goes out as soon as the sync that covers an append is done, so
that a publisher who waits for all replicas never waits for a poll: what came before that could not have been synced
before either. Only where the disk is slow it goes out twice, the first time to have the next records here when the disk
is free. The newest request replaces the one the leader has parked. When nothing comes back in time everything is asked
again, in full; and so it is from time to time while there is traffic, for NATS may lose an answer and go on with the
next.

A leader that does not lead yet (the metadata reaches brokers one after the other) refuses; it is asked again after a
pause that grows.
"""

import asyncio
import itertools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bascule.errors import BusUnavailable, PeerError
from bascule.node.garbage import GarbageLog
from bascule.ports import Bus
from bascule.wire.envelope import MsgType, decode_checked, encode
from bascule.wire.nats import messages, pub
from bascule.wire.replication import FetchRequest, Kind, decode_part, decode_response, encode_request

if TYPE_CHECKING:
    from bascule.node.following import Following

logger = logging.getLogger(__name__)

MAX_OPEN_RESPONSES = 4
"""Responses of which some parts are here: more means that parts got lost, and the oldest is given up."""
SILENCE_S = 1.5
"""A leader answers within a second even if it has nothing to say: after this long something got lost."""
RETRY_S = 0.1
"""Between two tries while NATS is away."""
APPEND_ALONE_S = 0.005
"""News of an append alone wait this long for its sync to travel with."""
REFUSED_FIRST_S = 0.01
REFUSED_MAX_S = 0.5


def request_subject(namespace: str, leader: str) -> bytes:
    return f"{namespace}.replicate.{leader}".encode()


def response_subject(namespace: str, follower: str, leader: str) -> bytes:
    return f"{namespace}.replicated.{follower}.{leader}".encode()


class Fetchers:
    def __init__(self, broker_id: str, namespace: str, bus: Bus, timeout_s: float, session: int) -> None:
        self._session = session
        self._request_ids = itertools.count(1)
        """One count for all leaders: one left and followed again must not take new requests for old ones."""
        self._broker_id = broker_id
        self._namespace = namespace
        self._bus = bus
        self._timeout_s = min(timeout_s, SILENCE_S)
        self._fetchers: dict[str, Fetcher] = {}
        self._garbage = GarbageLog(logger, "an answer of a leader")
        self._closed = False

    def listen(self) -> None:
        self._bus.subscribe(response_subject(self._namespace, self._broker_id, "*"), self._on_batch)

    def follow(self, following: "Following") -> None:
        if self._closed:
            return
        fetcher = self._fetchers.get(following.leader)
        if fetcher is None:
            subject = request_subject(self._namespace, following.leader)
            fetcher = Fetcher(self._broker_id, subject, self._bus, self._timeout_s, self._session, self._request_ids)
            self._fetchers[following.leader] = fetcher
        fetcher.follow(following)

    def unfollow(self, following: "Following") -> None:
        fetcher = self._fetchers.get(following.leader)
        if fetcher is not None and fetcher.unfollow(following):
            del self._fetchers[following.leader]

    def changed(self, following: "Following") -> None:
        fetcher = self._fetchers.get(following.leader)
        if fetcher is not None:
            fetcher.changed(following)

    def appended(self, following: "Following") -> None:
        fetcher = self._fetchers.get(following.leader)
        if fetcher is not None:
            fetcher.appended(following)

    def close(self) -> None:
        """No partition is followed any more, and none will be."""
        self._closed = True
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            fetcher = self._fetchers.get(message.subject.rpartition(b".")[2].decode("utf-8", "replace"))
            payload = decode_checked(message.payload, MsgType.REPLICATION_RESPONSE)
            if fetcher is None or payload is None:
                continue
            try:
                fetcher.take_part(payload)
            except PeerError as error:
                self._garbage.say(error)


class Fetcher:
    """The conversation with one leading broker."""

    def __init__(
        self, broker_id: str, subject: bytes, bus: Bus, timeout_s: float, session: int, request_ids: Iterator[int]
    ) -> None:
        self._session = session
        self._request_ids = request_ids
        self._broker_id = broker_id
        self._subject = subject
        self._bus = bus
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._followings: dict[tuple[int, int], Following] = {}
        self._changed: dict[tuple[int, int], None] = {}
        self._full = True
        self._request_id = 0
        self._open: dict[int, dict[int, bytes]] = {}
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._full_at = 0.0
        self._refused: dict[tuple[int, int], None] = {}
        self._refused_pause_s = REFUSED_FIRST_S
        self._refused_timer: asyncio.TimerHandle | None = None

    def follow(self, following: "Following") -> None:
        self._followings[following.key] = following
        self._full = True
        self._send_soon()

    def unfollow(self, following: "Following") -> bool:
        """True if nothing is left to fetch."""
        if self._followings.get(following.key) is following:
            del self._followings[following.key]
            self._changed.pop(following.key, None)
            self._full = True
        if self._followings:
            return False
        self.close()
        return True

    def changed(self, following: "Following") -> None:
        if self._followings.get(following.key) is following:
            self._changed[following.key] = None
            self._send_soon()

    def appended(self, following: "Following") -> None:
        if self._followings.get(following.key) is following:
            self._changed[following.key] = None
            if self._later is None and self._soon is None:
                self._later = self._loop.call_later(APPEND_ALONE_S, self._send)

    def close(self) -> None:
        for handle in (self._soon, self._later, self._timer, self._refused_timer):
            if handle is not None:
                handle.cancel()
        self._soon = self._later = self._timer = self._refused_timer = None

    # --- asking ----------------------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        if self._soon is None:
            self._soon = self._loop.call_soon(self._send)

    def _send(self) -> None:
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()
        self._soon = self._later = None
        now = self._loop.time()
        full = self._full or bool(self._changed and now - self._full_at > self._timeout_s)
        self._full = False
        if full:
            self._full_at = now
        keys = self._followings if full else self._changed
        positions = [
            position for key in keys if (each := self._followings.get(key)) and (position := each.position) is not None
        ]
        self._changed = {}
        self._request_id = next(self._request_ids)
        request = FetchRequest(self._session, self._request_id, self._broker_id, full, positions)
        try:
            self._bus.send(pub(self._subject, encode(MsgType.REPLICATION_REQUEST, encode_request(request), crc=True)))
            self._arm(self._timeout_s)
        except BusUnavailable:
            self._arm(min(RETRY_S, self._timeout_s))

    def _arm(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        self._full = True
        self._open = {}
        self._send_soon()

    # --- answers ---------------------------------------------------------------------------------------------

    def take_part(self, payload: bytes) -> None:
        session, request_id, part, parts, piece = decode_part(payload)
        if session != self._session or not 0 < request_id <= self._request_id:
            return
        pieces = self._open.setdefault(request_id, {})
        pieces[part] = piece
        if len(pieces) < parts:
            while len(self._open) > MAX_OPEN_RESPONSES:
                del self._open[next(iter(self._open))]
            return
        del self._open[request_id]
        for answer in decode_response(b"".join(pieces[number] for number in range(parts))):
            following = self._followings.get((answer.stream_index, answer.partition))
            if following is None:
                continue
            if answer.kind is Kind.REFUSED:
                self._refused[following.key] = None
            else:
                self._refused_pause_s = REFUSED_FIRST_S
                following.answered(answer)
        if self._refused and self._refused_timer is None:
            self._refused_timer = self._loop.call_later(self._refused_pause_s, self._ask_refused)
        if request_id == self._request_id and self._later is None:
            self._send_soon()

    def _ask_refused(self) -> None:
        self._refused_timer = None
        self._refused_pause_s = min(self._refused_pause_s * 2, REFUSED_MAX_S)
        refused, self._refused = self._refused, {}
        self._changed.update((key, None) for key in refused if key in self._followings)
        if self._changed:
            self._send_soon()
