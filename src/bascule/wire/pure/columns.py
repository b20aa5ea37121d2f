"""Verified records as the buffers of Arrow columns."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from bascule.wire.pure.protobuf import Buffer, window
from bascule.wire.pure.record import Decoded, decode_records, record_at

_KEYS, _VALUES, _SUBJECTS, _REPLIES, _HEADERS = 1, 2, 4, 8, 16
_BAD = 2
_MOST = 0x7FFFFFFF


def record_columns(
    buffer: Buffer, start: int, end: int, min_offset: int, wanted: int
) -> tuple[int, int, int, tuple[bytes, ...]]:
    """(position, count, status, buffers): see `wire.columns` for the buffers."""
    if end - start > _MOST:
        raise ValueError("a column of Arrow has at most 2 GiB: give fewer records at a time")
    data = window(buffer, start, end)
    rows: list[Decoded] = []
    epochs: list[int] = []
    position = status = 0
    while position < len(data):
        status, offset, after = record_at(data, position, min_offset)
        if status:
            break
        try:
            _, (row,) = decode_records(data, position, after, 1, True)
        except ValueError:
            status = _BAD
            break
        rows.append((offset, *row[1:]))
        epochs.append(int.from_bytes(data[after - 12 : after - 4], "little"))
        min_offset, position = offset + 1, after
    return start + position, len(rows), status, _buffers(rows, epochs, wanted)


def _buffers(rows: list[Decoded], epochs: list[int], wanted: int) -> tuple[bytes, ...]:
    count = len(rows)
    keys = [row[1] for row in rows] if wanted & _KEYS else None
    replies = [row[7].encode() for row in rows] if wanted & _REPLIES else None
    headers = [list(row[8].items()) for row in rows] if wanted & _HEADERS else None
    entries = None if headers is None else [entry for row in headers for entry in row]
    return (
        struct.pack(f"<{count}q", *(row[0] for row in rows)),
        struct.pack(f"<{count}q", *(row[3] for row in rows)),
        struct.pack(f"<{count}Q", *epochs),
        *texts_of(keys),
        validity_of(keys),
        *texts_of([row[2] for row in rows] if wanted & _VALUES else None),
        *texts_of([row[6].encode() for row in rows] if wanted & _SUBJECTS else None),
        *texts_of(replies),
        validity_of(replies),
        b"" if headers is None else ends_of(map(len, headers)),
        *texts_of(None if entries is None else [name.encode() for name, _ in entries]),
        *texts_of(None if entries is None else [value for _, value in entries]),
    )


def texts_of(column: list[bytes] | None) -> tuple[bytes, bytes]:
    return (b"", b"") if column is None else (ends_of(map(len, column)), b"".join(column))


def ends_of(sizes: Iterable[int]) -> bytes:
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return struct.pack(f"<{len(ends)}i", *ends)


def validity_of(column: Sequence[object] | None) -> bytes:
    bits = bytearray((len(column or ()) + 7) // 8)
    for row, content in enumerate(column or ()):
        if content:
            bits[row // 8] |= 1 << (row % 8)
    return bytes(bits)
