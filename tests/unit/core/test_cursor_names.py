"""Which cursor is meant, and which partition has it."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.core.cursors.keys import CursorName, CursorValue, partition_of
from bascule.errors import InvalidArgument
from bascule.limits import MAX_CURSOR_ID_BYTES, MAX_CURSOR_STREAM_BYTES

words = st.text(min_size=1, max_size=40)


@given(words, words, st.integers(-(2**31), 2**31 - 1), st.integers(1, 10_000))
def test_clients_compute_the_same_partition(cursor_id: str, stream: str, partition: int, partitions: int) -> None:
    key = CursorName(cursor_id, stream, partition).key
    assert key == b",".join([cursor_id.encode(), stream.encode(), str(partition).encode()])
    assert partition_of(key, partitions) == zlib.crc32(key) % partitions


def test_known_partitions() -> None:
    """CRC-32 IEEE, whose check value is the one of its definition."""
    assert partition_of(b"123456789", 2**32) == 0xCBF43926
    assert CursorName("c", "orders", 3).key == b"c,orders,3"


@given(words, words, st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63))
def test_a_value_is_read_as_it_was_written(
    cursor_id: str, stream: str, partition: int, offset: int, index: int
) -> None:
    cursor = CursorName(cursor_id, stream, partition)
    assert cursor.found_in(cursor.value(offset, index)) == CursorValue(offset, index)
    assert CursorName(cursor_id + "x", stream, partition).found_in(cursor.value(offset)) is None


@given(st.binary(max_size=30))
def test_what_is_no_cursor_is_none(value: bytes) -> None:
    assert CursorName("no such id in it", "s", 0).found_in(value) is None


def test_a_value_holds_for_the_stream_it_was_set_in_and_where_that_is_not_known() -> None:
    assert CursorValue(5, 8).holds_for(8)
    assert CursorValue(5, 8).holds_for(None), "no such stream: nobody can be misled"
    assert not CursorValue(5, 8).holds_for(9), "made again"
    assert CursorValue(5, 0).holds_for(9), "set before there was such a stream, or by an earlier release"


def test_two_cursors_with_one_key_are_two() -> None:
    one, other = CursorName("a,b", "c", 0), CursorName("a", "b,c", 0)
    assert one.key == other.key
    assert other.found_in(one.value(5)) is None


@pytest.mark.parametrize(
    ("cursor", "text"),
    [
        (CursorName("c", "", 0), "No stream provided"),
        (CursorName("", "", 0), "No stream provided"),
        (CursorName("", "s", 0), "No cursorId provided"),
        (CursorName("ä" * (MAX_CURSOR_ID_BYTES // 2 + 1), "s", 0), "cursorId is too long"),
        (CursorName("c", "s" * (MAX_CURSOR_STREAM_BYTES + 1), 0), "stream is too long"),
    ],
)
def test_what_is_refused(cursor: CursorName, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        cursor.check()


def test_what_is_taken() -> None:
    CursorName("ä" * (MAX_CURSOR_ID_BYTES // 2), "s" * MAX_CURSOR_STREAM_BYTES, -7).check()
    CursorName("a,b c*>.\n", "no such stream", 2**31 - 1).check()
