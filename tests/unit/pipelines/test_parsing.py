"""A value is one JSON object, or none."""

import pytest

from bascule.pipelines.parsing import is_object


@pytest.mark.parametrize("value", [b"{}", b' {"a": [1, 1.5, null, "x"]}\n', b'{"a": ' + 10_000 * b"9" + b"}"])
def test_one_object_is_valid(value: bytes) -> None:
    assert is_object(value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[{}]",
        b"{}{}",
        b"{} x",
        b"{'a': 1}",
        b'{"a": Infinity}',
        b'{"a": 1,}',
        b"\xef\xbb\xbf{}",
        b'{"a": "\xff"}',
        "{}".encode("utf-16"),
        b'{"a": ' + 100_000 * b"[",
    ],
)
def test_everything_else_is_not(value: bytes) -> None:
    assert not is_object(value)
