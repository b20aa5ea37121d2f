"""What `Client.connect` returns: `await` it for a client, or use it in `async with`, which closes the client."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar


class Ending(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


Client = TypeVar("Client", bound=Ending)


class Connecting(Coroutine[Any, Any, Client]):
    """Nothing happens before it is awaited, or entered."""

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, Client]]) -> None:
        self._connect = connect
        self._running: Coroutine[Any, Any, Client] | None = None
        self._client: Client | None = None

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # there every attribute would count as known

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"there is no client yet that has {name!r}: `client = await Client.connect(...)`, or `async with "
                "Client.connect(...) as client`"
            )

    def __await__(self) -> Generator[Any, Any, Client]:
        return self._connect().__await__()

    # --- as a coroutine, for `asyncio.run` and `create_task` ------------------------------------------------

    def _coroutine(self) -> Coroutine[Any, Any, Client]:
        if self._running is None:
            self._running = self._connect()
        return self._running

    def send(self, value: Any) -> Any:
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine().throw(*error)

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
