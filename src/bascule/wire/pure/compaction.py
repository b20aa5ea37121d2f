"""Compaction: which record of each key is the newest, and records without those that newer ones supersede."""

from __future__ import annotations

import hashlib
import struct

from bascule.limits import KEY_SLOT_BYTES
from bascule.wire.pure.protobuf import Buffer, window
from bascule.wire.pure.record import keyed_records

TOMBSTONE_HEADER = b"bascule-tombstone"
_LEAST_SLOTS = 8


class KeyMap:
    """The newest offset of each key, of as many keys as fit into so many bytes. `secret`: 16 random bytes."""

    def __init__(self, secret: bytes, max_bytes: int) -> None:
        if len(secret) != 16:
            raise ValueError("the secret of a key map has 16 bytes")
        self._secret = secret
        self._room = max(max_bytes // KEY_SLOT_BYTES, _LEAST_SLOTS)
        self._most = self._room // 4 * 3
        self._newest: dict[bytes, int] = {}
        self._pinned: set[bytes] = set()
        self._holding: set[bytes] = set()
        self._pins_all = False
        self.held = -1
        """Of the last call of `compact`: the first tombstone of a key of which an earlier record stays that is not the
        last of a leader epoch; -1: none. The log is cleared up to there, and no further."""

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, records: Buffer, start: int, end: int, limit: int) -> int:
        """Notes the keys of whole records with offsets below `limit` -> the position it came to. Before `end`, and not
        because of the limit, the map is full: it has no room for the key of the record there."""
        for record in keyed_records(window(records, start, end)):
            if record.offset >= limit:
                return start + record.position
            if record.key:
                key = self._hash(record.key)
                if key not in self._newest and len(self._newest) >= self._most:
                    return start + record.position
                self._newest[key] = max(self._newest.get(key, -1), record.offset)
        return end

    def compact(
        self,
        records: Buffer,
        start: int,
        end: int,
        protected: bytes,
        tombstones_until: int,
        tombstones_end: int = (1 << 63) - 1,
        epoch_ends: bytes = b"",
    ) -> tuple[bytes, int, int, int, int]:
        """Whole records without those that newer ones supersede, and without tombstones that the map knows as the
        newest of their keys, that are no younger than `tombstones_until` (-1: all stay), and below `tombstones_end` ->
        (records, count, superseded, tombstones, waiting): the last is how many tombstones stay that the map knows as
        the newest.

        The offsets in `protected` and `epoch_ends` (i64, little-endian, ascending) stay. A log is passed from its start
        on: the tombstone of a key of which an earlier record was met, staying or not, stays in all later calls."""
        data = window(records, start, end)
        staying, ends = _offsets(protected), _offsets(epoch_ends)
        self.held = -1
        pieces: list[bytes] = []
        superseded = tombstones = waiting = 0
        for record in keyed_records(data):
            key = self._hash(record.key) if record.key else b""
            stays = record.offset in staying or record.offset in ends
            if (
                record.key
                and self.held < 0
                and not record.has_value
                and (self._pins_all or key in self._holding)
                and (stays or self._newest.get(key, -1) <= record.offset)
                and any(name.encode() == TOMBSTONE_HEADER for name in record.header_names(data))
            ):
                self.held = record.offset
            if record.key and stays:
                self._pin(key, record.offset, holds=record.offset not in ends)
            elif record.key and self._newest.get(key, -1) > record.offset:
                self._pinned.add(key)
                superseded += 1
                continue
            elif (
                record.key
                and not record.has_value
                and tombstones_until >= 0
                and self._newest.get(key) == record.offset
                and any(name.encode() == TOMBSTONE_HEADER for name in record.header_names(data))
            ):
                may_go = record.timestamp <= tombstones_until and record.offset < tombstones_end
                if may_go and key not in self._pinned and not self._pins_all:
                    tombstones += 1
                    continue
                waiting += 1
            pieces.append(data[record.position : record.end])
        return b"".join(pieces), len(pieces), superseded, tombstones, waiting

    def _pin(self, key: bytes, offset: int, holds: bool) -> None:
        if key not in self._newest:
            if len(self._newest) + 1 >= self._room:
                self._pins_all = True
                return
            self._newest[key] = offset
        self._pinned.add(key)
        if holds:
            self._holding.add(key)

    def _hash(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=16, key=self._secret).digest()


def _offsets(packed: bytes) -> set[int]:
    return {offset for (offset,) in struct.iter_unpack("<q", packed[: len(packed) // 8 * 8])}
