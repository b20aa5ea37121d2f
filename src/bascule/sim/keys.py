"""What compaction may have removed from a partition, by what its brokers have exposed.

Of each key the newest exposed record stays, and every record without a key. An older one of a key may be there or not,
on each replica by itself. A tombstone may go with all that it deletes: so whoever still has an older record of its key
has the tombstone too, whichever broker that is, and whatever happened to its log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Keys:
    """The exposed records of one partition."""

    exposed: dict[int, bytes] = field(default_factory=dict)
    """By offset, their keys."""
    newest: dict[bytes, int] = field(default_factory=dict)
    tombstones: dict[int, None] = field(default_factory=dict)
    gone: dict[int, None] = field(default_factory=dict)
    """Tombstones that were found to have gone from a disk while the partition had several replicas."""
    delay_s: float = 0.0
    """So old is a tombstone that goes, at least."""

    def add(self, offset: int, key: bytes, tombstone: bool) -> None:
        if offset not in self.exposed:
            self.exposed[offset] = key
            self.newest[key] = max(offset, self.newest.get(key, -1))
            if tombstone and key:
                self.tombstones[offset] = None

    def superseded(self, offset: int) -> bool:
        key = self.exposed.get(offset, b"")
        return bool(key) and self.newest[key] > offset

    def may_lack(self, offset: int) -> bool:
        """Whether a log may be without this record. One that was never exposed is not known at all."""
        if offset not in self.exposed:
            return False
        return self.superseded(offset) or offset in self.tombstones

    def returned(self, there: Mapping[int, object], end: int) -> list[tuple[int, int]]:
        """Records that are `there`, of keys that a later one below `end` deletes which is not; with that later one."""
        last: dict[bytes, int] = {}
        for offset in there:
            key = self.exposed.get(offset, b"")
            last[key] = max(offset, last.get(key, -1))
        return [
            (last[key], offset)
            for key, offset in self.newest.items()
            if key and offset < end and offset in self.tombstones and -1 < last.get(key, -1) < offset
        ]


class Snapshot:
    """What was exposed when a read began."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.end = max(keys.exposed, default=-1) + 1

    def missing(self, low: int, high: int, seen: Mapping[int, object]) -> list[int]:
        """Records that a read of `low` to before `high` should have, and has not."""
        keys = self._keys
        high = min(high, self.end)
        return [each for each in keys.exposed if low <= each < high and each not in seen and not keys.may_lack(each)]

    def returned(self, low: int, high: int, seen: Mapping[int, object]) -> list[tuple[int, int]]:
        """Records that this read has, of keys that a later one deletes which it has not; with that later one."""
        return [each for each in self._keys.returned(seen, min(high, self.end)) if each[1] >= low]
