"""The following side of replication: one conversation with each broker that leads partitions we follow.

After a first request the leader sends what is new without being asked, so a request is a report: it names the
partitions whose position changed, and which response was the last one taken. It goes out as soon as the sync that
covers an append is done, so that a publisher who waits for all replicas never waits for a poll. A follower with nothing
to report says that, about once a second: whatever it does not name stands where it stood. Reports are counted, so that
the leader notices a lost one.

Everything is named, in full, when something got lost (a response or a report that is missing, or nothing heard for
long), when a log was cut, and, to be safe, from time to time. What the leader sent before it knew of a full request is
not taken after it.

A leader that does not lead yet (the metadata reaches brokers one after the other) refuses; it is asked again after a
pause that grows.
"""

import asyncio
import itertools
import logging
from collections.abc import Iterator
from typing import Protocol

from bascule.core.metadata.streams import Key
from bascule.errors import BusUnavailable, PeerError
from bascule.node.membership.garbage import GarbageLog
from bascule.node.membership.subjects import Subjects
from bascule.ports import Bus
from bascule.wire.envelope import MsgType, decode_checked, encode_checked
from bascule.wire.nats import messages, pub_pieces
from bascule.wire.replication import Answer, FetchRequest, Kind, Position, decode_part, decode_response, encode_request

logger = logging.getLogger(__name__)

SILENCE_S = 1.5
"""A leader answers within a second even if it has nothing to say: after this long something got lost."""
RETRY_S = 0.1
"""Between two tries while NATS is away."""
IDLE_REPORT_S = 0.8
"""A follower that has had nothing to report for so long says so with the next word of its leader, who counts how long
it has not heard of it. Less than the second after which a leader without news says so. Where a third of the lag that is
allowed is less, it says so that often, unasked."""
LEAST_IDLE_S = 0.05
"""Whatever lag is allowed."""
IDLE_FULL_S = 60.0
"""An idle follower names all its positions this often. Nothing depends on it: what gets lost is noticed."""
REFUSED_FIRST_S = 0.01
REFUSED_MAX_S = 0.5
"""Before asking again for what a leader refused, or for what could not be taken."""


def request_subject(subjects: Subjects, leader: str) -> bytes:
    return subjects.within(f"replicate.{leader}")


def response_subject(subjects: Subjects, follower: str, leader: str) -> bytes:
    return subjects.within(f"replicated.{follower}.{leader}")


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
        """False if it brought records that were not taken."""


class Fetchers:
    def __init__(
        self, broker_id: str, subjects: Subjects, bus: Bus, timeout_s: float, session: int, max_lag_s: float
    ) -> None:
        self._session = session
        self._request_ids = itertools.count(1)
        """One count for all leaders: one left and followed again must not take new requests for old ones."""
        self._broker_id = broker_id
        self._subjects = subjects
        self._bus = bus
        self._idle_s = max(min(IDLE_REPORT_S, max_lag_s / 3), LEAST_IDLE_S)
        self._timeout_s = min(timeout_s, SILENCE_S)
        self._fetchers: dict[str, Fetcher] = {}
        self._garbage = GarbageLog(logger, "an answer of a leader")
        self._closed = False
        self._gathering = False

    def listen(self) -> None:
        self._bus.subscribe(response_subject(self._subjects, self._broker_id, "*"), self._on_batch)

    def follow(self, following: FollowerRole) -> None:
        if self._closed:
            return
        fetcher = self._fetchers.get(following.leader)
        if fetcher is None:
            subject = request_subject(self._subjects, following.leader)
            fetcher = Fetcher(
                self._broker_id, subject, self._bus, self._timeout_s, self._idle_s, self._session, self._request_ids
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
        """Partitions come and go over several turns of the event loop: leaders are asked for all of them once, at the
        end, and not for all there are in every turn. Reports go on meanwhile."""
        self._gathering = gathering
        for fetcher in self._fetchers.values():
            fetcher.gather(gathering)

    def push(self) -> None:
        """Reports that wait for the end of this turn leave now."""
        for fetcher in self._fetchers.values():
            fetcher.push()

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
        self,
        broker_id: str,
        subject: bytes,
        bus: Bus,
        timeout_s: float,
        idle_s: float,
        session: int,
        request_ids: Iterator[int],
    ) -> None:
        self._session = session
        self._leader_session = 0
        self._request_ids = request_ids
        self._broker_id = broker_id
        self._subject = subject
        self._bus = bus
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._followings: dict[Key, FollowerRole] = {}
        self._changed: dict[Key, None] = {}
        self._full = True
        self._gathering = False
        self._full_id = self._request_id = 0
        self._taken = self._reports = 0
        self._pieces: list[bytes | memoryview] = []
        self._soon: asyncio.Handle | None = None
        self._full_at = self._heard_at = self._sent_at = self._loop.time()
        self._silence_timer = self._loop.call_later(min(timeout_s, idle_s), self._check_silence)
        self._refused: dict[Key, None] = {}
        self._pause_s = REFUSED_FIRST_S
        self._again: asyncio.TimerHandle | None = None

    def follow(self, following: FollowerRole) -> None:
        self._followings[following.key] = following
        self.start_over()

    def unfollow(self, following: FollowerRole) -> bool:
        """True if nothing is left to fetch."""
        if self._followings.get(following.key) is following:
            del self._followings[following.key]
            self._changed.pop(following.key, None)
            self._full = True
        if self._followings:
            return False
        self.close()
        return True

    def changed(self, following: FollowerRole) -> None:
        if self._followings.get(following.key) is following:
            self._changed[following.key] = None
            self._send_soon()

    def start_over(self) -> None:
        """Ask for everything anew: something got lost, or our log went back."""
        self._full = True
        if not self._gathering:
            self._send_soon()

    def gather(self, gathering: bool) -> None:
        self._gathering = gathering
        if self._full and not gathering:
            self._send_soon()

    def close(self) -> None:
        for handle in (self._soon, self._silence_timer, self._again):
            if handle is not None:
                handle.cancel()
        self._soon = self._again = None

    # --- asking ----------------------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        if self._soon is None:
            self._soon = self._loop.call_soon(self._send)

    def push(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._send()

    def _send(self) -> None:
        self._soon = None
        now = self._loop.time()
        full = self._full or bool(self._changed and now - self._full_at > self._timeout_s)
        full = full and not self._gathering
        keys = self._followings if full else self._changed
        positions = [
            position for key in keys if (each := self._followings.get(key)) and (position := each.position) is not None
        ]
        self._changed = {}
        self._request_id = next(self._request_ids)
        self._sent_at, self._reports = now, self._reports + 1
        if full:
            self._full, self._pieces, self._taken, self._reports = False, [], 0, 0
            self._full_id, self._full_at = self._request_id, now
        ids = (self._session, self._leader_session, self._request_id, self._full_id, self._reports)
        request = FetchRequest(*ids, self._taken, self._broker_id, full, positions)
        try:
            payload = encode_checked(MsgType.REPLICATION_REQUEST, [encode_request(request)])
            self._bus.send_now(pub_pieces(self._subject, payload))
        except BusUnavailable:
            self._full = True
            self._ask_again_in(min(RETRY_S, self._timeout_s))

    def _check_silence(self) -> None:
        now = self._loop.time()
        left_s = self._heard_at + self._timeout_s - now
        if left_s <= 0:
            left_s = self._timeout_s
            self.start_over()
        if self._idle_s < IDLE_REPORT_S:
            left_s = min(left_s, self._idle_s)
            if now - self._sent_at >= self._idle_s:
                self._send_soon()
        self._silence_timer = self._loop.call_later(left_s, self._check_silence)

    # --- answers ---------------------------------------------------------------------------------------------

    def take_part(self, payload: memoryview) -> None:
        session, leader_session, request_id, number, part, parts, piece = decode_part(payload)
        if session != self._session or not 0 < self._full_id <= request_id <= self._request_id:
            return
        if leader_session != self._leader_session:
            if request_id == self._request_id:  # the answer to what was just asked, by another life
                self._leader_session = leader_session
                self.start_over()
            return
        self._heard_at = self._loop.time()
        if number <= self._taken or (number == self._taken + 1 and part < len(self._pieces)):
            return  # twice
        if number != self._taken + 1 or part != len(self._pieces):
            self.start_over()
            return
        self._pieces.append(piece)
        if len(self._pieces) == parts:
            pieces, self._pieces = self._pieces, []
            self._taken = number
            self._take(decode_response(piece if parts == 1 else b"".join(pieces)), request_id)

    def _take(self, answers: list[Answer], request_id: int) -> None:
        for answer in answers:
            following = self._followings.get((answer.stream_index, answer.partition))
            if following is None:
                self._send_soon()  # there is no sync to wait for before we say that it was taken
            elif answer.kind is Kind.REFUSED:
                self._refused[following.key] = None
            elif following.answered(answer):
                self._pause_s = REFUSED_FIRST_S
            else:
                self._full = True
        if self._refused or self._full:
            self._ask_again_in(self._pause_s)
            self._pause_s = min(self._pause_s * 2, REFUSED_MAX_S)
        # One partition without news of its own (its leader cannot read what we lack) must not keep us from speaking of
        # those that are idle.
        quiet = not any(answer.records for answer in answers)
        now = self._loop.time()
        if (quiet and now - self._full_at > IDLE_FULL_S) or (not answers and request_id < self._request_id):
            self.start_over()
        elif quiet and now - self._sent_at >= self._idle_s:
            self._send_soon()

    def _ask_again_in(self, pause_s: float) -> None:
        if self._again is None:
            self._again = self._loop.call_later(pause_s, self._ask_again)

    def _ask_again(self) -> None:
        self._again = None
        refused, self._refused = self._refused, {}
        self._changed.update((key, None) for key in refused if key in self._followings)
        if self._changed or self._full:
            self._send_soon()
