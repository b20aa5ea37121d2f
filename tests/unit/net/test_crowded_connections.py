"""A connection with very many requests in one read: some are begun in each turn of the event loop, and other
connections have their answers meanwhile. Nothing is lost, and nothing changes its order."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from bascule import limits
from bascule.errors import Status
from bascule.net.call import Call
from bascule.net.grpc import GrpcServer
from bascule.net.tls import client_context, server_context
from bascule.wire.grpc import frame
from bascule.wire.http2 import frames
from tests.harness import http2_peer as peer
from tests.harness.certificates import Authority

HELLO = frames.PREFACE + peer.settings()
REQUESTS = 600
Body = Callable[[asyncio.StreamReader, asyncio.StreamWriter, "Begun"], Awaitable[None]]


class Begun:
    """In which turn of the event loop each call had its request, in their order."""

    def __init__(self) -> None:
        self.turn = 0
        self.calls: list[tuple[int, bytes]] = []

    async def count(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turn += 1

    async def handler(self, call: Call) -> None:
        turn = self.turn
        self.calls.append((turn, await call.receive() or b""))
        await call.send(frame(b"done"))

    async def all_of(self, number: int) -> None:
        async with asyncio.timeout(20):
            while len(self.calls) < number:
                await asyncio.sleep(0.005)


def burst(count: int = REQUESTS) -> bytes:
    streams = range(1, 2 * count, 2)
    return b"".join(peer.request(each) + peer.data(each, frame(b"%d" % each), True) for each in streams)


async def with_server(body: Body, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None) -> None:
    begun = Begun()
    server = GrpcServer({"/t.T/Echo": begun.handler})
    port = await server.start("127.0.0.1", 0, tls=tls[0] if tls else None)
    counting = asyncio.ensure_future(begun.count())
    try:
        secured: dict[str, Any] = {"ssl": tls[1], "server_hostname": "127.0.0.1"} if tls else {}
        reader, writer = await asyncio.open_connection("127.0.0.1", port, **secured)
        writer.write(HELLO)
        await asyncio.wait_for(body(reader, writer, begun), 30)
        writer.close()
    finally:
        counting.cancel()
        await server.close(Status.UNAVAILABLE, "stopped", 2.0)


async def check_burst(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begun: Begun) -> None:
    writer.write(burst())
    await begun.all_of(REQUESTS)
    in_a_turn = Counter(turn for turn, _ in begun.calls)
    assert max(in_a_turn.values()) <= limits.HTTP2_CROWDED_A_TURN * limits.HTTP2_REQUESTS_A_TURN
    assert [content for _, content in begun.calls] == [b"%d" % each for each in range(1, 2 * REQUESTS, 2)]
    writer.write(b"".join(peer.request(each) + peer.data(each, frame(b"x"), True) for each in (5001, 5003)))
    await begun.all_of(REQUESTS + 2)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_requests_of_one_read_begin_in_turns_all_of_them_and_in_order() -> None:
    run(with_server(check_burst))


def test_so_they_do_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    contexts = server_context(str(cert), str(key)), client_context(str(authority.path))
    run(with_server(check_burst, contexts))


def test_a_connection_that_is_lost_with_requests_held_holds_up_nobody() -> None:
    async def main() -> None:
        begun = Begun()
        server = GrpcServer({"/t.T/Echo": begun.handler})
        port = await server.start("127.0.0.1", 0)
        writers = []
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HELLO + burst())
            writers.append(writer)
        await begun.all_of(1)
        writers[0].transport.abort()
        async with asyncio.timeout(20):
            while sum(content == b"1199" for _, content in begun.calls) < 2:
                await asyncio.sleep(0.005)
        for writer in writers:
            writer.close()
        await server.close(Status.UNAVAILABLE, "stopped", 2.0)

    run(main())


def test_what_is_wrong_behind_the_requests_that_are_held_ends_the_connection_after_them() -> None:
    server = peer.Server()
    received = burst(5) + peer.raw(frames.PUSH_PROMISE, 0, 1)
    consumed, events = server.connection.receive(received, 0, len(received), 1.0, 2)
    assert (consumed, len(events), server.connection.held) == (len(received), 4, True)
    more = burst(1)  # an old stream id, which is wrong, too, but comes later
    assert server.connection.receive(more, 0, len(more), 1.0, 2) == (len(more), [])
    assert len(server.connection.go_on(1.0, 2)) == 4
    assert server.error_code() is None
    assert len(server.connection.go_on(1.0, 2)) == 3
    assert server.error_code() == 1
    assert not server.connection.held


def test_a_frame_that_is_too_long_counts_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    server = peer.Server()
    received = burst(3) + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"
    server.connection.receive(received, 0, len(received), 1.0, 2)
    assert server.error_code() is None
    server.connection.go_on(1.0, 2)
    assert server.error_code() == 6
