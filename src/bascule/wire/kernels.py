"""The kernels: everything that touches each message, and nothing else does.

There are two twins with the same functions: `_kernels` (Cython, compiled) and `_pure` (Python). One test suite
runs against both and a differential property test compares them. This module picks one: the compiled twin if it
was built, unless BASCULE_KERNELS=pure asks for the other. `TWIN` names the choice.

Python decides per batch, so every function here takes and gives *batches*, as flat bytes:

**Batch** (what NATS delivered to one subscription, what `split_nats` gives): entries back to back, each
`<HHI` subject length, reply length, payload length; then subject, reply, payload. NATS headers are stripped.

**Messages** (what a client writes in bulk): gRPC-framed `Message`s back to back. Key, value and headers are stored, all
other fields are dropped, so that records are messages too.

**Records** (what a log holds and a subscriber receives): gRPC-framed `Message`s back to back. Flag byte 0, u32
big-endian length, then protobuf fields in this order: offset (always, even 0), key, value (each only if not empty),
timestamp (always), producer (field 2001, only if the message had one for this partition), the place in an atomic batch
(only in one: field 2002, wire type 2, length 4: index and number of records, u16 each, little-endian), stream,
partition (only if not 0), subject, replySubject (only if not empty), headers (`subject`, `reply`, then the user's own,
each entry with key and value written even if empty), and last the trailer: field 2000, wire type 2, length 12 (tag
bytes 82 7D, length byte 0C): leader epoch u64 and CRC-32C u32, little-endian. The CRC covers the payload from its first
byte up to the CRC itself. A record is valid if its flag is 0, its length is at least 17 and at most MAX_RECORD_BYTES,
its payload starts with tag 08, the trailer's three bytes stand where the length says, and the CRC matches.

**Pending acks** (what an append leaves to be promised later): entries back to back, each `<qqBBHHI` offset, reception
timestamp, policy, ack error, inbox length, message-subject length (0 = the partition's own subject), correlation id
length; then inbox, message subject, correlation id.

**Producers**: field 2001 of a message and of its record has the producer's id, its epoch, the creation index of the
stream and the partition as varints, then the sequence, u64 little-endian. A snapshot of a `ProducerTable` is an entry
for each producer, by id: `<QQQqI` id, epoch, next sequence, timestamp of its last record, number of runs; then its
runs, each `<qII` offset, sequence (its low bits), count.

**Index entries**: 24 bytes each, `<qqq` offset, position, timestamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bascule import PURE_KERNELS

if TYPE_CHECKING or PURE_KERNELS:
    from bascule.wire import _pure as _twin

    TWIN = "pure"
else:
    try:
        from bascule.wire import _kernels as _twin

        TWIN = "compiled"
    except ImportError:
        from bascule.wire import _pure as _twin

        TWIN = "pure"

KeyMap = _twin.KeyMap
ProducerTable = _twin.ProducerTable
crc32c = _twin.crc32c
split_nats = _twin.split_nats
record_tail = _twin.record_tail
encode_records = _twin.encode_records
encode_messages = _twin.encode_messages
encode_acks = _twin.encode_acks
ack_responses = _twin.ack_responses
drop_gone = _twin.drop_gone
route_publishes = _twin.route_publishes
scan_records = _twin.scan_records
find_record = _twin.find_record
seek_record = _twin.seek_record
reverse_records = _twin.reverse_records
index_records = _twin.index_records
observe_producers = _twin.observe_producers
open_batch = _twin.open_batch
decode_records = _twin.decode_records
decode_responses = _twin.decode_responses
record_columns = _twin.record_columns
scan_frames = _twin.scan_frames
frame_data = _twin.frame_data
frame_rows = _twin.frame_rows
envelope_columns = _twin.envelope_columns
envelope_rows = _twin.envelope_rows
split_messages = _twin.split_messages

__all__ = [
    "TWIN",
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
