"""A commit log in a test: what it holds, and how long a read of it may take."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def bodies(first: int, count: int) -> list[bytes]:
    return [b"value %d" % number for number in range(first, first + count)]


PATIENCE_S = 20


@contextmanager
def bounded() -> Iterator[None]:
    """A loop that never yields cannot be ended by asyncio."""

    def give_up(*_: object) -> None:
        signal.alarm(1)  # again, if this one is raised where it is caught
        raise AssertionError("it turns without an end")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def numbered(first: int, count: int) -> list[tuple[int, bytes]]:
    return [(number, b"value %d" % number) for number in range(first, first + count)]
