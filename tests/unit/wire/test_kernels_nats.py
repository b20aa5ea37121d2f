"""The kernels that read what NATS sends, on both twins: checksums, and the protocol split into messages."""

from __future__ import annotations

from types import ModuleType

import google_crc32c
import pytest

from bascule.errors import NatsProtocolError
from tests.harness.kernel_inputs import pack


def split(
    kernels: ModuleType, data: bytes, max_line: int = 4096, max_payload: int = 1 << 20
) -> tuple[int, int, list[tuple[int, int, bytes]], list[tuple[bytes, bytes]]]:
    result: tuple[int, int, list[tuple[int, int, bytes]], list[tuple[bytes, bytes]]] = kernels.split_nats(
        data, 0, len(data), max_line, max_payload
    )
    return result


# --- crc32c -----------------------------------------------------------------------------------------------


def test_crc_is_castagnolis_and_can_be_extended(kernels: ModuleType) -> None:
    assert kernels.crc32c(b"123456789") == 0xE3069283
    assert kernels.crc32c(b"") == 0
    assert kernels.crc32c(b"6789", kernels.crc32c(b"12345")) == 0xE3069283
    assert kernels.crc32c(memoryview(bytearray(b"123456789"))) == 0xE3069283
    assert kernels.crc32c(bytes(range(256)) * 33) == google_crc32c.value(bytes(range(256)) * 33)


# --- split_nats -------------------------------------------------------------------------------------------


def test_messages_are_grouped_by_subscription_in_order(kernels: ModuleType) -> None:
    data = b"MSG a 7 2\r\nx1\r\nMSG b 3 r.1 2\r\nx2\r\nMSG a 7 0\r\n\r\n"
    consumed, needed, batches, controls = split(kernels, data)
    assert (consumed, needed, controls) == (len(data), 0, [])
    assert batches == [(7, 2, pack((b"a", b"", b"x1"), (b"a", b"", b""))), (3, 1, pack((b"b", b"r.1", b"x2")))]


def test_nats_headers_are_dropped(kernels: ModuleType) -> None:
    data = b"HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\nhmsg a 1 r 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    consumed, _, batches, _ = split(kernels, data)
    assert consumed == len(data)
    assert batches == [(1, 2, pack((b"a", b"", b"hi"), (b"a", b"r", b"")))]


def test_control_lines_come_with_their_argument(kernels: ModuleType) -> None:
    data = b"INFO \t{\"a\": 1} \r\nping\r\nPONG\n+OK\r\n-ERR 'Slow Consumer'\r\n"
    consumed, _, batches, controls = split(kernels, data)
    assert (consumed, batches) == (len(data), [])
    assert controls == [
        (b"INFO", b'{"a": 1}'),
        (b"PING", b""),
        (b"PONG", b""),
        (b"+OK", b""),
        (b"-ERR", b"'Slow Consumer'"),
    ]


def test_separators_are_runs_of_blanks_and_verbs_have_any_case(kernels: ModuleType) -> None:
    assert split(kernels, b"mSg \t a\t\t1  \tr \t1 \r\nz\r\n")[2] == [(1, 1, pack((b"a", b"r", b"z")))]


@pytest.mark.parametrize("cut", range(1, len(b"PING\r\nMSG a 1 5\r\nhello\r\n")))
def test_an_incomplete_item_is_left_and_its_size_told(kernels: ModuleType, cut: int) -> None:
    data = b"PING\r\nMSG a 1 5\r\nhello\r\n"
    consumed, needed, batches, controls = split(kernels, data[:cut])
    assert batches == []
    assert (consumed, len(controls)) == ((6, 1) if cut >= 6 else (0, 0))
    assert needed == (len(data) - 6 if cut >= len(b"PING\r\nMSG a 1 5\r\n") else 0)


def test_a_window_of_the_buffer_is_parsed_in_place(kernels: ModuleType) -> None:
    buffer = bytearray(b"junkPING\r\njunk")
    assert kernels.split_nats(buffer, 4, 10, 100, 100) == (10, 0, [], [(b"PING", b"")])


@pytest.mark.parametrize(
    "data",
    [
        b"HELLO\r\n",
        b"\r\n",
        b" PING\r\n",
        b"PINGPONG\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 r x 2\r\n",
        b"MSG a x 2\r\nhi\r\n",
        b"MSG a 1 -2\r\nhi\r\n",
        b"MSG a 1 +2\r\nhi\r\n",
        b"MSG a 1 1234567890123456789\r\n",
        b"MSG a 1234567890123456789 2\r\nhi\r\n",
        b"MSG a 1 1001\r\n",
        b"HMSG a 1 3 2\r\nhi\r\n",
        b"HMSG a 1 1001 1001\r\n",
        b"HMSG a 1 2\r\nhi\r\n",
        b"MSG a 1 2\r\nhiXY",
        b"MSG a 1 2\r\nhi\n\n",
        b"MSG " + b"s" * 65_536 + b" 1 2\r\nhi\r\n",
        b"MSG a 1 " + b"s" * 65_536 + b" 2\r\nhi\r\n",
        b"INFO " + b"x" * 200_001,
    ],
)
def test_what_is_not_the_nats_protocol_ends_the_connection(kernels: ModuleType, data: bytes) -> None:
    with pytest.raises(NatsProtocolError):
        split(kernels, data, max_line=200_000, max_payload=1000)


def test_the_longest_subject_fits(kernels: ModuleType) -> None:
    subject = b"s" * 65_535
    data = b"MSG %b 999999999999999999 %b 1\r\nx\r\n" % (subject, subject)
    assert split(kernels, data, max_line=200_000)[2] == [(999_999_999_999_999_999, 1, pack((subject, subject, b"x")))]
