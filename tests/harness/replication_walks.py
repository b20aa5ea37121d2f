"""Walks through the two machines of replication: every state meets every input, many times, from a fixed seed, and what
follows is written down. The diagrams must show that, no more and no less.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

from bascule.core.metadata.streams import Key
from bascule.core.partition.epochs import EpochHistory
from bascule.core.replication import feed as fe
from bascule.core.replication import fetcher as ft
from bascule.wire.replication import Answer, FetchPart, FetchRequest, Kind, Position, encode_response
from tests.harness.diagrams import Edge

KEYS: list[Key] = [(1, 0), (1, 1), (1, 2)]


def walked(walk: "FetcherWalk | FeedWalk", length: int) -> Iterator[Edge]:
    """So many events, each with what followed."""
    for _ in range(length):
        event, effects = walk.step()
        yield from ((type(event).__name__, "", type(effect).__name__) for effect in effects)


def fetcher_edges(walks: int = 300, length: int = 120) -> set[Edge]:
    """Events to effects of the following side."""
    return {edge for number in range(walks) for edge in walked(FetcherWalk(random.Random(number)), length)}


class FetcherWalk:
    """One follower; its leader is played by chance, and mostly speaks sense."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._now = 0.0
        self._requests = 0
        self._followed: dict[Key, None] = {}
        self._timers: dict[ft.Timer, None] = {}
        self._delivered: ft.Deliver | None = None
        self._sent: ft.Send | None = None
        self._number = 0
        self._started = False
        self.machine = ft.Fetcher(7, 1.5, chance.choice((0.2, 0.8)))

    def step(self) -> tuple[ft.Event, list[ft.Effect]]:
        event = self.event()
        effects = self.machine.step(event)
        self.note(effects)
        return event, effects

    def note(self, effects: list[ft.Effect]) -> None:
        for effect in effects:
            match effect:
                case ft.Send(full=full):
                    self._sent = effect
                    self._number = 0 if full else self._number
                case ft.Deliver():
                    self._delivered = effect
                case ft.SetTimer(timer, delay_s):
                    assert timer not in self._timers
                    assert delay_s > 0
                    self._timers[timer] = None

    def event(self) -> ft.Event:
        chance = self._chance
        self._now += chance.choice((0.0, 0.001, 0.3, 2.0, 61.0))
        if not self._started:
            self._started = True
            return ft.Started(self._now)
        if self._delivered is not None:
            delivered, self._delivered = self._delivered, None
            taken = chance.random() < 0.8
            return ft.Delivered(delivered.request_id, delivered.quiet, taken, not taken, self._now)
        kind = chance.choice((ft.Received, ft.Received, ft.Received, ft.Due, ft.Changed, *ft.Event.__args__))
        if kind is ft.Changed and self._followed:
            return ft.Changed(chance.choice(list(self._followed)))
        if kind is ft.Unfollowed and self._followed:
            key = chance.choice(list(self._followed))
            del self._followed[key]
            return ft.Unfollowed(key)
        if kind is ft.Followed:
            key = chance.choice(KEYS)
            self._followed[key] = None
            return ft.Followed(key)
        if kind is ft.Elapsed and self._timers:
            timer = chance.choice(list(self._timers))
            del self._timers[timer]
            return ft.Elapsed(timer, self._now)
        if kind is ft.Gather:
            return ft.Gather(chance.random() < 0.5)
        if kind is ft.StartOver:
            return ft.StartOver()
        if kind is ft.Unsent:
            return ft.Unsent()
        if kind is ft.Received and self._sent is not None:
            return self._received(self._sent)
        self._requests += chance.randint(1, 3)
        return ft.Due(self._now, self._requests)

    def _received(self, sent: ft.Send) -> ft.Received:
        chance = self._chance
        answers = [self._answer(chance.choice(KEYS)) for _ in range(chance.randint(0, 3))]
        self._number += chance.choice((0, 1, 1, 1, 2))
        parts = chance.choice((1, 1, 2))
        sessions = (chance.choice((7, 7, 7, 7, 6)), chance.choice((3, 3, 3, 4, sent.leader_session)))
        whole = b"".join(encode_response(answers)) if parts == 1 else b""
        request_id = sent.request_id - chance.choice((0, 0, 0, 1))
        return ft.Received(
            FetchPart(*sessions, request_id, self._number, chance.randrange(parts), parts, whole), self._now
        )

    def _answer(self, key: Key) -> Answer:
        kind = self._chance.choice((Kind.DATA, Kind.DATA, Kind.REFUSED, Kind.DIVERGED))
        records = b"records" if kind is Kind.DATA and self._chance.random() < 0.5 else b""
        return Answer(*key, kind, 1, 0, 0, 0, 0, 0, 0, records)


@dataclass
class Led:
    epoch: int = 5
    end: int = 4
    hw_end: int = 0
    lost: int = 0
    epochs: EpochHistory = field(default_factory=lambda: EpochHistory([(2, 0), (5, 2)]))

    log_start: int = 0

    @property
    def records_end(self) -> int:
        return max(self.end - self.lost, 0)


def feed_edges(walks: int = 300, length: int = 120) -> set[Edge]:
    """Events to effects of the leading side."""
    with mock.patch.multiple(fe, FEED_SLICE=2, FEED_RESPONSE_BYTES=8, FEED_PARTITION_BYTES=6, FEED_WAITING_REQUESTS=3):
        return {edge for number in range(walks) for edge in walked(FeedWalk(random.Random(number)), length)}


class FeedWalk:
    """One leader; its follower is played by chance, and mostly speaks sense."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._now = 0.0
        self._led = {key: Led() for key in KEYS}
        self.machine = fe.Feed(self)
        self._timers: dict[fe.Timer, None] = {}
        self._read: fe.Read | None = None
        self._taking = False
        self._request_id = self._full_id = self._reports = self._number = 0
        self._started = False

    def step(self) -> tuple[fe.Event, list[fe.Effect]]:
        event = self.event()
        effects = self.machine.step(event)
        self.note(effects)
        return event, effects

    def led(self, key: Key) -> Led | None:
        return self._led.get(key)

    def note(self, effects: list[fe.Effect]) -> None:
        for effect in effects:
            match effect:
                case fe.Send(number=number):
                    self._number = number
                case fe.Read():
                    assert self._read is None, "one at a time"
                    self._read = effect
                case fe.TakeSoon():
                    assert not self._taking
                    self._taking = True
                case fe.SetTimer(timer):
                    assert timer not in self._timers
                    self._timers[timer] = None
                case fe.StopTimer(timer):
                    del self._timers[timer]

    def event(self) -> fe.Event:
        chance = self._chance
        self._now += chance.choice((0.0, 0.001, 0.3, 2.0, 11.0))
        if not self._started:
            self._started = True
            return fe.Started(self._now)
        kind = chance.choice((fe.Asked, fe.Asked, fe.Due, fe.Due, fe.WasRead, *fe.Event.__args__))
        key = chance.choice(KEYS)
        led = self._led[key]
        if kind is fe.Appended:
            first, led.end, led.lost = led.end, led.end + 1, 0
            return fe.Appended(key, b"new", first, led.end)
        if kind is fe.Advanced:
            led.hw_end = chance.randint(led.hw_end, max(led.end, led.hw_end))
            return fe.Advanced(key)
        if kind is fe.Began:
            return fe.Began(key)
        if kind is fe.AppendFailed:
            return fe.AppendFailed(key)
        if kind is fe.Asked:
            return fe.Asked(self._request(), 0, self._now)
        if kind is fe.TakeMore and self._taking:
            self._taking = False
            return fe.TakeMore(self._now)
        if kind is fe.Elapsed and self._timers:
            timer = chance.choice(list(self._timers))
            del self._timers[timer]
            return fe.Elapsed(timer, self._now)
        if kind in (fe.WasRead, fe.ReadFailed) and self._read is not None:
            read, self._read = self._read, None
            return fe.ReadFailed() if kind is fe.ReadFailed else self._was_read(read)
        return fe.Due(self._now)

    def _was_read(self, read: fe.Read) -> fe.WasRead:
        led = self._led[read.key]
        epoch, stop = led.epochs.run_at(read.offset, led.records_end)
        count = self._chance.choice((0, max(stop - read.offset, 0)))
        return fe.WasRead(b"old" * count, read.offset + count, epoch, read.offset + count, None)

    def _request(self) -> FetchRequest:
        chance = self._chance
        self._request_id += 1
        full = chance.random() < 0.2
        self._full_id = self._request_id if full else self._full_id
        self._reports = 0 if full else self._reports + chance.choice((1, 1, 1, 1, 1, 1, 2))
        positions = [self._position(key) for key in KEYS if full or chance.random() < 0.5]
        session = chance.choice((1, 1, 1, 1, 1, 1, 1, 1, 2))
        taken = chance.choice((0, self._number, self._number, self._number + 1))
        numbers = (session, 77, self._request_id, self._full_id, self._reports, taken)
        return FetchRequest(*numbers, "follower", full, positions)

    def _position(self, key: Key) -> Position:
        chance, led = self._chance, self._led[key]
        end = chance.choice((led.end, led.end, chance.randint(0, led.end)))
        last_epoch = chance.choice((led.epochs.run_at(end - 1, led.end)[0], 2, 3)) if end else 0
        epoch = chance.choice((5, 5, 5, 5, 4))
        return Position(*key, epoch, end, chance.randint(0, end), last_epoch, chance.random() < 0.1)
