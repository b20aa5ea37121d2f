"""A target: how its inputs are made, and what must hold for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tools.fuzzing.chance import Chance


class FindingError(Exception):
    """Something that must hold does not."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise FindingError(what)


@dataclass(frozen=True)
class Target:
    name: str
    make: Callable[[Chance], bytes]
    check: Callable[[bytes, Chance], None]
    """Raises if something does not hold, whatever the error. Its other choices (limits, splits) come from the chance it
    is given."""
    words: tuple[bytes, ...] = ()
    """Pieces of the protocol to put into inputs."""
    kernels_only: bool = False
    """Nothing but kernels run, so it is worth running on those with sanitizers too."""
    bend: bool = True
    """Inputs may be bent as bytes. Those that are a container of files are not."""
