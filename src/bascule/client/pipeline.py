"""Many publishes on one PublishAsync call: values in, a bounded window of unanswered messages, a count out.

Three parts work at the same time. The *source* takes values from the caller's iterable into a pending list
of at most one batch. The *sender* encodes whatever is pending and sends it in one write, as long as the
window has room; a slow source therefore goes out message by message and a fast one in full batches, with no
timer. The *receiver* marks answers in a ring as wide as the window; the window moves when its oldest
message is answered. No object is made per waiting message.

Answers are matched by number; acks of other streams on the same subject and repeated acks are ignored. The
first refusal ends the call and names the message. If the connection breaks or acks stop coming, what was
sent and not answered has an unknown outcome, and the error says how many were confirmed before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Sequence

from bascule import limits
from bascule.client.failures import from_publish_code, from_status
from bascule.client.requests import Encoder, Responses, TooLarge, in_turn, partition_for, unfit
from bascule.client.values import AckPolicy, Outgoing
from bascule.errors import BasculeError, InvalidArgument, PublishError, RpcError, Unavailable, Unconfirmed
from bascule.net.channel import ClientCall
from bascule.wire.pb import api_pb2 as pb

Values = AsyncIterable[bytes | Outgoing] | Iterable[bytes | Outgoing]

OnAcks = Callable[[list[tuple[int, int, int]]], None]
"""Takes (index, offset, partition) of each message just confirmed; called once per received batch."""


class Pipeline:
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
        self._pending: list[bytes | Outgoing] = []
        self._pending_bytes = 0
        self._space = asyncio.Event()
        self._changed = asyncio.Event()
        self._source_ended = False
        self._call_ended = False
        self._failure: BaseException | None = None
        self._answered = bytearray(limits.CLIENT_PUBLISH_WINDOW)
        self._sent_to = [0] * limits.CLIENT_PUBLISH_WINDOW
        self._oldest = 0  # every message before it is answered
        self._sent = 0
        self.acked = 0
        self._progress_at = 0.0

    async def run(self, values: Values) -> int:
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
            while not self._call_ended:
                await self._change()
            return self._sent
        finally:
            self._call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _unanswered(self) -> int:
        return 0 if self._policy is AckPolicy.NONE else self._sent - self._oldest

    # --- source -------------------------------------------------------------------------------------------

    async def _source(self, values: Values) -> None:
        try:
            if isinstance(values, AsyncIterable):
                async for value in values:
                    await self._take(value)
            else:
                for value in values:
                    await self._take(value)
        except Exception as error:
            self._failure = error
        self._source_ended = True
        self._changed.set()

    async def _take(self, value: bytes | Outgoing) -> None:
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
            index = self._sent + error.position
            raise PublishError(f"message {index}: {error}", index, self.acked) from error
        except (TypeError, AttributeError):  # looked for only now: a check of each message would cost too much
            raise self._unfit(batch, self._sent)  # noqa: B904
        if not self._unanswered:
            self._progress_at = asyncio.get_running_loop().time()
        self._sent += len(batch)
        await self._call.send(frames)

    def _encode(self, batch: list[bytes | Outgoing]) -> bytes:
        keyless = in_turn(self._keyless, self._sent, len(batch))
        values = [value for value in batch if not isinstance(value, Outgoing)]
        if len(values) == len(batch):
            self._note_partitions(keyless)
            return self._encoder.encode_values(values, self._keyless, self._sent)
        messages = [value if isinstance(value, Outgoing) else Outgoing(value) for value in batch]
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

    async def _change(self) -> None:
        """Wait until something happened, but never longer for an ack than the timeout."""
        waits = self._unanswered > 0
        left = self._progress_at + self._timeout - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, left) if waits else None):
                await self._changed.wait()
        except TimeoutError:
            raise self._lost(f"no ack within {self._timeout:g} s") from None
        self._changed.clear()
        if self._failure is not None:
            raise self._failure

    # --- receiver -----------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        responses = Responses()
        try:
            while (data := await self._call.receive()) is not None:
                self._confirm(responses.feed(data))
            if self._unanswered:
                self._failure = self._lost("the broker ended the call")
        except RpcError as error:
            self._failure = self._lost(from_status(error))
        except (PublishError, Unconfirmed) as error:
            self._failure = error
        except ValueError as error:
            self._failure = self._lost(f"the broker's answers cannot be read ({error})")
        self._call_ended = True
        self._changed.set()

    def _confirm(self, responses: list[pb.PublishResponse]) -> None:
        ring, window, stream = self._answered, limits.CLIENT_PUBLISH_WINDOW, self._stream
        confirmed: list[tuple[int, int, int]] = []
        for response in responses:
            if response.HasField("asyncError"):
                raise self._refused(response)
            ack = response.ack
            index = int(ack.correlationId)
            if ack.stream != stream or ring[index % window] or not self._oldest <= index < self._sent:
                continue
            ring[index % window] = 1
            confirmed.append((index, ack.offset, self._sent_to[index % window]))
        while self._oldest < self._sent and ring[self._oldest % window]:
            ring[self._oldest % window] = 0
            self._oldest += 1
        if confirmed:
            self.acked += len(confirmed)
            self._progress_at = asyncio.get_running_loop().time()
            self._changed.set()
            if self._on_acks is not None:
                self._on_acks(confirmed)

    def _refused(self, response: pb.PublishResponse) -> PublishError | Unconfirmed:
        index, error = int(response.correlationId), response.asyncError
        cause = from_publish_code(error.code, error.message)
        others = self._sent - self.acked - 1
        open_ones = f", {others} more sent, which may be stored or not" if others > 0 else ""
        if isinstance(cause, Unconfirmed):
            return Unconfirmed(f"message {index}: {cause} ({self.acked} confirmed{open_ones})", self.acked)
        refusal = PublishError(
            f"message {index} was refused: {cause} ({self.acked} confirmed{open_ones})", index, self.acked
        )
        refusal.__cause__ = cause
        return refusal

    def _lost(self, reason: object) -> BasculeError:
        if self._policy is AckPolicy.NONE:
            return Unavailable(
                f"{reason}. {self._sent} messages had been sent, and no acks asked for: some may be lost"
            )
        if not self._unanswered:
            return Unavailable(f"{reason}. All {self._sent} messages sent to stream {self._stream} before are safe")
        return Unconfirmed(
            f"{reason}: {self.acked} of {self._sent} messages sent to stream {self._stream} are confirmed, "
            "the others may be stored or not. Read the stream's end before sending them again",
            self.acked,
        )


def _size(value: bytes | Outgoing) -> int:
    return len(value.value if isinstance(value, Outgoing) else value)


def check_values(values: object) -> None:
    """A single bytes value is iterable too, byte by byte: it is refused, because it is hardly meant that way."""
    if isinstance(values, bytes | bytearray | memoryview | str | Outgoing):
        raise InvalidArgument("publish_many takes an iterable of values; for one message use publish")
