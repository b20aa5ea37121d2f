"""Records as Arrow columns: what the kernel writes is what a client decodes."""

import random
from itertools import pairwise
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from bascule.errors import CorruptError
from bascule.wire.columns import Columns, Wanted, columns_of
from bascule.wire.envelope import MsgType
from bascule.wire.envelope import encode as envelope
from bascule.wire.pb import api_pb2 as api
from tests.harness.kernel_inputs import NOW, SUBJECT, built_twins, encode, pack

TWINS = built_twins()
ROWS: list[dict[str, Any]] = [
    {"value": b"plain", "key": b"k", "headers": {}},
    {"value": b"", "key": b"", "headers": {"": b"", "é": b"\xff"}},
    {"value": b"v" * 300, "key": b"\0", "headers": {f"h{n}": b"%d" % n for n in range(20)}},
    *({"value": b"%d" % n, "key": b"" if n % 3 else b"key %d" % n, "headers": {}} for n in range(40)),
]


def stored(kernels: ModuleType, rows: list[dict[str, Any]]) -> bytes:
    records = b""
    for number, row in enumerate(rows):
        payload = envelope(MsgType.PUBLISH, api.Message(**row).SerializeToString())
        packed = pack((SUBJECT, b"reply.to" if number % 2 else b"", payload))
        records += encode(kernels, packed, next_offset=10 + number, now=NOW + number)[0]
    return records


def texts(ends: bytes, content: bytes, validity: bytes | None = None, kind: Any = None) -> list[Any]:
    count = len(ends) // 4 - 1
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(ends), pa.py_buffer(content)]
    return list(pa.Array.from_buffers(kind or pa.binary(), count, buffers).to_pylist())


@pytest.mark.parametrize("kernels", TWINS, ids=lambda twin: twin.__name__)
def test_columns_hold_what_a_client_decodes(kernels: ModuleType) -> None:
    records = stored(kernels, ROWS)
    position, count, status, buffers = kernels.record_columns(records, 0, len(records), 0, 31)
    assert (position, count, status) == (len(records), len(ROWS), 0)
    columns = Columns._make(buffers)
    decoded = kernels.decode_records(records, 0, len(records), 1000, True)[1]
    assert list(memoryview(columns.offsets).cast("q")) == [record[0] for record in decoded]
    assert list(memoryview(columns.timestamps).cast("q")) == [record[3] for record in decoded]
    assert set(memoryview(columns.epochs).cast("Q")) == {1}
    assert texts(columns.key_ends, columns.keys, columns.key_validity) == [record[1] or None for record in decoded]
    assert texts(columns.value_ends, columns.values) == [record[2] for record in decoded]
    assert texts(columns.subject_ends, columns.subjects, kind=pa.string()) == [record[6] for record in decoded]
    replies = texts(columns.reply_ends, columns.replies, columns.reply_validity, pa.string())
    assert replies == [record[7] or None for record in decoded]
    names = texts(columns.header_key_ends, columns.header_keys, kind=pa.string())
    values = texts(columns.header_value_ends, columns.header_values)
    ends = list(memoryview(columns.header_ends).cast("i"))
    headers = [dict(zip(names[a:b], values[a:b], strict=True)) for a, b in pairwise(ends)]
    assert headers == [record[8] for record in decoded]


@pytest.mark.parametrize("kernels", TWINS, ids=lambda twin: twin.__name__)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 300])
def test_a_header_that_comes_twice_is_where_it_came_first_with_the_value_that_came_last(
    kernels: ModuleType, count: int
) -> None:
    chance = random.Random(count)
    given = [(f"h{chance.randrange(count)}" if chance.random() < 0.7 else "", b"%d" % n) for n in range(count)]
    content = api.Message(value=b"v").SerializeToString()
    for name, value in given:
        content += api.Message(headers={name: value}).SerializeToString()
    records = encode(kernels, pack((SUBJECT, b"", envelope(MsgType.PUBLISH, content))), next_offset=0, now=NOW)[0]
    columns = Columns._make(kernels.record_columns(records, 0, len(records), 0, 31)[3])
    names = texts(columns.header_key_ends, columns.header_keys, kind=pa.string())
    values = texts(columns.header_value_ends, columns.header_values)
    assert list(zip(names, values, strict=True)) == list(dict(given).items())


@pytest.mark.parametrize("kernels", TWINS, ids=lambda twin: twin.__name__)
def test_a_column_that_is_not_wanted_costs_nothing(kernels: ModuleType) -> None:
    records = stored(kernels, ROWS)
    buffers = Columns._make(kernels.record_columns(records, 0, len(records), 0, Wanted.VALUE)[3])
    assert {name for name in Columns._fields if getattr(buffers, name)} == {
        "offsets",
        "timestamps",
        "epochs",
        "value_ends",
        "values",
    }


@pytest.mark.parametrize("bit", range(0, 8 * 60, 7))
def test_a_flipped_bit_is_told_with_the_offset_before_it(bit: int) -> None:
    first, second = stored(TWINS[0], ROWS[:1]), stored(TWINS[0], ROWS[:2])
    bent = bytearray(second)
    bent[len(first) + bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptError, match="there: the record after offset 10 is damaged"):
        columns_of(bytes(bent), Wanted.ALL, "there")


def test_half_a_record_is_told() -> None:
    records = stored(TWINS[0], ROWS[:1])
    with pytest.raises(CorruptError, match="the first record is damaged"):
        columns_of(records[:-1], Wanted.ALL, "there")
    assert columns_of(b"", Wanted.ALL, "there")[0] == 0
