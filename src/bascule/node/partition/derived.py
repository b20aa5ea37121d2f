"""State that is derived from a replica's log: what it would be if all records were read again, those included that have
expired meanwhile, as far as this replica had them.

There is one interface for all of it, `DerivedState`: it observes what is appended, goes back when the log is truncated,
and is stored from time to time, so that a start reads only the records since then. It is never stored with what may be
truncated, and what is stored is removed before the log is truncated: a later start must not trust it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

logger = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[object, object, None]], object]
"""Starts work that ends with the replica."""


class DerivedState(Protocol):
    @property
    def what(self) -> str:
        """For the log."""

    async def load(self) -> None:
        """The log was opened. Raises OSError or LogError."""

    def observe(self, records: bytes, start: int, end: int) -> None:
        """These records were appended to a log that ended at `start`, and ends at `end` now."""

    def truncate(self, end: int) -> None:
        """The log ends there now."""

    def raise_start(self, start: int) -> None:
        """Records below have expired."""

    async def expiring(self, start: int) -> bool:
        """The files of records below are about to be removed; False if what these say is not stored yet: they stay
        for now. Raises OSError."""

    def healed(self) -> None:
        """Records that were damaged were put back."""

    def due(self, promised_end: int) -> bool:
        """Whether it is to be stored now that everything below is promised."""

    async def store(self) -> None:
        """Raises OSError."""

    async def store_at_end(self) -> None:
        """The replica is about to be closed. Raises OSError."""

    async def forget(self) -> None:
        """Remove what is stored."""


class DerivedStates:
    """All of one replica."""

    __slots__ = ("_name", "_spawn", "_states", "_storing")

    def __init__(self, name: str, spawn: Spawn, states: tuple[DerivedState, ...]) -> None:
        self._name = name
        self._spawn = spawn
        self._states = states
        self._storing = asyncio.Lock()
        """A save under way would store what is derived from records that are truncated."""

    async def load(self) -> None:
        for state in self._states:
            await state.load()

    def observe(self, records: bytes, start: int, end: int) -> None:
        for state in self._states:
            state.observe(records, start, end)

    def raise_start(self, start: int) -> None:
        for state in self._states:
            state.raise_start(start)

    async def expiring(self, start: int) -> bool:
        """Whether the files of records below may be removed now. Raises OSError."""
        async with self._storing:
            return all([await state.expiring(start) for state in self._states])

    def truncate(self, end: int) -> None:
        for state in self._states:
            state.truncate(end)

    def healed(self) -> None:
        for state in self._states:
            state.healed()

    def promised(self, end: int) -> None:
        for state in self._states:
            if state.due(end):
                self._spawn(self._store(state))

    async def _store(self, state: DerivedState) -> None:
        try:
            async with self._storing:
                await state.store()
        except OSError as error:
            logger.warning(
                "%s: its %s could not be stored (%s); the next start reads them from the log",
                self._name,
                state.what,
                error,
            )

    async def close(self) -> None:
        """Nothing is appended any more."""
        for state in self._states:
            try:
                async with self._storing:
                    await state.store_at_end()
            except OSError as error:
                logger.warning("%s: its %s could not be stored: %s", self._name, state.what, error)

    def changing(self) -> "_Changing":
        """While the log is truncated, or begins again. What was derived from records that are gone by then, is too."""
        return _Changing(self._storing, self._states)


class _Changing:
    """No generator: one that is left by a process that was killed would be closed by the next one."""

    def __init__(self, storing: asyncio.Lock, states: Sequence[DerivedState]) -> None:
        self._storing = storing
        self._states = states

    async def __aenter__(self) -> None:
        await self._storing.acquire()
        try:
            for state in self._states:
                await state.forget()
        except BaseException:
            self._storing.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._storing.release()
