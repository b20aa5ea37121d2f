"""A consumer that shares its streams with the other members of its group: each partition has one reader among them.

What was given counts as handled when the next message is asked for, or when it is committed. A message that is in its
user's hands is not committed by `auto_commit`, nor at the end of a block that ends with an error.

Partitions come and go while it is iterated; `on_revoked` and `on_assigned` are called in between, by whoever iterates:
never while a message is handled. Nothing of a partition is given after it was revoked, or before it was assigned.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
import threading
import uuid
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.consumer import Consuming, Position
from bascule.client.failures import Deadline
from bascule.client.member import GroupStart, Member
from bascule.client.membership import by_stream
from bascule.client.parts import Name
from bascule.client.subscription import OnLost, Reading
from bascule.client.values import Message
from bascule.errors import BasculeError, InvalidArgument

logger = logging.getLogger(__name__)

Assignment = dict[str, list[int]]
"""By stream, numbers of partitions."""
OnAssignment = Callable[[Assignment], Awaitable[None] | None]
_inside: ContextVar[bool] = ContextVar("inside", default=False)
"""A callback runs: if it closes the consumer, that does not wait for the callback."""


class GroupConsumer(Consuming):
    """Made by `Client.consumer(..., group=...)`. Use it in `async with`, or `close` it: then it leaves the group, and
    the other members get its partitions at once."""

    def __init__(
        self,
        cluster: Cluster,
        streams: Sequence[str],
        group: str,
        *,
        member: str,
        start: GroupStart,
        auto_commit: float | None,
        on_assigned: OnAssignment | None,
        on_revoked: OnAssignment | None,
        resume_paused: bool,
        on_lost: OnLost | None,
    ) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__()
        if not streams:
            raise InvalidArgument("no stream was given")
        if not group:
            raise InvalidArgument("the name of the group is empty")
        if isinstance(start, int) or start == "latest":
            raise InvalidArgument(
                f"start={start!r}: a group that has committed nothing begins with earliest, new or a time"
            )
        Reading("", 0, start, None, False, False).check()
        if auto_commit is not None and auto_commit <= 0:
            raise InvalidArgument(f"auto_commit={auto_commit}: seconds, or None to commit yourself")
        self._cluster = cluster
        self._group = group
        self._auto_commit = auto_commit
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._announced: frozenset[Name] = frozenset()
        """What the user was told to have."""
        self._opened = False
        self._batch_from: int | None = None
        self._giving = threading.Lock()
        """Messages that have arrived are given in the thread of a blocking consumer, and lost in the client's own."""
        """The first offset of the batch in the user's hands, if it is a batch."""
        self._committing: asyncio.Task[None] | None = None
        self._telling: asyncio.Future[None] | None = None
        """A callback that is under way."""
        lose = weakref.WeakMethod(self._lose)
        self.id = member or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._member = Member(
            cluster,
            group,
            self.id,
            list(dict.fromkeys(streams)),
            start,
            resume_paused,
            on_lost,
            bool(member),
            self._parts,
            self._next,
            lambda names: None if (known := lose()) is None else known(names),
        )

    def __repr__(self) -> str:
        return f"<GroupConsumer {self.id} of group {self._group}, {len(self._member.held)} partitions>"

    async def __aenter__(self) -> Self:
        try:
            await self.ready()
        except BaseException:
            await self._end({})
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self._end(self._handled() if self._auto_commit is not None else {})
        except BasculeError as second:
            logger.warning("group %s: what was handled before the error is not committed: %s", self._group, second)

    def __del__(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._parts.cancel(self._loop)
            self._loop.call_soon_threadsafe(self._member.abandon)

    async def ready(self) -> None:
        """It is a member of its group, and the brokers have accepted the subscriptions of its first partitions."""
        if self._closed:
            return
        self._cluster.connections.check_open()
        self._loop = asyncio.get_running_loop()
        self._member.start()
        if not self._opened:
            await self._member.started()
            self._opened = True
            if self._auto_commit is not None:
                commit = weakref.WeakMethod(self._commit_handled)
                self._committing = asyncio.create_task(_every(self._auto_commit, commit, self._group))
                weakref.finalize(self, _cancel, self._loop, self._committing)

    async def close(self) -> None:
        """Stop reading, commit what was given if `auto_commit` is on, and leave the group. Harmless when it is closed.
        Raises what kept it from committing."""
        await self._end(dict(self._next) if self._auto_commit is not None else {})

    async def _end(self, handled: Mapping[Name, int]) -> None:
        if self._closed:
            return
        self._closed = True
        self._buffered = iter(())
        try:
            if self._committing is not None:
                self._committing.cancel()
                await asyncio.gather(self._committing, return_exceptions=True)
            await self._parts.close()
            self._member.told.clear()
            await self._tell(self._on_revoked, self._announced)
            if handled:
                await self._member.commit(handled, Deadline(limits.CLIENT_ACK_TIMEOUT_S))
        finally:
            await self._member.leave()

    # --- what it has --------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> Assignment:
        """The partitions that are its own now."""
        return dict(by_stream(list(self._member.held)))

    @property
    def group(self) -> str:
        return self._group

    async def commit(
        self, position: Position | None = None, *, timeout: float = limits.CLIENT_TIMEOUT_S
    ) -> dict[str, dict[int, int]]:
        """Store how far the group is: all that was given up to now, or a `position`, which names the messages to go on
        with. Returns what was stored. Partitions that have gone to other members meanwhile are left out: those members
        go on at the commit before, and store their own."""
        self._cluster.connections.check_open()
        wanted = dict(self._next)
        if position is not None:
            wanted = {(name, int(number)): offset for name, of in position.items() for number, offset in of.items()}
        stored = await self._member.commit(wanted, Deadline(timeout))
        found: dict[str, dict[int, int]] = {}
        for (stream, partition), offset in sorted(stored.items()):
            found.setdefault(stream, {})[partition] = offset
        return found

    def _handled(self) -> dict[Name, int]:
        """What was given, but for what is in the user's hands."""
        handled = dict(self._next)
        if not self._busy and self._current in handled:
            first = handled[self._current] - 1 if self._batch_from is None else self._batch_from
            handled[self._current] = min(first, handled[self._current])
        return handled

    async def _commit_handled(self) -> None:
        await self._member.commit(self._handled(), Deadline(limits.CLIENT_TIMEOUT_S))

    # --- reading ------------------------------------------------------------------------------------------------

    async def next_batch(self) -> list[Message]:
        batch = await super().next_batch()
        self._batch_from = batch[0].offset if batch else None
        return batch

    async def _batch(self) -> tuple[Name, list[Message]] | None:
        self._batch_from = None
        self._current = ("", 0)  # what was given is handled
        while not self._closed:
            await self._finish_telling()
            if self._member.told:
                told = self._member.told.popleft()
                self._announced = self._announced | told.names if told.assigned else self._announced - told.names
                await self._tell(self._on_assigned if told.assigned else self._on_revoked, told.names)
                continue  # the callback may have closed it
            self._member.check()
            if (found := await self._taken()) is not None:
                return found
            await self._parts.wait()
        return None

    async def _taken(self) -> tuple[Name, list[Message]] | None:
        """Of a partition that has gone to another member an error means nothing."""
        try:
            found = self._parts.take()
        except BasculeError:
            name = self._parts.last
            await self._member.confirm(Deadline(limits.CLIENT_RESUBSCRIBE_S))
            if name in self._member.held:
                raise
            return None
        if found is not None and not found[1]:
            self._member.ended(found[0])
            return None
        return found

    def next_buffered(self) -> Message | None:
        """One that has arrived already; None if there is none."""
        with self._giving:
            return super().next_buffered()

    def _lose(self, names: frozenset[Name]) -> None:
        """Nothing of these is given any more."""
        with self._giving:
            if self._current in names:
                self._buffered = iter(())
                self._current = ("", 0)

    async def _tell(self, callback: OnAssignment | None, names: frozenset[Name]) -> None:
        if not _inside.get():
            await self._finish_telling()
        if callback is not None and names:
            token = _inside.set(True)
            try:
                told = callback(dict(by_stream(names)))
                self._telling = asyncio.ensure_future(told) if inspect.isawaitable(told) else None
            finally:
                _inside.reset(token)
            await self._finish_telling()

    async def _finish_telling(self) -> None:
        """A callback runs to its end, once, also if `next` waits no longer: whoever asks next waits for it, and has its
        error."""
        telling = self._telling
        if telling is not None:
            await asyncio.wait([telling])
            self._telling = None
            telling.result()


def check_group(group: str | None, partitions: object, start: object, stop: object, last: object) -> None:
    """Arguments of a consumer that exclude each other."""
    if group is None:
        raise InvalidArgument("member, on_assigned and on_revoked are those of a group: name it with group=")
    if partitions != "all" or stop is not None or last is not None or isinstance(start, Mapping):
        raise InvalidArgument("a group says what its members read: partitions, stop, last or a position do not")


async def _every(
    seconds: float, commit: weakref.WeakMethod[Callable[[], Coroutine[Any, Any, None]]], group: str
) -> None:
    """Knows no consumer: one that is dropped ends it."""
    while True:
        await asyncio.sleep(seconds)
        known = commit()
        if known is None:
            return
        try:
            await known()
        except BasculeError as error:
            logger.warning("group %s: not committed, which is tried again in %g s: %s", group, seconds, error)
        finally:
            del known


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)
