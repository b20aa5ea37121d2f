"""The map of keys, on both twins: what it removes is what a model removes, whatever its size."""

import struct
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.limits import KEY_SLOT_BYTES
from bascule.testing.keyed import Keyed, Stored, encode_keyed, problems, stored_in
from bascule.testing.records import SUBJECT
from bascule.wire.pure.protobuf import bytes_field, frame
from tests.harness.kernel_inputs import built_twins

TWINS = built_twins()
SECRET = bytes(range(16))
LARGE = 1 << 16
SMALL = 8 * KEY_SLOT_BYTES
"""Room for six keys."""
ALL = 1 << 62


@pytest.fixture(params=TWINS, ids=lambda twin: twin.__name__)
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    twin: ModuleType = request.param
    return twin


def packed(*offsets: int) -> bytes:
    return b"".join(struct.pack("<q", offset) for offset in offsets)


def compacted(kernels: ModuleType, records: bytes, protected: bytes = b"", until: int = -1) -> list[Stored]:
    keys = kernels.KeyMap(SECRET, LARGE)
    assert keys.add(records, 0, len(records), ALL) == len(records)
    left, count, *_ = keys.compact(records, 0, len(records), protected, until)
    found = stored_in(left)
    assert len(found) == count
    return found


def offsets(found: list[Stored]) -> list[int]:
    return [each.offset for each in found]


def test_the_newest_record_of_each_key_stays_and_what_has_no_key(kernels: ModuleType) -> None:
    records, *_ = encode_keyed([Keyed(b"a", b"1"), Keyed(b"", b"x"), Keyed(b"b", b"1"), Keyed(b"a", b"2"), Keyed(b"")])
    assert offsets(compacted(kernels, records)) == [1, 2, 3, 4]


def test_a_record_without_a_value_is_no_tombstone_without_the_header(kernels: ModuleType) -> None:
    records, *_ = encode_keyed([Keyed(b"a", b"1"), Keyed(b"a"), Keyed(b"b", b"2", True), Keyed(b"c", b"", True)])
    assert offsets(compacted(kernels, records, until=100)) == [1, 2]


def test_a_tombstone_removes_what_is_older_and_stays_while_it_is_young(kernels: ModuleType) -> None:
    records, *_ = encode_keyed([Keyed(b"a", b"1"), Keyed(b"a", b"", True), Keyed(b"b")], timestamp=50)
    for until, expected in ((50, ([1, 2], 2, 1, 0, 1)), (51, ([1, 2], 2, 1, 0, 1))):
        keys = kernels.KeyMap(SECRET, LARGE)
        keys.add(records, 0, len(records), ALL)
        left, *counts = keys.compact(records, 0, len(records), b"", until)
        assert (offsets(stored_in(left)), *counts) == expected, "with what it deletes it does not go"
    for until, expected in ((50, ([1, 2], 2, 0, 0, 1)), (51, ([2], 1, 0, 1, 0)), (-1, ([1, 2], 2, 0, 0, 0))):
        keys = kernels.KeyMap(SECRET, LARGE)
        keys.add(left, 0, len(left), ALL)
        rest, *counts = keys.compact(left, 0, len(left), b"", until)
        assert (offsets(stored_in(rest)), *counts) == expected


def test_a_tombstone_that_the_map_does_not_know_stays(kernels: ModuleType) -> None:
    """Older records of its key may be left then."""
    records, *_ = encode_keyed([Keyed(b"a", b"", True), Keyed(b"b", b"1")])
    keys = kernels.KeyMap(SECRET, LARGE)
    left, *_ = keys.compact(records, 0, len(records), b"", 100)
    assert left == records


def test_what_is_protected_keeps_the_tombstone_of_its_key(kernels: ModuleType) -> None:
    records, *_ = encode_keyed([Keyed(b"a", b"1"), Keyed(b"a", b"", True), Keyed(b"b"), Keyed(b"c", b"", True)])
    assert offsets(compacted(kernels, records, packed(0), 100)) == [0, 1, 2]
    assert offsets(compacted(kernels, records, packed(2, 7), 100)) == [1, 2]


def test_a_full_map_says_where(kernels: ModuleType) -> None:
    messages = [Keyed(b"%d" % (number % 9)) for number in range(20)]
    records, *_ = encode_keyed(messages)
    keys = kernels.KeyMap(SECRET, SMALL)
    at = keys.add(records, 0, len(records), ALL)
    assert (len(keys), stored_in(records[at:])[0].offset) == (6, 6)
    at = keys.add(records, 0, len(records), 4)
    assert stored_in(records[at:])[0].offset == 4


def test_what_is_no_record_is_refused(kernels: ModuleType) -> None:
    records, *_ = encode_keyed([Keyed(b"a", b"1")])
    keys = kernels.KeyMap(SECRET, LARGE)
    with pytest.raises(ValueError, match="whole record"):
        keys.compact(records + b"\0", 0, len(records) + 1, b"", -1)
    with pytest.raises(ValueError, match="16 bytes"):
        kernels.KeyMap(b"short", LARGE)
    with pytest.raises(ValueError, match="range"):
        keys.add(records, 0, len(records) + 1, ALL)


def test_keys_of_every_length_are_told_apart(kernels: ModuleType) -> None:
    """The hash works in words of eight bytes."""
    messages = [Keyed(bytes(length) + b"x") for length in range(40)]
    records, *_ = encode_keyed(messages + messages)
    assert offsets(compacted(kernels, records)) == list(range(40, 80))


def test_a_tombstone_stays_that_is_not_below_their_end(kernels: ModuleType) -> None:
    records, *_ = encode_keyed([Keyed(b"a", b"", True), Keyed(b"b", b"", True), Keyed(b"c", b"1")])
    for end, expected in ((0, [0, 1, 2]), (1, [1, 2]), (2, [2])):
        keys = kernels.KeyMap(SECRET, LARGE)
        keys.add(records, 0, len(records), ALL)
        assert offsets(stored_in(keys.compact(records, 0, len(records), b"", 100, end)[0])) == expected


HELD: list[tuple[list[int], list[int], int]] = [
    ([], [], -1),
    ([0], [], 3),
    ([1], [], -1),
    ([0, 2], [], 3),
    ([], [0], -1),
    ([2], [0], 5),
    ([0], [0, 2], -1),
    ([3], [], -1),
    ([0, 3], [], 3),
]


@pytest.mark.parametrize(("producers", "epoch_ends", "held"), HELD)
def test_a_log_is_cleared_to_the_first_tombstone_of_which_an_older_record_stays_for_a_while(
    kernels: ModuleType, producers: list[int], epoch_ends: list[int], held: int
) -> None:
    """The last records of leader epochs stay in all logs, and so does each tombstone after them."""
    messages = [(b"a", False), (b"b", False), (b"c", False), (b"a", True), (b"x", False), (b"c", True), (b"b", False)]
    records, *_ = encode_keyed([Keyed(key, b"" if gone else b"1", gone) for key, gone in messages])
    keys = kernels.KeyMap(SECRET, LARGE)
    keys.add(records, 0, len(records), ALL)
    keys.compact(records, 0, len(records), packed(*producers), -1, ALL, packed(*epoch_ends))
    assert keys.held == held


def test_a_tombstone_that_the_map_does_not_know_is_held_as_well(kernels: ModuleType) -> None:
    records, *_ = encode_keyed([Keyed(b"a", b"1"), Keyed(b"a", b"", True), Keyed(b"b", b"1")])
    keys = kernels.KeyMap(SECRET, LARGE)
    keys.compact(records, 0, len(records), packed(0), -1)
    assert keys.held == 1


def test_without_room_for_what_stays_every_tombstone_after_it_is_held(kernels: ModuleType) -> None:
    messages = [Keyed(b"%d" % number, b"1") for number in range(9)] + [Keyed(b"z", b"", True)]
    records, *_ = encode_keyed(messages)
    keys = kernels.KeyMap(SECRET, SMALL)
    keys.compact(records, 0, len(records), packed(*range(9)), -1)
    assert keys.held == 9


MESSAGES = st.lists(
    st.builds(
        Keyed,
        st.sampled_from([b"", b"a", b"b", b"c", b"d", b"e" * 20, b"f" * 9, b"g", b"h"]),
        st.sampled_from([b"", b"", b"1", b"22"]),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(
    MESSAGES,
    st.lists(st.integers(0, 40), max_size=4),
    st.integers(-1, 45),
    st.sampled_from([SMALL, LARGE]),
    st.lists(st.integers(0, 40), max_size=3),
    st.integers(0, 45),
)
def test_passes_leave_what_a_model_leaves_and_both_twins_agree(
    messages: list[Keyed], protected: list[int], until: int, map_bytes: int, epoch_ends: list[int], end: int
) -> None:
    """Passes with a small map, one after the other, as the log makes them."""
    records, *_ = encode_keyed(messages) if messages else (b"", 0, 0, 0)
    written = stored_in(records)
    results = []
    for kernels in TWINS:
        data, start, counts = records, 0, []
        while start <= len(messages):
            keys = kernels.KeyMap(SECRET, map_bytes)
            position = kernels.seek_record(data, 0, len(data), 0, start)[0]
            at = keys.add(data, position, len(data), ALL)
            start = len(messages) + 1 if at == len(data) else stored_in(data[at:])[0].offset
            stay = packed(*sorted(set(protected))), packed(*sorted(set(epoch_ends)))
            data, *found = keys.compact(data, 0, len(data), stay[0], until, end, stay[1])
            counts.append([*found, keys.held])
        results.append((data, counts))
        left = stored_in(data)
        assert problems(written, left, until) == []
        superseded = {each.offset for each in written if each.message.key}
        superseded -= {each.offset for each in {one.message.key: one for one in written}.values()}
        superseded -= {*protected, *epoch_ends}
        assert not superseded & {each.offset for each in left}
        staying = {*protected, *epoch_ends}
        assert {offset for offset in staying if offset < len(messages)} <= {each.offset for each in left}
    assert results.count(results[0]) == len(results)


def test_a_header_with_that_name_counts_wherever_it_stands(kernels: ModuleType) -> None:
    def header(name: bytes) -> bytes:
        return bytes_field(0x4A, bytes_field(0x0A, name) + bytes_field(0x12, b""))

    tail = kernels.record_tail(b"", SUBJECT, b"")
    body = bytes_field(0x12, b"a")
    framed = frame(body + header(b"x") + header(b"bascule-tombstone") + header(b"y")) + frame(
        bytes_field(0x12, b"b") + header(b"bascule-tombstones")
    )
    records, *_ = kernels.encode_messages(framed, SUBJECT, tail, 0, 1, 1, 0, 1 << 20, 2, False)
    assert offsets(compacted(kernels, records, until=100)) == [1]
