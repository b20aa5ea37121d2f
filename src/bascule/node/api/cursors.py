"""SetCursor and FetchCursor: where a client has got to, stored in the stream `__cursors`.

The leader of the cursor's partition answers, and nobody else. It stores a cursor in its own log without NATS, so that a
call that timed out is never stored after one that came later, and acks it when the whole in-sync set has it. Before it
answers what a cursor is, it makes sure that it leads still, and that everything its predecessors had committed is
committed again: no answer is older than one that was given, or than a value that was acked.

A cursor is a position in the stream that had its name when it was set. Once that stream was deleted and made again, the
cursor counts as never set: the same offsets are other messages, and whoever went on there would leave messages out.
Cursors may be set for streams that do not exist; these hold for whatever stream is made.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from bascule import limits
from bascule.core.cursors.keys import CursorName, partition_of
from bascule.core.cursors.offsets import Budget
from bascule.core.metadata.streams import CURSORS
from bascule.errors import (
    BasculeError,
    CallerError,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    Unavailable,
)
from bascule.node.api.cursorlog import CursorLog
from bascule.node.api.leadership import Resume, confirm_leads, resume_here
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import POLL_S
from bascule.node.membership.peers import SESSION_S
from bascule.node.partition.environment import Environment
from bascule.node.partition.leading import Leading
from bascule.node.partition.manager import ReplicaManager
from bascule.node.partition.replica import Replica
from bascule.node.partition.replicas import Replicas
from bascule.node.partition.sender import MessageSender
from bascule.ports import Call
from bascule.wire.pb import api_pb2 as api

DEFAULT_TIMEOUT_S = 5.0
NEVER_SET = -1

T = TypeVar("T")


class _Led(NamedTuple):
    """What is known about the cursors of a partition, in one leadership."""

    leading: Leading
    log: CursorLog


class _Setters:
    """Calls that set the same cursor."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.calls = 0


class Cursors:
    def __init__(
        self,
        environment: Environment,
        replicas: Replicas,
        cluster: Cluster,
        manager: ReplicaManager,
        resume: Resume,
        sender: MessageSender,
    ) -> None:
        self._configured = environment.settings.cursors.partitions > 0
        self._replicas = replicas
        self._cluster = cluster
        self._manager = manager
        self._resume = resume
        self._sender = sender
        self._budget = Budget(limits.CURSOR_INDEX_ENTRIES)
        self._led: dict[int, _Led] = {}
        self._setters: dict[bytes, _Setters] = {}
        """By key of the cursors that are being set."""

    async def set_cursor(self, request: api.SetCursorRequest, call: Call) -> api.SetCursorResponse:
        cursor = CursorName(request.cursorId, request.stream, request.partition)
        cursor.check()
        async with _in_time(call):
            number = await self._partition_of(cursor)
            async with self._serialized(cursor.key):
                await self._on_leader(number, lambda replica: self._store(replica, number, cursor, request.offset))
        return api.SetCursorResponse()

    async def fetch_cursor(self, request: api.FetchCursorRequest, call: Call) -> api.FetchCursorResponse:
        cursor = CursorName(request.cursorId, request.stream, request.partition)
        cursor.check()
        async with _in_time(call):
            number = await self._partition_of(cursor)
            offset = await self._on_leader(number, lambda replica: self._find(replica, number, cursor))
        return api.FetchCursorResponse(offset=NEVER_SET if offset is None else offset)

    async def _store(self, replica: Replica, number: int, cursor: CursorName, offset: int) -> None:
        creation = await self._creation_of(cursor)
        if replica.leading is None:
            raise _elsewhere(number)
        stored = api.PublishRequest(
            stream=CURSORS, partition=number, key=cursor.key, value=cursor.value(offset, creation), ackPolicy=api.ALL
        )
        try:
            await self._sender.store(replica.leading, stored)
        except CallerError as error:  # nothing that the caller could do better
            raise Internal(str(error)) from error
        led = self._led.get(number)
        if led is not None and led.leading is replica.leading and led.log.lag > limits.CURSOR_INDEX_LAG:
            await led.log.catch_up()

    async def _find(self, replica: Replica, number: int, cursor: CursorName) -> int | None:
        if not await confirm_leads(self._cluster, replica):
            raise _elsewhere(number)
        await replica.established(SESSION_S)
        found = await self._log_of(replica, number).find(cursor)
        stream = self._cluster.metadata.stream(cursor.stream)  # not older than the question: `confirm_leads`
        if found is None or not found.holds_for(stream.creation_index if stream is not None else None):
            return None
        return found.offset

    async def _creation_of(self, cursor: CursorName) -> int:
        """0 if there is no such stream, by metadata that is not older than the call: a cursor with the number of an
        earlier stream of that name would count as never set, and hide the one before it; one without a number would
        outlive the stream."""
        await self._cluster.current(SESSION_S)
        stream = self._cluster.metadata.stream(cursor.stream)
        return stream.creation_index if stream is not None else 0

    # --- where it is -----------------------------------------------------------------------------------------

    async def _partition_of(self, cursor: CursorName) -> int:
        while (stream := self._cluster.metadata.stream(CURSORS)) is None:
            if not self._configured:
                raise Internal("Cursors stream does not exist")
            await asyncio.sleep(POLL_S)  # the controller is about to create it
        return partition_of(cursor.key, len(stream.partitions))

    async def _on_leader(self, number: int, work: Callable[[Replica], Awaitable[T]]) -> T:
        """Does the work on the partition if this broker leads it, also if it is paused, or is paused meanwhile."""
        while True:
            replica = await self._replica(number)
            try:
                return await work(replica)
            except BasculeError:
                if not replica.paused:
                    raise

    async def _replica(self, number: int) -> Replica:
        if self._replicas.is_paused(CURSORS, number):
            if not self._replicas.is_assigned_here(CURSORS, number, as_follower=False):
                raise _elsewhere(number)
            try:
                await resume_here(self._manager, self._resume, CURSORS, number, DEFAULT_TIMEOUT_S)
            except BasculeError as error:
                raise Internal(f"Failed to resume stream: {error}") from error
        replica = self._replicas.find(CURSORS, number)
        if replica is None or replica.leading is None:
            raise _elsewhere(number)
        return replica

    def _log_of(self, replica: Replica, number: int) -> CursorLog:
        """Made anew when a leadership begins."""
        if replica.leading is None:
            raise _elsewhere(number)
        led = self._led.get(number)
        if led is None or led.leading is not replica.leading:
            for other in [each for each, known in self._led.items() if not self._leads(each, known)]:
                self._led.pop(other).log.release()
            led = self._led[number] = _Led(replica.leading, CursorLog(replica.log, self._budget))
        return led.log

    def _leads(self, number: int, known: _Led) -> bool:
        replica = self._replicas.find(CURSORS, number)
        return replica is not None and replica.leading is known.leading

    @asynccontextmanager
    async def _serialized(self, key: bytes) -> AsyncIterator[None]:
        """One call after the other sets a cursor."""
        setters = self._setters.get(key)
        if setters is None:
            if len(self._setters) >= limits.CURSORS_SET_AT_ONCE:
                raise Unavailable("too many cursors are being set on this broker; try again")
            setters = self._setters[key] = _Setters()
        setters.calls += 1
        try:
            async with setters.lock:
                yield
        finally:
            setters.calls -= 1
            if not setters.calls:
                del self._setters[key]


def _elsewhere(number: int) -> FailedPrecondition:
    return FailedPrecondition(f"Server not leader for cursors partition {number}")


@asynccontextmanager
async def _in_time(call: Call) -> AsyncIterator[None]:
    remaining = call.time_remaining()
    timeout_s = DEFAULT_TIMEOUT_S if remaining is None else remaining
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"no answer within {timeout_s:g} s; a cursor may be set or not") from None
