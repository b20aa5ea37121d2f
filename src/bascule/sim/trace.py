"""The events of a run in order, for people; and their digest, which is the same for two equal runs."""

import asyncio
import hashlib
from dataclasses import dataclass
from typing import NamedTuple

TIMELINE_EVENTS = 60
"""Shown around a violation."""
FAULTS = ("fault", "heal", "host", "phase")
NEIGHBOURS = 3
"""Events this many offsets before and after the offset of a violation are listed too."""


class Part(NamedTuple):
    """One partition of one creation of a stream: a stream that is created again under the same name is another one."""

    stream: str
    incarnation: int
    number: int

    def __str__(self) -> str:
        making = f"#{self.incarnation}" if self.incarnation > 1 else ""
        return f"{self.stream}{making}/{self.number}"


class Event(NamedTuple):
    at_s: float
    what: str
    text: str
    part: Part | None
    offset: int

    def __str__(self) -> str:
        where = f" {self.part}" if self.part is not None else ""
        offset = f" @{self.offset}" if self.offset >= 0 else ""
        return f"{self.at_s:11.6f}  {self.what:<9}{where}{offset} {self.text}"


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    text: str
    part: Part | None = None
    offset: int = -1

    def __str__(self) -> str:
        where = f" in {self.part}" if self.part is not None else ""
        at = f" at offset {self.offset}" if self.offset >= 0 else ""
        return f"{self.invariant}{where}{at}: {self.text}"


class Trace:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.events: list[Event] = []
        self._loop = loop

    def note(self, what: str, text: str, part: Part | None = None, offset: int = -1) -> None:
        self.events.append(Event(self._loop.time(), what, text, part, offset))

    def digest(self) -> str:
        text = "\n".join(map(str, self.events))
        return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()

    def timeline(self, violation: Violation, most: int = TIMELINE_EVENTS) -> list[str]:
        """The last events of its partition near its offset, and the last faults, in one order."""
        chosen = [number for number, event in enumerate(self.events) if _concerns(event, violation)]
        faults = [number for number in chosen if self.events[number].what in FAULTS]
        others = [number for number in chosen if self.events[number].what not in FAULTS]
        return [str(self.events[number]) for number in sorted(faults[-most // 2 :] + others[-most:])]


def _concerns(event: Event, violation: Violation) -> bool:
    if event.part is None:
        return event.what in FAULTS or event.what in ("log", "violation")
    if violation.part is None or event.part != violation.part:
        return False
    return event.offset < 0 or violation.offset < 0 or abs(event.offset - violation.offset) <= NEIGHBOURS
