"""Both twins of the kernels, asked the same question.

The compiled twin gets its buffer in memory of exactly that size, not in `bytes`, which has a spare byte at its end:
so a sanitizer sees a read of a single byte too far. BASCULE_FUZZ_KERNELS names another build of the compiled twin to
ask than the one that is installed.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from bascule.errors import NatsProtocolError
from bascule.wire import _pure
from tools.fuzzing.chance import Chance
from tools.fuzzing.target import FindingError, require

NAME = "bascule.wire._kernels"
BUILD_VARIABLE = "BASCULE_FUZZ_KERNELS"
EXPECTED_ERRORS = (NatsProtocolError, ValueError)
_BUFFER_ARGUMENT = {"envelope_columns": 2, "frame_data": 1, "record_tail": None, "observe_producers": 1}


class Both(NamedTuple):
    """An object of each twin, made of the same."""

    pure: Any
    compiled: Any

    def same(self, question: Callable[[Any], Any]) -> Any:
        """What both give, or the class of the error that both raise."""
        answer = _answer(question, (self.pure,))
        if self.compiled is not None:
            other = _answer(question, (self.compiled,))
            require(same(answer, other), f"the twins differ: {shown(answer)} and {shown(other)}")
        return answer


def _compiled() -> ModuleType | None:
    build = os.environ.get(BUILD_VARIABLE)
    if build is None:
        try:
            return importlib.import_module(NAME)
        except ImportError:
            return None
    loader = importlib.machinery.ExtensionFileLoader(NAME, build)
    spec = importlib.util.spec_from_file_location(NAME, build, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


COMPILED = _compiled()


def ask(name: str, *arguments: Any) -> Any:
    """What both twins answer, or the class of the error that both raise."""
    answer = _answer(getattr(_pure, name), [each.pure if isinstance(each, Both) else each for each in arguments])
    if COMPILED is not None:
        place = _BUFFER_ARGUMENT.get(name, 0)
        given = [each.compiled if isinstance(each, Both) else each for each in arguments]
        if place is not None:
            given[place] = memoryview(array("B", arguments[place])[:])
        other = _answer(getattr(COMPILED, name), given)
        if not same(answer, other):
            raise FindingError(f"{name}: the twins differ\n  pure:     {shown(answer)}\n  compiled: {shown(other)}")
        if place is not None:
            require(given[place] == arguments[place], f"{name}: the compiled twin wrote into its input")
    return answer


def make(name: str, *arguments: Any) -> Both:
    """An object of each twin."""
    made = _answer(getattr(_pure, name), arguments)
    return Both(made, None if COMPILED is None else _answer(getattr(COMPILED, name), arguments))


def ask_within(name: str, data: bytes, chance: Chance, *rest: Any) -> Any:
    """Ask about a stretch of a larger buffer: the bytes before and after it must not matter."""
    before, after = chance.blob(12), chance.blob(12) if chance.one_in(2) else b""
    buffer = before + data + after
    return ask(name, buffer, len(before), len(before) + len(data), *rest)


def _answer(function: Any, arguments: Any) -> Any:
    try:
        return function(*arguments)
    except EXPECTED_ERRORS as error:
        return ValueError if isinstance(error, ValueError) else NatsProtocolError


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types throughout."""
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 1_000 else f"{text[:500]} ... {text[-500:]} ({len(text)} characters)"
