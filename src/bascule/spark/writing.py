"""A task of a write, in an executor, and what the driver does before and after. A task returns when all its rows are
stored by the whole in-sync set: once, on a Bascule cluster; at least once on others, where they are published."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from bascule import limits
from bascule.client import Client, Outgoing
from bascule.errors import BasculeError, NotFound, Unimplemented
from bascule.spark.connecting import connect
from bascule.spark.exactly import ExactWrite, Stored
from bascule.spark.registry import BatchId, check_tasks
from bascule.spark.retrying import asked_again
from bascule.spark.rows import Framed, Framer, ordered
from bascule.spark.writeoptions import WriteOptions
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pure.http2 import split_messages

logger = logging.getLogger(__name__)


def prepare(options: WriteOptions) -> bool:
    """In the driver, before anything is written: the streams are there. Whether rows are stored exactly once."""

    async def main() -> bool:
        async with await connect(options) as client:
            await _look_for(client, options.streams)
            if await _is_bascule(client, options.streams[0]):
                return True
        _at_least_once(options.servers, options.producer_id or f"run {uuid.uuid4()}")
        return False

    return asyncio.run(main())


@lru_cache(limits.SPARK_WRITES_TOLD)
def prepare_stream(options: WriteOptions) -> None:
    """The same of a query, whose batches ask again only if Spark plans them in another process. It waits for a broker:
    this may be any batch."""

    async def main() -> None:
        async with await connect(options, limits.SPARK_RETRY_S) as client:
            await asked_again(lambda: _look_for(client, options.streams))

    asyncio.run(main())


async def _look_for(client: Client, streams: Sequence[str]) -> None:
    known = (await client.fetch_metadata(streams)).streams
    if missing := [name for name in streams if name not in known]:
        raise NotFound(f"no such stream: {', '.join(missing)}. Create it first: bascule stream create {missing[0]}")


def write(options: WriteOptions, batch: BatchId, task: int, batches: Iterator[Any]) -> Stored:
    rows = ordered(batches, options.order_by) if options.order_by else batches

    async def main() -> Stored:
        async with await connect(options, limits.SPARK_RETRY_S) as client:
            if await _is_bascule(client, options.streams[0]):
                return await ExactWrite(client, options, batch, task).run(rows)
            return await _publish(client, options, task, rows)

    return asyncio.run(main())


def commit(options: WriteOptions, batch: BatchId, tasks: list[Stored]) -> None:
    """In the driver, when all tasks have returned."""
    registered = [each.registered for each in tasks if each.registered >= 0]
    if not registered:
        if tasks:
            _at_least_once(options.servers, batch.name)
        return

    async def main() -> None:
        async with await connect(options, limits.SPARK_RETRY_S) as client:
            await asked_again(lambda: check_tasks(client, batch, min(registered), len(tasks)))

    asyncio.run(main())


@lru_cache(limits.SPARK_WRITES_TOLD)
def _at_least_once(servers: tuple[str, ...], name: str) -> None:
    """Said once of a write: a query has many batches, and one driver."""
    logger.warning(
        "%s is no Bascule cluster: rows are stored at least once, and twice if a task or a batch is run again (%s)",
        ", ".join(servers),
        name,
    )


async def _is_bascule(client: Client, stream: str) -> bool:
    try:
        await client.log_bounds(stream, 0)
    except Unimplemented:
        return False
    except BasculeError as error:
        logger.debug("%s: %s", stream, error)  # it has such calls
    return True


# --- other servers --------------------------------------------------------------------------------------------------


async def _publish(client: Client, options: WriteOptions, task: int, batches: Iterator[Any]) -> Stored:
    known = (await client.fetch_metadata(options.streams)).streams
    framer = Framer({name: len(known[name].partitions) for name in options.streams}, options.by_column, task)
    rows = 0
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        for framed in framer.frame(batch):
            await client.publish_many(framed.stream, outgoing(framed), retry_s=limits.SPARK_WRITE_RETRY_S)
            rows += framed.count
    return Stored(rows, -1)


def outgoing(framed: Framed) -> Iterator[Outgoing]:
    for _, content in split_messages(framed.messages, 0, len(framed.messages), len(framed.messages))[1]:
        message = api.Message.FromString(content)
        yield Outgoing(message.value, message.key or None, dict(message.headers) or None, framed.partition)
