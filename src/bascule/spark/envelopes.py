"""Messages as they are on NATS, in their envelopes: for captures of NATS that are in files or tables.

    from bascule.spark import decode_envelope
    captured.select("subject", decode_envelope("payload").alias("m")).where("m.status = 'damaged'")

A kernel looks at each payload; a batch is one call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from bascule.wire.kernels import envelope_columns, envelope_rows

if TYPE_CHECKING:
    from pyspark.sql import Column

STATUSES = ("plain", "message", "other", "damaged")
ENVELOPE_FIELDS: dict[str, tuple[str, str]] = {
    "status": (
        "string",
        "message: a Message in an envelope. plain: no envelope, which a broker stores as it is. other: an envelope of "
        "another type, such as an ack. damaged: its checksum is wrong, or what it carries is no Message.",
    ),
    "type": ("int", "The type byte of the envelope: 0 is a Message, 1 an ack. Null of a plain payload."),
    "checked": ("boolean", "Whether the envelope has a checksum, which is looked at. Null of a plain payload."),
    "key": ("binary", "Null if it has none."),
    "value": ("binary", "Of the Message; the whole payload if it is plain, what the envelope carries if it is other."),
    "headers": ("map<string,binary>", "Of the Message."),
    "ackInbox": ("string", "The subject on which the publisher waits for the ack; null if it does not."),
    "correlationId": ("string", "What the ack repeats; null if there is none."),
    "ackPolicy": ("int", "0: of the leader, 1: of all replicas, 2: none. Null if it is no Message."),
}
"""Every field with its type and what it holds: docs/spark.md shows them."""
ENVELOPE = "struct<" + ", ".join(f"{name}: {kind}" for name, (kind, _) in ENVELOPE_FIELDS.items()) + ">"


def decode_envelope(payload: Column | str) -> Column:
    """A column of payloads (binary) as structs. Null stays null."""
    from pyspark.sql.pandas.functions import arrow_udf

    def decode(payloads: pa.Array) -> pa.Array:
        return decoded(payloads)

    make: Any = arrow_udf
    found: Column = make(decode, ENVELOPE)(payload)
    return found


def encode_envelope(
    value: Column | str, key: Column | str | None = None, headers: Column | str | None = None, *, checked: bool = False
) -> Column:
    """Columns as payloads that brokers take for Messages. `value` is binary or string, and null stays null; `headers`
    are of type map<string,binary>. `checked`: with a checksum, which other programs seldom write, and all look at."""
    from pyspark.sql.functions import col, lit
    from pyspark.sql.pandas.functions import arrow_udf

    def encode(values: pa.Array, keys: pa.Array, headers: pa.Array) -> pa.Array:
        return encoded(values, keys, headers, checked)

    def column(given: Column | str | None, kind: str) -> Column:
        return (lit(None) if given is None else col(given) if isinstance(given, str) else given).cast(kind)

    make: Any = arrow_udf
    columns = column(value, "binary"), column(key, "binary"), column(headers, "map<string,binary>")
    found: Column = make(encode, "binary")(*columns)
    return found


def decoded(payloads: Any) -> Any:
    """Of an Arrow array of binary."""
    count = len(payloads)
    found = envelope_columns(count, *_texts(payloads))
    statuses, types, checked, policies, *texts = (pa.py_buffer(each) for each in found)
    key_ends, keys, key_validity, value_ends, values, value_validity, header_ends, *header_texts = texts
    names_ends, names, contents_ends, contents, inbox_ends, inboxes, correlation_ends, correlations = header_texts
    status = pa.Array.from_buffers(pa.uint8(), count, [None, statuses])
    plain, message = pc.equal(status, STATUSES.index("plain")), pc.equal(status, STATUSES.index("message"))
    entries = len(names_ends) // 4 - 1
    columns = {
        "status": pc.take(pa.array(STATUSES), status),
        "type": _unless(plain, pa.Array.from_buffers(pa.uint8(), count, [None, types]).cast(pa.int32())),
        "checked": _unless(plain, pa.Array.from_buffers(pa.uint8(), count, [None, checked]).cast(pa.bool_())),
        "key": pa.Array.from_buffers(pa.binary(), count, [key_validity, key_ends, keys]),
        "value": pa.Array.from_buffers(pa.binary(), count, [value_validity, value_ends, values]),
        "headers": pa.MapArray.from_arrays(
            pa.Array.from_buffers(pa.int32(), count + 1, [None, header_ends]),
            pa.Array.from_buffers(pa.string(), entries, [None, names_ends, names]),
            pa.Array.from_buffers(pa.binary(), entries, [None, contents_ends, contents]),
        ),
        "ackInbox": _filled(pa.Array.from_buffers(pa.string(), count, [None, inbox_ends, inboxes])),
        "correlationId": _filled(pa.Array.from_buffers(pa.string(), count, [None, correlation_ends, correlations])),
        "ackPolicy": _unless(pc.invert(message), pa.Array.from_buffers(pa.int32(), count, [None, policies])),
    }
    return pa.StructArray.from_arrays(list(columns.values()), list(columns), mask=pc.is_null(payloads))


def encoded(values: Any, keys: Any, headers: Any, checked: bool) -> Any:
    """Of Arrow arrays of binary, binary and maps."""
    buffers: tuple[Any, ...] = (*_texts(values), *_texts(keys))
    if headers.null_count == len(headers):
        buffers += (b"",) * 5
    else:
        # Null has no entries, as Spark writes it.
        buffers += (headers.buffers()[1].slice(4 * headers.offset), *_texts(headers.keys), *_texts(headers.items))
    ends, content = envelope_rows(len(values), buffers, checked)
    found = pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(content)])
    return _unless(pc.is_null(values), found)


def _texts(array: Any) -> tuple[Any, Any]:
    """Ends and content. Null is empty."""
    if not pa.types.is_binary(array.type):
        array = array.cast(pa.binary())
    if array.null_count:
        array = pc.fill_null(array, b"")
    _, ends, content = array.buffers()
    if ends is None or ends.size == 0:
        return bytes(4), b""
    return ends.slice(4 * array.offset, 4 * (len(array) + 1)), content if content is not None else b""


def _unless(mask: Any, array: Any) -> Any:
    return pc.if_else(mask, pa.scalar(None, array.type), array)


def _filled(array: Any) -> Any:
    """An empty text is null."""
    return _unless(pc.equal(pc.binary_length(array), 0), array)
