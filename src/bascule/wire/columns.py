"""Records as columns: the buffers of Arrow arrays, as `kernels.record_columns` makes them straight from log bytes.

Numbers are little-endian. `..._ends` has one number more than there are rows, and begins with 0: row n of a column is
content[ends[n]:ends[n + 1]]. `..._validity` has a bit for each row, the first row in the lowest one; 0 is null. The
buffers of a column that is not wanted are empty.
"""

from enum import IntFlag
from typing import NamedTuple

from bascule.errors import CorruptError
from bascule.wire import kernels


class Wanted(IntFlag):
    """Columns that are made only if they are wanted. Offsets, timestamps and epochs always are."""

    KEY = 1
    VALUE = 2
    SUBJECT = 4
    REPLY = 8
    HEADERS = 16
    ALL = 31


class Columns(NamedTuple):
    offsets: bytes  # int64
    timestamps: bytes  # int64, in ns
    epochs: bytes  # uint64: the leader epochs
    key_ends: bytes  # int32, as all ends
    keys: bytes
    key_validity: bytes
    value_ends: bytes
    values: bytes
    subject_ends: bytes
    subjects: bytes
    reply_ends: bytes
    replies: bytes
    reply_validity: bytes
    header_ends: bytes  # of each row, counted in headers
    header_key_ends: bytes
    header_keys: bytes
    header_value_ends: bytes
    header_values: bytes


def columns_of(records: bytes, wanted: Wanted, where: str) -> tuple[int, Columns]:
    """How many whole records there are, and their columns. CorruptError if one of them is not what was written;
    `where` begins its text."""
    position, count, status, buffers = kernels.record_columns(records, 0, len(records), 0, int(wanted))
    columns = Columns._make(buffers)
    if position != len(records) or status:
        last = int.from_bytes(columns.offsets[-8:], "little") if count else None
        after = "first record" if last is None else f"record after offset {last}"
        raise CorruptError(
            f"{where}: the {after} is damaged: its checksum or its form is wrong. The bytes were damaged on the way or "
            "on the broker's disk: read them from another replica, and look into the broker's log"
        )
    return count, columns
