"""Places: how many calls of a kind a broker serves at once. When all are taken, the call that has waited for its client
for longest makes room: clients that open calls and do nothing with them keep nobody away.

Only one that has waited for a while is ended, and only when another one needs its place. A call that is at work, or
whose acks are due, is not.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from bascule.errors import ResourceExhausted, Unavailable
from bascule.limits import IDLE_PLACE_S

T = TypeVar("T")


class Place:
    """Of one call."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._waiting: asyncio.Timeout | None = None
        self._since_s = 0.0
        self.acks_due = False
        """It is at work, whether its client says something or not."""

    def at_work(self) -> None:
        self._since_s = asyncio.get_running_loop().time()

    async def waiting(self, for_client: Awaitable[T]) -> T:
        """Raises Unavailable if the place was given to another call meanwhile."""
        try:
            async with asyncio.timeout(None) as self._waiting:
                self.at_work()
                return await for_client
        except TimeoutError:
            raise Unavailable(
                f"this {self._what} waited for its client for longer than the others, and its place is another one's "
                "now: begin another one to go on"
            ) from None
        finally:
            self._waiting = None

    @property
    def idle_since_s(self) -> float | None:
        """None if it is at work, or is ended already."""
        waits = self._waiting is not None and self._waiting.when() is None
        return self._since_s if waits and not self.acks_due else None

    def give_up(self) -> None:
        assert self._waiting is not None, "a call that is at work keeps its place"
        self._waiting.reschedule(asyncio.get_running_loop().time())


class Places:
    def __init__(self, what: str, instead: str) -> None:
        """`instead`: what a client may do when there is no place."""
        self._what = what
        self._instead = instead
        self._taken: dict[Place, None] = {}

    @contextmanager
    def take(self, most: int) -> Iterator[Place]:
        """Raises ResourceExhausted."""
        if len(self._taken) >= most:
            self._make_room(most)
        place = Place(self._what)
        self._taken[place] = None
        try:
            yield place
        finally:
            del self._taken[place]

    def _make_room(self, most: int) -> None:
        idle = [(since_s, place) for place in self._taken if (since_s := place.idle_since_s) is not None]
        since_s, longest = min(idle, key=lambda each: each[0], default=(0.0, None))
        if longest is None or asyncio.get_running_loop().time() - since_s < IDLE_PLACE_S:
            raise ResourceExhausted(f"this broker serves {most} {self._what}s, and may not serve more; {self._instead}")
        longest.give_up()  # it ends in a moment, and there is one more meanwhile
