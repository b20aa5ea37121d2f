"""The kernels in plain Python: for machines where the compiled twin was not built, and to judge it.

The functions are in `wire.pure`, one noun per module; `wire.kernels` describes the formats they share.
Clarity comes first here and speed second, yet nothing copies more than a batch at a time.
"""

from bascule.wire.pure.accept import encode_records, record_tail
from bascule.wire.pure.ack import ack_responses, drop_gone, encode_acks
from bascule.wire.pure.columns import record_columns
from bascule.wire.pure.envelope import crc32c
from bascule.wire.pure.http2 import frame_data, scan_frames, split_messages
from bascule.wire.pure.nats import split_nats
from bascule.wire.pure.publish import route_publishes
from bascule.wire.pure.record import (
    decode_records,
    find_record,
    index_records,
    reverse_records,
    scan_records,
    seek_record,
)

__all__ = [
    "ack_responses",
    "crc32c",
    "decode_records",
    "drop_gone",
    "encode_acks",
    "encode_records",
    "find_record",
    "frame_data",
    "index_records",
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
