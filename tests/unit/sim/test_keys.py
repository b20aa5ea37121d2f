"""What a read of a compacted stream may lack, and what it may not."""

import random
from collections.abc import Iterator

import pytest

from bascule.sim.checkers import Checker, View
from bascule.sim.history import History
from bascule.sim.keys import Keys
from bascule.sim.trace import Part, Trace
from bascule.testing.loop import VirtualLoop

PART = Part("keyed", 1, 0)
WRITTEN = ((b"a", False), (b"b", False), (b"", False), (b"a", False), (b"b", True))
"""Of each offset the key, and whether it is a tombstone."""


@pytest.fixture
def checker() -> Iterator[Checker]:
    loop = VirtualLoop()
    checker = Checker(History(random.Random(1), (1,)), Trace(loop))
    checker.compacted[PART] = Keys(delay_s=1.0)
    for offset, (key, tombstone) in enumerate(WRITTEN):
        checker.compacted[PART].add(offset, key, tombstone)
    yield checker
    loop.close()


def read(checker: Checker, *offsets: int, took_s: float = 0.1) -> list[int]:
    """The offsets that are wrong about a full read with these."""
    view = View(checker, PART)
    view.seen, view.took_s = dict.fromkeys(offsets), took_s
    view.covered(0, len(WRITTEN))
    return [violation.offset for violation in checker.violations if violation.invariant == "I12"]


@pytest.mark.parametrize("offsets", [(0, 1, 2, 3, 4), (2, 3, 4), (1, 2, 3, 4)])
def test_what_a_later_record_supersedes_may_be_there_or_not(checker: Checker, offsets: tuple[int, ...]) -> None:
    assert read(checker, *offsets) == []


def test_the_newest_record_of_a_key_is_there(checker: Checker) -> None:
    assert read(checker, 0, 1, 2, 4) == [3]


def test_a_record_without_a_key_is_there(checker: Checker) -> None:
    assert read(checker, 0, 1, 3, 4) == [2]


def test_a_tombstone_goes_with_what_it_deletes(checker: Checker) -> None:
    assert read(checker, 2, 3) == []


def test_a_deleted_key_does_not_return(checker: Checker) -> None:
    assert read(checker, 1, 2, 3) == [1]


def test_a_read_that_takes_longer_than_tombstones_stay_may_miss_them(checker: Checker) -> None:
    assert read(checker, 1, 2, 3, took_s=1.0) == []


def test_what_was_exposed_after_a_read_began_is_not_asked_of_it(checker: Checker) -> None:
    view = View(checker, PART)
    checker.compacted[PART].add(5, b"c", False)
    view.seen = dict.fromkeys((2, 3, 4))
    view.covered(0, 6)
    assert checker.violations == []


def test_a_disk_has_a_deleted_key_only_with_its_tombstone(checker: Checker) -> None:
    keys = checker.compacted[PART]
    assert keys.returned(dict.fromkeys((1, 2, 3)), 5) == [(1, 4)]
    assert keys.returned(dict.fromkeys((1, 2, 3)), 4) == [], "it is not known to end after the tombstone"
    assert keys.returned(dict.fromkeys((0, 2, 3)), 5) == []
    assert keys.returned(dict.fromkeys((0, 1, 2, 3, 4)), 5) == []
