"""From decoded messages to Arrow columns, a batch at a time.

Liftbridge does not distinguish an empty key or reply from none: both are null here, so that SQL's IS NULL works. A
value is never null. `timestamp` is truncated to microseconds, which is what Spark has; `timestamp_ns` is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from bascule.client import Message

SPARK_SCHEMA = (
    "stream string, partition int, offset long, timestamp timestamp, timestamp_ns long, "
    "key binary, value binary, subject string, reply string, headers map<string, binary>"
)

ARROW_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ns", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("subject", pa.string()),
        ("reply", pa.string()),
        ("headers", pa.map_(pa.string(), pa.binary())),
    ]
)


def record_batch(messages: Sequence[Message]) -> Any:
    """A pyarrow RecordBatch with ARROW_SCHEMA."""
    offsets, keys, values, times, streams, partitions, subjects, replies, headers = zip(*messages, strict=True)
    columns: dict[str, Sequence[object]] = {
        "stream": streams,
        "partition": partitions,
        "offset": offsets,
        "timestamp": [time // 1000 for time in times],
        "timestamp_ns": times,
        "key": [key or None for key in keys],
        "value": values,
        "subject": subjects,
        "reply": [reply or None for reply in replies],
        "headers": [list(entries.items()) for entries in headers],
    }
    arrays = [pa.array(columns[field.name], type=field.type) for field in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)
