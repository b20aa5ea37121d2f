"""Publishing that goes on after a lost connection: messages without an ack are sent again, in order, until they have
one.

Where messages are numbered (`producers`) they are stored once: `prepare` gives a message its number when it is first
sent, and it keeps it. Elsewhere it is at least once: some messages in flight when the connection was lost may have been
stored, and are then stored twice. The window of the pipeline bounds how many are buffered to be sent again. The source
is read by a task of its own, because each try is cancelled when it fails, and a cancelled generator would be finished.

A message that is refused for good ends the run, or, where somebody is told of it (`Outcomes`), fails alone. Those
behind it in its partition are not stored then: their numbers come after its own, and nothing has that number any more.
They begin anew, under another identity, so late copies of them are never stored. The same where the partition has
forgotten the producer, or the stream was made again. Only if no message there has an unknown outcome: otherwise what is
unknown stays unknown.

Known to be imperfect: some microseconds more per message than without.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from bascule import limits
from bascule.client.failures import Forgotten, MadeAgain
from bascule.client.pipeline import PASSING, OnAcks, Sendable, Value, Values, one_by_one
from bascule.client.producers import Numbering, Prepare
from bascule.client.requests import Prepared
from bascule.errors import (
    BasculeError,
    Interrupted,
    InvalidArgument,
    NotSent,
    PublishError,
    Unavailable,
    Unconfirmed,
)

Attempt = Callable[[AsyncIterable[Sendable], OnAcks], Awaitable[int]]
OnRetry = Callable[[int, BasculeError], None]
"""Takes how many messages are about to be sent again, and why."""


class Outcomes(Protocol):
    """Of messages that have no ack, by their number overall."""

    def refused(self, number: int, error: BasculeError) -> None:
        """This one alone: the others go on."""

    def given_up(self, unknown: set[int]) -> None:
        """All that have no outcome yet: the run ends. These may be stored, and the others are not."""


class End:
    """Of the source."""


class Retrying:
    def __init__(
        self,
        on_acks: OnAcks | None,
        on_retry: OnRetry | None,
        prepare: Prepare | None = None,
        numbering: Numbering | None = None,
        outcomes: Outcomes | None = None,
    ) -> None:
        self._on_acks = on_acks
        self._on_retry = on_retry
        self._numbering = numbering
        self._prepare = prepare
        self._outcomes = outcomes
        self._anew: dict[int, bytes] = {}
        """Partitions that are to begin anew before the next try, and the identity that their messages had."""
        self._arriving: asyncio.Queue[Value | End] = asyncio.Queue(limits.CLIENT_PUBLISH_BATCH)
        self._ended = False
        self._failure: Exception | None = None  # of the source
        self._callback_failure: Exception | None = None
        self._taken = 0
        self._since = 0.0
        """When the source gave a message, and all before it were confirmed."""
        self._confirmed = 0
        self._failed = 0
        """Messages that were refused for good."""
        self._again: deque[tuple[int, Sendable]] = deque()
        self._unanswered: dict[int, tuple[int, Sendable]] = {}
        """Number in this try -> number overall, and the value."""
        self._unknown: set[int] = set()
        """The numbers overall of those that were sent in some try, and may be stored."""

    async def run(self, values: Values, attempt: Attempt, patience_s: float) -> int:
        """The number of messages, all confirmed. Gives up when nothing was confirmed for `patience_s`."""
        clock = asyncio.get_running_loop().time
        reading = asyncio.create_task(self._read(values))
        progress_at, pause_s = clock(), limits.CLIENT_RETRY_MIN_S
        try:
            while True:
                before = self._confirmed + self._failed
                try:
                    await self._begin_anew()
                    async with aclosing(self._values()) as items:
                        await attempt(items, self._note_acks)
                    return self._confirmed
                except Exception as error:
                    if error is self._callback_failure or error is self._failure:
                        self._note_unknown(error)
                        self._note(error)
                        raise
                    goes_on = isinstance(error, PublishError) and self._goes_on(error)
                    if not goes_on:
                        self._note_unknown(error)
                        self._check_passes(error)
                    if self._confirmed + self._failed > before:
                        progress_at, pause_s = clock(), limits.CLIENT_RETRY_MIN_S
                    if self._waits and clock() - max(progress_at, self._since) >= patience_s:
                        raise self._at_last(error)  # noqa: B904
                    self._take_back()
                    if self._on_retry is not None and isinstance(error, BasculeError) and not goes_on:
                        self._on_retry(len(self._again), error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, limits.CLIENT_RETRY_MAX_S)
        except Exception:
            if self._outcomes is not None:
                self._outcomes.given_up(self._unknown)
            raise
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _check_passes(self, error: Exception) -> None:
        """Raises what to try again does not change."""
        if not isinstance(error, Unconfirmed | Unavailable | NotSent | PublishError):
            raise self._at_last(error)
        if not isinstance(error, PublishError) or isinstance(error.__cause__, (*PASSING, Forgotten)):
            return
        if isinstance(error.__cause__, MadeAgain):
            raise Unconfirmed(
                f"the stream was deleted and made again: {self._confirmed} messages are confirmed, and "
                f"{len(self._unknown)} messages may be stored in either. Read it before sending them again",
                self._confirmed,
            )
        raise self._refused(error) from error.__cause__

    # --- what is refused --------------------------------------------------------------------------------------

    def _goes_on(self, error: PublishError) -> bool:
        """Whether everything that was refused has an outcome now, or is to begin anew."""
        causes = error.refusals
        if not causes and isinstance(error.__cause__, BasculeError):
            causes = {error.index: error.__cause__}
        refused = {number: why for number, why in sorted(causes.items()) if number in self._unanswered}
        final = {n: why for n, why in refused.items() if not isinstance(why, Forgotten | MadeAgain)}
        if not refused or any(isinstance(why, PASSING) for why in refused.values()):
            return False
        if (final and self._outcomes is None) or (self._numbering is None and len(final) < len(refused)):
            return False
        before, behind = self._around(refused)
        known = {*refused, *behind}
        if any(self._unanswered[each][0] in self._unknown for each in known):
            return False
        self._unknown.update(overall for number, (overall, _) in self._unanswered.items() if number not in known)
        if not before:
            self._pass_over(refused, final, behind)
        return True

    def _around(self, refused: dict[int, BasculeError]) -> tuple[bool, list[int]]:
        """Of those without an outcome that are of the same producer in a partition as a refused one: whether some are
        before it, which are sent again first, so that messages stay in their order; and those that are behind it."""
        if self._numbering is None:
            return False, []
        first: dict[tuple[int, bytes], int] = {}
        for number in refused:
            first.setdefault(_place(self._unanswered[number][1]), number)
        others = [
            (number, first[place])
            for number, (_, item) in self._unanswered.items()
            if number not in refused and (place := _place(item)) in first
        ]
        return any(number < begin for number, begin in others), [n for n, begin in others if n > begin]

    def _pass_over(self, refused: dict[int, BasculeError], final: dict[int, BasculeError], behind: list[int]) -> None:
        faults: dict[tuple[int, bytes], BasculeError] = {}
        """Of the partition or the producer, not of one message."""
        for number, why in refused.items():
            item = self._unanswered[number][1]
            if self._numbering is not None:
                place = _place(item)
                self._anew[place[0]] = place[1]
                if number in final and not isinstance(why, InvalidArgument):
                    faults[place] = why
            if number in final:
                self._fail(number, why)
        for number in behind:
            fault = faults.get(_place(self._unanswered[number][1]))
            if fault is not None:
                self._fail(number, Unconfirmed(f"a message before it was refused: {fault}. Stored or not is unknown"))

    def _fail(self, number: int, error: BasculeError) -> None:
        assert self._outcomes is not None, "what is refused for good is told to somebody"
        overall, _ = self._unanswered.pop(number)
        self._failed += 1
        self._outcomes.refused(overall, error)

    async def _begin_anew(self) -> None:
        """Messages that are not stored get numbers under another identity. In their order: `_again` is."""
        while self._anew and self._numbering is not None:
            partition, identity = next(iter(self._anew.items()))
            await self._numbering.begin_anew(partition)
            again: deque[tuple[int, Sendable]] = deque()
            for overall, item in self._again:
                if isinstance(item, Prepared) and _place(item) == (partition, identity):
                    item = self._numbering.numbered_anew(item)
                again.append((overall, item))
            self._again = again
            del self._anew[partition]

    @property
    def _waits(self) -> bool:
        """There are messages that are not confirmed."""
        return bool(self._unanswered or self._again or self._arriving.qsize())

    def _note(self, error: Exception) -> None:
        """An error of the caller's own code reaches the caller as it is, with a note of what is confirmed: to try again
        is not for us to decide."""
        open_ones = len(self._unanswered) + len(self._again)
        error.add_note(f"over all tries {self._confirmed} messages are confirmed, and {open_ones} may be stored or not")

    def _note_unknown(self, error: Exception) -> None:
        if not isinstance(error, Unavailable | NotSent):  # these say that nothing is in flight
            refused = {error.index, *error.refusals} if isinstance(error, PublishError) else set()
            self._unknown.update(overall for number, (overall, _) in self._unanswered.items() if number not in refused)

    def _at_last(self, error: Exception) -> Exception:
        """What the caller is told: that the last try sent nothing says nothing of those before."""
        if isinstance(error, Unconfirmed | Interrupted):
            error.acked = self._confirmed
        if isinstance(error, Unconfirmed):
            return error
        if self._unknown and isinstance(error, BasculeError):
            told = Unconfirmed(
                f"{error}: {self._confirmed} messages are confirmed, and {len(self._unknown)} messages that were sent "
                "before may be stored or not. Read the stream's end before sending them again",
                self._confirmed,
            )
            told.__cause__ = error
            return told
        if isinstance(error, PublishError):
            refused = self._refused(error)
            refused.__cause__ = error.__cause__
            return refused
        return error

    def _refused(self, error: PublishError) -> PublishError:
        """With the number it has in the source."""
        overall, _ = self._unanswered.get(error.index, (error.index, b""))
        why = error.__cause__ or error
        return PublishError(
            f"message {overall} was refused: {why} ({self._confirmed} confirmed)", overall, self._confirmed
        )

    async def _read(self, values: Values) -> None:
        try:
            async with aclosing(one_by_one(values)) as items:
                async for value in items:
                    if not self._waits:
                        self._since = asyncio.get_running_loop().time()
                    await self._arriving.put(value)
        except Exception as error:
            self._failure = error
        await self._arriving.put(End())

    async def _values(self) -> AsyncGenerator[Sendable, None]:
        number = 0
        while self._again:
            self._unanswered[number] = self._again.popleft()
            number += 1
            yield self._unanswered[number - 1][1]
        while not self._ended:
            value = await self._arriving.get()
            if isinstance(value, End):
                self._ended = True
                break
            self._unanswered[number] = (self._taken, self._prepared(value))
            self._taken += 1
            number += 1
            yield self._unanswered[number - 1][1]
        if self._failure is not None:
            raise self._failure

    def _prepared(self, value: Value) -> Sendable:
        prepare = self._numbering.prepare if self._numbering is not None else self._prepare
        if prepare is None:
            return value
        try:
            return prepare(value, self._taken)
        except InvalidArgument as error:
            reason = f"message {self._taken}: {error}"
            raise PublishError(reason, self._taken, self._confirmed) from error

    def _note_acks(self, acks: list[tuple[int, int, int]]) -> None:
        confirmed = [(self._unanswered.pop(number)[0], offset, partition) for number, offset, partition in acks]
        self._confirmed += len(confirmed)
        if self._unknown:
            self._unknown.difference_update(overall for overall, _, _ in confirmed)
        if self._on_acks is not None:
            try:
                self._on_acks(confirmed)
            except Exception as error:
                self._callback_failure = error
                raise

    def _take_back(self) -> None:
        """In the order of the source: messages that this try had taken come before those that it had not."""
        self._again = deque([*sorted(self._unanswered.values(), key=lambda item: item[0]), *self._again])
        self._unanswered = {}


def _place(item: Sendable) -> tuple[int, bytes]:
    """The partition of a message, and the identity of its producer there."""
    assert isinstance(item, Prepared), "messages of a producer are prepared"
    return item.partition, item.producer[:-8]
