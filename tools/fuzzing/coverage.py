"""Which lines of Bascule an execution ran, and about how often: an input that runs new ones is interesting.

The compiled twin cannot be traced, but its pure twin reads the same input. Tracing is slow, so only some executions are
traced.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import bascule

_ROOT = str(Path(bascule.__file__).parent)


class Trace:
    """A context in which the lines are counted."""

    def __init__(self) -> None:
        self._lines: Counter[tuple[CodeType, int]] = Counter()
        self._before: Any = None

    def __enter__(self) -> Trace:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def features(self) -> set[tuple[CodeType, int, int]]:
        """Lines with how often they ran, to the power of two."""
        return {(code, line, count.bit_length()) for (code, line), count in self._lines.items()}

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_ROOT) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self._lines[frame.f_code, frame.f_lineno] += 1
        return self._line
