"""Group commit: one disk round at a time for everything that every partition appended meanwhile.

Theory of operation: a log that got records is enqueued. If no round runs one starts at the next turn of the event loop;
otherwise the log waits for the next. A round takes the waiting records of every queued log, writes all of them at
once, and reports the result to each log. So the longer a sync takes the more it covers, and its cost is shared. A
second round beside the first was tried, in lock step and with random arrivals at 1 to 200 partitions: no gain beyond
noise. The results of a round with many logs are reported in slices, in order, and other tasks run in between; the next
round begins after the last.

A log that raises when it is asked or told has a bug, for errors of the disk are told to it: it fails for good, and the
round goes on for the others.

Modes, from the setting `streams.sync`: `group` promises what is synced. `interval:T` promises what is written and syncs
every T; `os` promises what is written and leaves syncing to the system. These two are *relaxed*.

Known to be imperfect: one slow file holds up the round for all others.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from bascule import limits
from bascule.errors import LogError
from bascule.ports import Clock, Disk, Write

_log = logging.getLogger("bascule.log")


class SyncMode(NamedTuple):
    mode: str
    interval_ns: int = 0

    @property
    def relaxed(self) -> bool:
        """Whether a promise may be broken by a power loss."""
        return self.mode != "group"

    @property
    def syncs(self) -> bool:
        """Whether written records are ever synced, at the latest by a clean shutdown."""
        return not self.relaxed or self.interval_ns > 0

    def __str__(self) -> str:
        return f"{self.mode}:{self.interval_ns / 1e6:g}ms" if self.interval_ns else self.mode


GROUP = SyncMode("group")


class Member(Protocol):
    """A log, as the scheduler sees it."""

    def take(self) -> list[Write]:
        """Everything that waits; `finish` follows with one result for each."""

    def finish(self, errors: list[OSError | None]) -> None: ...

    def take_unsynced(self) -> list[Write]:
        """Empty writes to the files that were promised without a sync; `finish_synced` follows."""

    def finish_synced(self, errors: list[OSError | None]) -> None: ...

    def fail(self, error: AssertionError) -> None:
        """One of these has failed by a bug: nothing is written any more, and what is on its way does not count."""


class Reports(Protocol):
    """What followers on this broker have to report to their leaders."""

    def push(self) -> None:
        """What waits for the end of this turn of the event loop leaves now."""


class SyncScheduler:
    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        mode: SyncMode,
        on_pressure: Callable[[bool], None],
        reports: Reports,
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_pressure` is called with True when so much waits for the disk that publishers should pause, and with
        False when they may go on. `reports` leave after each slice of results of a round, before the next round
        begins. Not so acks to publishers: the disk should not wait while these are sent. `on_fatal` ends the process:
        after a round that fails by anything but the disk, logs would wait for it for ever."""
        self.mode = mode
        self.waiting_bytes = 0
        self._on_pressure = on_pressure
        self._reports = reports
        self._on_fatal = on_fatal
        self._pressed = False
        self._relieved: list[asyncio.Future[None]] = []
        self.synced_folders: dict[str, None] = {}
        """Folders that were there when this process started, and that it has synced."""
        self.stored: dict[Member, None] = {}
        """Logs that had records stored. The check of their files (`presence`) takes them out."""
        self.rounds = 0
        self.last_round_ns = 0
        self._disk = disk
        self._clock = clock
        self._queued: dict[Member, None] = {}
        self._unsynced: dict[Member, None] = {}
        self._round: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timed_sync: asyncio.Task[None] | None = None

    # --- what logs call -----------------------------------------------------------------------------------

    def reserve(self, count: int) -> None:
        """Count that many waiting bytes until `release`; raises LogError if the disk is too far behind. It is not if
        nothing waits, however large an append is: one that is never taken would be sent again for ever."""
        if self.waiting_bytes and self.waiting_bytes + count > limits.MAX_UNSYNCED_BYTES:
            raise LogError(
                f"{self.waiting_bytes} bytes wait for the disk already, and {limits.MAX_UNSYNCED_BYTES} is the most: "
                "publishers are faster than the disk; slow them down or use a faster disk"
            )
        self.waiting_bytes += count
        if not self._pressed and self.waiting_bytes > limits.UNSYNCED_HIGH_BYTES:
            self._press(True)

    def release(self, count: int) -> None:
        self.waiting_bytes -= count
        if self._pressed and self.waiting_bytes < limits.UNSYNCED_LOW_BYTES:
            self._press(False)

    def _press(self, pressed: bool) -> None:
        self._pressed = pressed
        self._on_pressure(pressed)
        if not pressed:
            waiting, self._relieved = self._relieved, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def room(self) -> None:
        """Returns when publishers need not pause. Whoever appends next, in the same turn of the event loop, is not
        followed by others that were told the same."""
        while self._pressed:
            self._relieved.append(asyncio.get_running_loop().create_future())
            await self._relieved[-1]

    def enqueue(self, log: Member) -> None:
        """`log` has something waiting."""
        self._queued[log] = None
        if self._round is None:
            self._round = asyncio.get_running_loop().create_task(self._run_rounds())

    def leave(self, log: Member) -> None:
        """`log` is closed or deleted, and has nothing waiting."""
        self._queued.pop(log, None)
        self._unsynced.pop(log, None)
        self.stored.pop(log, None)

    async def close(self) -> None:
        """Finish what waits; under `interval` sync it too. Logs are closed before."""
        while self._round is not None:
            await self._round
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._timed_sync is not None:
            await self._timed_sync
        await self._sync_unsynced()

    # --- rounds -------------------------------------------------------------------------------------------

    async def _run_rounds(self) -> None:
        try:
            while self._queued:
                await self._run_round()
        except Exception as error:
            self._end(error)
        finally:
            self._round = None

    def _end(self, error: Exception) -> None:
        _log.error("the group commit ended", exc_info=error)
        self._on_fatal(f"the group commit ended unexpectedly: {error!r}; start the broker again, and report this")

    async def _run_round(self) -> None:
        began_ns = self._clock.monotonic_ns()
        logs, self._queued = list(self._queued), {}
        parts = [(log, self._taken(log, log.take)) for log in logs]
        writes = [write for _, taken in parts for write in taken]
        if writes:
            errors = await self._commit(writes, sync=not self.mode.relaxed)
            self.stored.update(dict.fromkeys(logs))
            await self._tell(parts, errors, synced=False)
            self.rounds += 1
            self.last_round_ns = self._clock.monotonic_ns() - began_ns
        if self.mode.interval_ns:
            self._unsynced.update(dict.fromkeys(logs))
            if self._unsynced and self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self.mode.interval_ns / 1e9, self._start_timed_sync)

    def _start_timed_sync(self) -> None:
        self._timer = None
        if self._timed_sync is None:
            self._timed_sync = asyncio.get_running_loop().create_task(self._sync_on_time())

    async def _sync_on_time(self) -> None:
        try:
            await self._sync_unsynced()
        except Exception as error:
            self._end(error)
        finally:
            self._timed_sync = None

    async def _sync_unsynced(self) -> None:
        logs, self._unsynced = list(self._unsynced), {}
        parts = [(log, taken) for log in logs if (taken := self._taken(log, log.take_unsynced))]
        writes = [write for _, taken in parts for write in taken]
        if writes:
            await self._tell(parts, await self._commit(writes, sync=True), synced=True)

    def _taken(self, log: Member, take: Callable[[], list[Write]]) -> list[Write]:
        try:
            return take()
        except Exception as error:
            log.fail(_bug(error))
            return []

    async def _commit(self, writes: list[Write], sync: bool) -> list[OSError | None]:
        try:
            return await self._disk.commit(writes, sync)
        except OSError as error:
            return [error] * len(writes)

    async def _tell(self, parts: list[tuple[Member, list[Write]]], errors: list[OSError | None], synced: bool) -> None:
        for start in range(0, len(parts), limits.SYNC_RESULTS_SLICE):
            if start:
                await asyncio.sleep(0)
            some = parts[start : start + limits.SYNC_RESULTS_SLICE]
            self._tell_some(some, errors, synced)
            errors = errors[sum(len(taken) for _, taken in some) :]

    def _tell_some(self, parts: list[tuple[Member, list[Write]]], errors: list[OSError | None], synced: bool) -> None:
        first = 0
        for log, taken in parts:
            answer = errors[first : first + len(taken)]
            first += len(taken)
            try:
                log.finish_synced(answer) if synced else log.finish(answer)
            except Exception as error:  # one partition's bug must not keep the others from their promises
                log.fail(_bug(error))
        self._reports.push()


def _bug(error: Exception) -> AssertionError:
    if isinstance(error, AssertionError):
        return error
    unexpected = AssertionError(f"nothing but the disk fails in a group commit, but {error!r}")
    unexpected.__cause__ = error
    return unexpected
