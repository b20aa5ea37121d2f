"""The input of `bascule pub`: lines of stdin as they arrive, and how much of a file is published."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager

from bascule import limits
from bascule.cli.output import console, showing_progress
from bascule.client.pipeline import OnAcks
from bascule.errors import InvalidArgument


class Unreadable(InvalidArgument):
    """What stdin has cannot be messages."""


class Lines:
    """Lines of stdin without their ends. If stdin is a file, `published` says how many bytes of it are confirmed."""

    def __init__(self) -> None:
        self._read = 0
        self._given = 0
        self.tracked = False
        """Whether somebody asks for `published`: the marks are kept only then."""
        self._marks: deque[tuple[int, int]] = deque()
        """(lines, bytes): when so many lines are confirmed, so many bytes are. One for each read."""

    @property
    def size(self) -> int | None:
        """Bytes that there are to read; None if stdin is no file, and nobody knows."""
        about = os.fstat(sys.stdin.fileno())
        if not stat.S_ISREG(about.st_mode):
            return None
        return max(0, about.st_size - os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR))

    def published(self, confirmed: int) -> int:
        """Bytes whose lines are among the first so many."""
        while len(self._marks) > 1 and self._marks[1][0] <= confirmed:
            self._marks.popleft()
        return self._marks[0][1] if self._marks and self._marks[0][0] <= confirmed else 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = b""
        async for data in _stdin():
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            if len(rest) > limits.GRPC_MAX_MESSAGE_BYTES:
                raise Unreadable("a line of stdin is longer than a message may be: is it text?")
            self._mark(len(lines), len(data))
            for line in lines:
                yield line.removesuffix(b"\r")
        if rest:
            self._mark(1, 0)
            yield rest

    def _mark(self, lines: int, size: int) -> None:
        self._given += lines
        self._read += size
        if self.tracked:
            self._marks.append((self._given, self._read))


async def _stdin() -> AsyncIterator[bytes]:
    """Input as it arrives. Read in a daemon thread: a terminal without input must not delay the exit."""
    loop, source = asyncio.get_running_loop(), sys.stdin.fileno()
    arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue(maxsize=1)

    def pump() -> None:
        data: bytes | OSError = b"more"
        while data and isinstance(data, bytes):
            data = _some(source)
            try:
                asyncio.run_coroutine_threadsafe(arrived.put(data), loop).result()
            except (RuntimeError, CancelledError):
                return  # the loop has ended before the input did

    threading.Thread(target=pump, name="stdin", daemon=True).start()
    while data := await arrived.get():
        if isinstance(data, OSError):
            raise data
        yield data


def _some(source: int) -> bytes | OSError:
    """Nothing at the end. Another process may have made what it shares with us non-blocking."""
    while True:
        try:
            return os.read(source, limits.CLIENT_PUBLISH_BATCH_BYTES)
        except BlockingIOError:
            select.select([source], [], [])
        except OSError as error:
            return OSError(error.errno, error.strerror, "stdin")


@contextmanager
def progress(lines: Lines) -> Iterator[OnAcks]:
    """A bar on the terminal: messages and their rate; of a file also the part that is published."""
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

    total = lines.size
    lines.tracked = total is not None
    columns: list[ProgressColumn] = [SpinnerColumn()]
    if total is not None:
        columns += [BarColumn(), TextColumn("{task.percentage:>3.0f} %")]
    columns += [TextColumn("published {task.fields[count]:,}, {task.fields[rate]:,}/s"), TimeElapsedColumn()]
    with showing_progress(), Progress(*columns, console=console(), transient=True) as bar:
        task = bar.add_task("", total=total, count=0, rate=0)
        count = 0

        def on_acks(acks: list[tuple[int, int, int]]) -> None:
            nonlocal count
            count += len(acks)
            rate = int(count / max(bar.tasks[0].elapsed or 0.0, 0.001))
            bar.update(task, completed=lines.published(count), count=count, rate=rate)

        yield on_acks
