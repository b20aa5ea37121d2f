"""Durations as the Go server's configuration writes them: `250ms`, `1h30m`, `1.5s`, `0`.

A number without a unit is nanoseconds. Inside the code every duration is a whole number of nanoseconds.
"""

import re
from fractions import Fraction

UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,  # Greek mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
}
MAX_DURATION_NS = (1 << 63) - 1
_MAX_TEXT = 64
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_WHOLE = re.compile(r"([+-]?)((?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
_PLAIN = re.compile(r"[+-]?\d+", re.ASCII)

EXPECTED = 'a duration such as "250ms", "10s" or "1h30m" (a plain number is nanoseconds)'


def parse_duration(text: str) -> int:
    """Nanoseconds. Raises ValueError, saying what was expected."""
    if len(text) > _MAX_TEXT:
        raise ValueError(f"expected {EXPECTED}")
    if _PLAIN.fullmatch(text):
        duration_ns = int(text)
    else:
        whole = _WHOLE.fullmatch(text)
        if whole is None:
            raise ValueError(f"expected {EXPECTED}")
        parts = _PART.findall(whole[2])
        duration_ns = int(sum(Fraction(number.rstrip(".")) * UNIT_NS[unit] for number, unit in parts))
        if whole[1] == "-":
            duration_ns = -duration_ns
    if abs(duration_ns) > MAX_DURATION_NS:
        raise ValueError("it is longer than 292 years, the most a duration can hold")
    return duration_ns


def is_plain_number(text: str) -> bool:
    """Written without a unit, so counted in nanoseconds: rarely what was meant."""
    return _PLAIN.fullmatch(text) is not None


def format_duration(duration_ns: int) -> str:
    """The shortest exact form: `168h`, `1h30m`, `250ms`, `0`."""
    if duration_ns == 0:
        return "0"
    sign, rest = ("-", -duration_ns) if duration_ns < 0 else ("", duration_ns)
    text = sign
    for unit in ("h", "m", "s", "ms", "us", "ns"):
        count, rest = divmod(rest, UNIT_NS[unit])
        if count:
            text += f"{count}{unit}"
    return text
