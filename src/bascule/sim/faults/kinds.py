"""Kinds of faults. Each is registered where it is defined, with its family: a seed draws families, and then, again and
again, one of their kinds.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

Work = Callable[..., Coroutine[Any, Any, None]]
"""Takes the `Faults` of a run and the `Host` that the fault happens to."""
W = TypeVar("W", bound=Work)


class Family(NamedTuple):
    """What `FAULTS=` names. Defined beside the first of its kinds."""

    name: str
    likely: float
    """How often a seed has it."""
    drawn_apart: bool = False
    """Drawn by a number of its own, so that seeds without it draw everything else as they did before it was defined."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    family: Family
    work: Work
    weight: int
    """How often it is drawn, beside others of the same run."""
    several: bool
    """It takes more than one broker."""
    needs_sync: bool
    """Relaxed syncing does not promise to survive it."""
    relaxed: bool
    """It is for relaxed syncing only."""
    needs_copies: bool
    """The contract covers it for three replicas of which two are in sync."""


REGISTERED: dict[str, Kind] = {}
"""By name, of the files imported so far; `every.KINDS` has all, in an order that is always the same."""


def fault(
    family: Family,
    weight: int = 1,
    several: bool = False,
    needs_sync: bool = False,
    relaxed: bool = False,
    needs_copies: bool = False,
) -> Callable[[W], W]:
    """The fault is named as its function is."""

    def register(work: W) -> W:
        name = work.__name__
        assert name not in REGISTERED, f"two faults are named {name}"
        REGISTERED[name] = Kind(name, family, work, weight, several, needs_sync, relaxed, needs_copies)
        return work

    return register
