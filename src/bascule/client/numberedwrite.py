"""Framed messages to one partition in bulk, each stored once, although its writer may send it again: after a lost
connection, a new leader, or a crash of the writer itself. Bascule only.

The writer chooses the producer's id and epoch, and gives the same ones whenever it writes the same messages in the same
order. Messages are numbered from 0 on in the order in which they are sent. A batch stays in memory until it is acked;
when a call is lost, the next one sends again what has no ack.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from bascule import limits
from bascule.client.bulk import messages_of, not_leader
from bascule.client.bulkwrite import WRITE
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline, from_status
from bascule.client.watch import WatchedCall
from bascule.errors import BasculeError, CorruptError, RpcError, Status, TimedOut, Unavailable, Unimplemented
from bascule.net.channel import ClientCall
from bascule.wire.grpc import frame
from bascule.wire.pb import log_pb2 as pb

OWN_IDS_FROM = 1 << 62
"""An id that a writer chooses is at least this."""
_PASSING = (Status.UNAVAILABLE, Status.UNKNOWN, Status.INTERNAL, Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED)
"""Mostly pass: no leader, a disk that fails, too many calls."""


_Condition = Callable[[], bool]


class Identity(NamedTuple):
    """Of a writer: who gives the same numbers to the same messages."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class WriteTo:
    stream: str
    partition: int
    creation: int = 0
    """As `log_bounds` gives it; a stream that was made again is then refused."""
    bypass_others: bool = False


@dataclass(frozen=True, slots=True)
class _Batch:
    sequence: int
    count: int
    request: bytes


class NumberedWrite:
    """`open` it, `send` batches, and `finish`: then all are stored."""

    def __init__(
        self,
        cluster: Cluster,
        to: WriteTo,
        identity: Identity,
        patience_s: float = limits.CLIENT_RETRY_FOR_S,
        timeout: float = limits.CLIENT_ACK_TIMEOUT_S,
    ) -> None:
        """`timeout` bounds the wait for the next ack on a call, `patience_s` the time without an ack over all calls."""
        assert identity.id >= OWN_IDS_FROM, "ids below are given by the cluster"
        self._cluster = cluster
        self._opening = pb.WriteOpen(
            stream=to.stream,
            partition=to.partition,
            creation=to.creation,
            bypassOthers=to.bypass_others,
            producer=pb.WriteProducer(id=identity.id, epoch=identity.epoch),
        )
        self._where = f"partition {to.partition} of stream {to.stream}"
        self._watched = WatchedCall(to.stream, to.partition)
        self._timeout = timeout
        self._patience_s = patience_s
        self._unacked: deque[_Batch] = deque()
        self._unacked_bytes = 0
        self._given = 0
        """Of `_unacked`, how many batches were sent on this call."""
        self._changed = asyncio.Event()
        self._ended = False
        self._accepted = False
        """The call under way, by the broker."""
        self._running: asyncio.Task[None] | None = None
        self._progress_at = 0.0
        """Of the last ack; or since when an ack, or a call that is accepted, is waited for."""
        self.sent = 0
        """Messages: the next one has this number."""
        self.found = 0
        """Messages of this producer that the partition had when the write began."""
        self.repeated = False
        """Something was in the log before it was sent here, or was sent twice."""
        self.acked: pb.WriteResponse | None = None
        """The last ack."""

    def __repr__(self) -> str:
        return f"<NumberedWrite to {self._where}, {self.sent} messages, {len(self._unacked)} batches without an ack>"

    async def open(self) -> None:
        """It is known what is stored of this producer (`found`)."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run(opened))
        await asyncio.wait((opened, self._running), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            await self._running

    async def send(self, count: int, framed: bytes) -> None:
        """Messages, at most as many and as long as a batch may be. Returns when there is room for more."""
        request = pb.WriteRequest(batch=pb.WriteBatch(count=count, messages=framed, sequence=self.sent))
        batch = _Batch(self.sent, count, frame(request.SerializeToString()))
        await self._until(
            lambda: (
                not self._unacked
                or (
                    self._unacked_bytes + len(batch.request) <= limits.CLIENT_WRITE_WINDOW_BYTES
                    and len(self._unacked) < limits.BULK_WRITE_UNACKED
                )
            )
        )
        if not self._unacked:
            self._progress_at = asyncio.get_running_loop().time()
        self.sent += count
        self._unacked.append(batch)
        self._unacked_bytes += len(batch.request)
        self._changed.set()

    async def finish(self) -> None:
        """All that was sent is stored and acked."""
        self._ended = True
        self._changed.set()
        if self._running is not None:
            await self._until(lambda: not self._unacked)
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def close(self) -> None:
        """Whatever has no ack may be stored or not."""
        if self._running is not None:
            self._running.cancel()

    async def _until(self, holds: _Condition) -> None:
        while not holds():
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            assert self._running is not None, "a write is opened before it is used"
            try:
                await asyncio.wait((changed, self._running), return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if self._running.done() and not holds():
                await self._running  # it has failed
                raise Unavailable(f"the write to {self._where} has ended")

    # --- the calls ------------------------------------------------------------------------------------------------

    async def _run(self, opened: asyncio.Future[None]) -> None:
        """One call after the other, until all batches are acked."""
        clock = asyncio.get_running_loop().time
        self._progress_at, pause_s = clock(), limits.CLIENT_RETRY_MIN_S
        while True:
            before, self._accepted = self._progress_at, False
            try:
                await self._call(opened, Deadline(max(0.0, before + self._patience_s - clock())))
                return
            except BasculeError as error:
                if not (not_leader(error) or error.status in _PASSING):
                    raise
                reason = error
            if self._accepted and not self._unacked:
                self._progress_at = clock()
            if self._progress_at > before:
                pause_s = limits.CLIENT_RETRY_MIN_S
            if clock() - self._progress_at > self._patience_s:
                what = "acked nothing" if opened.done() else "accepted no write"
                raise Unavailable(
                    f"{self._where} has {what} for {self._patience_s:g} s; what has no ack may be stored or "
                    f"not, and is stored once if the same is written again: {reason}"
                ) from reason
            self._cluster.misled(self._opening.stream)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, limits.CLIENT_RETRY_MAX_S)

    async def _call(self, opened: asyncio.Future[None], deadline: Deadline) -> None:
        channel = await self._cluster.leader(self._opening.stream, self._opening.partition, deadline)
        call = channel.stream(WRITE)
        self._watched.begin(call, self._cluster.broker_of(channel))
        self._cluster.watch.add(self._watched)
        sending: asyncio.Task[None] | None = None
        self._given = 0
        self.repeated = self.repeated or bool(self._unacked)
        try:
            await call.send(frame(pb.WriteRequest(open=self._opening).SerializeToString()))
            async for message in messages_of(lambda: self._received(call), await self._received(call)):
                response = self._decoded(message)
                if response.batch:
                    self._acked(response)
                    continue
                if not response.numbered:
                    raise Unimplemented(
                        "a broker of this cluster does not number bulk writes: update all brokers, or write at least "
                        "once"
                    )
                self._opening.creation = response.creation
                self._watched.since = None
                self._accepted = True
                if not opened.done():
                    self.found = response.nextSequence
                    opened.set_result(None)
                sending = asyncio.create_task(self._send_all(call))
            if self._unacked or not self._ended:
                raise Unavailable(f"the broker ended the call to {self._where}")
        except RpcError as rpc:
            raise self._cluster.connections.told(from_status(rpc)) from None
        finally:
            self._cluster.watch.remove(self._watched)
            if sending is not None:
                sending.cancel()
            call.cancel()

    async def _send_all(self, call: ClientCall) -> None:
        while True:
            while self._given < len(self._unacked):
                batch = self._unacked[self._given]
                if not self._given:
                    self._watched.since = asyncio.get_running_loop().time()
                self._given += 1
                await call.send(batch.request)
            if self._ended:
                call.half_close()
                return
            self._changed.clear()
            await self._changed.wait()

    async def _received(self, call: ClientCall) -> bytes | None:
        while True:
            try:
                async with asyncio.timeout(self._timeout):
                    return await call.receive()
            except TimeoutError:
                if self._unacked or not self._accepted:
                    raise TimedOut(f"no ack of {self._where} within {self._timeout:g} s") from None

    def _decoded(self, message: bytes) -> pb.WriteResponse:
        try:
            return pb.WriteResponse.FromString(message)
        except DecodeError as error:
            raise CorruptError(f"{self._where} sent bytes that are no answer to a bulk write: {error}") from error

    def _acked(self, response: pb.WriteResponse) -> None:
        if response.HasField("error"):
            known = response.error.code in list(Status)
            raise from_status(
                RpcError(Status(response.error.code) if known else Status.UNKNOWN, response.error.message)
            )
        if not self._given:
            raise CorruptError(f"{self._where} acked a batch that it has not got")
        batch = self._unacked.popleft()
        self._progress_at = asyncio.get_running_loop().time()
        self._given -= 1
        self._watched.since = asyncio.get_running_loop().time() if self._given else None
        self._unacked_bytes -= len(batch.request)
        self.repeated = self.repeated or response.duplicates > 0
        self.acked = response
        self._changed.set()
