"""A column of payloads as columns, and rows as payloads: what brokers and clients take them for."""

import struct
from itertools import accumulate, pairwise
from types import ModuleType

import pytest

from bascule.wire.pb import api_pb2 as api
from tests.harness.envelopes import MAGIC, envelope, message, with_crc
from tests.harness.kernel_inputs import built_twins

pytestmark = pytest.mark.parametrize("kernels", built_twins(), ids=lambda twin: twin.__name__)
PLAIN, MESSAGE, OTHER, DAMAGED = range(4)
BODY = api.Message(value=b"v", key=b"k").SerializeToString()


def column(texts: list[bytes]) -> tuple[bytes, bytes]:
    ends = [0, *accumulate(map(len, texts))]
    return struct.pack(f"<{len(ends)}i", *ends), b"".join(texts)


def texts(ends: bytes, content: bytes) -> list[bytes]:
    found = memoryview(ends).cast("i").tolist()
    return [content[begin:end] for begin, end in pairwise(found)]


@pytest.mark.parametrize(
    ("payload", "status", "kind", "checked", "value"),
    [
        (b"", PLAIN, 0, 0, b""),
        (b"just text", PLAIN, 0, 0, b"just text"),
        (MAGIC, PLAIN, 0, 0, MAGIC),
        (envelope(BODY, version=1), PLAIN, 0, 0, envelope(BODY, version=1)),
        (envelope(BODY), MESSAGE, 0, 0, b"v"),
        (envelope(BODY, length=20), MESSAGE, 0, 0, b"v"),
        (with_crc(BODY), MESSAGE, 0, 1, b"v"),
        (with_crc(BODY, wrong=True), DAMAGED, 0, 1, b""),
        (with_crc(BODY, length=13), DAMAGED, 0, 1, b""),
        (envelope(BODY)[:-1], DAMAGED, 0, 0, b""),
        (envelope(b"", length=8), MESSAGE, 0, 0, b""),
        (envelope(b"ack", kind=1), OTHER, 1, 0, b"ack"),
        (envelope(b"x" * 3, kind=128), OTHER, 128, 0, b"xxx"),
    ],
)
def test_a_payload_is_what_its_envelope_says(
    kernels: ModuleType, payload: bytes, status: int, kind: int, checked: int, value: bytes
) -> None:
    found = kernels.envelope_columns(3, *column([b"before", payload, b"after"]))
    assert (found[0], found[1], found[2]) == (
        bytes((PLAIN, status, PLAIN)),
        bytes((0, kind, 0)),
        bytes((0, checked, 0)),
    )
    assert texts(*found[7:9]) == [b"before", value, b"after"]
    assert found[9] == bytes((0b101 if status == DAMAGED else 0b111,))


def test_every_field_of_a_message_has_its_column(kernels: ModuleType) -> None:
    full = message(
        b"v", key=b"k", headers={"h": b"1"}, ackInbox="inbox", correlationId="id", ackPolicy=api.AckPolicy.NONE
    )
    found = kernels.envelope_columns(2, *column([message(b""), full]))
    assert struct.unpack("<2i", found[3]) == (0, 2)
    assert (texts(*found[4:6]), found[6]) == ([b"", b"k"], b"\x02")
    assert struct.unpack("<3i", found[10]) == (0, 0, 1)
    assert (texts(*found[11:13]), texts(*found[13:15])) == ([b"h"], [b"1"])
    assert (texts(*found[15:17]), texts(*found[17:19])) == ([b"", b"inbox"], [b"", b"id"])


@pytest.mark.parametrize("checked", [False, True])
def test_rows_become_payloads_that_decode_to_them(kernels: ModuleType, checked: bool) -> None:
    headers = (struct.pack("<4i", 0, 0, 2, 2), *column([b"h", b"subject"]), *column([b"1", b"the broker's"]))
    buffers = (*column([b"a", b"", b"c" * 300]), *column([b"", b"k", b""]), *headers)
    payloads = texts(*kernels.envelope_rows(3, buffers, checked))
    assert (
        payloads[0]
        == (with_crc if checked else envelope)(api.Message(value=b"a").SerializeToString())[: len(payloads[0])]
    )
    found = kernels.envelope_columns(3, *column(payloads))
    assert (found[0], found[2]) == (bytes((MESSAGE,)) * 3, bytes((checked,)) * 3)
    assert (texts(*found[7:9]), texts(*found[4:6])) == ([b"a", b"", b"c" * 300], [b"", b"k", b""])
    assert (texts(*found[11:13]), texts(*found[13:15])) == ([b"h"], [b"1"])


def test_no_rows_give_nothing_and_rows_that_are_none_are_refused(kernels: ModuleType) -> None:
    assert kernels.envelope_rows(0, (b"",) * 9, True) == (bytes(4), b"")
    assert kernels.envelope_columns(0, bytes(4), b"")[0] == b""
    assert kernels.envelope_columns(2, b"", b"")[0] == bytes(2)
    for ends, content in ((b"\0" * 4, b""), (b"\0\0\0\0\2\0\0\0", b"v"), (b"\1\0\0\0\0\0\0\0", b"v")):
        with pytest.raises(ValueError, match=r"rows|go back"):
            kernels.envelope_columns(1, ends, content)
    with pytest.raises(ValueError, match="rows"):
        kernels.envelope_rows(1, (b"",) * 8, True)
