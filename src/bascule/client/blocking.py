"""The client for code without an event loop: the same calls, each waiting for its result.

One thread per client runs the loop; every call is handed to it. Messages cross threads in batches.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

from bascule import limits
from bascule.client.bulk import BulkRead, LogBounds, LogRange
from bascule.client.client import Client
from bascule.client.pipeline import OnAcks
from bascule.client.retrying import OnRetry
from bascule.client.settings import StreamOverrides
from bascule.client.subscription import Subscription
from bascule.client.values import Ack, AckPolicy, Message, Metadata, Outgoing, Partition, StartAt, StopAt

T = TypeVar("T")


class BlockingClient:
    """`with BlockingClient("localhost:9292") as client: ...`"""

    def __init__(self, servers: Sequence[str] | str, *, tls: ssl.SSLContext | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bascule-client", daemon=True)
        self._thread.start()
        self._closed = False
        try:
            self._client = self._run(Client.connect(servers, tls=tls))
        except BaseException:
            self._stop()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise RuntimeError("this client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt of this thread must cancel the work in the client's thread
            raise

    def _stop(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            try:
                self._run(self._client.close())
            finally:
                self._stop()

    def create_stream(
        self,
        name: str,
        subject: str | None = None,
        partitions: int = 1,
        replication_factor: int = 1,
        timeout: float = limits.CLIENT_TIMEOUT_S,
        **overrides: Unpack[StreamOverrides],
    ) -> None:
        self._run(self._client.create_stream(name, subject, partitions, replication_factor, timeout, **overrides))

    def delete_stream(self, name: str) -> None:
        self._run(self._client.delete_stream(name))

    def pause_stream(self, name: str, partitions: Sequence[int] = (), *, resume_all: bool = False) -> None:
        self._run(self._client.pause_stream(name, partitions, resume_all=resume_all))

    def set_stream_readonly(self, name: str, readonly: bool = True, partitions: Sequence[int] = ()) -> None:
        self._run(self._client.set_stream_readonly(name, readonly, partitions))

    def fetch_metadata(self, streams: Sequence[str] = ()) -> Metadata:
        return self._run(self._client.fetch_metadata(streams))

    def fetch_partition_metadata(self, stream: str, partition: int = 0) -> Partition:
        return self._run(self._client.fetch_partition_metadata(stream, partition))

    def set_cursor(self, id: str, stream: str, partition: int, offset: int) -> None:
        self._run(self._client.set_cursor(id, stream, partition, offset))

    def fetch_cursor(self, id: str, stream: str, partition: int = 0) -> int:
        return self._run(self._client.fetch_cursor(id, stream, partition))

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
        """The values are taken, and `on_acks` and `on_retry` are called, in the client's own thread."""
        return self._run(
            self._client.publish_many(
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
        )

    def subscribe(
        self,
        stream: str,
        partition: int = 0,
        *,
        start: StartAt = "earliest",
        stop: StopAt = None,
        reverse: bool = False,
        replica: str = "",
    ) -> Iterator[Message]:
        for batch in self.batches(stream, partition, start=start, stop=stop, reverse=reverse, replica=replica):
            yield from batch

    def batches(
        self,
        stream: str,
        partition: int = 0,
        *,
        start: StartAt = "earliest",
        stop: StopAt = None,
        reverse: bool = False,
        replica: str = "",
    ) -> Iterator[list[Message]]:
        async def prepare() -> Subscription:
            return self._client.subscribe(stream, partition, start=start, stop=stop, reverse=reverse, replica=replica)

        return self._each(self._run(prepare()).batches())

    def log_bounds(self, stream: str, partition: int = 0) -> LogBounds:
        return self._run(self._client.log_bounds(stream, partition))

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

    def _each(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while (item := self._run(_next(items))) is not None:
                yield item
        finally:
            if not self._closed:
                self._run(items.aclose())


async def _next(items: AsyncGenerator[T, None]) -> T | None:
    return await anext(items, None)
