"""Our client in a test: nothing of it may be left when it is closed."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bascule.client import Client, Message

TIMEOUT_S = 150.0

Use = Callable[[Client], Awaitable[None]]


def with_client(servers: str | Sequence[str], use: Use, timeout_s: float = TIMEOUT_S) -> None:
    """Run it with asyncio's debug mode on. Afterwards there is no other task, and asyncio has logged no error."""

    async def main() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        async with asyncio.timeout(timeout_s), await Client.connect(servers) as client:
            await use(client)
        await nothing_is_left(complaints)

    asyncio.run(main(), debug=True)


async def nothing_is_left(complaints: Sequence[dict[str, Any]] = ()) -> None:
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not complaints


async def read_all(client: Client, stream: str, partition: int = 0) -> list[Message]:
    return [message async for message in client.subscribe(stream, partition, start="earliest", stop="latest")]


def lose_readers(client: Client) -> None:
    """Its connections to read from are gone, as when the network drops them."""
    for channels in list(client._cluster.connections._readers.values()):
        for channel in list(channels):
            channel.connection.abort()
