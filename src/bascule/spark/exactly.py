"""A task of a write to Bascule: each of its rows is stored once, however often the task is run.

The task is an idempotent producer of each partition it writes to: its messages there are numbered from 0 on, in the
order of its rows. So a task that is run again, whatever became of the one before, sends what is stored already, which
is not stored again. Whether that is the same is checked afterwards: everything of this producer is read back from where
the partition ended when the batch began.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from bascule import limits
from bascule.client import Client, Identity, NumberedWrite, Outgoing, WriteTo
from bascule.client.requests import frame_messages
from bascule.errors import FailedPrecondition, InvalidArgument
from bascule.spark.registry import REGISTRY, SAME_AGAIN, BatchId, Registered, check_latest, register
from bascule.spark.retrying import asked_again
from bascule.spark.rows import Framed, Framer
from bascule.spark.writeoptions import WriteOptions
from bascule.wire.pure.producers import read_numbered
from bascule.wire.pure.record import record_fields

logger = logging.getLogger(__name__)

_ROOM = 64  # of a batch, besides its messages


class Stored(NamedTuple):
    rows: int
    registered: int


class _Part:
    """A partition that the task writes to."""

    def __init__(self, write: NumberedWrite) -> None:
        self.write = write
        self.count = 0
        self.sent = hashlib.blake2b()
        """Of all messages, as they are framed. Not a CRC: values that end with their own would all look the same."""
        self._waiting: list[bytes] = []
        self._waiting_bytes = self._waiting_count = 0

    async def add(self, framed: Framed) -> None:
        size = len(framed.messages)
        if size > limits.GRPC_MAX_MESSAGE_BYTES - _ROOM:
            raise InvalidArgument(
                f"a row takes {size} bytes, and a message may have {limits.GRPC_MAX_MESSAGE_BYTES}: write it in parts"
            )
        full = self._waiting_count + framed.count > limits.BULK_WRITE_MESSAGES
        if full or self._waiting_bytes + size > limits.CLIENT_WRITE_BATCH_BYTES:
            await self.flush()
        self._waiting.append(framed.messages)
        self._waiting_bytes += size
        self._waiting_count += framed.count
        self.count += framed.count
        self.sent.update(framed.messages)

    async def flush(self) -> None:
        if self._waiting_count:
            await self.write.send(self._waiting_count, b"".join(self._waiting))
            self._waiting, self._waiting_bytes, self._waiting_count = [], 0, 0


class ExactWrite:
    def __init__(self, client: Client, options: WriteOptions, batch: BatchId, task: int) -> None:
        self._client = client
        self._options = options
        self._batch = batch
        self._task = task
        self._producer: Identity = batch.of_task(task)
        self._parts: dict[tuple[str, int], _Part] = {}

    async def run(self, batches: Iterator[Any]) -> Stored:
        try:
            return await self._run(batches)
        except FailedPrecondition as error:
            check_latest(self._batch, error)
            raise

    async def _run(self, batches: Iterator[Any]) -> Stored:
        registered = await register(self._client, self._batch, self._task, self._options.streams)
        counts = {name: len(target.ends) for name, target in registered.targets.items()}
        streams = {name: counts[name] for name in self._options.streams}
        framer = Framer(streams, self._options.by_column, self._task)
        try:
            if registered.again:
                for stream, count in streams.items():
                    for partition in range(count):
                        await self._part(registered, stream, partition)
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                for framed in framer.frame(batch):
                    await (await self._part(registered, framed.stream, framed.partition)).add(framed)
            for part in self._parts.values():
                await part.flush()
            for part in self._parts.values():
                await part.write.finish()
            for (stream, partition), part in self._parts.items():
                if part.write.found or part.write.repeated:
                    await asked_again(partial(self._check, stream, partition, part, registered))
        finally:
            for part in self._parts.values():
                part.write.close()
        return Stored(sum(part.count for part in self._parts.values()), registered.offset)

    async def _part(self, registered: Registered, stream: str, partition: int) -> _Part:
        part = self._parts.get((stream, partition))
        if part is None:
            to = WriteTo(stream, partition, registered.targets[stream].creation, self._options.bypass_others)
            write = self._client.numbered_write(to, self._producer, limits.SPARK_WRITE_RETRY_S)
            part = self._parts[stream, partition] = _Part(write)
            await write.open()
        return part

    # --- what is stored is what was sent ------------------------------------------------------------------------------

    async def _check(self, stream: str, partition: int, part: _Part, registered: Registered) -> None:
        start = registered.targets[stream].ends[partition]
        bounds = await self._client.log_bounds(stream, partition)
        first = max(start, bounds.start)
        count = begins = 0
        found = hashlib.blake2b()
        async for piece in self._client.read_range(stream, partition, first, creation=bounds.creation):
            fields = list(record_fields(piece.records, 0, len(piece.records)))
            own = [number for number, (_, _, field) in enumerate(fields) if self._is_own(field)]
            if own and not count:
                numbered = read_numbered(fields[own[0]][2])
                begins = numbered.sequence if numbered is not None else 0
            if own:
                messages = piece.messages()
                found.update(
                    frame_messages(
                        Outgoing(each.value, each.key, each.headers) for each in (messages[number] for number in own)
                    )
                )
            count += len(own)
        where = f"partition {partition} of stream {stream}"
        if begins or bounds.compacted_end > first or first > start:
            logger.warning(
                "%s: records of batch %d were removed meanwhile: it is not checked that it is the same as when it was "
                "run before",
                where,
                self._batch.number,
            )
            return
        if (count, found.digest()) != (part.count, part.sent.digest()):
            if part.write.found and not registered.again:
                raise FailedPrecondition(
                    f"batch {self._batch.number} of {self._batch.name} was run before, and stream {REGISTRY} does not "
                    f"know it any more: {where} has {part.write.found} rows of its task {self._task}, which are not "
                    "stored again, and it cannot be checked that they are the same ones. Take them as they are, or "
                    "write everything to another stream"
                )
            raise FailedPrecondition(
                f"batch {self._batch.number} of {self._batch.name} has other rows than when it was run before: task "
                f"{self._task} wrote {part.count} rows to {where}, and {count} are stored of it, "
                f"{'which are others' if count == part.count else 'not the same ones'}. {SAME_AGAIN}"
            )

    def _is_own(self, field: bytes) -> bool:
        numbered = read_numbered(field) if field else None
        return numbered is not None and (numbered.id, numbered.epoch) == self._producer
