"""Arrow columns as framed Messages, by the partition that each one goes to."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise

from bascule.wire.pure.protobuf import Buffer, bytes_field, frame, map_entry

ROW_BUFFERS = 9
_MOST = 0x7FFFFFFF
_BROKERS_OWN = (b"subject", b"reply")
"""The broker writes these headers itself, and drops those that it is given."""


def frame_rows(
    count: int, buffers: tuple[Buffer, ...], partitions: Buffer, choices: int, turn: int
) -> tuple[int, int, list[tuple[int, bytes]]]:
    """(rows, turn, [(count, messages) of each partition]).

    `buffers`: ends and contents of values, of keys, then the ends of headers in each row, and ends and contents of
    their names and of their values; all empty for a column that is not there. `partitions` are int32, -1 for a row
    whose key chooses, or that takes its turn; empty for none. Fewer rows than there are: the next one names no
    partition."""
    if not 0 < choices <= 65536:
        raise ValueError("these are no rows")
    rows = messages(count, buffers)
    wanted = bytes(partitions)
    if wanted and len(wanted) < 4 * count:
        raise ValueError("a column is shorter than its rows say")
    chosen = struct.unpack_from(f"<{count}i", wanted) if wanted else (-1,) * count
    framed: list[list[bytes]] = [[] for _ in range(choices)]
    done = 0
    for (key, body), choice in zip(rows, chosen, strict=True):
        if not -1 <= choice < choices:
            break
        if choice == -1 and key:
            choice = zlib.crc32(key) % choices
        elif choice == -1:
            choice, turn = turn % choices, turn + 1
        framed[choice].append(frame(body))
        done += 1
    return done, turn, [(len(each), b"".join(each)) for each in framed]


def messages(count: int, buffers: tuple[Buffer, ...]) -> list[tuple[bytes, bytes]]:
    """The key of each row, and its Message."""
    if len(buffers) != ROW_BUFFERS or not 0 <= count <= _MOST:
        raise ValueError("these are no rows")
    datas = [bytes(each) for each in buffers]
    values, keys = texts(datas[0], datas[1], count), texts(datas[2], datas[3], count)
    header_ends = _ends(datas[4], count, _MOST) or [0] * (count + 1)
    if header_ends[-1] and not (datas[5] and datas[7]):
        raise ValueError("a column is shorter than its rows say")
    names = texts(datas[5], datas[6], header_ends[-1])
    contents = texts(datas[7], datas[8], header_ends[-1])
    found = []
    for value, key, (first, end) in zip(values, keys, pairwise(header_ends), strict=True):
        body = bytes_field(0x12, key) if key else b""
        body += bytes_field(0x1A, value)
        for number in range(first, end):
            if names[number] not in _BROKERS_OWN:
                body += bytes_field(0x4A, map_entry(names[number], contents[number]))
        found.append((key, body))
    return found


def _ends(data: bytes, count: int, most: int) -> list[int]:
    """Of so many rows in a content of `most`; none for a column that is not there."""
    if not data:
        return []
    if len(data) < 4 * (count + 1):
        raise ValueError("a column is shorter than its rows say")
    ends = list(struct.unpack_from(f"<{count + 1}I", data))
    if ends[-1] > most:
        raise ValueError("a column is shorter than its rows say")
    if any(end < begin for begin, end in pairwise(ends)):
        raise ValueError("the ends of a column go back")
    return ends


def texts(ends: bytes, content: bytes, count: int) -> list[bytes]:
    found = _ends(ends, count, len(content))
    return [content[begin:end] for begin, end in pairwise(found)] if found else [b""] * count
