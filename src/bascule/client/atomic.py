"""Atomic batches of a producer: several messages to one partition, of which all are stored and shown or none is.
Bascule only.

They go through NATS, in one message, so other streams on the subject store them, too. Each is numbered and acked by the
whole in-sync set, so that it may be sent again until its ack comes, and is stored once. One at a time, under a producer
of its own, which is given up when a batch fails: what is stored of it is not known then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline, MadeAgain, from_publish_code, from_status
from bascule.client.producers import Producers, ProducerSession
from bascule.client.requests import frame_messages, partition_for, unfit
from bascule.client.values import Outgoing, Stream
from bascule.client.watch import Waiter
from bascule.errors import (
    AckError,
    BasculeError,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotSent,
    RpcError,
    SendTimeout,
    Unavailable,
    Unconfirmed,
    Unimplemented,
    UnknownOutcome,
)
from bascule.net.channel import Channel
from bascule.wire.pb import producer_pb2 as pb
from bascule.wire.producers import REFUSALS

PUBLISH_BATCH = "/bascule.v1.Producers/PublishBatch"
_PASSING = (Unavailable, NotSent, Internal, UnknownOutcome, Unconfirmed, DeadlineExceeded)
"""After these the batch may be stored, now or later, and is sent again."""
_LOST = (REFUSALS[AckError.SEQUENCE_GAP], REFUSALS[AckError.UNKNOWN_PRODUCER])
"""The partition does not know what this producer stored before: it begins anew."""


class StoredBatch(NamedTuple):
    """Where an atomic batch is stored. The offsets are -1 if they are not known any more."""

    stream: str
    partition: int
    first_offset: int
    last_offset: int


class AtomicBatches:
    """Of one producer."""

    def __init__(self, cluster: Cluster, producers: Producers, stream: str, retry_for: float, timeout: float) -> None:
        self._cluster = cluster
        self._producers = producers
        self._stream = stream
        self._retry_for = retry_for
        self._timeout = timeout
        self._one_at_a_time = asyncio.Lock()
        self._session: tuple[Stream, ProducerSession] | None = None

    async def store(self, messages: Sequence[bytes | Outgoing], partition: int | None) -> StoredBatch:
        if not 0 < len(messages) <= limits.BULK_WRITE_MESSAGES:
            raise InvalidArgument(
                f"a batch has 1 to {limits.BULK_WRITE_MESSAGES} messages, this one has {len(messages)}"
            )
        for number, message in enumerate(messages):
            if reason := unfit(message):
                raise InvalidArgument(f"message {number} of the batch: {reason}")
        framed = frame_messages(messages)
        if len(framed) > limits.GRPC_MAX_MESSAGE_BYTES:
            raise InvalidArgument(
                f"the batch takes {len(framed)} bytes, and an atomic one may take as many as the largest message"
            )
        async with self._one_at_a_time:
            return await self._store(messages, framed, partition)

    def close(self) -> None:
        if self._session is not None and not self._one_at_a_time.locked():
            self._producers.give_back(*self._session)
        self._session = None

    async def _store(self, messages: Sequence[bytes | Outgoing], framed: bytes, partition: int | None) -> StoredBatch:
        known = await self._cluster.stream(self._stream, Deadline(self._timeout))
        chosen = _partition(messages, len(known.partitions), partition)
        clock = asyncio.get_running_loop().time
        give_up, pause_s, unknown = clock() + self._retry_for, limits.CLIENT_RETRY_MIN_S, False
        request = await self._numbered(known, chosen, len(messages), framed)
        began_anew = False
        while True:
            sent = False
            try:
                channel = await self._cluster.publisher(self._stream, chosen, Deadline(self._timeout))
                sent = True
                first = await self._send(channel, request)
                return StoredBatch(self._stream, chosen, first, first + len(messages) - 1)
            except MadeAgain as error:
                self._session = None
                if unknown or clock() + pause_s >= give_up:
                    raise self._unconfirmed(error) if unknown else error from error
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, limits.CLIENT_RETRY_MAX_S)
                self._cluster.forget(self._stream)
                known = await self._cluster.stream(self._stream, Deadline(self._timeout))
                chosen = _partition(messages, len(known.partitions), partition)
                request = await self._numbered(known, chosen, len(messages), framed)
            except FailedPrecondition as error:
                if str(error) == REFUSALS[AckError.DUPLICATE]:
                    return StoredBatch(self._stream, chosen, -1, -1)
                self._session = None
                if unknown:
                    raise self._unconfirmed(error) from error
                if str(error) not in _LOST or began_anew:
                    raise
                began_anew = True
                request = await self._numbered(known, chosen, len(messages), framed)
            except _PASSING as error:
                unknown = unknown or (sent and not isinstance(error, NotSent))
                if clock() + pause_s >= give_up:
                    self._session = None
                    if not unknown:
                        raise SendTimeout(f"the batch was not sent: {error}") from error
                    raise self._unconfirmed(error) from error
                self._cluster.suspect(self._stream)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, limits.CLIENT_RETRY_MAX_S)
            except BaseException as error:
                self._session = None
                if unknown and isinstance(error, BasculeError):
                    raise self._unconfirmed(error) from error
                raise

    def _unconfirmed(self, error: BasculeError) -> Unconfirmed:
        return Unconfirmed(
            f"{error}: the batch was sent to stream {self._stream}, and all of it is stored or nothing. Read the "
            "stream's end before sending it again"
        )

    async def _numbered(self, known: Stream, partition: int, count: int, framed: bytes) -> pb.PublishBatchRequest:
        if self._session is None or self._session[0].creation_timestamp != known.creation_timestamp:
            producer = await self._producers.take(known, Deadline(max(self._timeout, self._retry_for)))
            if producer is None:
                raise Unimplemented("this server has no atomic batches: it is no Bascule, or an older one")
            self._session = known, producer
        number = self._session[1].numbers(partition, count)
        return pb.PublishBatchRequest(stream=self._stream, partition=partition, producer=number, messages=framed)

    async def _send(self, channel: Channel, request: pb.PublishBatchRequest) -> int:
        try:
            answer = await self._unary(channel, request)
        except RpcError as rpc:
            error = from_status(rpc)
            raise from_publish_code(0, str(error)) if isinstance(error, UnknownOutcome) else error from None
        return pb.PublishBatchResponse.FromString(answer).firstOffset

    async def _unary(self, channel: Channel, request: pb.PublishBatchRequest) -> bytes:
        """Unavailable as soon as other brokers say that the one that was asked leads no longer."""
        asked = asyncio.ensure_future(channel.unary(PUBLISH_BATCH, request.SerializeToString(), timeout=self._timeout))
        now = asyncio.get_running_loop().time()
        if channel is not self._cluster.known_leader(request.stream, request.partition, now):
            return await asked
        watched = _Asked(request.stream, request.partition, asked, self._cluster.broker_of(channel))
        self._cluster.watch.add(watched)
        try:
            return await asked
        except asyncio.CancelledError:
            if watched.reason:
                raise Unavailable(watched.reason) from None
            raise
        finally:
            self._cluster.watch.remove(watched)


class _Asked(Waiter):
    """A batch that was sent to the leader of its partition."""

    def __init__(self, stream: str, partition: int, answer: asyncio.Future[bytes], broker: str | None) -> None:
        self.broker = broker
        self.reason = ""
        """Why it waits in vain."""
        self._partition = (stream, partition)
        self._answer = answer
        self._since = asyncio.get_running_loop().time()

    def quiet_since(self) -> float | None:
        return self._since

    def awaited(self) -> Iterable[tuple[str, int | None]]:
        return [self._partition]

    def replaced(self, reason: str) -> None:
        self.reason = reason
        self._answer.cancel()


def _partition(messages: Sequence[bytes | Outgoing], partitions: int, partition: int | None) -> int:
    """The one that all messages name, or their keys choose; 0 if nothing does."""
    chosen = {} if partition is None else {partition: None}
    for message in messages:
        if isinstance(message, Outgoing):
            if message.partition is not None:
                chosen[message.partition] = None
            elif partition is None and message.key:
                chosen[partition_for(message.key, partitions)] = None
    if len(chosen) > 1:
        several = ", ".join(str(each) for each in sorted(chosen))
        raise InvalidArgument(
            f"the messages of an atomic batch go to one partition, and these go to {several}: name a partition, or "
            "send a batch for each"
        )
    return next(iter(chosen), 0)


SendBatch = Callable[[Sequence[bytes | Outgoing], int | None], Awaitable[StoredBatch]]


class ProducerBatch:
    """Messages that are collected and sent together at the end of its `async with`; nothing is if the block fails."""

    def __init__(self, send_batch: SendBatch, partition: int | None) -> None:
        self._send_batch = send_batch
        self._partition = partition
        self._messages: list[Outgoing] = []
        self._in_block: bool | None = None
        """None before its block."""
        self.stored: StoredBatch | None = None
        """Where it is, after the block."""

    def __repr__(self) -> str:
        return f"<ProducerBatch of {len(self._messages)} messages, {self.stored or 'not stored'}>"

    async def __aenter__(self) -> ProducerBatch:
        if self._in_block is not None:
            raise InvalidArgument("a batch is filled once, in its block: make another one")
        self._in_block = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_block = False
        if error is None and self._messages:
            messages, self._messages = self._messages, []
            self.stored = await self._send_batch(messages, self._partition)

    async def send(self, value: bytes, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None) -> None:
        self.add(value, key=key, headers=headers)

    def add(self, value: bytes, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None) -> None:
        """The same without waiting: nothing leaves before the block ends."""
        if not self._in_block:
            raise InvalidArgument("a batch takes messages in its block, at whose end it is sent: make another one")
        message = Outgoing(value, key, headers)
        if reason := unfit(message):
            raise InvalidArgument(reason)
        if len(self._messages) >= limits.BULK_WRITE_MESSAGES:
            raise InvalidArgument(f"a batch has at most {limits.BULK_WRITE_MESSAGES} messages")
        self._messages.append(message)
