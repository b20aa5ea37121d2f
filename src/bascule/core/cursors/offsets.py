"""The newest offset of each key of a log, by a hash of the key, in little memory.

A dictionary of numbers takes more than a hundred bytes an entry; here it is two numbers in flat arrays, about 36 bytes
with the free places (open addressing, at most three quarters full): 36 MB for a million keys. There are many small
tables, so that none takes long to grow.

A hash of 64 bits may stand for two keys. Who looks a key up reads the record and compares; if it is another key's, this
one has to be found in the log itself.
"""

from array import array

TABLES = 256
_FIRST_PLACES = 8
_MASK = (1 << 64) - 1


class Budget:
    """How many entries all indexes of a broker may have."""

    def __init__(self, most: int) -> None:
        self.left = most


class NewestOffsets:
    def __init__(self, budget: Budget) -> None:
        self._tables = [_Table() for _ in range(TABLES)]
        self._budget = budget
        self._count = 0
        self.complete = True
        """False if an entry found no room: then a key that is not here may be in the log all the same."""

    def __len__(self) -> int:
        return self._count

    def get(self, key: bytes) -> int | None:
        hashed = hash(key) & _MASK
        return self._tables[hashed % TABLES].get(hashed // TABLES)

    def newer(self, key: bytes, offset: int) -> None:
        """A record after all before."""
        self._set(key, offset, replace=True)

    def older(self, key: bytes, offset: int) -> None:
        """A record before all before: it counts if there is no newer one of its key."""
        self._set(key, offset, replace=False)

    def clear(self) -> None:
        self._budget.left += self._count
        self._tables = [_Table() for _ in range(TABLES)]
        self._count = 0
        self.complete = True

    def _set(self, key: bytes, offset: int, replace: bool) -> None:
        hashed = hash(key) & _MASK
        table = self._tables[hashed % TABLES]
        # Where one found no room, an older one of its key must not be taken for the newest when there is room again.
        room = self._budget.left > 0 and (replace or self.complete)
        added = table.set(hashed // TABLES, offset, replace, room)
        if added is None:
            self.complete = False
        elif added:
            self._budget.left -= 1
            self._count += 1


class _Table:
    __slots__ = ("_count", "_hashes", "_offsets")

    def __init__(self) -> None:
        self._hashes, self._offsets = _places(_FIRST_PLACES)
        self._count = 0

    def get(self, hashed: int) -> int | None:
        offset = self._offsets[self._place(hashed)]
        return offset - 1 if offset else None

    def set(self, hashed: int, offset: int, replace: bool, room: bool) -> bool | None:
        """Whether an entry was added; None if there was no room for it."""
        place = self._place(hashed)
        if self._offsets[place]:
            if replace:
                self._offsets[place] = offset + 1
            return False
        if not room:
            return None
        self._hashes[place] = hashed
        self._offsets[place] = offset + 1
        self._count += 1
        if 4 * self._count > 3 * len(self._hashes):
            self._grow()
        return True

    def _place(self, hashed: int) -> int:
        """Where its entry is, or belongs."""
        hashes, offsets = self._hashes, self._offsets
        last = len(hashes) - 1
        place = hashed & last
        while offsets[place] and hashes[place] != hashed:
            place = (place + 1) & last
        return place

    def _grow(self) -> None:
        hashes, offsets = self._hashes, self._offsets
        self._hashes, self._offsets = _places(2 * len(hashes))
        for hashed, offset in zip(hashes, offsets, strict=True):
            if offset:
                place = self._place(hashed)
                self._hashes[place], self._offsets[place] = hashed, offset


def _places(number: int) -> "tuple[array[int], array[int]]":
    """Hashes, and offsets plus one; 0 is free."""
    return array("Q", bytes(8 * number)), array("Q", bytes(8 * number))
