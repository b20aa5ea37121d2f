"""The leading side of replication driven by text (see `tests.harness.scenario_text`).

The clock moves by `wait` alone, which lets timers elapse. What is to be sent leaves by `due`, or by itself during a
`wait`. Logs are numbers: where each ends, and its high watermark. Every record has ten bytes. What is read from a log
waits for `read`. The follower is played by `ask`, which numbers its requests and names the last response that was sent
as taken, unless it is told otherwise. Partitions are written 1/0: the index of the stream and the partition.
"""

import itertools
from dataclasses import dataclass, field
from unittest import mock

from bascule.core.metadata.streams import Key
from bascule.core.partition.epochs import EpochHistory
from bascule.core.replication import feed as feed_module
from bascule.core.replication import progress as progress_module
from bascule.core.replication.feed import (
    Advanced,
    Appended,
    AppendFailed,
    Asked,
    Began,
    DiskFailing,
    Due,
    Elapsed,
    Event,
    Feed,
    Fetched,
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
from bascule.wire.replication import Answer, FetchRequest, Kind, Position
from tests.harness.fetcher_scenario import key_of, text_of
from tests.harness.scenario_text import CommandRunner

RECORD_BYTES = 10


@dataclass
class Led:
    epoch: int
    end: int
    hw_end: int
    lost: int
    """The last offsets, for good."""
    epochs: EpochHistory = field(default_factory=EpochHistory)

    log_start: int = 0

    @property
    def records_end(self) -> int:
        return self.end - self.lost


class FeedScenario(CommandRunner):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._led: dict[Key, Led] = {}
        self._feed = Feed(self)
        self._timers: dict[Timer, float] = {}
        self._due = self._taking = False
        self._read: Read | None = None
        self._request_ids = itertools.count(1)
        self._full_id = self._reports = self._sent = 0
        self._bounds: list[object] = []
        self._step(Started(self._now))
        self.output = []

    def led(self, key: Key) -> Led | None:
        return self._led.get(key)

    def close(self) -> None:
        mock.patch.stopall()

    def do_bound(self, name: str, value: str) -> None:
        """One of the bounds, smaller than usual."""
        modules = [module for module in (feed_module, progress_module) if hasattr(module, name)]
        assert modules, name
        for module in modules:
            mock.patch.object(module, name, int(value)).start()

    # --- the partitions led here --------------------------------------------------------------------------------

    def do_lead(self, key: str, *words: str) -> None:
        """`end=` and `hw=`, `epoch=` (5), `lost=` for offsets at the end, `epochs=1:0,5:8` for where each begins."""
        given = dict(word.split("=") for word in words)
        end, epoch = int(given["end"]), int(given.get("epoch", 5))
        begins = given.get("epochs", f"{epoch}:0").split(",")
        epochs = EpochHistory((int(each.split(":")[0]), int(each.split(":")[1])) for each in begins)
        self._led[key_of(key)] = Led(epoch, end, int(given.get("hw", end)), int(given.get("lost", 0)), epochs)
        self._step(Began(key_of(key)))

    def do_resign(self, key: str) -> None:
        del self._led[key_of(key)]

    def do_append(self, key: str, count: str) -> None:
        led = self._led[key_of(key)]
        first, led.end = led.end, led.end + int(count)
        self._step(Appended(key_of(key), bytes(RECORD_BYTES * int(count)), first, led.end))

    def do_watermark(self, key: str, hw_end: str) -> None:
        self._led[key_of(key)].hw_end = int(hw_end)
        self._step(Advanced(key_of(key)))

    def do_append_failed(self, key: str, end: str) -> None:
        self._led[key_of(key)].end = int(end)
        self._step(AppendFailed(key_of(key)))

    # --- the follower -------------------------------------------------------------------------------------------

    def do_ask(self, *words: str) -> None:
        """`full`, `lost` on its way, `session=` (1), `id=`, `report=` and `taken=`; then where partitions stand:
        `1/0@8`, or `1/0@8,6` if only 6 are promised, `,e4` for the epoch of its last record, `,t4` for the leader's
        epoch, `,failing`."""
        given = dict(word.split("=") for word in words if "=" in word)
        positions = [self._position(word) for word in words if "@" in word]
        request_id, full = int(given.get("id") or next(self._request_ids)), "full" in words
        self._full_id = request_id if full else self._full_id
        self._reports = 0 if full else int(given.get("report", self._reports + 1))
        taken = 0 if full else int(given.get("taken", self._sent))
        session = int(given.get("session", 1))
        numbers = (session, 77, request_id, self._full_id, self._reports, taken)
        request = FetchRequest(*numbers, "follower", full, positions)
        if "lost" not in words:
            self._step(Asked(request, int(self._now * 1_000), self._now))

    def _position(self, word: str) -> Position:
        name, _, place = word.partition("@")
        end, *more = place.split(",")
        key = key_of(name)
        led = self._led.get(key)
        epoch = last_epoch = led.epoch if led else 5
        promised = int(end)
        for each in more:
            match each[0]:
                case "e":
                    last_epoch = int(each[1:])
                case "t":
                    epoch = int(each[1:])
                case "f":
                    pass
                case _:
                    promised = int(each)
        return Position(*key, epoch, int(end), promised, last_epoch, "failing" in more)

    # --- time and the disk --------------------------------------------------------------------------------------

    def do_due(self) -> None:
        self._due = False
        self._step(Due(self._now))

    def do_turn(self) -> None:
        """One turn of the event loop: what waits for the next one is taken."""
        assert self._taking
        self._taking = False
        self._step(TakeMore(self._now))

    def do_wait(self, seconds: str) -> None:
        until = self._now + float(seconds)
        while self._due or any(at <= until for at in self._timers.values()):
            if self._due:
                self.do_due()
                continue
            timer = min(self._timers, key=lambda each: self._timers[each])
            self._now = self._timers.pop(timer)
            self.output.append(f"{self._now:g} s: {timer.value}")
            self._step(Elapsed(timer, self._now))
        self._now = until

    def do_read(self, what: str = "") -> None:
        """What is read arrives: all there is within its bound, `nothing` or an error (`fails`)."""
        if self._read is None:
            self.output.append("nothing is read")
            return
        read, self._read = self._read, None
        if what == "fails":
            self._step(ReadFailed())
            return
        led = self._led.get(read.key)
        epoch, stop = (0, 0) if led is None else led.epochs.run_at(read.offset, led.records_end)
        count = min(stop - read.offset, max(read.max_bytes // RECORD_BYTES, 1)) if what != "nothing" else 0
        end = read.offset + max(count, 0)
        read_end = led.end if led is not None and end == led.records_end else end
        self._step(WasRead(bytes(RECORD_BYTES * max(count, 0)), end, epoch, read_end, "cursor"))

    # --- questions ----------------------------------------------------------------------------------------------

    def do_buffered(self) -> None:
        self.output.append(f"{self._feed.buffered_bytes} bytes")

    def do_knows(self, key: str) -> None:
        led = self._led[key_of(key)]
        known = "yes" if self._feed.knows(key_of(key), led.epoch) else "no"
        self.output.append(f"{known}, heard at {self._feed.heard_at} ms")

    # --- inside -------------------------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        for effect in self._feed.step(event):
            match effect:
                case Fetched(key, end, promised_end):
                    self.output.append(f"{text_of(key)} has {end}, promises {promised_end}")
                case DiskFailing(key, promised_end):
                    self.output.append(f"{text_of(key)} fails, promises {promised_end}")
                case SendSoon():
                    assert not self._due, "it was asked for already"
                    self._due = True
                    self.output.append("send soon")
                case TakeSoon():
                    self._taking = True
                    self.output.append("the rest in the next turn")
                case Send(session, request_id, number, answers):
                    self._sent = number
                    said = ", ".join(map(answer_text, answers)) or "nothing"
                    self.output.append(f"response {number} to request {request_id} of session {session}: {said}")
                case Read(key, offset, max_bytes):
                    assert self._read is None, "one at a time"
                    self._read = effect
                    self.output.append(f"read {text_of(key)} from {offset} on, {max_bytes} bytes")
                case SetTimer(timer, delay_s):
                    assert timer not in self._timers, "it is running"
                    self._timers[timer] = self._now + delay_s
                    if timer is not Timer.IDLE:
                        self.output.append(f"{timer.value} in {delay_s:g} s")
                case StopTimer(timer):
                    del self._timers[timer]
                    self.output.append(f"no {timer.value}")


def answer_text(answer: Answer) -> str:
    name = text_of((answer.stream_index, answer.partition))
    if answer.kind is Kind.REFUSED:
        return f"{name} refused"
    if answer.kind is Kind.DIVERGED:
        return f"{name} cut to {answer.epoch_end}, the end of epoch {answer.epoch}"
    end = answer.asked_end + len(answer.records) // RECORD_BYTES
    return f"{name} {answer.asked_end}-{end} hw={answer.hw_end}"
