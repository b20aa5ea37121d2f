"""Batches of messages to one partition, stored by its leader without the way through NATS: for programs that write
much. Bascule only.

Batches are pipelined, stored in order, each whole, and acked one by one. When the connection or the leader is lost,
batches without an ack may be stored or not: nothing is sent twice. While every batch sent is acked, a lost call is
opened again, with the new leader. Whoever iterates again after an interruption goes on with the next batch; if some of
those before have no ack there is no going on, and Unconfirmed says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from google.protobuf.message import DecodeError

from bascule import limits
from bascule.client.bulk import LogRange, messages_of, not_leader
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline, from_status
from bascule.client.requests import frame_messages, unfit
from bascule.client.values import AckPolicy, Outgoing
from bascule.client.watch import WatchedCall
from bascule.errors import (
    BasculeError,
    CorruptError,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    PublishError,
    RpcError,
    Status,
    Unavailable,
    Unconfirmed,
)
from bascule.net.channel import ClientCall
from bascule.wire.grpc import frame
from bascule.wire.pb import log_pb2 as pb

WRITE = "/bascule.v1.Log/Write"

Batch = Sequence[bytes | Outgoing] | LogRange
"""What is stored and acked together: values, or messages with keys and headers, or a piece of another log."""
Batches = Iterable[Batch] | AsyncIterable[Batch]


class WrittenBatch(NamedTuple):
    """A batch that is stored, as the ack policy says."""

    number: int
    """From 0 on."""
    first_offset: int
    last_offset: int
    creation: int
    """Of the stream: another number for one of the same name that was made again."""


def batches_of(values: Iterable[bytes | Outgoing], max_bytes: int = limits.CLIENT_WRITE_BATCH_BYTES) -> Iterator[Batch]:
    """Values in batches of about this size."""
    batch: list[bytes | Outgoing] = []
    nbytes = 0
    for value in values:
        batch.append(value)
        nbytes += len(value.value if isinstance(value, Outgoing) else value) + _OVERHEAD_BYTES
        if nbytes >= max_bytes or len(batch) == limits.BULK_WRITE_MESSAGES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


_OVERHEAD_BYTES = 16  # of a message, about


class BulkWrite:
    """Iterate it for `WrittenBatch`es, one for each batch, in order. While it is iterated, batches are sent."""

    def __init__(
        self,
        cluster: Cluster,
        stream: str,
        partition: int,
        batches: Batches,
        ack: AckPolicy = AckPolicy.ALL,
        creation: int = 0,
        bypass_others: bool = False,
        timeout: float = limits.CLIENT_ACK_TIMEOUT_S,
        atomic: bool = False,
    ) -> None:
        if ack is AckPolicy.NONE:
            raise InvalidArgument("a bulk write is acked: ack is AckPolicy.ALL or AckPolicy.LEADER")
        self._cluster = cluster
        self._batches: AsyncIterator[Batch] | Iterator[Batch] = (
            aiter(batches) if isinstance(batches, AsyncIterable) else iter(batches)
        )
        self._held: Batch | None = None
        """The batch that was taken, and is not sent yet."""
        self._taking = False
        """The next one is waited for: an asynchronous source that is cancelled then has ended."""
        self._over: BaseException | None = None
        """Why there is no going on."""
        self._timeout = timeout
        self._atomic = atomic
        self._open_request = pb.WriteOpen(
            stream=stream,
            partition=partition,
            creation=creation,
            ackPolicy=pb.WriteOpen.LEADER if ack is AckPolicy.LEADER else pb.WriteOpen.ALL,
            bypassOthers=bypass_others,
        )
        self._where = f"partition {partition} of stream {stream}"
        self._watched = WatchedCall(stream, partition)
        self._call: ClientCall | None = None
        self._sent = self._acked = 0
        self._before = 0
        """Batches that were acked before this call was opened: a call numbers its own from 1 on."""
        self._unacked: dict[int, int] = {}
        """By number, the bytes of batches that were sent on this call."""
        self._unacked_bytes = 0
        self._failure: Exception | None = None
        self._room = asyncio.Event()
        self._opened = asyncio.Event()
        self._limit: asyncio.Timeout | None = None

    def __repr__(self) -> str:
        return f"<BulkWrite to {self._where}, {self._acked} of {self._sent} batches acked>"

    async def __aiter__(self) -> AsyncIterator[WrittenBatch]:
        async with aclosing(self.written()) as written:
            async for each in written:
                yield each

    async def written(self) -> AsyncGenerator[WrittenBatch, None]:
        if self._over is not None:
            raise self._over
        if self._taking:
            raise FailedPrecondition(
                f"the write to {self._where} was interrupted while it waited for its source, which may have ended by "
                f"that: {self._acked} batches are acked. Write those that follow in another call"
            )
        sending: asyncio.Task[None] | None = None
        try:
            while True:
                responses = await self._open()
                sending = sending or asyncio.get_running_loop().create_task(self._send_all())
                try:
                    async with aclosing(responses) as messages:
                        async for message in messages:
                            yield self._take(message)
                    break
                except RpcError as rpc:
                    error = self._cluster.connections.told(from_status(rpc))
                    if self._unacked or not (isinstance(error, Unavailable) or not_leader(error)):
                        raise self._lost(error) from None
                    self._cluster.misled(self._open_request.stream)
            if self._unacked:
                raise self._lost("the broker ended the call")
            if self._failure is not None:
                raise self._failure
        except (GeneratorExit, asyncio.CancelledError):
            if self._unacked:
                self._over = self._lost("the iteration was interrupted")
            raise
        except Exception as error:
            if self._unacked or not isinstance(error, Unavailable | DeadlineExceeded):
                self._over = error
            raise
        finally:
            self._opened.clear()
            self._cluster.watch.remove(self._watched)
            if sending is not None:
                sending.cancel()
            if self._call is not None:
                self._call.cancel()

    # --- the call --------------------------------------------------------------------------------------------

    async def _open(self) -> AsyncGenerator[bytes, None]:
        """A call that was accepted: its first response has arrived."""
        deadline = Deadline(limits.CLIENT_RESUBSCRIBE_S)
        opening = self._open_request

        async def attempt() -> tuple[ClientCall, AsyncGenerator[bytes, None]]:
            channel = await self._cluster.leader(opening.stream, opening.partition, deadline)
            call = channel.stream(WRITE)
            self._watched.begin(call, self._cluster.broker_of(channel))
            self._cluster.watch.add(self._watched)
            try:
                await call.send(frame(pb.WriteRequest(open=opening).SerializeToString()))
                messages = messages_of(lambda: self._received(call), await self._received(call))
                opening.creation = self._decoded(await anext(messages)).creation
                self._watched.since = None
                return call, messages
            except BaseException:
                call.cancel()
                raise

        self._opened.clear()
        self._call, messages = await self._cluster.persist(attempt, deadline, self._opens_again)
        self._before = self._acked
        self._opened.set()
        return messages

    def _opens_again(self, error: BasculeError) -> bool:
        if not_leader(error):
            self._cluster.misled(self._open_request.stream)
            return True
        return False

    async def _received(self, call: ClientCall) -> bytes | None:
        """What has come; Unconfirmed if nothing does although batches have no ack."""
        try:
            async with asyncio.timeout(self._timeout if self._unacked else None) as self._limit:
                return await call.receive()
        except TimeoutError:
            self._cluster.suspect(self._open_request.stream)
            raise self._lost(f"no ack within {self._timeout:g} s") from None
        finally:
            self._limit = None

    def _decoded(self, message: bytes) -> pb.WriteResponse:
        try:
            return pb.WriteResponse.FromString(message)
        except DecodeError as error:
            raise CorruptError(f"{self._where} sent bytes that are no answer to a bulk write: {error}") from error

    # --- batches ---------------------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        try:
            while (batch := await self._next()) is not None:
                await self._send(batch)
        except Exception as error:  # raised when everything sent is acked
            self._failure = error
        if self._call is not None:
            self._call.half_close()

    async def _next(self) -> Batch | None:
        if self._held is None and isinstance(self._batches, AsyncIterator):
            self._taking = True
            self._held = await anext(self._batches, None)
            self._taking = False
        elif self._held is None and isinstance(self._batches, Iterator):
            self._held = next(self._batches, None)
        return self._held

    async def _send(self, batch: Batch) -> None:
        request = frame(self._request(batch))
        while self._unacked and (
            self._unacked_bytes + len(request) > limits.CLIENT_WRITE_WINDOW_BYTES
            or len(self._unacked) >= limits.BULK_WRITE_UNACKED
        ):
            self._room.clear()
            await self._room.wait()
        await self._opened.wait()
        assert self._call is not None
        if not self._unacked:
            now = asyncio.get_running_loop().time()
            self._watched.since = now
            if self._limit is not None:
                self._limit.reschedule(now + self._timeout)
        self._sent += 1
        self._held = None
        self._unacked[self._sent - self._before] = len(request)
        self._unacked_bytes += len(request)
        await self._call.send(request)

    def _request(self, batch: Batch) -> bytes:
        if isinstance(batch, LogRange):
            count, messages = batch.count, batch.records
        else:
            count = len(batch)
            try:
                messages = frame_messages(batch)
            except (TypeError, AttributeError, ValueError):
                found = ((number, reason) for number, each in enumerate(batch) if (reason := unfit(each)))
                number, reason = next(found, (0, "it is neither bytes nor an Outgoing"))
                raise InvalidArgument(f"message {number} of batch {self._sent}: {reason}") from None
        request = pb.WriteRequest(
            batch=pb.WriteBatch(count=count, messages=messages, atomic=self._atomic)
        ).SerializeToString()
        if not 0 < count <= limits.BULK_WRITE_MESSAGES or len(request) > limits.GRPC_MAX_MESSAGE_BYTES:
            raise InvalidArgument(
                f"batch {self._sent} has {count} messages in {len(request)} bytes, and a batch has 1 to "
                f"{limits.BULK_WRITE_MESSAGES} in at most {limits.GRPC_MAX_MESSAGE_BYTES}; `batches_of` makes such"
            )
        return request

    def _take(self, message: bytes) -> WrittenBatch:
        response = self._decoded(message)
        nbytes = self._unacked.pop(response.batch, None)
        if nbytes is None:
            raise CorruptError(f"{self._where} answered batch {response.batch}, which it has not got or has answered")
        number = self._before + response.batch - 1
        if response.HasField("error"):
            raise self._refused(number, response.error)
        self._unacked_bytes -= nbytes
        self._acked += 1
        self._watched.since = asyncio.get_running_loop().time() if self._unacked else None
        self._room.set()
        return WrittenBatch(number, response.firstOffset, response.lastOffset, response.creation)

    def _refused(self, number: int, failure: pb.WriteError) -> BasculeError:
        known = failure.code in list(Status)
        reason = from_status(RpcError(Status(failure.code) if known else Status.UNKNOWN, failure.message))
        if failure.mayBeStored:
            return Unconfirmed(f"batch {number}: {reason} ({self._acked} batches are acked)", self._acked)
        error = PublishError(
            f"batch {number} was refused: {reason} ({self._acked} batches are acked; nothing after them is stored)",
            number,
            self._acked,
        )
        error.__cause__ = reason
        return error

    def _lost(self, reason: object) -> BasculeError:
        if not self._unacked and isinstance(reason, BasculeError):
            return reason
        return Unconfirmed(
            f"{reason}: {self._acked} of {self._sent} batches sent to {self._where} are acked, the others may be "
            "stored or not. Read the partition's end before sending them again",
            self._acked,
        )
