"""Who a NATS connection meets in tests: a real nats-server, and impostors of one; and what its subscriptions get."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import nats.errors
from nats.aio.client import Client as NatsClient

from bascule.net.embedded import EmbeddedNats
from bascule.net.nats import Connection, NatsOptions
from bascule.wire.nats import NatsMessage, messages


class Inbox:
    """What one subscription got."""

    def __init__(self) -> None:
        self.messages: list[NatsMessage] = []

    def __call__(self, batch: bytes, count: int) -> None:
        got = list(messages(batch))
        assert len(got) == count
        self.messages += got

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.005)


async def flush_of(peer: NatsClient) -> None:
    """All that this client sent has arrived: its PING overtakes what is still in its buffer, the second one cannot."""
    await peer.flush()
    await peer.flush()


async def close(peer: NatsClient) -> None:
    """
    Closes a client whose server may be gone. If it waits just then for its last socket to close, to connect again, its
    close cancels that wait, and finds the future, which its own wait shares, cancelled: nobody cancelled the caller.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    with suppress(nats.errors.Error, OSError):
        try:
            await peer.close()
        except asyncio.CancelledError:
            if task.cancelling() > cancelled:
                raise


@asynccontextmanager
async def server(port: int = 0, config: str = "", folder: Path | None = None) -> AsyncIterator[EmbeddedNats]:
    if config:
        assert folder is not None
        path = folder / "nats.conf"
        path.write_text(f"host: 127.0.0.1\nport: {port or -1}\n{config}\n")
        running = EmbeddedNats(config_path=str(path))
    else:
        running = EmbeddedNats(port=port)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


@asynccontextmanager
async def connection(*urls: str, **options: object) -> AsyncIterator[Connection]:
    made = await Connection.connect(NatsOptions(urls, **options), name="test")  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.close()


def port_of(running: EmbeddedNats) -> int:
    return int(running.url.rpartition(":")[2])


INFO = b'INFO {"server_id":"X","max_payload":1048576,"headers":true}\r\n'

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def impostor(behave: Behaviour) -> AsyncIterator[str]:
    """Something on a port that is not quite a NATS server."""

    handlers: list[asyncio.Task[object]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.append(task)
        try:
            await behave(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        await listener.wait_closed()
        await asyncio.wait_for(asyncio.gather(*handlers, return_exceptions=True), 5)


def after_login(then: Behaviour) -> Behaviour:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        await then(reader, writer)

    return behave
