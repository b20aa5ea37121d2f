"""Ranges of a log as bulk reads give them, made up."""

from bascule.client import LogRange
from bascule.wire import kernels
from tests.harness.kernel_inputs import make_records


def given(
    start: int, end: int, offsets: list[int], compacted_end: int = 0, damaged: tuple[range, ...] = ()
) -> LogRange:
    records = b"".join(make_records(kernels, [f"{offset}".encode()], first_offset=offset)[0] for offset in offsets)
    return LogRange(start, end, records, len(offsets), 0, compacted_end, 100, 7, damaged)
