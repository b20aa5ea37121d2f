"""An embedded NATS server that is started again whenever it ends by itself, always on the port it first had.

The connections of the broker and of all clients reconnect to that address by themselves. It is restarted at once, then
with pauses that double, for ever: until a start succeeds the broker serves what it stored.
"""

import asyncio
import logging
from typing import Protocol

from bascule.errors import StartError
from bascule.limits import NATS_RESTART_MAX_S
from bascule.net.embedded import EmbeddedNats, OnDeath
from bascule.wire.nats import ServerAddress

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1


class MakeNats(Protocol):
    """A server that is not started yet. `port` is None for the first one: the configuration decides."""

    def __call__(self, port: int | None, on_death: OnDeath) -> EmbeddedNats: ...


class SupervisedNats:
    """`start` it once; `url` never changes after that; it ends at `stop`, or with this process."""

    def __init__(self, make: MakeNats) -> None:
        self.url = ""
        self._make = make
        self._server: EmbeddedNats | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._pause_s = FIRST_PAUSE_S
        self._started_at = 0.0

    async def start(self) -> None:
        """Raises StartError if the first start fails."""
        self._server = self._make(None, self._on_death)
        await self._server.start()
        self.url = self._server.url
        self._started_at = asyncio.get_running_loop().time()

    async def stop(self) -> None:
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        if self._server is not None:
            await self._server.stop()

    def _on_death(self, returncode: int, last_lines: list[str]) -> None:
        logger.error(
            "the embedded NATS server ended with code %d and is started again; publishing stops until then, stored "
            "data is still served. Its last log lines: %s",
            returncode,
            " / ".join(last_lines) or "none",
        )
        self._restarting = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._started_at > 2 * NATS_RESTART_MAX_S:  # it ran well until now
            self._pause_s = FIRST_PAUSE_S
        port = ServerAddress.parse(self.url).port
        said = ""
        while True:
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(NATS_RESTART_MAX_S, 2 * self._pause_s)
            self._server = self._make(port, self._on_death)
            try:
                await self._server.start()
            except StartError as error:
                if str(error) != said:
                    said = str(error)
                    logger.error("%s; trying again", error)
                continue
            self._started_at = loop.time()
            logger.warning("the embedded NATS server runs again, at %s", self.url)
            return
