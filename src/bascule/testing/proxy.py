"""A TCP proxy that can block each direction: a network partition between one broker and its NATS server.

A blocked direction holds bytes back and ends no connection: both sides receive nothing, as in a real partition. The
bytes arrive when the partition heals, late, as TCP would deliver them, unless the connection was closed meanwhile.

    with Proxy("127.0.0.1", nats.port) as proxy:
        ...  # the broker connects to proxy.port
        proxy.cut(from_client=True, to_client=False)
        proxy.heal()
"""

import asyncio
import threading
from typing import Self

HOST = "127.0.0.1"
READ_BYTES = 64 * 1024


class Proxy:
    """Runs in a thread of its own, so that a test may block."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def cut(self, *, from_client: bool = True, to_client: bool = True) -> None:
        """From now on nothing passes in these directions."""
        self._loop.call_soon_threadsafe(self._set, from_client, to_client)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._set, False, False)

    def close(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def _listen(self) -> int:
        self._from_client, self._to_client = asyncio.Event(), asyncio.Event()
        self._set(False, False)
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        return int(self._server.sockets[0].getsockname()[1])

    def _set(self, from_client: bool, to_client: bool) -> None:
        for passes, is_cut in ((self._from_client, from_client), (self._to_client, to_client)):
            if is_cut:
                passes.clear()
            else:
                passes.set()

    async def _end(self) -> None:
        self._server.close()
        await asyncio.sleep(0)  # who was let in just now is served first, and ends with the others
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        try:
            await self._both_ways(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # one side is gone, or we are
        finally:
            writer.close()
            del self._tasks[task]

    async def _both_ways(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        pumps = [
            asyncio.ensure_future(_pump(reader, server_writer, self._from_client)),
            asyncio.ensure_future(_pump(server_reader, writer, self._to_client)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            server_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
    while data := await reader.read(READ_BYTES):
        await passes.wait()
        writer.write(data)
        await writer.drain()
    await passes.wait()
