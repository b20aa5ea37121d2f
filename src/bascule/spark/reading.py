"""A task of a query: one range of a partition as Arrow batches, in an executor.

A task that does not reach the end of its range fails; it never returns fewer messages quietly. Offsets that compaction
removed, or retention before the query was planned, are simply not there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bascule import limits
from bascule.errors import FailedPrecondition, OutOfRange, Unavailable
from bascule.spark.columns import batch_of_messages, batch_of_range
from bascule.spark.connecting import connected

if TYPE_CHECKING:
    from bascule.client import BlockingClient, Message
    from bascule.spark.options import ReadOptions
    from bascule.spark.planning import StreamRange

logger = logging.getLogger(__name__)


def read(options: ReadOptions, names: Sequence[str], wanted: StreamRange) -> Iterator[Any]:
    with connected(options) as client:
        yield from (_bulk if wanted.creation else _subscribed)(client, options, names, wanted)


def _bulk(client: BlockingClient, options: ReadOptions, names: Sequence[str], wanted: StreamRange) -> Iterator[Any]:
    position = wanted.start
    while position < wanted.end:
        before = position
        try:
            for given in client.read_range(
                wanted.stream,
                wanted.partition,
                position,
                wanted.end,
                creation=wanted.creation,
                max_bytes=limits.SPARK_READ_BYTES,
            ):
                position = given.end
                if given.count:
                    yield batch_of_range(names, wanted.stream, wanted.partition, given)
        except OutOfRange as error:
            if options.fail_on_loss:
                raise _told(error) from None
            position = max(position, client.log_bounds(wanted.stream, wanted.partition).start)
            logger.warning("%s; the query goes on at offset %d", error, position)
        except FailedPrecondition as error:
            if options.fail_on_loss or "made again" not in str(error):
                raise _told(error) from None
            logger.warning("%s; the query goes on without what it held", error)
            return
        if position == before:
            raise _short(wanted, position)


def _told(error: Exception) -> Exception:
    return type(error)(
        f'{error}. Messages that were to be read are gone; set the option "failOnDataLoss" to false to go on without '
        "them"
    )


def _short(wanted: StreamRange, end: int) -> Unavailable:
    return Unavailable(
        f"partition {wanted.partition} of stream {wanted.stream} ended at offset {end}, and {wanted.end} was committed "
        "before: was the stream deleted meanwhile?"
    )


def _subscribed(
    client: BlockingClient, options: ReadOptions, names: Sequence[str], wanted: StreamRange
) -> Iterator[Any]:
    """Of a server without bulk reads."""
    for messages in _gathered(_messages(client, wanted)):
        yield batch_of_messages(names, messages)


def _messages(client: BlockingClient, wanted: StreamRange) -> Iterator[list[Message]]:
    end = wanted.start
    for batch in client.batches(wanted.stream, wanted.partition, start=wanted.start, stop=wanted.end - 1):
        end = batch[-1].offset + 1
        yield [message for message in batch if message.offset < wanted.end] if end > wanted.end else batch
        if end >= wanted.end:
            return
    raise _short(wanted, end)


def _gathered(batches: Iterator[list[Message]]) -> Iterator[list[Message]]:
    """Network reads are small; Arrow batches should not be."""
    gathered: list[Message] = []
    size = 0
    for batch in batches:
        gathered += batch
        size += sum(len(message.value) for message in batch)
        if size >= limits.SPARK_BATCH_BYTES or len(gathered) >= limits.SPARK_BATCH_ROWS:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered
