"""The case that a worker is running, in a file that outlives it: so the input of a crash is known."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from types import TracebackType

from tools.fuzzing.hunt import Case
from tools.fuzzing.target import Target

_HEAD = struct.Struct("<QQQI32s")  # executions, findings, the case's number, its length, its target
_ROOM = 4 << 20


class Box:
    def __init__(self, path: Path, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(_HEAD.size + _ROOM))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.executions = self.findings = 0

    def __enter__(self) -> Box:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._memory.close()

    def note(self, target: Target, number: int, data: bytes) -> None:
        """The case that runs next."""
        retained = data[:_ROOM]
        self.executions += 1
        self._memory[_HEAD.size : _HEAD.size + len(retained)] = retained
        _HEAD.pack_into(
            self._memory, 0, self.executions, self.findings, number, len(retained), target.name.encode().ljust(32)
        )

    def counts(self) -> tuple[int, int]:
        """Executions and findings so far."""
        executions, findings, *_ = _HEAD.unpack_from(self._memory)
        return executions, findings

    def last(self) -> tuple[str, Case]:
        _, _, number, length, name = _HEAD.unpack_from(self._memory)
        return name.decode().strip(), Case(number, self._memory[_HEAD.size : _HEAD.size + length])

    def found(self) -> None:
        self.findings += 1
        struct.pack_into("<Q", self._memory, 8, self.findings)
