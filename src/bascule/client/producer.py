"""A producer: messages are sent one by one, from any number of tasks, and leave pipelined.

`send` waits for room only. What it returns is a receipt, which is awaited for the ack, or left alone. Messages that
have no ack when a connection is lost are sent again, for as long as `retry_for` allows without an ack in between. A
receipt fails with NotSent, Unconfirmed or the reason of a refusal. A message that is refused fails alone, and the
others go on (`retrying`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from bascule import limits
from bascule.client.atomic import AtomicBatches, ProducerBatch, StoredBatch
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline
from bascule.client.pipeline import OnAcks
from bascule.client.producers import Producers
from bascule.client.requests import unfit
from bascule.client.retrying import OnRetry, Outcomes
from bascule.client.values import AckPolicy, Outgoing
from bascule.errors import (
    BasculeError,
    ClientClosed,
    Interrupted,
    InvalidArgument,
    NotSent,
    PublishError,
    RpcError,
    Unconfirmed,
)

logger = logging.getLogger(__name__)

Partitioner = Callable[[Outgoing, int], int]
"""Takes a message and the number of partitions, returns the partition."""


class PublishMany(Protocol):
    """That of the client, for messages that are sent again and take all partitions in turn."""

    def __call__(
        self,
        stream: str,
        values: AsyncIterable[Outgoing],
        *,
        ack: AckPolicy,
        timeout: float,
        on_acks: OnAcks,
        retry_s: float,
        on_retry: OnRetry,
        idempotent: bool | None,
        outcomes: Outcomes,
    ) -> Coroutine[Any, Any, int]: ...


class Sent(NamedTuple):
    """Where a message is stored."""

    stream: str
    partition: int
    offset: int


class Receipt(Awaitable[Sent]):
    """Of one message that was sent: await it for its ack."""

    __slots__ = ("_future", "_unraised")

    def __init__(self, future: asyncio.Future[Sent], unraised: Unraised) -> None:
        self._future = future
        self._unraised = unraised

    def __repr__(self) -> str:
        if not self._future.done():
            return "<Receipt, no ack yet>"
        error = self._future.exception()
        return f"<Receipt, {self._future.result() if error is None else type(error).__name__}>"

    def __await__(self) -> Generator[Any, None, Sent]:
        try:
            return (yield from asyncio.shield(self._future).__await__())
        except BasculeError:
            self._unraised.drop(self._future)
            raise

    def done(self) -> bool:
        return self._future.done()


class _Run:
    """The messages of one call of `publish_many`, by their number in it."""

    def __init__(self, fail: Callable[[asyncio.Future[Sent], BaseException], None]) -> None:
        self._fail = fail
        self.receipts: dict[int, asyncio.Future[Sent]] = {}
        self.unknown: set[int] | None = None
        """Those that may be stored, once the call was given up. None if that was before it took any."""

    def refused(self, number: int, error: BasculeError) -> None:
        self._fail(self.receipts.pop(number), error)

    def given_up(self, unknown: set[int]) -> None:
        self.unknown = set(unknown)

    def failed(self, error: BasculeError) -> None:
        """All that have no outcome yet. The one that says what happened comes first."""
        refused = error.index if isinstance(error, PublishError) else None
        for number, answer in sorted(self.receipts.items(), key=lambda item: item[0] != refused):
            sent = self.unknown is None or number in self.unknown
            if number == refused and (self.unknown is None or not sent):
                self._fail(answer, error.__cause__ or error)
            elif isinstance(error, PublishError) and sent:
                self._fail(answer, Unconfirmed(f"a message was refused ({error}): stored or not is unknown"))
            elif isinstance(error, Unconfirmed | Interrupted | PublishError) and not sent:
                self._fail(answer, NotSent(f"the message was not sent: {error}"))
            else:
                self._fail(answer, _copied(error))


class Unraised:
    """Failures of messages that neither a receipt nor `flush` has raised. So many are kept, and one of the others: a
    receipt may raise that one, too, and it is raised twice rather than never."""

    def __init__(self) -> None:
        self._failures: dict[asyncio.Future[Sent], BaseException] = {}
        self._another: BaseException | None = None

    def __len__(self) -> int:
        return len(self._failures)

    def add(self, answer: asyncio.Future[Sent], error: BaseException) -> None:
        if len(self._failures) < limits.CLIENT_UNRAISED_FAILURES:
            self._failures[answer] = error
        elif self._another is None:
            self._another = error

    def drop(self, answer: asyncio.Future[Sent]) -> None:
        self._failures.pop(answer, None)

    def raise_first(self) -> None:
        """Once: it is empty afterwards."""
        errors = [*self._failures.values(), *([] if self._another is None else [self._another])]
        self._failures, self._another = {}, None
        if errors:
            if len(errors) > 1:
                errors[0].add_note(f"{len(errors) - 1} other messages failed, too")
            raise errors[0]


class Producer:
    """Made by `Client.producer`. Use it in `async with`, which flushes at the end, or `close` it."""

    def __init__(
        self,
        publish_many: PublishMany,
        cluster: Cluster,
        producers: Producers,
        stream: str,
        *,
        ack: AckPolicy,
        linger: float,
        max_in_flight: int,
        retry_for: float,
        timeout: float,
        partitioner: Partitioner | None,
        idempotent: bool | None,
        open_ones: dict[Producer, None],
    ) -> None:
        """`open_ones` has it from its first message on, until it is closed."""
        if ack is AckPolicy.NONE:
            raise InvalidArgument("a producer waits for acks: ack is AckPolicy.ALL or AckPolicy.LEADER")
        if not 0 < max_in_flight <= limits.CLIENT_PUBLISH_WINDOW:
            raise InvalidArgument(f"max_in_flight={max_in_flight}: it is 1 to {limits.CLIENT_PUBLISH_WINDOW}")
        if idempotent and ack is not AckPolicy.ALL:
            raise InvalidArgument("idempotent=True: messages are numbered with AckPolicy.ALL only")
        self._publish_many = publish_many
        self._cluster = cluster
        self._stream = stream
        self._ack = ack
        self._linger = linger
        self._max_in_flight = max_in_flight
        self._retry_for = retry_for
        self._timeout = timeout
        self._partitioner = partitioner
        self._idempotent = idempotent
        self._batches = AtomicBatches(cluster, producers, stream, retry_for, timeout)
        self._room = asyncio.Semaphore(max_in_flight)
        self._queue: deque[tuple[Outgoing, asyncio.Future[Sent]]] = deque()
        self._filled = asyncio.Event()
        self._open_ones = open_ones
        self._taken = _Run(self._fail_one)
        self._open: dict[asyncio.Future[Sent], None] = {}
        self._unraised = Unraised()
        self._running: asyncio.Task[None] | None = None
        self._sends_again = False
        """Since the last ack."""
        self._closed = False

    def __repr__(self) -> str:
        return f"<Producer of {self._stream}, {len(self._open)} messages in flight>"

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except BasculeError as failure:
            if error is None:
                raise
            error.add_note(f"a message to stream {self._stream} failed, too: {type(failure).__name__}: {failure}")

    async def send(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> Receipt:
        """Waits until there is room, and returns a receipt, to be awaited for the ack or not."""
        message = Outgoing(value, key, headers, partition)
        _check_fit(message)
        self._check()
        if self._partitioner is not None and partition is None:
            known = await self._cluster.stream(self._stream, Deadline(self._timeout))
            message = message._replace(partition=self._partitioner(message, len(known.partitions)))
            _check_fit(message)
        await self._room.acquire()
        if self._closed:
            self._room.release()
            self._check()
        answer: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        self._open[answer] = None
        answer.add_done_callback(self._answered)
        self._queue.append((message, answer))
        self._filled.set()
        if self._running is None:
            self._running = asyncio.create_task(self._run())
            self._open_ones[self] = None
        return Receipt(answer, self._unraised)

    def batch(self, partition: int | None = None) -> ProducerBatch:
        """Messages to one partition of which all are stored or none is: `async with producer.batch() as batch`, and
        `await batch.send(b"...")`. They are sent, and acked, at the end of the block. Without a partition their keys
        choose it, all the same one."""
        return ProducerBatch(self.send_batch, partition)

    async def send_batch(self, messages: Sequence[bytes | Outgoing], partition: int | None = None) -> StoredBatch:
        """The same at once; returns when the whole in-sync set has stored them. It is stored after all that was sent
        before. Unconfirmed: all of it is stored or nothing, and it is not known which."""
        self._check()
        if self._partitioner is not None and partition is None:
            known = await self._cluster.stream(self._stream, Deadline(self._timeout))
            of, count = self._partitioner, len(known.partitions)
            messages = [each if isinstance(each, Outgoing) else Outgoing(each) for each in messages]
            messages = [
                each if each.partition is not None else each._replace(partition=of(each, count)) for each in messages
            ]
        if self._open:
            await asyncio.wait(list(self._open))
        return await self._batches.store(messages, partition)

    def _check(self) -> None:
        if self._closed:
            raise ClientClosed("this producer is closed: make another one")
        self._cluster.connections.check_open()

    def _answered(self, answer: asyncio.Future[Sent]) -> None:
        self._open.pop(answer, None)
        self._room.release()
        if not answer.cancelled():
            answer.exception()  # a receipt need not be awaited: `flush` raises what failed

    @property
    def unanswered(self) -> int:
        """How many messages have no ack yet."""
        return len(self._open)

    async def flush(self) -> None:
        """Wait until everything that was sent before has an answer. Raises the first failure that has not been raised,
        by a receipt or by an earlier `flush`."""
        if self._open:
            await asyncio.wait(list(self._open))
        self._unraised.raise_first()

    async def close(self) -> None:
        """Flush, and take no more. What failed is raised here, as by `flush`."""
        self._closed = True
        self._filled.set()
        try:
            await self.flush()
        finally:
            self._batches.close()
            await self.stop()

    async def stop(self) -> None:
        """Without waiting for acks. Its client does so that is closed."""
        self._closed = True
        self._open_ones.pop(self, None)
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    # --- sending --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """One call of `publish_many` after another: each lasts until something fails that cannot be tried again."""
        while not self._closed or self._queue:
            if not self._queue:
                self._filled.clear()
                await self._filled.wait()
                continue
            self._taken = _Run(self._fail_one)
            try:
                await self._publish_many(
                    self._stream,
                    self._values(),
                    ack=self._ack,
                    timeout=self._timeout,
                    on_acks=self._acked,
                    retry_s=self._retry_for,
                    on_retry=self._again,
                    idempotent=self._idempotent,
                    outcomes=self._taken,
                )
            except BasculeError as error:
                self._fail(error)
            except Exception as error:
                self._fail(Unconfirmed(f"the producer failed ({error!r}): stored or not is unknown"))
            except BaseException as error:
                self._stopped(error)
                raise

    async def _values(self) -> AsyncIterator[Outgoing]:
        number = 0
        idle = True
        while True:
            while not self._queue:
                if self._closed:
                    return
                idle = True
                self._filled.clear()
                await self._filled.wait()
            if idle and self._linger:
                await asyncio.sleep(self._linger)
            idle = False
            message, answer = self._queue.popleft()
            self._taken.receipts[number] = answer
            number += 1
            yield message

    def _again(self, count: int, error: BasculeError) -> None:
        if not self._open or self._cluster.connections.closed:  # an idle connection was lost, or nothing is sent again
            return
        level = logging.DEBUG if self._sends_again else logging.WARNING
        self._sends_again = True
        what = "stream %s: %d messages have no ack, and are sent again for up to %g s without one: %s"
        logger.log(level, what, self._stream, len(self._open), self._retry_for, error)

    def _acked(self, acks: list[tuple[int, int, int]]) -> None:
        if self._sends_again:
            self._sends_again = False
            logger.info("stream %s: messages are acked again", self._stream)
        for number, offset, partition in acks:
            answer = self._taken.receipts.pop(number)
            if not answer.done():
                answer.set_result(Sent(self._stream, partition, offset))

    def _stopped(self, error: BaseException) -> None:
        """Its task was cancelled: nothing is sent any more, and nobody is left waiting."""
        self._closed = True
        if self._open and not self._cluster.connections.closed:  # then its client has said so
            logger.warning(
                "stream %s: the producer was stopped before it was closed, and %d messages have no ack: they may be "
                "lost. Use the producer in `async with`, or close it",
                self._stream,
                len(self._open),
            )
        while self._queue:
            _, answer = self._queue.popleft()
            self._fail_one(answer, NotSent(f"the producer was stopped ({error!r}): the message was not sent"))
        self._taken.failed(Unconfirmed(f"the producer was stopped ({error!r}): stored or not is unknown"))

    def _fail(self, error: BasculeError) -> None:
        if not self._taken.receipts and self._taken.unknown is None:  # none was taken: it is about all that wait
            while self._queue:
                _, answer = self._queue.popleft()
                self._fail_one(answer, _copied(error))
        self._taken.failed(error)

    def _fail_one(self, answer: asyncio.Future[Sent], reason: BaseException) -> None:
        if not answer.done():
            self._unraised.add(answer, reason)
            answer.set_exception(reason)


def _check_fit(message: Outgoing) -> None:
    if reason := unfit(message):
        raise InvalidArgument(reason)
    size = len(message.value) + len(message.key or b"")
    if size > limits.GRPC_MAX_MESSAGE_BYTES:
        most = limits.GRPC_MAX_MESSAGE_BYTES
        raise InvalidArgument(f"the message takes {size} bytes and a request may have {most}: send it in parts")


def _copied(error: BasculeError) -> BasculeError:
    """Each receipt has its own: a traceback, and notes, belong to one."""
    if isinstance(error, RpcError):
        return RpcError(error.code, str(error))
    return type(error)(str(error))
