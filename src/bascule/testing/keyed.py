"""Records with keys for tests, and what compaction may leave of them, by a model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bascule.testing.records import SUBJECT, Encoded
from bascule.wire import kernels
from bascule.wire.pure.compaction import TOMBSTONE_HEADER
from bascule.wire.pure.protobuf import bytes_field, frame
from bascule.wire.record import origin


class Keyed(NamedTuple):
    """A message with a key; without a value and with `tombstone` it deletes the key."""

    key: bytes
    value: bytes = b""
    tombstone: bool = False


class Stored(NamedTuple):
    """A record of one, and where and when it was written."""

    offset: int
    timestamp: int
    message: Keyed


def encode_keyed(messages: Sequence[Keyed], offset: int = 0, timestamp: int = 1, epoch: int = 1) -> Encoded:
    """Records with offsets from `offset` and timestamps from `timestamp`, each one more than the last."""
    tail = kernels.record_tail(origin("test", 0), SUBJECT, b"")
    framed = b"".join(frame(_body(each)) for each in messages)
    records, count, next_offset, last_timestamp, problem = kernels.encode_messages(
        framed, SUBJECT, tail, offset, epoch, timestamp, timestamp - 1, 1 << 30, len(messages), False
    )
    assert not problem, "these are messages"
    return records, count, next_offset, last_timestamp


def _body(message: Keyed) -> bytes:
    body = bytes_field(0x12, message.key) if message.key else b""
    body += bytes_field(0x1A, message.value) if message.value else b""
    if message.tombstone:
        body += bytes_field(0x4A, bytes_field(0x0A, TOMBSTONE_HEADER) + bytes_field(0x12, b"1"))
    return body


def stored_in(records: bytes) -> list[Stored]:
    """What records say."""
    decoded = kernels.decode_records(records, 0, len(records), len(records))[1]
    return [
        Stored(offset, timestamp, Keyed(key, value, TOMBSTONE_HEADER.decode() in headers))
        for offset, key, value, timestamp, _, _, _, _, headers in decoded
    ]


def newest(records: Iterable[Stored]) -> dict[bytes, Stored]:
    """Of each key; records in the order of their offsets."""
    return {each.message.key: each for each in records if each.message.key}


def problems(written: Sequence[Stored], found: Sequence[Stored], gone_until: int = -1) -> list[str]:
    """What is wrong with `found`, which compaction has left of `written`; nothing if it may be so. Tombstones no
    younger than `gone_until` may be gone, with their keys."""
    said: list[str] = []
    by_offset: Mapping[int, Stored] = {each.offset: each for each in written}
    there = {each.offset for each in found}
    offsets = [each.offset for each in found]
    if offsets != sorted(set(offsets)):
        said.append("the offsets do not rise")
    said += [f"{each} was never written" for each in found if by_offset.get(each.offset) != each]
    said += [f"{each} has no key, and is gone" for each in written if not each.message.key and each.offset not in there]
    left = newest(found)
    for key, each in newest(written).items():
        may_go = each.message.tombstone and not each.message.value and each.timestamp <= gone_until
        if may_go and key not in left:
            continue
        if left.get(key) != each:
            said.append(f"the newest record of {key!r} is {each}, and {left.get(key)} is left")
    return said
