"""Programs that print lines of JSON, run to their end or followed while they run.

The foreign clients of the interop tests are such programs: each does one thing and prints what it received.
"""

import json
import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Self

Event = dict[str, Any]
"""One line. Its `event` says what happened; the rest depends on it."""

END_TIMEOUT_S = 60.0


class ProgramError(RuntimeError):
    """The program failed, or did not print the expected event in time."""


class JsonProgram:
    """A program with the arguments every call of it gets."""

    def __init__(self, command: Sequence[str], **flags: object) -> None:
        self.command = list(command)
        self.flags = flags

    def __call__(self, action: str, **flags: object) -> list[Event]:
        """Run it to its end and return all its events."""
        with self.start(action, **flags) as running:
            return list(running.rest())

    def one(self, action: str, **flags: object) -> Event:
        """Run it to its end; it prints exactly one event."""
        events = self(action, **flags)
        if len(events) != 1:
            raise ProgramError(f"{action} {flags} printed {len(events)} events instead of one: {events}")
        return events[0]

    def start(self, action: str, **flags: object) -> "JsonProcess":
        """Run it on the side. `rest_of=1` becomes `-rest-of=1`, `flag=True` becomes `-flag=true`."""
        arguments = [f"-{name.replace('_', '-')}={_text(value)}" for name, value in {**self.flags, **flags}.items()]
        return JsonProcess([*self.command, action, *arguments])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class JsonProcess:
    """A running program. Its lines are read as they come, so it never waits for us."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors = ""
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors = self._process.stderr.read()

    @property
    def pid(self) -> int:
        return self._process.pid

    def next(self, event: str, timeout_s: float = END_TIMEOUT_S) -> Event:
        """Its next event, which must be this one."""
        said = self._next(timeout_s)
        if said is None or said.get("event") != event:
            raise ProgramError(f"{self.command} printed {said} instead of {event}\n{self._failure()}")
        return said

    def so_far(self) -> list[Event]:
        """The events that it has printed since the last one that was read; does not wait."""
        events = []
        while not self._lines.empty():
            if line := self._lines.get():
                events.append(json.loads(line))
        return events

    def _next(self, timeout_s: float) -> Event | None:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise ProgramError(f"{self.command} printed nothing for {timeout_s} s") from None
        said: Event | None = json.loads(line) if line else None
        return said

    def rest(self, timeout_s: float = END_TIMEOUT_S) -> Iterator[Event]:
        """All events until it ends, which must be with exit code 0."""
        while (said := self._next(timeout_s)) is not None:
            yield said
        if self._process.wait(timeout_s) != 0:
            raise ProgramError(f"{self.command} failed: {self._failure()}")

    def _failure(self) -> str:
        return self._errors.strip()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
