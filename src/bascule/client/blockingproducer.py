"""Producers for code without an event loop. Any number of threads may share one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType

from bascule.client.atomic import ProducerBatch, StoredBatch
from bascule.client.crossing import Run
from bascule.client.producer import Producer, Receipt, Sent
from bascule.client.values import Outgoing


class BlockingReceipt:
    """Of one message that was sent: `result` waits for its ack."""

    def __init__(self, receipt: Receipt, run: Run) -> None:
        self._receipt = receipt
        self._run = run

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._receipt)[1:]}"

    def done(self) -> bool:
        return self._receipt.done()

    def result(self, timeout: float | None = None) -> Sent:
        async def wait() -> Sent:
            async with asyncio.timeout(timeout):
                return await self._receipt

        return self._run(wait())


class BlockingProducer:
    """Made by `BlockingClient.producer`. Use it in `with`, which flushes at the end, or `close` it."""

    def __init__(self, producer: Producer, run: Run) -> None:
        self._producer = producer
        self._run = run

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._producer)[1:]}"

    def __enter__(self) -> BlockingProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._producer.__aexit__(kind, error, trace))

    def send(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> BlockingReceipt:
        """Waits until there is room, and returns a receipt."""
        sent = self._producer.send(value, key=key, headers=headers, partition=partition)
        return BlockingReceipt(self._run(sent), self._run)

    def send_batch(self, messages: Sequence[bytes | Outgoing], partition: int | None = None) -> StoredBatch:
        """Messages to one partition, of which all are stored or none is. Returns when they are acked."""
        return self._run(self._producer.send_batch(messages, partition))

    def batch(self, partition: int | None = None) -> BlockingProducerBatch:
        """The same for messages that are added one by one: `with producer.batch() as batch`, and `batch.send(b"...")`.
        They are sent at the end of the block; nothing is if it fails."""
        return BlockingProducerBatch(self._producer.batch(partition), self._run)

    def flush(self) -> None:
        self._run(self._producer.flush())

    def close(self) -> None:
        self._run(self._producer.close())


class BlockingProducerBatch:
    """Messages that are collected and sent together at the end of its `with`; nothing is if the block fails."""

    def __init__(self, batch: ProducerBatch, run: Run) -> None:
        self._batch = batch
        self._run = run

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._batch)[1:]}"

    @property
    def stored(self) -> StoredBatch | None:
        """Where it is, after the block."""
        return self._batch.stored

    def __enter__(self) -> BlockingProducerBatch:
        self._run(self._batch.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._batch.__aexit__(kind, error, trace))

    def send(self, value: bytes, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None) -> None:
        """Waits for nothing: no message leaves before the block ends."""
        self._batch.add(value, key=key, headers=headers)

    add = send
