"""Errors of ours as Spark shows them: the sentence first, its trace after it.

Spark makes text of the traceback of what a worker raises, in which the sentence comes last, under every frame between
it and Spark. So what leaves this package has a traceback of one frame, and the whole one in a note, which comes after.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from bascule.errors import BasculeError

P = ParamSpec("P")
R = TypeVar("R")


def plainly(function: Callable[P, R]) -> Callable[P, R]:
    """For what Spark calls."""

    @wraps(function)
    def called(*given: P.args, **named: P.kwargs) -> R:
        try:
            return function(*given, **named)
        except BasculeError as error:
            told = _told(error)
        raise told

    return called


def batches_plainly(function: Callable[P, Iterator[Any]]) -> Callable[P, Iterator[Any]]:
    """For what Spark iterates over."""

    @wraps(function)
    def called(*given: P.args, **named: P.kwargs) -> Iterator[Any]:
        try:
            yield from function(*given, **named)
            return
        except BasculeError as error:
            told = _told(error)
        raise told

    return called


def _told(error: BasculeError) -> BasculeError:
    error.add_note("\n" + "".join(traceback.format_exception(error)))
    error.__cause__ = None
    return error.with_traceback(None)
