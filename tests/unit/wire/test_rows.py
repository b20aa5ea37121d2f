"""Arrow columns as framed messages: what a client would frame, by the partitions that a client would choose."""

import zlib
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from bascule.client import Outgoing
from bascule.client.requests import frame_messages
from tests.harness.kernel_inputs import built_twins

pytestmark = pytest.mark.parametrize("kernels", built_twins(), ids=lambda twin: twin.__name__)
NONE = (b"",) * 9


def column(values: list[bytes]) -> tuple[Any, Any]:
    _, ends, content = pa.array(values, pa.binary()).buffers()
    return ends, content or b""


def numbers(values: list[int]) -> Any:
    return pa.array(values, pa.int32()).buffers()[1]


ROWS = [
    Outgoing(b"plain"),
    Outgoing(b"keyed", b"k"),
    Outgoing(b"", None, {"h": b"1", "é": b""}),
    Outgoing(b"v" * 300, b"key" * 70, {"h": b"\xff" * 200}),
    *(Outgoing(b"%d" % n, b"key %d" % n if n % 3 else None) for n in range(60)),
]


def buffers(rows: list[Outgoing]) -> tuple[Any, ...]:
    headers = [list((row.headers or {}).items()) for row in rows]
    names = [name.encode() for each in headers for name, _ in each]
    contents = [content for each in headers for _, content in each]
    ends = [0]
    for each in headers:
        ends.append(ends[-1] + len(each))
    return (
        *column([row.value for row in rows]),
        *column([row.key or b"" for row in rows]),
        numbers(ends),
        *column(names),
        *column(contents),
    )


def test_rows_are_framed_as_a_client_frames_them(kernels: ModuleType) -> None:
    rows, turn, pieces = kernels.frame_rows(len(ROWS), buffers(ROWS), b"", 1, 0)
    keyless = sum(not row.key for row in ROWS)
    assert (rows, turn, pieces) == (len(ROWS), keyless, [(len(ROWS), frame_messages(ROWS))])


def test_a_key_chooses_by_its_crc_and_the_others_take_turns_or_name_theirs(kernels: ModuleType) -> None:
    wanted = [2 if n % 7 == 0 else -1 for n in range(len(ROWS))]
    expected: list[list[Outgoing]] = [[], [], []]
    turn = 5
    for row, named in zip(ROWS, wanted, strict=True):
        choice = named
        if named == -1 and row.key:
            choice = zlib.crc32(row.key) % 3
        elif named == -1:
            choice, turn = turn % 3, turn + 1
        expected[choice].append(row)
    answer = kernels.frame_rows(len(ROWS), buffers(ROWS), numbers(wanted), 3, 5)
    assert answer == (len(ROWS), turn, [(len(each), frame_messages(each)) for each in expected])


def test_headers_that_the_broker_writes_itself_are_left_out(kernels: ModuleType) -> None:
    own = [Outgoing(b"v", None, {"subject": b"s", "h": b"1", "reply": b"r"})]
    assert kernels.frame_rows(1, buffers(own), b"", 1, 0)[2] == [
        (1, frame_messages([Outgoing(b"v", None, {"h": b"1"})]))
    ]


@pytest.mark.parametrize("wrong", [3, -2])
def test_a_partition_that_is_not_there_ends_the_rows_before_it(kernels: ModuleType, wrong: int) -> None:
    done, _, pieces = kernels.frame_rows(4, buffers(ROWS[:4]), numbers([0, 1, wrong, 0]), 3, 0)
    assert (done, [count for count, _ in pieces]) == (2, [1, 1, 0])


def test_no_rows_and_no_columns_give_nothing_or_empty_values(kernels: ModuleType) -> None:
    assert kernels.frame_rows(0, NONE, b"", 2, 1) == (0, 1, [(0, b""), (0, b"")])
    assert kernels.frame_rows(2, NONE, b"", 1, 0)[2] == [(2, frame_messages([b"", b""]))]


@pytest.mark.parametrize(
    ("count", "given", "partitions", "choices"),
    [
        (1, NONE[:8], b"", 1),
        (1, NONE, b"", 0),
        (1, NONE, b"\0\0\0", 1),
        (2, (b"\0" * 8, b"", *NONE[2:]), b"", 1),
        (1, (b"\0\0\0\0\2\0\0\0", b"v", *NONE[2:]), b"", 1),
        (2, (b"\0\0\0\0\2\0\0\0\1\0\0\0", b"vv", *NONE[2:]), b"", 1),
        (1, (*NONE[:4], b"\0\0\0\0\1\0\0\0", *NONE[5:]), b"", 1),
    ],
)
def test_columns_that_do_not_fit_their_rows_are_refused(
    kernels: ModuleType, count: int, given: tuple[bytes, ...], partitions: bytes, choices: int
) -> None:
    with pytest.raises(ValueError, match=r"rows|go back"):
        kernels.frame_rows(count, given, partitions, choices, 0)
