"""The index of the newest offset of each key."""

import random

from hypothesis import given
from hypothesis import strategies as st

from bascule.core.cursors.offsets import Budget, NewestOffsets

keys = st.sampled_from([b"%d" % number for number in range(60)])


@given(st.lists(st.tuples(keys, st.booleans()), max_size=200))
def test_it_has_what_a_dictionary_has(notes: list[tuple[bytes, bool]]) -> None:
    index, model = NewestOffsets(Budget(1000)), dict[bytes, int]()
    for offset, (key, newer) in enumerate(notes):
        if newer:
            index.newer(key, offset)
            model[key] = offset
        else:
            index.older(key, offset)
            model.setdefault(key, offset)
    assert {key: index.get(key) for key in model} == model
    assert index.get(b"never set") is None
    assert len(index) == len(model)
    assert index.complete


def test_many_keys_survive_growing() -> None:
    index = NewestOffsets(Budget(100_000))
    offsets = list(range(50_000))
    random.Random(1).shuffle(offsets)
    for offset in offsets:
        index.older(b"key %d" % offset, offset)
    assert all(index.get(b"key %d" % offset) == offset for offset in range(50_000))


def test_without_room_it_says_that_it_is_not_complete_and_goes_on_with_what_it_has() -> None:
    budget = Budget(3)
    one, other = NewestOffsets(budget), NewestOffsets(budget)
    one.newer(b"a", 0)
    other.newer(b"b", 1)
    other.newer(b"c", 2)
    known = [one.complete]
    one.newer(b"d", 3)
    assert [*known, one.complete] == [True, False]
    assert one.get(b"d") is None
    one.newer(b"a", 4)
    assert one.get(b"a") == 4
    other.clear()
    assert (len(other), budget.left) == (0, 2)
    assert other.get(b"b") is None
    one.newer(b"d", 5)
    assert one.get(b"d") == 5
    assert not one.complete, "there may be others that it lacks"
