"""A real gRPC implementation (grpcio, C-core) on the other end, both ways round, over generic byte methods."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from bascule import limits
from bascule.errors import NotFound, RpcError, Status, Unavailable
from bascule.net.channel import Channel
from bascule.net.grpc import Call, GrpcServer
from bascule.net.health import Health
from bascule.wire.grpc import frame
from bascule.wire.kernels import split_messages
from bascule.wire.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse

MIB = limits.MIB


# --- handlers of our server ---------------------------------------------------------------------------------


async def echo(call: Call) -> None:
    while (message := await call.receive()) is not None:
        await call.send(frame(message))


async def echo_frames(call: Call) -> None:
    while (frames := await call.receive_frames()) is not None:
        await call.send(frames)


async def count(call: Call) -> None:
    """As many messages as asked for, many to a send."""
    request = await call.receive()
    assert request is not None
    total = int(request)
    for start in range(0, total, 500):
        await call.send(b"".join(frame(b"%d" % n) for n in range(start, min(start + 500, total))))


async def fail(call: Call) -> None:
    request = await call.receive()
    if request == b"bug":
        raise ZeroDivisionError
    if request == b"late":
        call.write(frame(b"first"))
    raise NotFound("no such thing: 100 % größe\n")


async def metadata(call: Call) -> None:
    values = dict(call.metadata)
    call.write(frame(values["x-color"].encode() + b"|" + values["blob-bin"].encode()))


class Server:
    """Our server with what its calls did."""

    def __init__(self) -> None:
        self.port = 0
        self.health = Health()
        self.ended = asyncio.Event()
        self.remaining: list[float | None] = []
        self.produced = 0
        self.grpc = GrpcServer(
            {
                "/t.T/Echo": echo,
                "/t.T/EchoFrames": echo_frames,
                "/t.T/Count": count,
                "/t.T/Fail": fail,
                "/t.T/Metadata": metadata,
                "/t.T/Hang": self.hang,
                "/t.T/Large": self.large,
                **self.health.methods(),
            }
        )

    async def large(self, call: Call) -> None:
        """32 KiB messages, one at a time."""
        for n in range(int(await call.receive() or b"0")):
            await call.send(frame(b"%032768d" % n))
            self.produced += 1

    async def hang(self, call: Call) -> None:
        self.remaining.append(call.time_remaining())
        call.send_headers()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@contextlib.asynccontextmanager
async def our_server() -> AsyncIterator[Server]:
    server = Server()
    server.port = await server.grpc.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.grpc.close(Status.UNAVAILABLE, "stopped", 2.0)


def with_grpcio(body: Callable[[Server, grpc.aio.Channel], Awaitable[None]]) -> None:
    async def run() -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        async with (
            our_server() as server,
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel,
        ):
            await asyncio.wait_for(body(server, channel), 30)

    asyncio.run(run())


async def refusal(awaitable: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value.code(), caught.value.details()


# --- grpcio calls our server --------------------------------------------------------------------------------


def test_unary_calls_of_every_size_come_back_whole() -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        call = channel.unary_unary("/t.T/Echo")
        for size in (0, 1, 16_379, 16_384, 65_535, MIB, 4 * MIB):
            request = bytes(size)
            assert await call(request) == request

    with_grpcio(body)


def test_a_message_over_the_bound_is_refused_with_the_text_of_grpc_go() -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        code, text = await refusal(channel.unary_unary("/t.T/Echo")(bytes(4 * MIB + 1)))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert text == "grpc: received message larger than max (4194305 vs. 4194304)"
        assert await channel.unary_unary("/t.T/Echo")(b"the connection is open") == b"the connection is open"

    with_grpcio(body)


def test_many_messages_in_one_frame_arrive_one_by_one_in_order() -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        got = [message async for message in channel.unary_stream("/t.T/Count")(b"10000")]
        assert got == [b"%d" % n for n in range(10_000)]

    with_grpcio(body)


@pytest.mark.parametrize("path", ["/t.T/Echo", "/t.T/EchoFrames"])
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_bidirectional_stream_echoes_all_messages(path: str, compression: grpc.Compression) -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        sent = [b"m%d " % n * (n % 300) for n in range(1000)]

        async def requests() -> AsyncIterator[bytes]:
            for message in sent:
                yield message

        call = channel.stream_stream(path)(requests(), compression=compression)
        assert [message async for message in call] == sent

    with_grpcio(body)


def test_errors_carry_status_and_text() -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        expected = (grpc.StatusCode.NOT_FOUND, "no such thing: 100 % größe\n")
        assert await refusal(channel.unary_unary("/t.T/Fail")(b"")) == expected
        assert await refusal(channel.unary_unary("/t.T/Fail")(b"late")) == expected
        code, _ = await refusal(channel.unary_unary("/t.T/Fail")(b"bug"))
        assert code == grpc.StatusCode.INTERNAL
        assert await refusal(channel.unary_unary("/t.T/Nope")(b"")) == (
            grpc.StatusCode.UNIMPLEMENTED,
            "unknown method Nope for service t.T",
        )
        assert await refusal(channel.unary_unary("/u.U/Nope")(b"")) == (
            grpc.StatusCode.UNIMPLEMENTED,
            "unknown service u.U",
        )
        assert await channel.unary_unary("/t.T/Echo")(b"still here") == b"still here"

    with_grpcio(body)


def test_metadata_reaches_the_handler() -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        answer = await channel.unary_unary("/t.T/Metadata")(
            b"", metadata=(("x-color", "dark green"), ("blob-bin", b"\x00\xff"))
        )
        assert answer == b"dark green|AP8"

    with_grpcio(body)


def test_a_deadline_is_seen_by_the_handler_and_ends_it() -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        code, _ = await refusal(channel.unary_unary("/t.T/Hang")(b"", timeout=0.3))
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(server.ended.wait(), 5)
        assert server.remaining[0] is not None
        assert 0.1 < server.remaining[0] <= 0.35

    with_grpcio(body)


def test_a_cancelled_call_cancels_its_handler() -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        call = channel.unary_stream("/t.T/Hang")(b"")
        await call.initial_metadata()
        assert server.remaining == [None]
        call.cancel()
        await asyncio.wait_for(server.ended.wait(), 5)

    with_grpcio(body)


def test_a_client_that_vanishes_ends_its_handlers() -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        other = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=[("grpc.use_local_subchannel_pool", 1)])
        await other.unary_stream("/t.T/Hang")(b"").initial_metadata()
        await other.close()
        await asyncio.wait_for(server.ended.wait(), 5)

    with_grpcio(body)


def test_a_slow_reader_is_waited_for_and_loses_nothing() -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        # Windows and socket buffers of both ends hold some 20 MB; the whole is five times that.
        call = channel.unary_stream("/t.T/Large")(b"3000")
        assert await call.read() == b"%032768d" % 0
        # Calls beside it are answered while its window is shut, and the server has stopped producing.
        for n in range(20):
            assert await channel.unary_unary("/t.T/Echo")(b"%d" % n) == b"%d" % n
        assert server.produced < 2000
        for n in range(1, 3000):
            assert await call.read() == b"%032768d" % n
        assert await call.read() == grpc.aio.EOF
        assert server.produced == 3000

    with_grpcio(body)


def test_a_closing_server_ends_open_calls_with_the_given_status() -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        call = channel.unary_stream("/t.T/Hang")(b"")
        await call.initial_metadata()
        await server.grpc.close(Status.UNAVAILABLE, "the broker is stopping", 2.0)
        assert await refusal(call.read()) == (grpc.StatusCode.UNAVAILABLE, "the broker is stopping")

    with_grpcio(body)


def test_a_draining_server_finishes_open_calls() -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        call = channel.stream_stream("/t.T/Echo")()
        await call.write(b"before")
        assert await call.read() == b"before"
        server.grpc.drain()
        await call.write(b"after")
        assert await call.read() == b"after"
        await call.done_writing()
        assert await call.read() == grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK

    with_grpcio(body)


def test_health_answers_check_and_watch() -> None:
    async def body(server: Server, channel: grpc.aio.Channel) -> None:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        assert (await check(HealthCheckRequest())).status == HealthCheckResponse.SERVING
        assert await refusal(check(HealthCheckRequest(service="proto.API"))) == (
            grpc.StatusCode.NOT_FOUND,
            "unknown service",
        )
        call = watch(HealthCheckRequest(service="proto.API"))
        assert (await call.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
        server.health.set("proto.API", True)
        assert (await call.read()).status == HealthCheckResponse.SERVING
        server.health.set("proto.API", False)
        assert (await call.read()).status == HealthCheckResponse.NOT_SERVING
        assert (await check(HealthCheckRequest(service="proto.API"))).status == HealthCheckResponse.NOT_SERVING

    with_grpcio(body)


# --- our channel calls a grpcio server ----------------------------------------------------------------------


class GrpcioServer:
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def echo(self, request: bytes, context: Any) -> bytes:
        return request

    def echo_stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        yield from requests

    def fail(self, request: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now: 100 % größe")
        raise AssertionError

    def hang(self, request: bytes, context: Any) -> Iterator[bytes]:
        context.add_callback(self.cancelled.set)
        yield b"started"
        self.cancelled.wait(20)

    def many(self, request: bytes, context: Any) -> Iterator[bytes]:
        for n in range(int(request)):
            yield b"%d" % n

    def start(self, **options: int) -> tuple[Any, int]:
        handlers = {
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
            "EchoStream": grpc.stream_stream_rpc_method_handler(self.echo_stream),
            "Fail": grpc.unary_unary_rpc_method_handler(self.fail),
            "Hang": grpc.unary_stream_rpc_method_handler(self.hang),
            "Many": grpc.unary_stream_rpc_method_handler(self.many),
        }
        server = grpc.server(
            ThreadPoolExecutor(8),
            options=[("grpc.max_receive_message_length", -1), *((f"grpc.{k}", v) for k, v in options.items())],
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        return server, port


def with_our_channel(body: Callable[[GrpcioServer, Channel], Awaitable[None]], **options: int) -> None:
    async def run(peer: GrpcioServer, port: int) -> None:
        channel = await Channel.connect("127.0.0.1", port)
        try:
            await asyncio.wait_for(body(peer, channel), 30)
        finally:
            await channel.close()

    peer = GrpcioServer()
    server, port = peer.start(**options)
    try:
        asyncio.run(run(peer, port))
    finally:
        server.stop(None).wait()


def test_our_unary_calls_of_every_size_come_back_whole() -> None:
    async def body(peer: GrpcioServer, channel: Channel) -> None:
        for size in (0, 1, 16_379, 65_535, MIB, 4 * MIB):
            assert await channel.unary("/t.T/Echo", bytes(size), timeout=10) == bytes(size)

    with_our_channel(body)


def test_our_stream_echoes_many_messages_sent_at_once() -> None:
    async def body(peer: GrpcioServer, channel: Channel) -> None:
        sent = [b"m%d " % n * (n % 300) for n in range(1000)]
        call = channel.stream("/t.T/EchoStream")
        received = bytearray()

        async def read() -> None:
            while (part := await call.receive()) is not None:
                received.extend(part)

        reader = asyncio.create_task(read())
        await call.send(b"".join(frame(message) for message in sent))
        call.half_close()
        await reader
        consumed, messages, oversized = split_messages(received, 0, len(received), MIB)
        assert (consumed, oversized) == (len(received), 0)
        assert [message for _, message in messages] == sent

    with_our_channel(body)


def test_errors_of_a_grpcio_server_arrive_with_status_and_text() -> None:
    async def body(peer: GrpcioServer, channel: Channel) -> None:
        with pytest.raises(RpcError, match="not now: 100 % größe") as caught:
            await channel.unary("/t.T/Fail", b"")
        assert caught.value.code is Status.FAILED_PRECONDITION
        with pytest.raises(RpcError) as caught:
            await channel.unary("/t.T/Nope", b"")
        assert caught.value.code is Status.UNIMPLEMENTED

    with_our_channel(body)


def test_our_deadline_ends_the_call_on_both_sides() -> None:
    async def body(peer: GrpcioServer, channel: Channel) -> None:
        with pytest.raises(RpcError) as caught:
            await channel.unary("/t.T/Hang", b"", timeout=0.2)
        assert caught.value.code is Status.DEADLINE_EXCEEDED
        assert await asyncio.to_thread(peer.cancelled.wait, 5)

    with_our_channel(body)


def test_our_cancel_reaches_the_server() -> None:
    async def body(peer: GrpcioServer, channel: Channel) -> None:
        call = channel.stream("/t.T/Hang")
        call.write(frame(b""))
        call.half_close()
        assert await call.receive() == frame(b"started")
        call.cancel()
        with pytest.raises(RpcError) as caught:
            await call.receive()
        assert caught.value.code is Status.CANCELLED
        assert await asyncio.to_thread(peer.cancelled.wait, 5)

    with_our_channel(body)


def test_more_calls_than_the_server_allows_at_once_wait_their_turn() -> None:
    async def body(peer: GrpcioServer, channel: Channel) -> None:
        assert channel.connection.connection.peer.max_concurrent_streams == 3
        answers = await asyncio.gather(*(channel.unary("/t.T/Echo", b"%d" % n) for n in range(50)))
        assert answers == [b"%d" % n for n in range(50)]

    with_our_channel(body, max_concurrent_streams=3)


def test_a_server_stream_that_nobody_reads_is_held_back_and_then_complete() -> None:
    async def body(peer: GrpcioServer, channel: Channel) -> None:
        call = channel.stream("/t.T/Many")
        call.write(frame(b"20000"))
        call.half_close()
        assert await channel.unary("/t.T/Echo", b"beside") == b"beside"
        received = bytearray()
        while (part := await call.receive()) is not None:
            received.extend(part)
        _, messages, _ = split_messages(received, 0, len(received), MIB)
        assert [message for _, message in messages] == [b"%d" % n for n in range(20_000)]

    with_our_channel(body)


def test_a_stopping_grpcio_server_makes_calls_unavailable_and_the_channel_closed() -> None:
    async def run() -> None:
        peer = GrpcioServer()
        server, port = peer.start()
        channel = await Channel.connect("127.0.0.1", port)
        call = channel.stream("/t.T/Hang")
        call.write(frame(b""))
        call.half_close()
        assert await call.receive() == frame(b"started")
        await asyncio.to_thread(server.stop(None).wait)
        with pytest.raises(RpcError) as caught:
            await asyncio.wait_for(call.receive(), 5)
        assert caught.value.code in (Status.UNAVAILABLE, Status.CANCELLED)
        await asyncio.wait_for(asyncio.shield(channel.connection.gone), 5)
        assert channel.closed
        with pytest.raises(RpcError) as caught:
            await channel.unary("/t.T/Echo", b"")
        assert caught.value.code is Status.UNAVAILABLE
        with pytest.raises(Unavailable, match=r"cannot connect to 127\.0\.0\.1"):
            await Channel.connect("127.0.0.1", port)
        await channel.close()

    asyncio.run(run())
