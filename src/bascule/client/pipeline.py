"""Many publishes on one PublishAsync call: values in, a bounded window of unanswered messages, a count out.

Three parts work at the same time. The *source* takes values from the caller's iterable into a pending list
of at most one batch. The *sender* encodes whatever is pending and sends it in one write, as long as the
window has room; a slow source therefore goes out message by message and a fast one in full batches, with no
timer. The *receiver* marks answers in a ring as wide as the window; the window moves when its oldest
message is answered. No object is made per waiting message.

Answers are matched by number; acks of other streams on the same subject and repeated acks are ignored. A
refusal ends the call and names the message: nothing more is sent, and what was sent is waited for, so that its outcome
is known, too. If the connection breaks or acks stop coming, what was
sent and not answered has an unknown outcome, and the error says how many were confirmed before.

What the caller's own code raises reaches the caller as it is, with a note that says how many are confirmed: an error of
`on_acks` at once, an error of the source when what it gave before is answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence, Sized
from contextlib import aclosing
from typing import TypeVar

from bascule import limits
from bascule.client.failures import Forgotten, MadeAgain, from_publish_code, from_status
from bascule.client.requests import Encoder, PlainAck, Prepared, Responses, TooLarge, in_turn, partition_for, unfit
from bascule.client.values import AckPolicy, Outgoing
from bascule.client.watch import Waiter
from bascule.errors import (
    AckError,
    AckTimeout,
    BasculeError,
    Internal,
    Interrupted,
    InvalidArgument,
    NotSent,
    PublishError,
    RpcError,
    Unavailable,
    Unconfirmed,
)
from bascule.net.channel import ClientCall
from bascule.wire.pb import api_pb2 as pb

Value = bytes | Outgoing
Values = AsyncIterable[Value] | Iterable[Value]
Sendable = Value | Prepared
T = TypeVar("T")

PASSING = (Unavailable, NotSent, Internal)
"""Refusals that are the cluster's fault and mostly pass: no leader, a disk that is full or fails."""

OnAcks = Callable[[list[tuple[int, int, int]]], None]
"""Takes (index, offset, partition) of each message just confirmed; called once per received batch."""


class Pipeline(Waiter):
    def __init__(
        self,
        call: ClientCall,
        stream: str,
        partitions: int,
        *,
        keyless: Sequence[int],
        partition: int | None,
        policy: AckPolicy,
        timeout: float,
        on_acks: OnAcks | None,
    ) -> None:
        self._call = call
        self._stream = stream
        self._partitions = partitions
        self._partition = partition
        self._keyless = keyless if partition is None else [partition]
        """Messages without a key take these partitions in turn."""
        self._policy = policy
        self._timeout = timeout
        self._on_acks = on_acks
        self._encoder = Encoder(stream, policy)
        self._pending: list[Sendable] = []
        self._pending_bytes = 0
        self._space = asyncio.Event()
        self._changed = asyncio.Event()
        self._source_ended = False
        self._call_ended = False
        self._failure: BaseException | None = None
        self._source_failure: Exception | None = None
        self._callback_failure: Exception | None = None
        self._refusals: dict[int, BasculeError] = {}
        """By number, why messages were refused; for good, or this producer's numbers."""
        self._answered = bytearray(limits.CLIENT_PUBLISH_WINDOW)
        self._sent_to = [0] * limits.CLIENT_PUBLISH_WINDOW
        self._oldest = 0  # every message before it is answered
        self._sent = 0
        self.acked = 0
        self._progress_at = 0.0
        self._leads = None if partitions > 1 and partition is None else partition or 0

    def quiet_since(self) -> float | None:
        return self._progress_at if self._unanswered else None

    def awaited(self) -> Iterable[tuple[str, int | None]]:
        return [(self._stream, self._leads)]

    def replaced(self, reason: str) -> None:
        self._failure = self._lost(reason)
        self._changed.set()
        self._call.cancel()  # whoever waits to send is not to wait any longer

    async def run(self, values: AsyncIterable[Sendable] | Iterable[Sendable]) -> int:
        """How many were published; under NONE, sent."""
        tasks = [asyncio.create_task(self._source(values)), asyncio.create_task(self._receive())]
        try:
            await self._send_pending()
            while self._pending or not self._source_ended:
                await self._change()
                await self._send_pending()
            while self._unanswered:
                await self._change()
            self._call.half_close()
            if self._policy is AckPolicy.NONE:
                await self._taken()
            if self._source_failure is not None:
                raise self._noted(self._source_failure)
            return self._sent
        finally:
            self._call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _taken(self) -> None:
        """Until the broker has read everything: it ends the call then."""
        self._progress_at = asyncio.get_running_loop().time()
        while not self._call_ended:
            await self._change(waits=True)

    @property
    def _unanswered(self) -> int:
        return 0 if self._policy is AckPolicy.NONE else self._sent - self._oldest

    # --- source -------------------------------------------------------------------------------------------

    async def _source(self, values: AsyncIterable[Sendable] | Iterable[Sendable]) -> None:
        try:
            async with aclosing(one_by_one(values)) as items:
                async for value in items:
                    await self._take(value)
        except PublishError as error:
            self._failure = error
        except Exception as error:
            self._source_failure = error
        self._source_ended = True
        self._changed.set()

    async def _take(self, value: Sendable) -> None:
        while self._is_full:
            self._space.clear()
            await self._space.wait()
        try:
            self._pending_bytes += _size(value)
        except TypeError:
            raise self._unfit([value], self._sent + len(self._pending))  # noqa: B904
        self._pending.append(value)
        if len(self._pending) == 1 or self._is_full:
            self._changed.set()

    @property
    def _is_full(self) -> bool:
        return (
            len(self._pending) >= limits.CLIENT_PUBLISH_BATCH
            or self._pending_bytes >= limits.CLIENT_PUBLISH_BATCH_BYTES
        )

    # --- sender -------------------------------------------------------------------------------------------

    async def _send_pending(self) -> None:
        room = limits.CLIENT_PUBLISH_WINDOW - self._unanswered
        batch, self._pending = self._pending[:room], self._pending[room:]
        self._pending_bytes = sum(map(_size, self._pending))
        self._space.set()
        if not batch:
            return
        try:
            frames = self._encode(batch)
        except TooLarge as error:
            batch = batch[: error.position]
            frames = self._encode(batch) if batch else b""
            self._refusals[self._sent + error.position] = error
        except (TypeError, AttributeError, ValueError):  # only now: a check of each message would cost too much
            raise self._unfit(batch, self._sent)  # noqa: B904
        if not self._unanswered:
            self._progress_at = asyncio.get_running_loop().time()
        self._sent += len(batch)
        if frames:
            self._call.write(frames)
            await self._drained()
        if self._refusals:
            raise await self._refused()

    async def _drained(self) -> None:
        """Wait until the connection has taken what was written, but never for longer than the timeout while it takes
        nothing and no ack comes."""
        clock = asyncio.get_running_loop().time
        left, moved_at = self._call.queued_bytes, clock()
        while left:
            try:
                async with asyncio.timeout(self._timeout / 8):
                    await self._call.drained()
            except TimeoutError:
                pass
            if self._call.queued_bytes < left:
                left, moved_at = self._call.queued_bytes, clock()
            elif clock() - max(moved_at, self._progress_at) >= self._timeout:
                raise self._lost(f"the broker took nothing for {self._timeout:g} s", AckTimeout)

    def _encode(self, batch: list[Sendable]) -> bytes:
        if isinstance(batch[0], Prepared):  # then all are
            prepared = [each for each in batch if isinstance(each, Prepared)]
            self._note_partitions([each.partition for each in prepared])
            return self._encoder.encode_prepared(prepared, self._sent)
        keyless = in_turn(self._keyless, self._sent, len(batch))
        values = [value for value in batch if not isinstance(value, Outgoing | Prepared)]
        if len(values) == len(batch):
            self._note_partitions(keyless)
            return self._encoder.encode_values(values, self._keyless, self._sent)
        messages = [
            value if isinstance(value, Outgoing) else Outgoing(value)
            for value in batch
            if not isinstance(value, Prepared)
        ]
        chosen = list(map(self._choose, messages, keyless))
        self._note_partitions(chosen)
        return self._encoder.encode(messages, chosen, self._sent)

    def _choose(self, message: Outgoing, without_key: int) -> int:
        if message.partition is not None:
            return message.partition
        if self._partition is not None:
            return self._partition
        return partition_for(message.key, self._partitions) if message.key else without_key

    def _note_partitions(self, chosen: list[int]) -> None:
        """In a ring as wide as the window, under the numbers of the messages: an ack does not name its partition."""
        begin = self._sent % limits.CLIENT_PUBLISH_WINDOW
        straight = limits.CLIENT_PUBLISH_WINDOW - begin
        self._sent_to[begin : begin + len(chosen)] = chosen[:straight]
        self._sent_to[: max(0, len(chosen) - straight)] = chosen[straight:]

    def _unfit(self, batch: Sequence[object], first: int) -> PublishError:
        found = ((number, reason) for number, value in enumerate(batch, first) if (reason := unfit(value)))
        number, reason = next(found, (first, "it is neither bytes nor an Outgoing"))
        error = PublishError(f"message {number}: {reason}", number, self.acked)
        error.__cause__ = InvalidArgument(reason)
        return error

    async def _change(self, waits: bool = False) -> None:
        """Wait until something happened, but never longer for an ack than the timeout."""
        waits = waits or self._unanswered > 0
        left = self._progress_at + self._timeout - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, left) if waits else None):
                await self._changed.wait()
        except TimeoutError:
            raise self._lost(f"no ack within {self._timeout:g} s", AckTimeout) from None
        self._changed.clear()
        if self._refusals:
            raise await self._refused()
        if self._failure is not None and not self._needs_no_call:
            raise self._failure

    @property
    def _needs_no_call(self) -> bool:
        """Everything is acked: that the connection is lost then is no matter."""
        done = self._source_ended and not self._pending and not self._unanswered
        acked = done and self._policy is not AckPolicy.NONE
        return acked and self._callback_failure is None and isinstance(self._failure, Unavailable)

    async def _refused(self) -> BaseException:
        """When what was sent has its answers, too, or none comes any more."""
        clock, patience = asyncio.get_running_loop().time, min(self._timeout, limits.CLIENT_REFUSED_S)
        began = clock()
        while self._unanswered and not self._call_ended:
            try:
                async with asyncio.timeout_at(max(began, self._progress_at) + patience):
                    await self._changed.wait()
                self._changed.clear()
            except TimeoutError:
                if clock() >= max(began, self._progress_at) + patience:
                    break
        if self._callback_failure is not None:
            return self._callback_failure
        final = [index for index, cause in self._refusals.items() if not isinstance(cause, Forgotten | MadeAgain)]
        index = min(final or self._refusals)
        cause, others = self._refusals[index], self._unanswered
        open_ones = f", {others} more sent, which may be stored or not" if others > 0 else ""
        error = PublishError(
            f"message {index} was refused: {cause} ({self.acked} confirmed{open_ones})", index, self.acked
        )
        error.refusals = self._refusals
        error.__cause__ = cause
        return error

    # --- receiver -----------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        responses = Responses()
        try:
            while (data := await self._call.receive()) is not None:
                self._confirm(_read(responses, data))
            if self._unanswered:
                self._failure = self._lost("the broker ended the call")
        except RpcError as error:
            self._failure = self._failure or self._lost(from_status(error))
        except Unreadable as error:
            self._failure = self._lost(f"the broker's answers cannot be read ({error})")
        except Exception as error:
            self._failure = error
            self._call.cancel()  # whoever waits to send is not to wait any longer
        self._call_ended = True
        self._changed.set()

    def _confirm(self, responses: list[PlainAck | pb.PublishResponse]) -> None:
        ring, window, stream = self._answered, limits.CLIENT_PUBLISH_WINDOW, self._stream
        confirmed: list[tuple[int, int, int]] = []
        failure: BasculeError | None = None
        for response in responses:
            if isinstance(response, tuple):
                index, of, offset, *_ = response
            elif not response.HasField("asyncError"):
                index, of, offset = _number(response.ack.correlationId), response.ack.stream, response.ack.offset
            elif int(response.asyncError.code) == AckError.DUPLICATE:
                # It was stored before, and is safe; where, is not known any more.
                index, of, offset = _number(response.correlationId), stream, -1
            else:
                failure = self._note_refusal(response)
                if failure is not None:
                    break
                continue
            if of != stream or ring[index % window] or not self._oldest <= index < self._sent:
                continue
            ring[index % window] = 1
            confirmed.append((index, offset, self._sent_to[index % window]))
        while self._oldest < self._sent and ring[self._oldest % window]:
            ring[self._oldest % window] = 0
            self._oldest += 1
        if confirmed:
            self.acked += len(confirmed)
            self._progress_at = asyncio.get_running_loop().time()
            self._changed.set()
            if self._on_acks is not None:
                try:
                    self._on_acks(confirmed)
                except Exception as error:
                    self._callback_failure = error
                    raise self._noted(error)  # noqa: B904
        if failure is not None:
            raise failure

    def _noted(self, error: Exception) -> Exception:
        """An error of the caller's own code."""
        others = self._sent - self.acked if self._policy is not AckPolicy.NONE else 0
        open_ones = f", and {others} more were sent, which may be stored or not" if others else ""
        error.add_note(f"{self.acked} messages to stream {self._stream} are confirmed{open_ones}")
        return error

    def _note_refusal(self, response: pb.PublishResponse) -> BasculeError | None:
        """What ends the call at once: what is not stored now, or perhaps, is sent again, or given up."""
        index, error = _number(response.correlationId), response.asyncError
        ring, window = self._answered, limits.CLIENT_PUBLISH_WINDOW
        if not self._oldest <= index < self._sent or ring[index % window]:
            return None
        cause = from_publish_code(error.code, error.message)
        final = isinstance(cause, Forgotten) or not isinstance(cause, (*PASSING, Unconfirmed))
        if final or self._refusals:
            ring[index % window] = 1
            self._progress_at = asyncio.get_running_loop().time()
            self._changed.set()
            if final:
                self._refusals[index] = cause
            return None
        others = self._sent - self.acked - 1
        open_ones = f", {others} more sent, which may be stored or not" if others > 0 else ""
        if isinstance(cause, Unconfirmed):
            return Unconfirmed(f"message {index}: {cause} ({self.acked} confirmed{open_ones})", self.acked)
        refusal = PublishError(
            f"message {index} was refused: {cause} ({self.acked} confirmed{open_ones})", index, self.acked
        )
        refusal.__cause__ = cause
        return refusal

    def _lost(self, reason: object, kind: type[Unconfirmed] = Unconfirmed) -> BasculeError:
        if self._policy is AckPolicy.NONE:
            return Interrupted(
                f"{reason}. {self._sent} messages had been sent, and no acks asked for: some may be lost"
            )
        if not self._unanswered and not self._sent:
            return Unavailable(f"{reason}. No message was sent to stream {self._stream} yet")
        if not self._unanswered:
            safe = f"{reason}. All {self._sent} messages sent to stream {self._stream} before are safe"
            return Interrupted(f"{safe}, and the others were not sent: go on behind them", self.acked)
        return kind(
            f"{reason}: {self.acked} of {self._sent} messages sent to stream {self._stream} are confirmed, "
            "the others may be stored or not. Read the stream's end before sending them again",
            self.acked,
        )


class Unreadable(Exception):
    """Bytes of the broker that are no answers."""


def _read(responses: Responses, data: bytes) -> list[PlainAck | pb.PublishResponse]:
    try:
        return responses.feed(data)
    except ValueError as error:
        raise Unreadable(str(error)) from error


def _number(correlation_id: str) -> int:
    try:
        return int(correlation_id)
    except ValueError:
        raise Unreadable(f"an answer to message {correlation_id[:20]!r}") from None


async def one_by_one(values: AsyncIterable[T] | Iterable[T]) -> AsyncGenerator[T, None]:
    """Other tasks run between the values of a synchronous source, which may take its time for each of them: acks are
    read and messages are sent meanwhile."""
    if isinstance(values, AsyncIterable):
        async for value in values:
            yield value
    elif isinstance(values, Sized):  # it is in memory
        for value in values:
            yield value
    else:
        clock = time.monotonic
        since = clock()
        for value in values:
            yield value
            if clock() - since > limits.CLIENT_SOURCE_SLICE_S:
                await asyncio.sleep(0)
                since = clock()


def _size(value: Sendable) -> int:
    if isinstance(value, Prepared):
        return len(value.head)
    return len(value.value if isinstance(value, Outgoing) else value)


def check_values(values: object) -> None:
    """A single bytes value is iterable too, byte by byte: it is refused, because it is hardly meant that way."""
    if isinstance(values, bytes | bytearray | memoryview | str | Outgoing):
        raise InvalidArgument("publish_many takes an iterable of values; for one message use publish")
