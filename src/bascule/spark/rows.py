"""The columns that are written, and Arrow batches as framed messages, by the partition that each row is for.

A kernel touches each row. A row's partition depends on the row, its task and the rows before it in the task: it is the
same however often the task is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, MapType, StructType

from bascule import limits
from bascule.errors import InvalidArgument
from bascule.wire.kernels import frame_rows


class SinkColumn(NamedTuple):
    types: tuple[str, ...]
    """As Spark writes them."""
    what: str


SINK_COLUMNS: dict[str, SinkColumn] = {
    "value": SinkColumn(("binary", "string"), "Required, and not null in any row. Text is stored as UTF-8."),
    "key": SinkColumn(("binary", "string"), "Null, or no column: no key."),
    "headers": SinkColumn(
        ("map<string,binary>", "map<string,string>"),
        "Null, or no column: none. Those named subject and reply are the broker's, and left out.",
    ),
    "partition": SinkColumn(
        ("int", "bigint"),
        "Of the stream. Null, or no column: chosen by the key, as clients do; rows without a key take the partitions "
        "in turn.",
    ),
    "stream": SinkColumn(("string",), "One of the option streams. Not looked at with the option stream."),
}
"""Every column with what it means: docs/spark.md shows them."""

IGNORED = ("offset", "timestamp", "timestamp_ns", "subject", "replySubject", "leaderEpoch")
"""What a read gives and a write does not take: the broker gives them anew."""


_ORDERED = ("stream", "partition", "key", "value")


@dataclass(frozen=True, slots=True)
class Framed:
    """Messages for a partition, in the order of their rows."""

    stream: str
    partition: int
    count: int
    messages: bytes


def check_schema(schema: StructType, by_column: bool, streams: tuple[str, ...], order_by: tuple[str, ...] = ()) -> None:
    """InvalidArgument names the column."""
    names = [each.name for each in schema.fields]
    for name in order_by:
        if name not in names:
            raise InvalidArgument(f'the option "orderBy" names a column "{name}", and there are {", ".join(names)}')
    for each in schema.fields:
        if each.name in order_by and isinstance(each.dataType, ArrayType | MapType | StructType):
            raise InvalidArgument(
                f'the option "orderBy" names column "{each.name}", which has no order: choose another'
            )
        if each.name in IGNORED or (each.name in order_by and each.name not in SINK_COLUMNS):
            continue
        if each.name not in SINK_COLUMNS:
            near = get_close_matches(each.name.lower(), SINK_COLUMNS, 1, 0.6)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(SINK_COLUMNS)}."
            raise InvalidArgument(f'a stream has no column "{each.name}" to write: {hint} Select what is to be written')
        given, types = each.dataType.simpleString(), SINK_COLUMNS[each.name].types
        if given not in types:
            raise InvalidArgument(
                f'column "{each.name}" is written as {" or ".join(types)}, and it is {given}: '
                + ('to_json(struct("*")) makes text of a row' if each.name == "value" else f"cast it to {types[0]}")
            )
    if "value" not in names:
        raise InvalidArgument(
            f'there is no column value, only {", ".join(names) or "none"}: selectExpr("... AS value") names one'
        )
    if by_column and "stream" not in names and len(streams) > 1:
        raise InvalidArgument(
            'the option "streams" names several, and there is no column stream that says which one a row is for'
        )


def ordered(batches: Iterator[Any], by: Sequence[str]) -> Iterator[Any]:
    """The rows of a task in the order of these columns, and where they are alike of what is written."""
    held, size = [], 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > limits.SPARK_SORT_BYTES:
            raise InvalidArgument(
                f'the option "orderBy" sorts the rows of a task, and one has more than {limits.SPARK_SORT_BYTES} bytes '
                "of them: give the write more partitions (repartition)"
            )
    if not held:
        return
    table = pa.Table.from_batches(held)
    columns = [*by, *(name for name in _ORDERED if name in table.column_names and name not in by)]
    indices = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in columns])
    yield from table.take(indices).combine_chunks().to_batches()


class Framer:
    """Of one task."""

    def __init__(self, streams: Mapping[str, int], by_column: bool, task: int) -> None:
        """`streams`: how many partitions each of them has. Rows without a key take them in turn, beginning with the
        number of the task."""
        self._streams = streams
        self._by_column = by_column
        self._turns = dict.fromkeys(streams, task)

    def frame(self, batch: Any) -> Iterator[Framed]:
        if batch.num_rows == 0:
            return
        value = batch.column("value")
        if value.null_count:
            raise InvalidArgument(
                "the value of a row is null, and a message has one: coalesce(value, binary('')) gives it"
            )
        if not self._by_column or "stream" not in batch.schema.names:
            yield from self._of_stream(next(iter(self._streams)), batch)
            return
        named = batch.column("stream")
        if named.null_count:
            raise InvalidArgument("the column stream of a row is null: it names the stream that the row is for")
        for stream in pc.unique(named).to_pylist():
            if stream not in self._streams:
                raise InvalidArgument(
                    f'a row is for stream {stream}, and the option "streams" names {", ".join(self._streams)}'
                )
            yield from self._of_stream(stream, batch.filter(pc.equal(named, stream)))

    def _of_stream(self, stream: str, batch: Any) -> Iterator[Framed]:
        columns = _Columns(batch)
        for first, end in columns.pieces(0, batch.num_rows):
            yield from self._piece(stream, columns, first, end)

    def _piece(self, stream: str, columns: _Columns, first: int, end: int) -> Iterator[Framed]:
        count = self._streams[stream]
        buffers, partitions = columns.buffers(first, end)
        done, self._turns[stream], pieces = frame_rows(end - first, buffers, partitions, count, self._turns[stream])
        if done < end - first:
            named = int.from_bytes(partitions[4 * done : 4 * done + 4], "little", signed=True)
            raise InvalidArgument(
                f"a row is for partition {named} of stream {stream}, which has 0 to {count - 1}. Drop the column "
                "partition to have it chosen by the key"
            )
        for partition, (number, messages) in enumerate(pieces):
            if number:
                yield Framed(stream, partition, number, messages)


class _Columns:
    """Those of an Arrow batch, as buffers."""

    def __init__(self, batch: Any) -> None:
        columns = {name: batch.column(name) for name in batch.schema.names}
        self._values = _texts(columns["value"])
        self._keys = _texts(columns["key"]) if "key" in columns else None
        self._headers = self._names = self._contents = None
        if "headers" in columns:
            headers = columns["headers"]
            self._headers = memoryview(headers.buffers()[1]).cast("i")[headers.offset :]
            self._names, self._contents = _texts(headers.keys), _texts(headers.items)
        self._partitions = b""
        if "partition" in columns:
            try:
                partitions = columns["partition"].cast(pa.int32())
            except pa.ArrowInvalid:
                raise InvalidArgument("the partition of a row is no number that a partition has") from None
            if pc.any(pc.less(partitions, 0)).as_py():
                raise InvalidArgument("the partition of a row is negative; null lets the key choose")
            partitions = pc.fill_null(partitions, -1)
            self._partitions = pa.concat_arrays([partitions]).buffers()[1].to_pybytes()

    def pieces(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Rows that are sent together."""
        if end - first > 1 and (end - first > limits.SPARK_WRITE_ROWS or self._size(first, end) > _PIECE_BYTES):
            middle = (first + end) // 2
            yield from self.pieces(first, middle)
            yield from self.pieces(middle, end)
        else:
            yield first, end

    def _size(self, first: int, end: int) -> int:
        size = self._values.size(first, end) + (self._keys.size(first, end) if self._keys else 0)
        if self._headers is not None and self._names is not None and self._contents is not None:
            begin, stop = self._headers[first], self._headers[end]
            size += self._names.size(begin, stop) + self._contents.size(begin, stop) + 16 * (stop - begin)
        return size

    def buffers(self, first: int, end: int) -> tuple[tuple[Any, ...], bytes]:
        """Of these rows, as `frame_rows` takes them."""
        keys = self._keys.of(first, end) if self._keys else (b"", b"")
        headers: tuple[Any, ...] = (b"",) * 5
        if self._headers is not None and self._names is not None and self._contents is not None:
            ends = self._headers[first : end + 1]
            headers = (ends, *self._names.whole(), *self._contents.whole())
        return (*self._values.of(first, end), *keys, *headers), self._partitions[4 * first : 4 * end]


class _Texts(NamedTuple):
    ends: memoryview
    content: Any

    def size(self, first: int, end: int) -> int:
        return int(self.ends[end]) - int(self.ends[first])

    def of(self, first: int, end: int) -> tuple[memoryview, Any]:
        return self.ends[first : end + 1], self.content

    def whole(self) -> tuple[memoryview, Any]:
        return self.ends, self.content


def _texts(array: Any) -> _Texts:
    """Null is empty."""
    if not pa.types.is_binary(array.type):
        array = array.cast(pa.binary())
    if array.null_count:
        array = pc.fill_null(array, b"")
    _, ends, content = array.buffers()
    if ends is None or ends.size == 0:
        return _Texts(memoryview(bytes(4)).cast("i"), b"")
    return _Texts(memoryview(ends).cast("i")[array.offset : array.offset + len(array) + 1], content or b"")


_PIECE_BYTES = limits.CLIENT_WRITE_BATCH_BYTES
