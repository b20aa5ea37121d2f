"""A seeded random source, and how it damages bytes.

Inputs are valid but for wrong lengths (`lied`), or are mutated afterwards (`bent`): bytes set, bits flipped, stretches
removed, doubled, moved or taken from elsewhere, numbers and tokens of the protocol inserted.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

NUMBERS = (0, 1, 2, 4, 5, 7, 8, 9, 12, 15, 16, 17, 127, 128, 255, 256, 16_383, 16_384, 65_535, 65_536)
EDGES = (1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
LAYOUTS = (">B", ">H", "<H", ">I", "<I", ">Q", "<Q")


class Chance(random.Random):
    """Seeded by text or number; the same seed gives the same choices on every machine."""

    def one_in(self, count: int) -> bool:
        return self.randrange(count) == 0

    def blob(self, most: int) -> bytes:
        return self.randbytes(self.randint(0, most))

    def joined(self, make: Callable[[], bytes], most: int) -> bytes:
        return b"".join(make() for _ in range(self.randint(0, most)))

    def number(self) -> int:
        """Any signed 64-bit number, mostly one at an edge."""
        value = self.choice((*NUMBERS, *EDGES)) if self.one_in(2) else self.getrandbits(self.randint(1, 64))
        value = (value + self.choice((0, 0, 0, -1, 1))) & ((1 << 64) - 1)
        return value - (1 << 64) if value >> 63 else value

    def lied(self, length: int) -> int:
        """A length that is mostly the truth."""
        if not self.one_in(60):
            return length
        return max(self.choice((length - 1, length + 1, 0, length * 2, *NUMBERS, *EDGES[:4])), 0)

    def cuts(self, length: int) -> list[int]:
        """Ends of the pieces that `length` bytes arrive in: ascending, the last one is `length`."""
        if length < 48 and self.one_in(8):
            return list(range(1, length + 1)) or [0]
        return [*sorted(self.randint(0, length) for _ in range(self.randint(0, 6))), length]


def bent(chance: Chance, data: bytes, words: Sequence[bytes] = (), other: bytes = b"") -> bytes:
    """The data with one to a few things wrong."""
    spoiled = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        at = chance.randint(0, len(spoiled))
        spoiled[at : at + chance.choice((0, 0, 1, 1, 2, 4, 9))] = _put(chance, spoiled, at, words, other)
        if chance.one_in(8):
            del spoiled[chance.randint(0, len(spoiled)) :]
    return bytes(spoiled)


def _put(chance: Chance, data: bytearray, at: int, words: Sequence[bytes], other: bytes) -> bytes:
    """What takes the place of the bytes at `at`."""
    kind = chance.randrange(8)
    if kind == 0:
        return b""
    if kind == 1:
        return bytes((data[at] ^ 1 << chance.randrange(8),)) if at < len(data) else b"\x00"
    if kind == 2:
        return chance.blob(4)
    if kind == 3 and words:
        return chance.choice(words)
    if kind == 4:
        layout = chance.choice(LAYOUTS)
        return struct.pack(layout, chance.number() & ((1 << 8 * struct.calcsize(layout)) - 1))
    if kind == 5:
        source = other if other and chance.one_in(2) else bytes(data)
        start = chance.randint(0, len(source))
        return source[start : start + chance.randint(1, 80)]
    if kind == 6 and at < len(data):
        return bytes(data[at : at + chance.randint(1, 16)]) * chance.choice((2, 2, 3, 40))
    return bytes((chance.randrange(256),))
