"""The gRPC server on real sockets, called by our channel and by hand-made peers."""

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest
from hpack import Decoder

from bascule import limits
from bascule.errors import Cancelled, RpcError, StartError, Status, Unavailable
from bascule.net.channel import Channel
from bascule.net.grpc import Call, GrpcServer, Handler
from bascule.wire.grpc import frame
from bascule.wire.http2 import frames
from tests.harness import http2_peer as peer


@contextlib.asynccontextmanager
async def serving(methods: Mapping[str, Handler]) -> AsyncIterator[tuple[GrpcServer, int]]:
    server = GrpcServer(methods)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.close(Status.UNAVAILABLE, "stopped", 2.0)
        assert server.connection_count == 0
        assert not server.tasks


def run(methods: Mapping[str, Handler], body: Callable[[GrpcServer, int], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving(methods) as (server, port):
            await asyncio.wait_for(body(server, port), 20)

    asyncio.run(main())


@contextlib.asynccontextmanager
async def channel_to(port: int) -> AsyncIterator[Channel]:
    channel = await Channel.connect("127.0.0.1", port)
    try:
        yield channel
    finally:
        await channel.close()


class RawPeer:
    """A socket that speaks whatever the test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def frame(self) -> peer.Frame:
        header = await self.reader.readexactly(9)
        payload = await self.reader.readexactly(int.from_bytes(header[:3], "big"))
        return peer.Frame(header[3], header[4], int.from_bytes(header[5:9], "big"), payload)

    async def until(self, kind: int) -> peer.Frame:
        while (found := await self.frame()).kind != kind:
            pass
        return found


@contextlib.asynccontextmanager
async def raw_peer(port: int, *first: bytes) -> AsyncIterator[RawPeer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(first))
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


HELLO = frames.PREFACE + peer.settings()


async def echo(call: Call) -> None:
    while (message := await call.receive()) is not None:
        call.write(frame(message))


async def hang(call: Call) -> None:
    call.send_headers()
    await asyncio.Event().wait()


# --- peers that speak something else ------------------------------------------------------------------------


@pytest.mark.parametrize("request_line", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /x HTTP/1.0\r\n\r\n"])
def test_an_http1_request_is_told_what_this_port_speaks(request_line: bytes) -> None:
    async def body(server: GrpcServer, port: int) -> None:
        async with raw_peer(port, request_line) as client:
            answer = await client.reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"gRPC over HTTP/2" in answer
        async with channel_to(port) as channel:
            assert await channel.unary("/t.T/Echo", b"still here") == b"still here"

    run({"/t.T/Echo": echo}, body)


@pytest.mark.parametrize("malformed", [b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 100, b"\r\n\r\n"])
def test_tls_and_random_bytes_are_hung_up_on(malformed: bytes) -> None:
    async def body(server: GrpcServer, port: int) -> None:
        async with raw_peer(port, malformed) as client:
            with contextlib.suppress(ConnectionResetError):
                assert await client.reader.read() == b""

    run({}, body)


def test_a_connection_that_never_begins_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP2_HANDSHAKE_TIMEOUT_S", 0.1)

    async def body(server: GrpcServer, port: int) -> None:
        for opening in (b"", frames.PREFACE[:5], frames.PREFACE):
            async with raw_peer(port, opening) as client:
                await client.reader.read()
        async with raw_peer(port, HELLO) as client:
            await asyncio.sleep(0.3)
            client.writer.write(peer.raw(frames.PING, 0, 0, bytes(8)))
            await client.until(frames.PING)

    run({}, body)


def test_other_content_types_and_methods_get_their_http_status() -> None:
    async def body(server: GrpcServer, port: int) -> None:
        def changed(name: str, value: str) -> list[tuple[str, str]]:
            return [(n, value if n == name else v) for n, v in peer.REQUEST]

        async with raw_peer(port, HELLO) as client:
            decoder = Decoder()
            client.writer.write(peer.request(1, True, changed("content-type", "application/json")))
            assert (":status", "415") in peer.decoded((await client.until(frames.HEADERS)).payload, decoder)
            client.writer.write(peer.request(3, True, changed(":method", "GET")))
            assert (":status", "405") in peer.decoded((await client.until(frames.HEADERS)).payload, decoder)
            client.writer.write(peer.request(5, True, [*peer.REQUEST, ("grpc-timeout", "soon")]))
            assert ("grpc-status", "13") in peer.decoded((await client.until(frames.HEADERS)).payload, decoder)
            client.writer.write(peer.request(7, True, [*peer.REQUEST, ("grpc-encoding", "snappy")]))
            fields = peer.decoded((await client.until(frames.HEADERS)).payload, decoder)
            assert ("grpc-status", "12") in fields
            assert ("grpc-accept-encoding", "identity,gzip") in fields

    run({"/t.T/Echo": echo}, body)


# --- calls --------------------------------------------------------------------------------------------------


def test_a_handler_that_stops_asking_pushes_back_on_the_client() -> None:
    go_on = asyncio.Event()
    received = 0

    async def slow(call: Call) -> None:
        nonlocal received
        while (part := await call.receive_frames()) is not None:
            received += len(part)
            # What was handed out is not given back before more is asked for.
            assert call._connection.streams[1].unacknowledged >= len(part)
            await go_on.wait()
        call.write(frame(b"%d" % received))

    async def body(server: GrpcServer, port: int) -> None:
        total = 4 * limits.HTTP2_STREAM_WINDOW_BYTES
        async with channel_to(port) as channel:
            call = channel.stream("/t.T/Slow")
            sending = asyncio.create_task(call.send(bytes(total)))
            # The window is used up: nothing moves until the handler asks again.
            while call._connection.streams[1].send_window:
                await asyncio.sleep(0.005)
            assert not sending.done()
            go_on.set()
            await sending
            call.half_close()
            assert await call.receive() == frame(b"%d" % total)

    run({"/t.T/Slow": slow}, body)


def test_a_client_that_stops_asking_pushes_back_on_the_handler() -> None:
    sent = 0

    async def stream(call: Call) -> None:
        nonlocal sent
        for _ in range(64):
            await call.send(frame(bytes(65_531)))
            sent += 1

    async def body(server: GrpcServer, port: int) -> None:
        async with channel_to(port) as channel:
            call = channel.stream("/t.T/Stream")
            first = await call.receive()
            assert first is not None
            assert await channel.unary("/t.T/Echo", b"beside") == b"beside"
            assert sent <= 17
            total = len(first)
            while (part := await call.receive()) is not None:
                total += len(part)
            assert total == 64 * 65_536

    run({"/t.T/Stream": stream, "/t.T/Echo": echo}, body)


def test_gzipped_requests_are_framed_anew_a_bounded_lot_at_a_time() -> None:
    lots: list[int] = []

    async def handler(call: Call) -> None:
        while (part := await call.receive_frames()) is not None:
            lots.append(len(part))
        call.write(frame(b""))

    async def body(server: GrpcServer, port: int) -> None:
        packed = gzip.compress(bytes(limits.MIB))
        message = b"\x01" + len(packed).to_bytes(4, "big") + packed
        async with raw_peer(port, HELLO) as client:
            client.writer.write(peer.request(1, headers=[*peer.REQUEST, ("grpc-encoding", "gzip")]))
            client.writer.write(b"".join(peer.data(1, message) for _ in range(20)) + peer.data(1, b"", True))
            await client.until(frames.DATA)
        assert sum(lots) == 20 * (limits.MIB + 5)
        assert max(lots) <= limits.GRPC_MAX_MESSAGE_BYTES + limits.MIB

    run({"/t.T/Echo": handler}, body)


@pytest.mark.parametrize(
    ("body_bytes", "status"),
    [
        (b"\x01\0\0\0\1x", "13"),  # compressed, though the call said identity
        (b"\x00\0\0\0\5cut", "13"),
        (b"\x00\xff\xff\xff\xff", "8"),
    ],
)
def test_malformed_messages_end_the_call_only(body_bytes: bytes, status: str) -> None:
    async def body(server: GrpcServer, port: int) -> None:
        async with raw_peer(port, HELLO, peer.request(1), peer.data(1, body_bytes, True)) as client:
            fields = peer.decoded((await client.until(frames.HEADERS)).payload, Decoder())
            assert ("grpc-status", status) in fields
            client.writer.write(peer.raw(frames.PING, 0, 0, bytes(8)))
            await client.until(frames.PING)

    run({"/t.T/Echo": echo}, body)


def test_what_a_handler_does_after_its_call_ended_raises_cancelled() -> None:
    outcome: asyncio.Queue[str] = asyncio.Queue()

    async def stubborn(call: Call) -> None:
        call.add_done_callback(lambda: outcome.put_nowait("done callback"))
        call.send_headers()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert call.cancelled
            for attempt in (call.send(frame(b"late")), call.receive(), call.receive_frames()):
                try:
                    await attempt
                except Cancelled as error:
                    outcome.put_nowait(str(error))

    async def body(server: GrpcServer, port: int) -> None:
        async with channel_to(port) as channel:
            call = channel.stream("/t.T/Stubborn")
            while not call.headers:
                await asyncio.sleep(0.005)
            call.cancel()
            assert await outcome.get() == "done callback"
            for _ in range(3):
                assert "is over" in await outcome.get()

    run({"/t.T/Stubborn": stubborn}, body)


def test_a_deadline_ends_a_handler_that_ignores_it() -> None:
    finished = asyncio.Event()

    async def stubborn(call: Call) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        finished.set()

    async def body(server: GrpcServer, port: int) -> None:
        # A peer that does not watch the deadline itself sees the server's answer.
        async with raw_peer(port, HELLO, peer.request(1, headers=[*peer.REQUEST, ("grpc-timeout", "50m")])) as client:
            fields = peer.decoded((await client.until(frames.HEADERS)).payload, Decoder())
            assert ("grpc-status", "4") in fields
            await finished.wait()

    run({"/t.T/Echo": stubborn}, body)


def test_closing_ends_the_call_of_a_slow_reader_after_a_whole_message() -> None:
    async def flood(call: Call) -> None:
        while True:
            await call.send(frame(b"x" * 95) * 1000)

    async def body(server: GrpcServer, port: int) -> None:
        async with raw_peer(port, frames.PREFACE + peer.settings(initial_window_size=250), peer.request(1)) as client:
            await client.until(frames.HEADERS)
            received = (await client.until(frames.DATA)).payload
            assert len(received) == 250
            closing = asyncio.create_task(server.close(Status.UNAVAILABLE, "stopping", 5.0))
            await client.until(frames.GOAWAY)
            client.writer.write(peer.window_update(1, 10_000))
            received += (await client.until(frames.DATA)).payload
            assert received == frame(b"x" * 95) * 3
            fields = peer.decoded((await client.until(frames.HEADERS)).payload, Decoder())
            assert ("grpc-status", "14") in fields
            await closing

    run({"/t.T/Echo": flood}, body)


def test_closing_does_not_wait_for_the_unwilling_beyond_the_grace() -> None:
    async def flood(call: Call) -> None:
        while True:
            await call.send(frame(bytes(60_000)))

    async def body(server: GrpcServer, port: int) -> None:
        async with raw_peer(port, frames.PREFACE + peer.settings(initial_window_size=1000), peer.request(1)) as client:
            await client.until(frames.DATA)
            began = asyncio.get_running_loop().time()
            await server.close(Status.UNAVAILABLE, "stopping", 0.2)
            assert asyncio.get_running_loop().time() - began < 2.0

    run({"/t.T/Echo": flood}, body)


# --- listening ----------------------------------------------------------------------------------------------


def test_a_port_in_use_is_said_in_one_helpful_line() -> None:
    async def main() -> None:
        first, second = GrpcServer({}), GrpcServer({})
        port = await first.start("127.0.0.1", 0)
        with pytest.raises(StartError, match=f"127.0.0.1:{port}: another program has the port"):
            await second.start("127.0.0.1", port)
        await first.close(Status.UNAVAILABLE, "", 1.0)

    asyncio.run(main())


def test_an_address_that_is_not_here_is_said_so() -> None:
    async def main() -> None:
        with pytest.raises(StartError, match="does not have that address"):
            await GrpcServer({}).start("192.0.2.1", 0)
        with pytest.raises(StartError, match="the name has no address"):
            await GrpcServer({}).start("no-such-host.invalid", 0)

    asyncio.run(main())


def test_without_a_host_every_address_has_the_same_port() -> None:
    async def main() -> None:
        server = GrpcServer({"/t.T/Echo": echo})
        port = await server.start(None, 0)
        hosts = ["127.0.0.1"]
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            hosts.append("::1")
        for host in hosts:
            channel = await Channel.connect(host, port)
            assert await channel.unary("/t.T/Echo", b"x") == b"x"
            await channel.close()
        await server.close(Status.UNAVAILABLE, "", 1.0)

    asyncio.run(main())


# --- the channel --------------------------------------------------------------------------------------------


def test_a_channel_to_something_else_is_unavailable_with_a_reason() -> None:
    async def main(opening: bytes, reason: str) -> None:
        ended = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(opening)
            with contextlib.suppress(OSError):
                await reader.read()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            ended.set()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match=reason):
            await Channel.connect("127.0.0.1", port, timeout=0.2)
        server.close()
        await ended.wait()

    asyncio.run(main(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100), "something else than gRPC"))
    asyncio.run(main(b"", "no answer within 0.2 seconds"))


def test_a_lost_connection_makes_its_calls_unavailable() -> None:
    async def body(server: GrpcServer, port: int) -> None:
        async with channel_to(port) as channel:
            call = channel.stream("/t.T/Hang")
            while not call.headers:
                await asyncio.sleep(0.005)
            for connection in list(server._connections):
                connection.abort()
            with pytest.raises(RpcError) as caught:
                await call.receive()
            assert caught.value.code is Status.UNAVAILABLE
            assert channel.closed

    run({"/t.T/Hang": hang}, body)


def test_an_answer_over_the_bound_is_refused_by_the_channel() -> None:
    async def large(call: Call) -> None:
        await call.send(frame(bytes(100_000)))

    async def body(server: GrpcServer, port: int) -> None:
        channel = await Channel.connect("127.0.0.1", port, max_message=1000)
        with pytest.raises(RpcError, match="larger than max") as caught:
            await channel.unary("/t.T/Large", b"")
        assert caught.value.code is Status.RESOURCE_EXHAUSTED
        await channel.close()

    run({"/t.T/Large": large}, body)


def test_closing_a_channel_cancels_its_calls() -> None:
    async def body(server: GrpcServer, port: int) -> None:
        channel = await Channel.connect("127.0.0.1", port)
        call = channel.stream("/t.T/Hang")
        await channel.close()
        with pytest.raises(RpcError) as caught:
            await call.receive()
        assert caught.value.code is Status.CANCELLED
        with pytest.raises(RpcError) as caught:
            await channel.unary("/t.T/Hang", b"")
        assert caught.value.code is Status.UNAVAILABLE

    run({"/t.T/Hang": hang}, body)
