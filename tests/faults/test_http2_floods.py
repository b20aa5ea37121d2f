"""Peers that mean harm. Each flood ends its own connection or costs next to nothing; others are served meanwhile."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hpack import Decoder

from bascule import limits
from bascule.errors import Status
from bascule.net.channel import Channel
from bascule.net.grpc import Call, GrpcServer
from bascule.wire.grpc import frame
from bascule.wire.http2 import frames
from bascule.wire.http2.frames import ErrorCode
from tests.harness import http2_peer as peer

HELLO = frames.PREFACE + peer.settings()
RESET = (8).to_bytes(4, "big")


class Victim:
    """A server, and a well-behaved client beside the attacker."""

    def __init__(self) -> None:
        self.started = 0
        self.running = 0
        self.server = GrpcServer({"/t.T/Echo": self.echo, "/t.T/Hang": self.hang, "/t.T/Pour": self.pour})
        self.port = 0

    async def echo(self, call: Call) -> None:
        while (message := await call.receive()) is not None:
            call.write(frame(message))

    async def hang(self, call: Call) -> None:
        self.started += 1
        self.running += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.running -= 1

    async def pour(self, call: Call) -> None:
        while True:
            await call.send(frame(bytes(65_531)))

    async def still_serves(self) -> None:
        channel = await Channel.connect("127.0.0.1", self.port)
        began = asyncio.get_running_loop().time()
        assert await channel.unary("/t.T/Echo", b"others are served") == b"others are served"
        assert asyncio.get_running_loop().time() - began < 1.0
        await channel.close()

    async def quiet(self) -> None:
        """All handlers of the attacker have ended."""
        while self.running:
            await asyncio.sleep(0.01)


class Attacker:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def flood(self, piece: bytes, times: int) -> None:
        """Send it over and over, until the server hangs up."""
        for _ in range(times):
            if self.writer.is_closing():
                return
            self.writer.write(piece)
            try:
                await self.writer.drain()
            except OSError:
                return

    async def verdict(self) -> int | None:
        """The code of the GOAWAY, once the server has hung up; None if the hanging up destroyed it on the way."""
        received = bytearray()
        with contextlib.suppress(OSError):
            while part := await self.reader.read(1 << 16):
                received += part
        position = 0
        while position + 9 <= len(received):
            length = int.from_bytes(received[position : position + 3], "big")
            if received[position + 3] == frames.GOAWAY:
                return int.from_bytes(received[position + 13 : position + 17], "big")
            position += 9 + length
        return None


@contextlib.asynccontextmanager
async def attack(port: int, opening: bytes = HELLO, read_limit: int = 1 << 26) -> AsyncIterator[Attacker]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=read_limit)
    writer.write(opening)
    try:
        yield Attacker(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def run(body: Callable[[Victim], Awaitable[None]]) -> None:
    async def main() -> None:
        victim = Victim()
        victim.port = await victim.server.start("127.0.0.1", 0)
        try:
            await asyncio.wait_for(body(victim), 60)
            await victim.still_serves()
            await asyncio.wait_for(victim.quiet(), 5)
        finally:
            await victim.server.close(Status.UNAVAILABLE, "stopped", 2.0)

    asyncio.run(main())


def hang_request(stream_id: int) -> bytes:
    headers = [(n, "/t.T/Hang" if n == ":path" else v) for n, v in peer.REQUEST]
    return peer.request(stream_id, headers=headers)


def assert_calmed(code: int | None) -> None:
    assert code in (ErrorCode.ENHANCE_YOUR_CALM, None)


@pytest.mark.parametrize(
    "piece",
    [
        peer.raw(frames.PING, 0, 0, bytes(8)) * 1000,
        peer.settings() * 1000,
        peer.settings(initial_window_size=1, header_table_size=5) * 1000,
        peer.raw(frames.SETTINGS, frames.ACK) * 1000,
        peer.raw(frames.PRIORITY, 0, 1, bytes(5)) * 1000,
        peer.raw(0x77, 0, 0, b"unknown") * 1000,
        (peer.data(1, b"") + peer.raw(0x77)) * 1000,
        peer.window_update(0, 1) * 1000,
        peer.window_update(1, 1) * 1000,
        peer.raw(frames.GOAWAY, 0, 0, bytes(8)) * 1000,
        peer.raw(frames.PING, frames.ACK, 0, bytes(8)) * 1000,
    ],
    ids=[
        "ping",
        "settings",
        "changing settings",
        "settings acks",
        "priority",
        "unknown",
        "empty data",
        "connection windows",
        "stream windows",
        "goaway",
        "ping acks",
    ],
)
def test_a_flood_of_frames_that_move_no_data_ends_the_connection(piece: bytes) -> None:
    async def body(victim: Victim) -> None:
        async with attack(victim.port, HELLO + hang_request(1)) as attacker:
            await attacker.flood(piece, 100)
            assert_calmed(await attacker.verdict())
        assert victim.started <= 1

    run(body)


def test_rapid_reset_ends_the_connection_and_every_handler() -> None:
    async def body(victim: Victim) -> None:
        async with attack(victim.port) as attacker:
            for first in range(1, 40_001, 200):
                ids = range(first, first + 200, 2)
                await attacker.flood(
                    b"".join(hang_request(i) + peer.raw(frames.RST_STREAM, 0, i, RESET) for i in ids), 1
                )
            assert_calmed(await attacker.verdict())
        assert victim.started < 4000

    run(body)


def test_making_the_server_reset_streams_counts_like_resetting_them() -> None:
    async def body(victim: Victim) -> None:
        async with attack(victim.port) as attacker:
            for first in range(1, 40_001, 200):
                ids = range(first, first + 200, 2)
                await attacker.flood(b"".join(hang_request(i) + peer.window_update(i, (1 << 31) - 1) for i in ids), 1)
            assert_calmed(await attacker.verdict())
        assert victim.started < 4000

    run(body)


def test_cancelling_all_open_calls_at_once_is_no_attack() -> None:
    async def body(victim: Victim) -> None:
        channel = await Channel.connect("127.0.0.1", victim.port)
        calls = [channel.stream("/t.T/Hang") for _ in range(900)]
        while victim.running < 900:
            await asyncio.sleep(0.01)
        for call in calls:
            call.cancel()
        await victim.quiet()
        assert await channel.unary("/t.T/Echo", b"same connection") == b"same connection"
        await channel.close()

    run(body)


@pytest.mark.parametrize("size", [0, 16_000])
def test_headers_that_never_end_end_the_connection(size: int) -> None:
    async def body(victim: Victim) -> None:
        async with attack(victim.port, HELLO + peer.raw(frames.HEADERS, 0, 1, peer.block())) as attacker:
            await attacker.flood(peer.raw(frames.CONTINUATION, 0, 1, bytes(size)), 1000)
            assert_calmed(await attacker.verdict())

    run(body)


def test_a_header_bomb_ends_the_connection() -> None:
    async def body(victim: Victim) -> None:
        # One large entry for the table, then a kilobyte of one-byte references to it: 4 MB of headers.
        entry = b"\x40\x01x" + b"\x7f\xa1\x1e" + b"v" * 4000
        bomb = peer.raw(frames.HEADERS, frames.END_HEADERS, 1, entry + b"\xbe" * 1000)
        async with attack(victim.port, HELLO + bomb) as attacker:
            assert_calmed(await attacker.verdict())

    run(body)


def test_empty_data_frames_alone_cost_next_to_nothing() -> None:
    async def body(victim: Victim) -> None:
        async with attack(victim.port, HELLO + hang_request(1)) as attacker:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            await attacker.flood(peer.data(1, b"") * 1000, 300)
            await victim.still_serves()
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
        await victim.quiet()

    run(body)


def test_streams_over_the_bound_start_no_handlers() -> None:
    async def body(victim: Victim) -> None:
        async with attack(victim.port) as attacker:
            for n in range(3000):
                await attacker.flood(hang_request(2 * n + 1), 1)
            await victim.still_serves()  # they begin in turns
            async with asyncio.timeout(20):
                while victim.running < limits.HTTP2_MAX_CONCURRENT_STREAMS:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # long enough for more, if more were begun
            assert victim.running == limits.HTTP2_MAX_CONCURRENT_STREAMS
        await victim.quiet()

    run(body)


def test_a_peer_whose_socket_takes_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP2_WRITE_STALL_S", 0.3)

    async def body(victim: Victim) -> None:
        headers = [(n, "/t.T/Pour" if n == ":path" else v) for n, v in peer.REQUEST]
        opening = (
            frames.PREFACE
            + peer.settings(initial_window_size=(1 << 31) - 1)
            + peer.window_update(0, (1 << 31) - 1 - 65_535)
            + peer.request(1, headers=headers)
        )
        async with attack(victim.port, opening, read_limit=1024):
            while not victim.server.connection_count:
                await asyncio.sleep(0.01)
            while victim.server.connection_count:
                await asyncio.sleep(0.05)

    run(body)


def test_windows_opened_byte_by_byte_end_the_connection() -> None:
    async def body(victim: Victim) -> None:
        headers = [(n, "/t.T/Pour" if n == ":path" else v) for n, v in peer.REQUEST]
        opening = frames.PREFACE + peer.settings(initial_window_size=0) + peer.request(1, headers=headers)
        async with attack(victim.port, opening) as attacker:
            await attacker.flood(peer.window_update(1, 1) * 100, 2000)
            assert_calmed(await attacker.verdict())

    run(body)


def test_unfinished_large_messages_are_bounded_over_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRPC_MAX_ASSEMBLY_BYTES", 4 * limits.MIB)

    async def body(victim: Victim) -> None:
        statuses: list[str] = []
        async with attack(victim.port) as attacker:

            async def read() -> None:
                decoder = Decoder()
                with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                    while True:
                        header = await attacker.reader.readexactly(9)
                        payload = await attacker.reader.readexactly(int.from_bytes(header[:3], "big"))
                        if header[3] == frames.HEADERS:
                            statuses.append(dict(peer.decoded(payload, decoder))["grpc-status"])

            reading = asyncio.create_task(read())
            prefix = b"\0" + limits.GRPC_MAX_MESSAGE_BYTES.to_bytes(4, "big")
            for n in range(8):
                stream_id = 2 * n + 1
                await attacker.flood(peer.request(stream_id) + peer.data(stream_id, prefix), 1)
                await attacker.flood(peer.data(stream_id, bytes(16_000)), 64)
            while len(statuses) < 4:
                await asyncio.sleep(0.01)
            reading.cancel()
        assert set(statuses) == {str(int(Status.RESOURCE_EXHAUSTED))}

    run(body)


def test_connections_over_the_bound_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 3)

    async def body(victim: Victim) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(attack(victim.port))
            while victim.server.connection_count < 3:
                await asyncio.sleep(0.01)
            over = await stack.enter_async_context(attack(victim.port))
            assert await over.verdict() is None
            assert victim.server.connection_count == 3
        while victim.server.connection_count:
            await asyncio.sleep(0.01)

    run(body)
