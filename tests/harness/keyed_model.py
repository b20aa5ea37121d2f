"""What was published with keys, in little memory, and what must be left of it: a model of a compacted partition.

Message n has the value that `value_of(n)` gives, so that a record tells which message it is. What was acked is certain.
What was sent and not acked may be stored or not: it becomes certain when it is found.
"""

import random
from array import array
from collections.abc import AsyncIterable, Iterator
from dataclasses import dataclass, field

from bascule.client import Outgoing
from bascule.client.bulk import LogRange
from bascule.wire import kernels

_NONE = -1
_DIGITS = 12
_KEYLESS_OF = 50
"""One message in so many has no key."""


def value_of(number: int) -> bytes:
    return b"%0*d" % (_DIGITS, number) * 5


def key_name(key: int) -> bytes:
    return b"" if key == _NONE else b"key-%d" % key


@dataclass
class Found:
    """What a partition holds, by the model."""

    records: int = 0
    superseded: int = 0
    """Records below the asked offset that have a newer one of their key below it, but for the last ones of leader
    epochs, which stay."""
    wrong: list[str] = field(default_factory=list)


class KeyedModel:
    def __init__(self, keys: int, seed: int) -> None:
        self.keys = keys
        self._chance = random.Random(seed)
        self._key_of = array("i")
        self._offset_of = array("q")
        """By number; -1: not known to be stored."""
        self._newest = array("q", [_NONE]) * keys
        """By key, the number of the certain message with the highest offset."""

    @property
    def sent(self) -> int:
        return len(self._key_of)

    def next(self) -> tuple[int, Outgoing]:
        """A message that was never sent, and its number."""
        number = len(self._key_of)
        key = _NONE if self._chance.randrange(_KEYLESS_OF) == 0 else self._chance.randrange(self.keys)
        self._key_of.append(key)
        self._offset_of.append(_NONE)
        return number, Outgoing(value_of(number), key_name(key) or None)

    def each_key(self) -> list[Outgoing]:
        """A message for each key, in any order: afterwards there are as many keys as were asked for."""
        order = list(range(self.keys))
        self._chance.shuffle(order)
        first = len(self._key_of)
        self._key_of.extend(order)
        self._offset_of.extend([_NONE] * self.keys)
        return [Outgoing(value_of(first + index), key_name(key)) for index, key in enumerate(order)]

    def stored(self, number: int, offset: int) -> None:
        """It is certain now."""
        self._offset_of[number] = offset
        key = self._key_of[number]
        if key != _NONE and (self._newest[key] == _NONE or self._offset_of[self._newest[key]] < offset):
            self._newest[key] = number

    async def check(self, ranges: AsyncIterable[LogRange], compacted_to: int = 0) -> Found:
        """What is wrong with the records of a whole partition. Superseded records are counted below `compacted_to`."""
        found, last, wrong = Found(), _NONE, []
        newest = array("q", [_NONE]) * self.keys
        """By key, the number of the last record that was found."""
        newest_below = array("q", [_NONE]) * self.keys
        there = bytearray(self.sent)
        learned: list[tuple[int, int]] = []
        ends, before, epoch = {_NONE}, _NONE, _NONE
        async for piece in ranges:
            _, records = kernels.decode_records(piece.records, 0, len(piece.records), piece.count)
            for (offset, key, value, *_), its_epoch in zip(records, _epochs(piece.records), strict=True):
                number = self._number(key, value)
                if its_epoch != epoch:
                    ends.add(before)
                before, epoch = _NONE if number is None else number, its_epoch
                if number is None:
                    wrong.append(f"offset {offset} has a record that was never sent: {key!r} {value!r}")
                    continue
                known = self._offset_of[number]
                if offset <= last:
                    wrong.append(f"offset {offset} follows {last}")
                if known == _NONE:
                    learned.append((number, offset))
                elif known != offset:
                    wrong.append(f"message {number} is at {offset}, and was acked at {known}")
                if there[number]:
                    wrong.append(f"message {number} is there twice, also at {offset}")
                there[number], last = 1, offset
                found.records += 1
                if (which := self._key_of[number]) != _NONE:
                    newest[which] = number
                    if offset < compacted_to:
                        found.superseded += newest_below[which] not in ends
                        newest_below[which] = number
        for number, offset in learned:
            self.stored(number, offset)
        for which, number in enumerate(self._newest):
            if number != newest[which]:
                wrong.append(f"the newest of key {which} is message {number}, and {newest[which]} is left")
        for number, which in enumerate(self._key_of):
            if which == _NONE and self._offset_of[number] != _NONE and not there[number]:
                wrong.append(f"message {number}, which has no key, is gone")
        found.wrong = wrong
        return found

    def _number(self, key: bytes, value: bytes) -> int | None:
        if not value[:_DIGITS].isdigit():
            return None
        number = int(value[:_DIGITS])
        if number >= self.sent or value != value_of(number) or key != key_name(self._key_of[number]):
            return None
        return number


def _epochs(records: bytes) -> Iterator[int]:
    """The leader epoch of each of these whole records."""
    end = 0
    while end < len(records):
        end += 5 + int.from_bytes(records[end + 1 : end + 5], "big")
        yield int.from_bytes(records[end - 12 : end - 4], "little")
