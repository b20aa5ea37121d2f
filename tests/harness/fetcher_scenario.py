"""The following side of replication driven by text (see `tests.harness.scenario_text`).

The clock moves by `wait` alone, which lets timers elapse. A request leaves by `due`, or by itself at the end of `wait`.
What is sent and handed over is written down; the leader is played by `response`. Partitions are written 1/0: the index
of the stream and the partition.
"""

from bascule.core.metadata.streams import Key
from bascule.core.replication.fetcher import (
    Changed,
    Deliver,
    Delivered,
    Due,
    Elapsed,
    Event,
    Fetcher,
    Followed,
    Gather,
    Received,
    Send,
    SendSoon,
    SetTimer,
    Started,
    StartOver,
    Timer,
    Unfollowed,
    Unsent,
)
from bascule.wire.replication import Answer, FetchPart, Kind, encode_response
from tests.harness.scenario_text import CommandRunner

OWN_SESSION = 7


def key_of(word: str) -> Key:
    stream, _, partition = word.partition("/")
    return int(stream), int(partition)


def text_of(key: Key) -> str:
    return f"{key[0]}/{key[1]}"


class FetcherScenario(CommandRunner):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._requests = 0
        self._timers: dict[Timer, float] = {}
        self._waits = False
        self._rejecting: list[Key] = []
        self._away = False

    # --- the broker ---------------------------------------------------------------------------------------------

    def do_start(self, *words: str) -> None:
        """`timeout=` and `idle=` in seconds."""
        given = dict(word.split("=") for word in words)
        self._fetcher = Fetcher(OWN_SESSION, float(given.get("timeout", 1.5)), float(given.get("idle", 0.8)))
        self._step(Started(self._now))

    def do_follow(self, *keys: str) -> None:
        for key in keys:
            self._step(Followed(key_of(key)))

    def do_unfollow(self, key: str) -> None:
        self._step(Unfollowed(key_of(key)))

    def do_changed(self, *keys: str) -> None:
        for key in keys:
            self._step(Changed(key_of(key)))

    def do_start_over(self) -> None:
        self._step(StartOver())

    def do_gather(self, word: str) -> None:
        self._step(Gather(word == "on"))

    def do_rejects(self, *keys: str) -> None:
        """From now on these partitions do not take the records that come."""
        self._rejecting = [key_of(key) for key in keys]

    def do_nats(self, word: str) -> None:
        """`away`, or back."""
        self._away = word == "away"

    # --- time ---------------------------------------------------------------------------------------------------

    def do_due(self) -> None:
        self._waits = False
        self._requests += 1
        self._step(Due(self._now, self._requests))

    def do_wait(self, seconds: str) -> None:
        """Timers elapse in their order, and what is to be sent is sent."""
        until = self._now + float(seconds)
        while self._waits or any(at <= until for at in self._timers.values()):
            if self._waits:
                self.do_due()
                continue
            timer = min(self._timers, key=lambda each: self._timers[each])
            self._now = self._timers.pop(timer)
            self.output.append(f"{self._now:g} s: {timer.value}")
            self._step(Elapsed(timer, self._now))
        self._now = until

    # --- the leader ---------------------------------------------------------------------------------------------

    def do_response(self, number: str, *words: str) -> None:
        """`1/0` for records, `1/0:hw` for a high watermark, `1/0:refused`. `to=` is the request it answers, the last
        one if nothing is said; `leader=` and `session=` are those of both ends; `part=0/2` gives one part of it."""
        options = dict(word.split("=") for word in words if "=" in word)
        answers = [self._answer(word) for word in words if "=" not in word]
        whole = b"".join(encode_response(answers))
        part, _, parts = options.get("part", "0/1").partition("/")
        size = -(-len(whole) // int(parts))
        piece = whole[int(part) * size : (int(part) + 1) * size]
        sessions = (int(options.get("session", OWN_SESSION)), int(options.get("leader", 3)))
        to = int(options.get("to", self._requests))
        self._step(Received(FetchPart(*sessions, to, int(number), int(part), int(parts), piece), self._now))

    def _answer(self, word: str) -> Answer:
        name, _, what = word.partition(":")
        kind = Kind.REFUSED if what == "refused" else Kind.DATA
        return Answer(*key_of(name), kind, 1, 0, 0, 0, 0, 0, 0, b"" if what else b"records")

    # --- inside -------------------------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        for effect in self._fetcher.step(event):
            match effect:
                case SendSoon():
                    assert not self._waits, "it was asked for already"
                    self._waits = True
                    self.output.append("send soon")
                case Send():
                    self._send(effect)
                case Deliver(answers):
                    keys = [(answer.stream_index, answer.partition) for answer in answers]
                    self.output += [f"deliver {text_of(key)}" for key in keys]
                    rejected = [each for each in answers if each.records and each[:2] in self._rejecting]
                    accepted = len(rejected) < len(answers)
                    self._step(Delivered(effect.request_id, effect.quiet, accepted, bool(rejected), self._now))
                case SetTimer(timer, delay_s):
                    assert timer not in self._timers, "it is running"
                    self._timers[timer] = self._now + delay_s
                    self.output.append(f"{timer.value} in {delay_s:g} s")

    def _send(self, send: Send) -> None:
        numbers = f"full={send.full_id} report={send.report} taken={send.taken}"
        kind = "all of" if send.full else "changed"
        self.output.append(
            f"request {send.request_id} to session {send.leader_session}: {numbers}, {kind} "
            f"{' '.join(map(text_of, send.keys)) or 'nothing'}{' (NATS is away)' if self._away else ''}"
        )
        if self._away:
            self._step(Unsent())
