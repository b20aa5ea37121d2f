"""Records that were read for clients and that these have not taken yet, over the whole broker.

Each subscription and each bulk read holds what it has read last until its client has taken it. A client may take
nothing for as long as it likes, and there may be very many: so the more is held, the less each of them reads at a time,
and when there is no room at all, who wants to read waits, and is sent away in the end.
"""

import asyncio
from types import TracebackType
from typing import Self

from bascule.errors import Unavailable
from bascule.limits import UNREAD_BYTES, UNREAD_LEAST_BYTES, UNREAD_ROOM_S
from bascule.node.runtime.metrics import Metrics


class Share:
    """What one reader holds: first what it may read, then what it has read."""

    def __init__(self, unread: "UnreadRecords", nbytes: int) -> None:
        self._unread = unread
        self.nbytes = nbytes
        unread.held_bytes += nbytes

    def has_read(self, records: bytes | None) -> None:
        nbytes = len(records) if records else 0
        self._unread.held_bytes += nbytes - self.nbytes
        self.nbytes = nbytes
        self._unread.let_in()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.has_read(None)


class UnreadRecords:
    def __init__(self, metrics: Metrics) -> None:
        self.held_bytes = 0
        metrics.gauge(
            "bascule_unread_bytes",
            "Records read for clients that have not taken them yet, or about to be read",
            lambda: self.held_bytes,
        )
        self._room: asyncio.Event = asyncio.Event()

    async def share(self, wanted: int) -> Share:
        """How many bytes to read now, at most `wanted`; they are held until the end of its `with`. Raises Unavailable:
        there is no room."""
        if self.held_bytes >= UNREAD_BYTES:
            await self._until_room()
        left = max(0, UNREAD_BYTES - self.held_bytes) / UNREAD_BYTES
        return Share(self, min(wanted, max(UNREAD_LEAST_BYTES, int(wanted * left * left))))

    async def _until_room(self) -> None:
        try:
            async with asyncio.timeout(UNREAD_ROOM_S):
                while self.held_bytes >= UNREAD_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            raise Unavailable(
                f"this broker holds {UNREAD_BYTES} bytes of records that its clients have not taken, and reads no "
                "more for now; read from another replica, or try again later"
            ) from None

    def let_in(self) -> None:
        if self.held_bytes < UNREAD_BYTES:
            self._room.set()
