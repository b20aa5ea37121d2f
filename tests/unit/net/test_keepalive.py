"""A server that does not answer is noticed, one that has nothing to say is not, and nobody gets too many PINGs."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from bascule import limits
from bascule.errors import RpcError, Status
from bascule.net.channel import Channel
from bascule.net.grpc import Call, GrpcServer
from bascule.testing.proxy import HOST, Proxy


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRPC_KEEPALIVE_TICK_S", 0.05)


async def silent(call: Call) -> None:
    await call.receive()
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def behind_a_proxy(pings: bool) -> AsyncIterator[tuple[Channel, Proxy]]:
    server = GrpcServer({"/s/silent": silent})
    port = await server.start(HOST, 0)
    with Proxy(HOST, port) as proxy:
        channel = await Channel.connect(HOST, proxy.port, pings=pings)
        try:
            yield channel, proxy
        finally:
            proxy.heal()
            await channel.close()
            await server.close(Status.UNAVAILABLE, "stopped", 2.0)


@pytest.mark.parametrize("pings", [True, False])
def test_an_idle_call_goes_on_and_one_on_a_dead_link_ends(pings: bool) -> None:
    async def main() -> None:
        async with behind_a_proxy(pings) as (channel, proxy):
            call = channel.stream("/s/silent")
            await call.send(bytes(5))
            waiting = asyncio.create_task(call.receive())
            await asyncio.sleep(1.0)  # three times as long as a dead server is waited for
            assert not waiting.done()
            proxy.cut(from_client=False, to_client=True)
            began = time.monotonic()
            with pytest.raises(RpcError, match="has not answered") as caught:
                async with asyncio.timeout(5):
                    await waiting
            assert caught.value.code is Status.UNAVAILABLE
            assert 0.1 < time.monotonic() - began < 3.0
            assert channel.closed
            assert channel.connection.silent

    asyncio.run(main())


def test_a_program_that_blocks_its_own_loop_does_not_lose_its_connection() -> None:
    async def main() -> None:
        async with behind_a_proxy(True) as (channel, _):
            call = channel.stream("/s/silent")
            await call.send(bytes(5))
            for _ in range(4):
                await asyncio.sleep(0.06)
                time.sleep(0.5)
            await asyncio.sleep(0.3)
            assert call.status is None

    asyncio.run(main())


def test_a_connection_without_calls_is_left_alone() -> None:
    async def main() -> None:
        async with behind_a_proxy(True) as (channel, proxy):
            proxy.cut()
            await asyncio.sleep(1.0)
            assert not channel.closed

    asyncio.run(main())


def test_a_server_that_refuses_pings_is_probed_with_calls() -> None:
    """grpcio's server, as those of other languages, ends a connection that sends PINGs often without a reason."""

    def wait(request: Any, context: Any) -> Any:
        while context.is_active():
            time.sleep(0.05)
        yield b""

    handler = grpc.method_handlers_generic_handler("s", {"silent": grpc.unary_stream_rpc_method_handler(wait)})
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()

    async def main() -> None:
        channel = await Channel.connect(HOST, port)
        call = channel.stream("/s/silent")
        await call.send(bytes(5))
        limits.GRPC_KEEPALIVE_PING_TICKS, retained = 1, limits.GRPC_KEEPALIVE_PING_TICKS
        try:
            with pytest.raises(RpcError):
                async with asyncio.timeout(10):
                    await call.receive()
        finally:
            limits.GRPC_KEEPALIVE_PING_TICKS = retained
        assert channel.connection.too_many_pings
        await channel.close()
        channel = await Channel.connect(HOST, port, pings=False)
        call = channel.stream("/s/silent")
        await call.send(bytes(5))
        await asyncio.sleep(2.0)
        assert call.status is None
        await channel.close()

    try:
        asyncio.run(main())
    finally:
        server.stop(0).wait()
