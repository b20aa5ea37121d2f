"""The client for code without an event loop: the same calls, each waiting for its result.

One thread per client runs the loop; every call is handed to it, from any thread. Messages cross threads in batches.
Sources of messages, and what is called with their acks, run in the caller's thread.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Protocol, TypeVar, Unpack, cast, overload

from bascule import limits
from bascule.client.arrow import ArrowRead, ArrowStart
from bascule.client.blockingadmin import BlockingAdmin
from bascule.client.blockingconsumer import BlockingArrowRead, BlockingConsumer, BlockingGroupConsumer, Calls
from bascule.client.blockingproducer import BlockingProducer
from bascule.client.bulk import BulkRead, LogBounds, LogRange
from bascule.client.bulkwrite import Batch, BulkWrite, WrittenBatch
from bascule.client.client import Client
from bascule.client.consumer import Consumer, Partitions, Position
from bascule.client.crossing import Crossing, CrossingSource, outcome
from bascule.client.cursors import Cursor
from bascule.client.export import ExportReport, OnProgress
from bascule.client.failures import OnWait
from bascule.client.groupconsumer import GroupConsumer, OnAssignment, check_group
from bascule.client.member import GroupStart
from bascule.client.pipeline import OnAcks, check_values
from bascule.client.producer import Partitioner, Producer
from bascule.client.retrying import OnRetry
from bascule.client.settings import StreamOverrides
from bascule.client.subscription import OnLost, Subscription
from bascule.client.values import Ack, AckPolicy, Message, Metadata, Outgoing, Partition, StartAt, StopAt
from bascule.errors import BasculeError, ClientClosed

logger = logging.getLogger(__name__)

T = TypeVar("T")
Item = TypeVar("Item", covariant=True)


class Items(Protocol[Item]):
    async def __anext__(self) -> Item: ...

    async def aclose(self) -> None: ...


class BlockingClient:
    """`with BlockingClient("localhost:9292") as client: ...`. Threads may share one; processes may not: after a fork
    each needs its own."""

    def __init__(
        self,
        servers: Sequence[str] | str,
        *,
        tls: ssl.SSLContext | None = None,
        timeout: float = limits.CLIENT_CONNECT_TIMEOUT_S,
        on_wait: OnWait | None = None,
    ) -> None:
        """`on_wait` is called in the client's own thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bascule-client", daemon=True)
        self._thread.start()
        self._process = os.getpid()
        self._lock = threading.Lock()
        """Nothing is handed to the loop behind its end."""
        self._closed = False
        _open.add(self)
        try:
            told = {} if on_wait is None else {"on_wait": on_wait}
            self._client = self._run(Client.connect(servers, tls=tls, timeout=timeout, **told))
        except BaseException:
            self._end(_nothing())
            raise

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._client)[1:]}"

    def _check(self) -> None:
        if self._closed:
            raise ClientClosed("this client is closed: connect a new one")
        if self._process != os.getpid():
            raise RuntimeError("this client was made in another process, before a fork: connect one in each process")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback in the client's own thread cannot wait for the client: use another thread")

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            self._check()
            with self._lock:
                self._check()
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise

    def _run(self, work: Coroutine[Any, Any, T], wait: Callable[[Future[T]], T] = outcome) -> T:
        future = self._submit(work)
        try:
            return wait(future)
        except BaseException:
            future.cancel()  # an interrupt of this thread must cancel the work in the client's thread
            raise

    def _end(self, closing: Coroutine[Any, Any, None]) -> None:
        """Nobody is left waiting for the loop when it stops."""
        with self._lock:
            if self._closed:
                closing.close()
                return
            self._closed = True
            _open.discard(self)
            ended = asyncio.run_coroutine_threadsafe(_end_all(closing), self._loop)
        try:
            ended.result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(lambda: self._client.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Producers are flushed first. Threads that wait for anything else of it get ClientClosed, or what is known of
        their messages."""
        self._close(self._client.close)

    def _close(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._process != os.getpid():
            self._closed = True  # its connections belong to the process that made it
            _open.discard(self)
        if not self._closed:
            self._check()
            self._end(closing())

    def create_stream(
        self,
        name: str,
        subject: str | None = None,
        partitions: int = 1,
        replication_factor: int = 1,
        timeout: float = limits.CLIENT_TIMEOUT_S,
        *,
        exist_ok: bool = False,
        **overrides: Unpack[StreamOverrides],
    ) -> None:
        self._run(
            self._client.create_stream(
                name, subject, partitions, replication_factor, timeout, exist_ok=exist_ok, **overrides
            )
        )

    def delete_stream(self, name: str, timeout: float = limits.CLIENT_TIMEOUT_S) -> None:
        self._run(self._client.delete_stream(name, timeout))

    def pause_stream(
        self,
        name: str,
        partitions: Sequence[int] = (),
        *,
        resume_all: bool = False,
        timeout: float = limits.CLIENT_TIMEOUT_S,
    ) -> None:
        self._run(self._client.pause_stream(name, partitions, resume_all=resume_all, timeout=timeout))

    def resume_stream(
        self, name: str, partitions: Sequence[int] = (), timeout: float = limits.CLIENT_ADMIN_TIMEOUT_S
    ) -> None:
        """These partitions, or all that are paused."""
        self._run(self._client.admin.resume_stream(name, partitions, timeout))

    def set_stream_readonly(
        self,
        name: str,
        readonly: bool = True,
        partitions: Sequence[int] = (),
        timeout: float = limits.CLIENT_TIMEOUT_S,
    ) -> None:
        self._run(self._client.set_stream_readonly(name, readonly, partitions, timeout))

    def fetch_metadata(self, streams: Sequence[str] = (), timeout: float = limits.CLIENT_TIMEOUT_S) -> Metadata:
        return self._run(self._client.fetch_metadata(streams, timeout))

    def fetch_partition_metadata(
        self, stream: str, partition: int = 0, timeout: float = limits.CLIENT_TIMEOUT_S
    ) -> Partition:
        return self._run(self._client.fetch_partition_metadata(stream, partition, timeout))

    @property
    def admin(self) -> BlockingAdmin:
        """Of a Bascule cluster: its brokers and replicas. Other Liftbridge servers have no such service."""
        return BlockingAdmin(self._client.admin, self._run)

    def set_cursor(
        self, id: str, stream: str, partition: int, offset: int, timeout: float = limits.CLIENT_TIMEOUT_S
    ) -> None:
        self._run(self._client.set_cursor(id, stream, partition, offset, timeout))

    def fetch_cursor(self, id: str, stream: str, partition: int = 0, timeout: float = limits.CLIENT_TIMEOUT_S) -> int:
        return self._run(self._client.fetch_cursor(id, stream, partition, timeout))

    def list_cursors(self) -> list[Cursor]:
        return self._run(self._client.list_cursors())

    def publish(
        self,
        stream: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        ack: AckPolicy = AckPolicy.ALL,
        expected_offset: int = -1,
        timeout: float = limits.CLIENT_ACK_TIMEOUT_S,
        retry_s: float = 0.0,
    ) -> Ack:
        return self._run(
            self._client.publish(
                stream,
                value,
                key=key,
                partition=partition,
                headers=headers,
                ack=ack,
                expected_offset=expected_offset,
                timeout=timeout,
                retry_s=retry_s,
            )
        )

    def publish_many(
        self,
        stream: str,
        values: Iterable[bytes | Outgoing],
        *,
        partition: int | None = None,
        spread: bool = False,
        ack: AckPolicy = AckPolicy.ALL,
        timeout: float = limits.CLIENT_ACK_TIMEOUT_S,
        on_acks: OnAcks | None = None,
        retry_s: float = 0.0,
        on_retry: OnRetry | None = None,
    ) -> int:
        """The values are taken, and `on_acks` and `on_retry` are called, in the caller's thread."""
        check_values(values)
        self._check()
        crossing = Crossing(values, on_acks, on_retry)

        def publish(values: AsyncIterator[bytes | Outgoing], on_acks: OnAcks, on_retry: OnRetry) -> Awaitable[int]:
            return self._client.publish_many(
                stream,
                values,
                partition=partition,
                spread=spread,
                ack=ack,
                timeout=timeout,
                on_acks=on_acks,
                retry_s=retry_s,
                on_retry=on_retry,
            )

        return crossing.wait(self._submit(crossing.run(publish)), self._loop)

    def producer(
        self,
        stream: str,
        *,
        ack: AckPolicy = AckPolicy.ALL,
        linger: float = 0.0,
        max_in_flight: int = limits.CLIENT_PUBLISH_WINDOW,
        retry_for: float = limits.CLIENT_RETRY_FOR_S,
        timeout: float = limits.CLIENT_ACK_TIMEOUT_S,
        partitioner: Partitioner | None = None,
        idempotent: bool | None = None,
    ) -> BlockingProducer:
        """As that of `Client`; its `send` may be called in any thread. `partitioner` is called in the client's own."""

        async def make() -> Producer:
            return self._client.producer(
                stream,
                ack=ack,
                linger=linger,
                max_in_flight=max_in_flight,
                retry_for=retry_for,
                timeout=timeout,
                partitioner=partitioner,
                idempotent=idempotent,
            )

        return BlockingProducer(self._run(make()), self._run)

    def subscribe(
        self,
        stream: str,
        partition: int = 0,
        *,
        start: StartAt = "earliest",
        stop: StopAt = None,
        reverse: bool = False,
        resume_paused: bool = False,
        replica: str = "",
        on_lost: OnLost | None = None,
    ) -> Iterator[Message]:
        """`on_lost` is called in the client's own thread."""
        batches = self.batches(
            stream,
            partition,
            start=start,
            stop=stop,
            reverse=reverse,
            resume_paused=resume_paused,
            replica=replica,
            on_lost=on_lost,
        )
        return (message for batch in batches for message in batch)

    def batches(
        self,
        stream: str,
        partition: int = 0,
        *,
        start: StartAt = "earliest",
        stop: StopAt = None,
        reverse: bool = False,
        resume_paused: bool = False,
        replica: str = "",
        on_lost: OnLost | None = None,
    ) -> Iterator[list[Message]]:
        async def prepare() -> Subscription:
            return self._client.subscribe(
                stream,
                partition,
                start=start,
                stop=stop,
                reverse=reverse,
                resume_paused=resume_paused,
                replica=replica,
                on_lost=on_lost,
            )

        return self._each(self._run(prepare()).batches())

    @overload
    def consumer(
        self,
        streams: str | Sequence[str],
        *,
        partitions: Partitions = "all",
        start: StartAt | Position = "earliest",
        stop: StopAt = None,
        last: int | None = None,
        resume_paused: bool = False,
        on_lost: OnLost | None = None,
    ) -> BlockingConsumer: ...

    @overload
    def consumer(
        self,
        streams: str | Sequence[str],
        *,
        group: str,
        member: str = "",
        start: GroupStart = "earliest",
        auto_commit: float | None = limits.CLIENT_AUTO_COMMIT_S,
        on_assigned: OnAssignment | None = None,
        on_revoked: OnAssignment | None = None,
        resume_paused: bool = False,
        on_lost: OnLost | None = None,
    ) -> BlockingGroupConsumer: ...

    def consumer(
        self,
        streams: str | Sequence[str],
        *,
        group: str | None = None,
        member: str = "",
        partitions: Partitions = "all",
        start: StartAt | Position = "earliest",
        stop: StopAt = None,
        last: int | None = None,
        auto_commit: float | None = limits.CLIENT_AUTO_COMMIT_S,
        on_assigned: OnAssignment | None = None,
        on_revoked: OnAssignment | None = None,
        resume_paused: bool = False,
        on_lost: OnLost | None = None,
    ) -> BlockingConsumer | BlockingGroupConsumer:
        """As that of `Client`. `on_assigned` and `on_revoked` are called in the thread that iterates, `on_lost` in the
        client's own."""
        if group is None and not member and on_assigned is None and on_revoked is None:

            async def plain() -> Consumer:
                return self._client.consumer(
                    streams,
                    partitions=partitions,
                    start=start,
                    stop=stop,
                    last=last,
                    resume_paused=resume_paused,
                    on_lost=on_lost,
                )

            return BlockingConsumer(self._run(plain()), self._run)
        check_group(group, partitions, start, stop, last)
        calls = Calls(self._submit)

        async def grouped() -> GroupConsumer:
            return self._client.consumer(
                streams,
                group=group or "",
                member=member,
                start=cast("GroupStart", start),
                auto_commit=auto_commit,
                on_assigned=calls.crossing(on_assigned),
                on_revoked=calls.crossing(on_revoked),
                resume_paused=resume_paused,
                on_lost=on_lost,
            )

        return BlockingGroupConsumer(self._run(grouped()), calls)

    def log_bounds(self, stream: str, partition: int = 0, timeout: float = limits.CLIENT_TIMEOUT_S) -> LogBounds:
        return self._run(self._client.log_bounds(stream, partition, timeout))

    def read_range(
        self,
        stream: str,
        partition: int = 0,
        start: int = 0,
        end: int | None = None,
        *,
        creation: int = 0,
        replica: str = "",
        max_bytes: int = 0,
    ) -> Iterator[LogRange]:
        async def prepare() -> BulkRead:
            return self._client.read_range(
                stream, partition, start, end, creation=creation, replica=replica, max_bytes=max_bytes
            )

        return self._each(self._run(prepare()).ranges())

    def arrow(
        self,
        stream: str,
        *,
        partitions: Partitions = "all",
        columns: Sequence[str] | None = None,
        start: ArrowStart = "earliest",
        max_bytes: int = limits.CLIENT_ARROW_BYTES,
    ) -> BlockingArrowRead:
        async def make() -> ArrowRead:
            return self._client.arrow(stream, partitions=partitions, columns=columns, start=start, max_bytes=max_bytes)

        return BlockingArrowRead(self._run(make()), self._run)

    def export_parquet(
        self,
        stream: str,
        folder: str | os.PathLike[str],
        *,
        partitions: Partitions = "all",
        columns: Sequence[str] | None = None,
        start: ArrowStart = "earliest",
        max_file_bytes: int = limits.EXPORT_FILE_BYTES,
        skip_damaged: bool = False,
        on_progress: OnProgress | None = None,
    ) -> ExportReport:
        """`on_progress` is called in the client's own thread."""
        return self._run(
            self._client.export_parquet(
                stream,
                folder,
                partitions=partitions,
                columns=columns,
                start=start,
                max_file_bytes=max_file_bytes,
                skip_damaged=skip_damaged,
                on_progress=on_progress,
            )
        )

    def write_batches(
        self,
        stream: str,
        batches: Iterable[Batch],
        partition: int = 0,
        *,
        ack: AckPolicy = AckPolicy.ALL,
        creation: int = 0,
        bypass_others: bool = False,
        timeout: float = limits.CLIENT_ACK_TIMEOUT_S,
        atomic: bool = False,
    ) -> Iterator[WrittenBatch]:
        """The batches are taken in the thread that iterates the result, while it does."""
        source = CrossingSource(batches)

        async def prepare() -> BulkWrite:
            return self._client.write_batches(
                stream,
                source,
                partition,
                ack=ack,
                creation=creation,
                bypass_others=bypass_others,
                timeout=timeout,
                atomic=atomic,
            )

        return self._each(self._run(prepare()).written(), source.wait)

    def publish_batch(
        self,
        stream: str,
        messages: Sequence[bytes | Outgoing],
        partition: int = 0,
        *,
        ack: AckPolicy = AckPolicy.ALL,
        bypass_others: bool = False,
        timeout: float = limits.CLIENT_ACK_TIMEOUT_S,
    ) -> WrittenBatch:
        return self._run(
            self._client.publish_batch(
                stream, messages, partition, ack=ack, bypass_others=bypass_others, timeout=timeout
            )
        )

    def _each(self, items: Items[T], wait: Callable[[Future[T | None]], T | None] = outcome) -> Iterator[T]:
        try:
            while (item := self._run(_next(items), wait)) is not None:
                yield item
        finally:
            if not self._closed and self._process == os.getpid():
                self._run(items.aclose())


_open: set[BlockingClient] = set()
"""Clients whose thread runs. A program that ends without closing them does not lose what their producers have taken."""


@atexit.register
def _close_all() -> None:
    for client in list(_open):
        try:
            client.close()
        except BasculeError as error:
            logger.warning("the program ends without closing its client, and messages failed: %s", error)


async def _nothing() -> None:
    """To close before there is a client."""


async def _end_all(closing: Coroutine[Any, Any, None]) -> None:
    """Whoever waits is answered: by what the closing says of its messages, if it can tell soon, or by a
    cancellation."""
    try:
        await closing
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=limits.CLIENT_LAST_ANSWERS_S)
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=limits.CLIENT_CLOSE_TIMEOUT_S)
        await asyncio.get_running_loop().shutdown_asyncgens()


async def _next(items: Items[T]) -> T | None:
    try:
        return await items.__anext__()
    except StopAsyncIteration:
        return None
