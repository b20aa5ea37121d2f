"""Messages as Arrow columns: from log bytes by a kernel, or, of servers without bulk reads, from decoded messages.

Liftbridge does not distinguish an empty key or reply subject from none: both are null here, so that SQL's IS NULL
works. A value is never null. `timestamp` is truncated to microseconds, which is what Spark has; `timestamp_ns` is
exact. Needs pyarrow, so it is imported by whoever makes columns, and by nobody else (`arrow`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bascule.client.bulk import LogRange
from bascule.client.values import Message
from bascule.wire.columns import Columns, Wanted, columns_of


class Column(NamedTuple):
    spark: str
    """As Spark writes the type."""
    arrow: Any
    wanted: Wanted
    """What the kernel makes for it, beside what it always makes."""
    what: str


NOTHING = Wanted(0)
COLUMNS: dict[str, Column] = {
    "stream": Column("string", pa.string(), NOTHING, "The name of the stream."),
    "partition": Column("int", pa.int32(), NOTHING, "The number of the partition."),
    "offset": Column("bigint", pa.int64(), NOTHING, "Of the message in its partition."),
    "timestamp": Column("timestamp", pa.timestamp("us", tz="UTC"), NOTHING, "When the broker stored it."),
    "timestamp_ns": Column("bigint", pa.int64(), NOTHING, "The same in nanoseconds, exactly."),
    "key": Column("binary", pa.binary(), Wanted.KEY, "Null if it has none."),
    "value": Column("binary", pa.binary(), Wanted.VALUE, "Never null."),
    "subject": Column("string", pa.string(), Wanted.SUBJECT, "The NATS subject to which it was published."),
    "replySubject": Column("string", pa.string(), Wanted.REPLY, "Null if it has none."),
    "headers": Column(
        "map<string,binary>",
        pa.map_(pa.string(), pa.binary()),
        Wanted.HEADERS,
        "Those of its publisher.",
    ),
    "leaderEpoch": Column("bigint", pa.int64(), NOTHING, "Of the leader that stored it; null from other servers."),
}
"""Every column with what it holds: docs/spark.md shows them. The names are those of Spark's table."""


def arrow_schema(names: Sequence[str]) -> Any:
    return pa.schema([(name, COLUMNS[name].arrow) for name in names])


def batch_of_range(names: Sequence[str], stream: str, partition: int, given: LogRange) -> Any:
    """A pyarrow RecordBatch with these columns. CorruptError if a record is not what was written."""
    wanted = NOTHING
    for name in names:
        wanted |= COLUMNS[name].wanted
    count, columns = columns_of(given.records, wanted, f"partition {partition} of stream {stream}")
    arrays = [_MADE[name](stream, partition, count, columns) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))


def _numbers(kind: Any, buffer: bytes, count: int) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(buffer)])


def _texts(kind: Any, count: int, ends: bytes, content: bytes, validity: bytes | None = None) -> Any:
    valid = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(ends), pa.py_buffer(content)])


def _microseconds(columns: Columns, count: int) -> Any:
    return pc.divide(_numbers(pa.int64(), columns.timestamps, count), 1000).view(COLUMNS["timestamp"].arrow)


def _headers(columns: Columns, count: int) -> Any:
    entries = len(columns.header_key_ends) // 4 - 1
    keys = _texts(pa.string(), entries, columns.header_key_ends, columns.header_keys)
    values = _texts(pa.binary(), entries, columns.header_value_ends, columns.header_values)
    return pa.MapArray.from_arrays(_numbers(pa.int32(), columns.header_ends, count + 1), keys, values)


_MADE: dict[str, Callable[[str, int, int, Columns], Any]] = {
    "stream": lambda stream, partition, count, columns: pa.repeat(pa.scalar(stream, pa.string()), count),
    "partition": lambda stream, partition, count, columns: pa.repeat(pa.scalar(partition, pa.int32()), count),
    "offset": lambda stream, partition, count, columns: _numbers(pa.int64(), columns.offsets, count),
    "timestamp": lambda stream, partition, count, columns: _microseconds(columns, count),
    "timestamp_ns": lambda stream, partition, count, columns: _numbers(pa.int64(), columns.timestamps, count),
    "key": lambda stream, partition, count, columns: _texts(
        pa.binary(), count, columns.key_ends, columns.keys, columns.key_validity
    ),
    "value": lambda stream, partition, count, columns: _texts(pa.binary(), count, columns.value_ends, columns.values),
    "subject": lambda stream, partition, count, columns: _texts(
        pa.string(), count, columns.subject_ends, columns.subjects
    ),
    "replySubject": lambda stream, partition, count, columns: _texts(
        pa.string(), count, columns.reply_ends, columns.replies, columns.reply_validity
    ),
    "headers": lambda stream, partition, count, columns: _headers(columns, count),
    "leaderEpoch": lambda stream, partition, count, columns: _numbers(pa.int64(), columns.epochs, count),
}
assert _MADE.keys() == COLUMNS.keys()


def batch_of_messages(names: Sequence[str], messages: Sequence[Message]) -> Any:
    """The same of messages that are decoded: one object each, so it is slower."""
    offsets, keys, values, times, streams, partitions, subjects, replies, headers = zip(*messages, strict=True)
    found: dict[str, Sequence[object]] = {
        "stream": streams,
        "partition": partitions,
        "offset": offsets,
        "timestamp": [time // 1000 for time in times],
        "timestamp_ns": times,
        "key": [key or None for key in keys],
        "value": values,
        "subject": subjects,
        "replySubject": [reply or None for reply in replies],
        "headers": [list(entries.items()) for entries in headers],
        "leaderEpoch": [None] * len(messages),
    }
    arrays = [pa.array(found[name], type=COLUMNS[name].arrow) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))
