"""The kernels in plain Python: for machines where the compiled twin was not built, and to judge it.

The functions are in `wire.pure`, one noun per module; `wire.kernels` describes the formats they share.
Clarity comes first here and speed second, yet nothing copies more than a batch at a time.
"""

from bascule.wire.pure.accept import encode_messages, encode_records, record_tail
from bascule.wire.pure.ack import ack_responses, decode_responses, drop_gone, encode_acks
from bascule.wire.pure.columns import record_columns
from bascule.wire.pure.compaction import KeyMap
from bascule.wire.pure.envelope import crc32c
from bascule.wire.pure.envelopes import envelope_columns, envelope_rows
from bascule.wire.pure.http2 import frame_data, scan_frames, split_messages
from bascule.wire.pure.nats import split_nats
from bascule.wire.pure.producers import ProducerTable, observe_producers
from bascule.wire.pure.publish import route_publishes
from bascule.wire.pure.record import (
    decode_records,
    find_record,
    index_records,
    open_batch,
    reverse_records,
    scan_records,
    seek_record,
)
from bascule.wire.pure.rows import frame_rows

__all__ = [
    "KeyMap",
    "ProducerTable",
    "ack_responses",
    "crc32c",
    "decode_records",
    "decode_responses",
    "drop_gone",
    "encode_acks",
    "encode_messages",
    "encode_records",
    "envelope_columns",
    "envelope_rows",
    "find_record",
    "frame_data",
    "frame_rows",
    "index_records",
    "observe_producers",
    "open_batch",
    "record_columns",
    "record_tail",
    "reverse_records",
    "route_publishes",
    "scan_frames",
    "scan_records",
    "seek_record",
    "split_messages",
    "split_nats",
]
