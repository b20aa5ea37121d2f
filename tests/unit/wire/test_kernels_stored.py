"""The kernels over stored records and over HTTP/2, on both twins."""

from __future__ import annotations

import struct
from types import ModuleType

import google_crc32c
import pytest

from bascule.limits import MAX_RECORD_BYTES
from bascule.wire.pb import api_pb2
from tests.harness.kernel_inputs import NOW, SUBJECT, encode, frame, http2_frame, make_records, pack

DATA, HEADERS, END_STREAM, PADDED = 0, 1, 0x1, 0x8


def scan(kernels: ModuleType, data: bytes, min_offset: int = 0) -> tuple[int, ...]:
    result: tuple[int, ...] = kernels.scan_records(data, 0, len(data), min_offset)
    return result


def sealed(covered: bytes) -> bytes:
    """A record with these payload bytes and a right checksum."""
    return frame(covered + struct.pack("<I", google_crc32c.value(covered)))


TRAILER = b"\x82\x7d\x0c" + struct.pack("<Q", 1)

# --- scan_records, find_record ----------------------------------------------------------------------------


def test_valid_records_are_counted_to_the_end(kernels: ModuleType) -> None:
    batch = pack(*[(SUBJECT, b"", b"v%d" % number) for number in range(3)])
    records = encode(kernels, batch, next_offset=7, epoch=(1 << 64) - 1)[0]
    assert scan(kernels, records, 5) == (len(records), 3, 7, 10, NOW + 2, (1 << 64) - 1, 0)
    assert scan(kernels, b"", 5) == (0, 0, -1, 5, 0, 0, 0)
    assert kernels.scan_records(b"junk" + records, 4, 4 + len(records), 0)[0] == 4 + len(records)


def test_holes_are_fine_and_going_back_is_not(kernels: ModuleType) -> None:
    first, second = make_records(kernels, [b"a"], 4)[0], make_records(kernels, [b"b"], 9)[0]
    assert scan(kernels, first + second) == (len(first + second), 2, 4, 10, NOW, 1, 0)
    assert scan(kernels, second + first) == (len(second), 1, 9, 10, NOW, 1, 2)
    assert scan(kernels, first + first) == (len(first), 1, 4, 5, NOW, 1, 2)
    assert scan(kernels, first, 5) == (0, 0, -1, 5, 0, 0, 2)


def test_a_truncated_record_is_incomplete(kernels: ModuleType) -> None:
    first, second = make_records(kernels, [b"a", b"b"])
    for cut in range(1, len(second)):
        assert scan(kernels, first + second[:cut]) == (len(first), 1, 0, 1, NOW, 1, 1), cut


def test_every_flipped_bit_is_found(kernels: ModuleType) -> None:
    (record,) = make_records(kernels, [b"some value"])
    for bit in range(len(record) * 8):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        position, count, *_, status = scan(kernels, bytes(damaged))
        assert (position, count) == (0, 0), bit
        assert status == 2 or 1 <= bit // 8 <= 4, bit  # a larger length may look like a record still to come


@pytest.mark.parametrize(
    "record",
    [
        bytes(64),
        frame(bytes(17)),
        sealed(b"\x10\x00" + TRAILER),
        sealed(b"\x08\x00\x82\x7d\x0b" + bytes(8)),
        sealed(b"\x08\x80" + TRAILER),
        sealed(b"\x08" + b"\xff" * 9 + b"\x01" + TRAILER),
        sealed(b"\x08" + b"\xff" * 8 + b"\x7f" + TRAILER),
        sealed(b"\x08" + b"\xff" * 10 + b"\x01" + TRAILER),
        struct.pack(">BI", 0, MAX_RECORD_BYTES + 1) + b"\x08",
        struct.pack(">BI", 0, 16) + b"\x08",
        struct.pack(">BI", 1, 100),
    ],
)
def test_what_is_no_record_is_bad(kernels: ModuleType, record: bytes) -> None:
    assert scan(kernels, record) == (0, 0, -1, 0, 0, 0, 2)
    assert kernels.find_record(record, 0, len(record), 0) == -1


def test_the_smallest_record_has_no_timestamp(kernels: ModuleType) -> None:
    record = sealed(b"\x08\x05" + TRAILER)
    assert scan(kernels, record) == (len(record), 1, 5, 6, 0, 1, 0)
    assert scan(kernels, struct.pack(">BI", 0, MAX_RECORD_BYTES))[6] == 1


@pytest.mark.parametrize("junk", [b"", b"\x00" * 40, b"\x08" * 40, b"\x00\x00\x00\x00\x20\x08" * 7, b"x"])
def test_the_next_valid_record_is_found_after_damage(kernels: ModuleType, junk: bytes) -> None:
    first, second = make_records(kernels, [b"a", b"b"], 3)
    data = first[1:] + junk + second
    start = len(first) - 1 + len(junk)
    assert kernels.find_record(data, 0, len(data), 0) == start
    assert kernels.find_record(data, start, len(data), 4) == start
    assert kernels.find_record(data, start + 1, len(data), 0) == -1
    assert kernels.find_record(data, 0, len(data), 5) == -1
    assert kernels.find_record(data, 0, len(data) - 1, 0) == -1


# --- seek, reverse, index ---------------------------------------------------------------------------------


def test_records_are_sought_by_offset_and_by_time(kernels: ModuleType) -> None:
    records = make_records(kernels, [b"a", b"b", b"c"], 10)
    data = b"".join(records)
    second = len(records[0])
    assert kernels.seek_record(data, 0, len(data), 0, 0) == (0, 10, NOW)
    assert kernels.seek_record(data, 0, len(data), 0, 11) == (second, 11, NOW + 1)
    assert kernels.seek_record(data, 0, len(data), 1, NOW + 1) == (second, 11, NOW + 1)
    assert kernels.seek_record(data, second, len(data), 1, 0) == (second, 11, NOW + 1)
    assert kernels.seek_record(data, 0, len(data), 0, 13) == (len(data), -1, -1)
    assert kernels.seek_record(data, 0, len(data) - 1, 0, 12) == (len(data) - len(records[2]), -1, -1)


def test_seeking_passes_over_keys_and_long_values(kernels: ModuleType) -> None:
    message = api_pb2.Message(key=b"k" * 200, value=b"v" * 70_000).SerializeToString()
    records = encode(kernels, pack((SUBJECT, b"", bytes.fromhex("b90e43b400080000") + message)))[0]
    assert kernels.seek_record(records, 0, len(records), 1, NOW) == (0, 0, NOW)


def test_reversed_records_are_the_same_records(kernels: ModuleType) -> None:
    records = make_records(kernels, [b"a", b"bb", b"ccc"])
    data = b"".join(records)
    assert kernels.reverse_records(data, 0, len(data)) == b"".join(reversed(records))
    assert kernels.reverse_records(data, len(records[0]), len(data)) == records[2] + records[1]
    assert kernels.reverse_records(data, 0, 0) == b""
    with pytest.raises(ValueError, match=r"\w"):
        kernels.reverse_records(data, 0, len(data) - 1)


def test_the_index_has_an_entry_per_interval(kernels: ModuleType) -> None:
    records = make_records(kernels, [b"same length"] * 5, 20)
    size = len(records[0])
    entries, since = kernels.index_records(b"".join(records), 1000, 0, 2 * size)
    assert entries == struct.pack("<qqq", 22, 1000 + 2 * size, NOW + 2) + struct.pack(
        "<qqq", 24, 1000 + 4 * size, NOW + 4
    )
    assert since == size
    assert kernels.index_records(records[0], 0, 50, 50) == (struct.pack("<qqq", 20, 0, NOW), size)
    assert kernels.index_records(b"", 0, 9, 1) == (b"", 9)
    with pytest.raises(ValueError, match=r"\w"):
        kernels.index_records(records[0][:-1], 0, 0, 1)


# --- decode_records ---------------------------------------------------------------------------------------


def test_messages_of_any_server_are_decoded(kernels: ModuleType) -> None:
    other = (
        b"\x30\x07\x1a\x01v\x08\x05\xa3\x06\x00\x01\xa4\x06\x4a\x05\x0a\x01h\x12\x00\x2a\x02\xc3\xa9\x20\x09\x12\x01k"
    )
    data = frame(b"") + frame(other) + frame(b"cut")[:-1]
    position, records = kernels.decode_records(data, 0, len(data), 10)
    assert position == len(frame(b"") + frame(other))
    assert records == [
        (0, b"", b"", 0, "", 0, "", "", {}),
        (5, b"k", b"v", 9, "é", 7, "", "", {"h": b""}),
    ]
    assert [type(item) for item in records[1]] == [int, bytes, bytes, int, str, int, str, str, dict]
    assert kernels.decode_records(data, 0, len(data), 1) == (5, records[:1])
    assert kernels.decode_records(data, 0, len(data), 0) == (0, [])


def test_headers_of_users_alone_are_decoded_if_asked_for(kernels: ModuleType) -> None:
    named = b"".join(b"\x4a" + bytes([len(n) + 5]) + b"\x0a" + bytes([len(n)]) + n + b"\x12\x01v" for n in NAMES)
    data = frame(named)
    ((*_, headers),) = kernels.decode_records(data, 0, len(data), 1)[1]
    assert headers == {name.decode(): b"v" for name in NAMES}
    ((*_, headers),) = kernels.decode_records(data, 0, len(data), 1, True)[1]
    assert headers == {"h": b"v", "Subject": b"v", "replyto": b"v", "": b"v"}


NAMES = (b"subject", b"h", b"Subject", b"reply", b"replyto", b"")


def test_numbers_wrap_as_the_protobuf_library_wraps_them(kernels: ModuleType) -> None:
    data = frame(b"\x08" + b"\xff" * 9 + b"\x7f\x30\xff\xff\xff\xff\x8f\x01")
    ((offset, *_, partition, _, _, _),) = kernels.decode_records(data, 0, len(data), 1)[1]
    assert (offset, partition) == (-1, -1)


@pytest.mark.parametrize("data", [frame(b"\x08"), frame(b"\x2a\x01\xff"), frame(b"\x00\x00"), frame(b"", flag=1)])
def test_what_is_no_message_raises(kernels: ModuleType, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        kernels.decode_records(data, 0, len(data), 10)


# --- HTTP/2 and gRPC frames -------------------------------------------------------------------------------


def frames(
    kernels: ModuleType, data: bytes, max_frame: int = 100
) -> tuple[int, list[tuple[int, int, int, bytes, int]], int]:
    result: tuple[int, list[tuple[int, int, int, bytes, int]], int] = kernels.scan_frames(data, 0, len(data), max_frame)
    return result


def test_data_frames_between_others_are_merged_per_stream(kernels: ModuleType) -> None:
    data = b"".join(
        (
            http2_frame(DATA, 0, 3, b"a"),
            http2_frame(DATA, 0, 1, b"b"),
            http2_frame(DATA, END_STREAM, 3, b"c"),
            http2_frame(DATA, 0, 3, b"d"),
            http2_frame(HEADERS, 4, 5, b"head"),
            http2_frame(DATA, 0, 1, b"e"),
        )
    )
    assert frames(kernels, data + data[:12]) == (
        len(data) + 10,
        [
            (DATA, 1, 3, b"ac", 2),
            (DATA, 0, 1, b"b", 1),
            (DATA, 0, 3, b"d", 1),
            (HEADERS, 4, 5, b"head", 0),
            (DATA, 0, 1, b"e", 1),
            (DATA, 0, 3, b"a", 1),
        ],
        0,
    )


def test_an_incomplete_frame_is_left(kernels: ModuleType) -> None:
    whole = http2_frame(HEADERS, 0, 1, b"head")
    for cut in range(len(whole)):
        assert frames(kernels, whole + whole[:cut]) == (len(whole), [(HEADERS, 0, 1, b"head", 0)], 0)


def test_padding_is_dropped_but_counts_for_flow_control(kernels: ModuleType) -> None:
    data = http2_frame(DATA, PADDED, 1, b"\x02hi\x00\x00") + http2_frame(DATA, PADDED | END_STREAM, 1, b"\x00!")
    assert frames(kernels, data) == (len(data), [(DATA, 1, 1, b"hi!", 7)], 0)
    assert frames(kernels, http2_frame(DATA, PADDED, 1, b"\x02\x00\x00"))[1] == [(DATA, 0, 1, b"", 3)]


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x03\x00\x00"])
def test_impossible_padding_is_marked_and_ends_the_scan(kernels: ModuleType, payload: bytes) -> None:
    good, bad = http2_frame(DATA, 0, 1, b"x"), http2_frame(DATA, PADDED, 1, payload)
    consumed, events, oversized = frames(kernels, good + bad + good)
    assert (consumed, oversized) == (len(good + bad), 0)
    assert events == [(DATA, 0, 1, b"x", 1), (DATA, 0xFF, 1, b"", 0)]


def test_a_frame_too_long_stops_the_scan_before_it_is_whole(kernels: ModuleType) -> None:
    good = http2_frame(DATA, 0, 1, b"x" * 100)
    data = good + http2_frame(DATA, 0, 1, b"x" * 101)[:9]
    assert frames(kernels, data) == (len(good), [(DATA, 0, 1, b"x" * 100, 100)], 101)


def test_the_reserved_bit_of_the_stream_id_is_ignored(kernels: ModuleType) -> None:
    assert frames(kernels, http2_frame(8, 0, 0x80000007, b"\x00\x00\x00\x01"))[1][0][2] == 7


def test_data_is_split_into_frames(kernels: ModuleType) -> None:
    written = kernels.frame_data(5, memoryview(b"abcdefg"), 3, True)
    assert written == (
        http2_frame(DATA, 0, 5, b"abc") + http2_frame(DATA, 0, 5, b"def") + http2_frame(DATA, END_STREAM, 5, b"g")
    )
    assert kernels.frame_data(5, b"abc", 3, False) == http2_frame(DATA, 0, 5, b"abc")
    assert kernels.frame_data(5, b"", 3, True) == http2_frame(DATA, END_STREAM, 5, b"")
    assert kernels.frame_data(5, b"", 3, False) == b""
    assert kernels.frame_data(1, bytes(70_000), 1 << 20, False) == http2_frame(DATA, 0, 1, bytes(70_000))
    for impossible in (0, 1 << 24):
        with pytest.raises(ValueError, match=r"\w"):
            kernels.frame_data(5, b"abc", impossible, False)


def test_grpc_messages_are_split(kernels: ModuleType) -> None:
    data = frame(b"one") + frame(b"", flag=1) + frame(b"three")
    messages = [(0, b"one"), (1, b""), (0, b"three")]
    assert kernels.split_messages(data, 0, len(data), 5) == (len(data), messages, 0)
    assert kernels.split_messages(data, 0, len(data) - 1, 5) == (13, messages[:2], 0)
    assert kernels.split_messages(data, 0, 18, 4) == (13, messages[:2], 5)


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (0, 4), (3, 2)])
def test_a_range_outside_the_buffer_is_refused(kernels: ModuleType, start: int, end: int) -> None:
    calls: list[tuple[str, tuple[object, ...]]] = [
        ("split_nats", (10, 10)),
        ("route_publishes", ({}, b"i", 10, 10)),
        ("scan_records", (0,)),
        ("find_record", (0,)),
        ("seek_record", (0, 0)),
        ("reverse_records", ()),
        ("decode_records", (1,)),
        ("scan_frames", (10,)),
        ("split_messages", (10,)),
        ("decode_responses", (10,)),
    ]
    for name, arguments in calls:
        with pytest.raises(ValueError, match=r"\w"):
            getattr(kernels, name)(b"abc", start, end, *arguments)
