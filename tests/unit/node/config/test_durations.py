"""Durations in Go's syntax."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.node.config.durations import UNIT_NS, format_duration, parse_duration

SECOND = UNIT_NS["s"]


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("0", 0),
        ("+0", 0),
        ("1000", 1000),
        ("10s", 10 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("250ms", 250_000_000),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1.s", SECOND),
        ("2us", 2000),
        ("2µs", 2000),
        ("2μs", 2000),
        ("-3ns", -3),
        ("1m1m", 120 * SECOND),
        ("9223372036854775807ns", (1 << 63) - 1),
        ("0.3333333333333333333h", 1_199_999_999_999),
    ],
)
def test_durations_are_read_as_go_does(text: str, duration_ns: int) -> None:
    assert parse_duration(text) == duration_ns


@pytest.mark.parametrize(
    "text", ["", "s", ".s", "1 s", "1d", "1.5", "5S", "1s2", "--1s", "9223372036854775808ns", "1" * 5000, "٣s"]
)
def test_what_go_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a duration|292 years"):
        parse_duration(text)


@given(st.integers(-(1 << 63) + 1, (1 << 63) - 1))
def test_a_formatted_duration_reads_back(duration_ns: int) -> None:
    assert parse_duration(format_duration(duration_ns)) == duration_ns
