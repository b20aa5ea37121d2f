"""Whether the brokers from which something is awaited still lead.

A broker that is partitioned from the others answers its clients, and commits nothing: whoever waits for acks from it,
or for messages, waits in vain. So when a call has been quiet for a while the other brokers are asked who leads, and the
call is given up if they name somebody else. Nobody is asked where there is one broker, nor about calls on which
something arrives.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from weakref import WeakSet

from bascule import limits
from bascule.client.values import Metadata
from bascule.errors import BasculeError, Status
from bascule.net.channel import ClientCall

logger = logging.getLogger(__name__)

Ask = Callable[[Sequence[str], Collection[str]], Awaitable[Metadata | None]]
"""Takes streams, and brokers of which others are asked first. None if there is no other broker."""


class Waiter(ABC):
    """A call of a client to one broker."""

    broker: str | None = None
    """Its id, if it is known."""
    patience_s = limits.CLIENT_QUIET_S

    @abstractmethod
    def quiet_since(self) -> float | None:
        """Since when nothing has arrived of what is awaited; None if nothing is."""

    @abstractmethod
    def awaited(self) -> Iterable[tuple[str, int | None]]:
        """Streams, with the partition that the broker has to lead, or None if it need not lead."""

    @abstractmethod
    def replaced(self, reason: str) -> None:
        """It waits in vain."""


class WatchedCall(Waiter):
    """One call after the other to the leader of a partition, while something is awaited on it."""

    def __init__(self, stream: str, partition: int) -> None:
        self._awaited = (stream, partition)
        self._from_leader = True
        self._call: ClientCall | None = None
        self.since: float | None = None

    def begin(self, call: ClientCall, broker: str | None, from_leader: bool = True) -> None:
        """Something is awaited of this call from now on, until `since` is None."""
        self._call, self.broker, self._from_leader = call, broker, from_leader
        self.since = asyncio.get_running_loop().time()

    def quiet_since(self) -> float | None:
        return self.since

    def awaited(self) -> Iterable[tuple[str, int | None]]:
        return [(self._awaited[0], self._awaited[1] if self._from_leader else None)]

    def replaced(self, reason: str) -> None:
        """The call ends as if its broker had gone away."""
        if self._call is not None:
            self._call.end(Status.UNAVAILABLE, reason)


class Watch:
    """Of all calls of a client."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiters: WeakSet[Waiter] = WeakSet()
        self._asked_at: dict[float, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, waiter: Waiter) -> None:
        """Until it is removed, or dropped."""
        if waiter.broker is None or self._closed:
            return
        self._waiters.add(waiter)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(limits.CLIENT_WATCH_TICK_S, self._tick)

    def remove(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)

    async def close(self) -> None:
        self._closed = True
        self._waiters.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _tick(self) -> None:
        self._timer = None
        if self._closed or not self._waiters:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.CLIENT_WATCH_TICK_S, self._tick)
        if self._asking is None:
            quiet = self._quiet(loop.time())
            if quiet:
                self._asking = loop.create_task(self._look(quiet))
                self._asking.add_done_callback(self._looked)

    def _quiet(self, now: float) -> list[Waiter]:
        """Those that have waited for their patience, since something arrived or since they were asked about."""
        asked, self._asked_at = self._asked_at, {}
        found = []
        for waiter in self._waiters:
            since = waiter.quiet_since()
            if since is None:
                continue
            key = hash((id(waiter), since))
            if now - max(since, asked.get(key, since)) >= waiter.patience_s:
                found.append(waiter)
                self._asked_at[key] = now
            elif key in asked:
                self._asked_at[key] = asked[key]
        return found

    async def _look(self, quiet: list[Waiter]) -> None:
        streams = sorted({stream for waiter in quiet for stream, _ in waiter.awaited()})
        try:
            known = await self._ask(streams, {waiter.broker for waiter in quiet if waiter.broker is not None})
        except (BasculeError, TimeoutError):
            return  # whoever is asked next may say more
        if known is None:
            return
        for waiter in quiet:
            if waiter in self._waiters and (reason := _replaced(waiter, known)):
                logger.info("%s", reason)
                self._waiters.discard(waiter)
                waiter.replaced(reason)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("who leads could not be asked for", exc_info=error)


def _replaced(waiter: Waiter, known: Metadata) -> str:
    for name, number in waiter.awaited():
        stream = known.streams.get(name)
        if stream is None:
            continue
        if number is None:
            if waiter.broker not in known.brokers:
                return f"broker {waiter.broker} is partitioned from the others, or down: these do not see it"
            continue
        partition = stream.partitions.get(number)
        if partition is not None and partition.leader != waiter.broker and partition.leader in known.brokers:
            return f"broker {partition.leader} leads partition {number} of stream {name} now, not {waiter.broker}"
    return ""
