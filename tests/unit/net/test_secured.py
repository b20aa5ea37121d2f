"""TLS of our own on the server's connections: bytes in any pieces, bounds on handshakes, and every way to end."""

import asyncio
import random
import socket
import ssl
from collections.abc import Callable

import pytest

from bascule import limits
from bascule.errors import Status
from bascule.net.channel import Channel
from bascule.net.grpc import Call, GrpcServer
from bascule.net.http2 import Http2Protocol
from bascule.net.secured import SecuredConnection
from bascule.net.tls import client_context, server_context
from bascule.wire.grpc import frame
from tests.harness.certificates import Authority

HOST = "127.0.0.1"


async def echo(call: Call) -> None:
    while (message := await call.receive()) is not None:
        await call.send(frame(message))


class Tls:
    """A client whose bytes on the wire the test can split anywhere."""

    def __init__(self, context: ssl.SSLContext, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=HOST)
        self.cut: Callable[[bytes], list[bytes]] = lambda data: [data]

    async def flush(self) -> None:
        loop = asyncio.get_running_loop()
        for piece in self.cut(self._outgoing.read()):
            await loop.sock_sendall(self.sock, piece)
            await asyncio.sleep(0)

    async def _until(self, step: Callable[[], bytes | None]) -> bytes | None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                done = step()
                await self.flush()
                return done
            except ssl.SSLWantReadError:
                await self.flush()
                async with asyncio.timeout(10.0):
                    data = await loop.sock_recv(self.sock, 65_536)
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()

    async def handshake(self) -> "Tls":
        await self._until(self.tls.do_handshake)
        return self

    async def read(self) -> bytes:
        return await self._until(lambda: self.tls.read(65_536)) or b""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


async def connected(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
    return sock


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00"


class Served:
    """A server, and clients that know its certificate."""

    def __init__(self, authority: Authority, max_connections: int = 100) -> None:
        cert, key = authority.issue("server")
        self.context = server_context(str(cert), str(key))
        self.client = client_context(str(authority.path))
        self.server = GrpcServer({"/t.T/Echo": echo}, max_connections=max_connections)
        self.port = 0

    async def __aenter__(self) -> "Served":
        self.port = await self.server.start(HOST, 0, tls=self.context)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.server.close(Status.UNAVAILABLE, "", 1.0)

    async def connect(self) -> Tls:
        return Tls(self.client, await connected(self.port))

    async def works(self) -> None:
        channel = await Channel.connect(HOST, self.port, tls=self.client)
        assert await channel.unary("/t.T/Echo", b"hello", timeout=10.0) == b"hello"
        await channel.close()


async def ends(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10.0):
        try:
            while await loop.sock_recv(sock, 65_536):
                pass
        except ConnectionError:
            pass


def test_bytes_may_come_in_any_pieces(authority: Authority) -> None:
    async def main() -> None:
        chance = random.Random(1)
        async with Served(authority) as served:
            for most in (1, 7, 100, 5000):
                client = await served.connect()

                def cut(data: bytes, most: int = most) -> list[bytes]:
                    pieces = []
                    while data:
                        size = chance.randint(1, most)
                        pieces.append(data[:size])
                        data = data[size:]
                    return pieces

                client.cut = cut
                await client.handshake()
                client.tls.write(PREFACE)
                numbers = [b"%08d" % number for number in range(200)]
                for number in numbers:
                    client.tls.write(PING + number)
                await client.flush()
                heard = b""
                while numbers[-1] not in heard:
                    heard += await client.read()
                assert [number for number in numbers if number not in heard] == []
                client.sock.close()

    asyncio.run(main())


def test_large_messages_come_whole_in_both_directions(authority: Authority) -> None:
    async def main() -> None:
        chance = random.Random(2)
        async with Served(authority) as served:
            channel = await Channel.connect(HOST, served.port, tls=served.client)
            for size in (0, 1, 16_383, 16_384, 16_385, 300_000, 4 * limits.MIB - 100):
                message = chance.randbytes(size)
                assert await channel.unary("/t.T/Echo", message, timeout=30.0) == message
            await channel.close()

    asyncio.run(main())


def test_of_too_many_handshakes_the_longest_is_given_up(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TLS_HANDSHAKES", 3)

    async def main() -> None:
        async with Served(authority) as served:
            silent = [await connected(served.port) for _ in range(8)]
            for sock in silent[:5]:
                await ends(sock)
            await served.works()
            await ends(silent[5])
            for sock in silent[6:]:
                with pytest.raises(BlockingIOError):
                    sock.recv(1)
            for sock in silent:
                sock.close()

    asyncio.run(main())


def test_a_handshake_has_a_time_limit(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP2_HANDSHAKE_TIMEOUT_S", 0.3)

    async def main() -> None:
        async with Served(authority) as served:
            silent = await connected(served.port)
            half = await served.connect()
            with pytest.raises(ssl.SSLWantReadError):
                half.tls.do_handshake()
            await half.flush()
            for sock in (silent, half.sock):
                await ends(sock)
                sock.close()

    asyncio.run(main())


def test_handshakes_take_turns(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TLS_HANDSHAKES_A_TURN", 2)
    turns: dict[float, int] = {}
    real = SecuredConnection.shake_hands

    def counted(self: SecuredConnection) -> None:
        turn = loop_turns[0]
        turns[turn] = turns.get(turn, 0) + 1
        real(self)

    loop_turns = [0]
    monkeypatch.setattr(SecuredConnection, "shake_hands", counted)

    async def main() -> None:
        def count() -> None:
            loop_turns[0] += 1
            asyncio.get_running_loop().call_soon(count)

        count()
        async with Served(authority) as served:
            await asyncio.gather(*(served.works() for _ in range(20)))
        assert sum(turns.values()) >= 20
        assert max(turns.values()) <= 2

    asyncio.run(main())


def test_connections_in_their_handshake_count_as_connections(authority: Authority) -> None:
    async def main() -> None:
        async with Served(authority, max_connections=2) as served:
            silent = [await connected(served.port) for _ in range(2)]
            third = await connected(served.port)
            await ends(third)
            for sock in (*silent, third):
                sock.close()
            await asyncio.sleep(0)
            async with asyncio.timeout(10.0):
                while True:
                    try:
                        await served.works()
                        break
                    except Exception:
                        await asyncio.sleep(0.05)

    asyncio.run(main())


def test_plain_text_and_random_bytes_end_the_connection_and_nobody_elses(authority: Authority) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Served(authority) as served:
            for words in (b"GET / HTTP/1.1\r\n\r\n", PREFACE, bytes(100_000), b"\x16\x03\x01\xff\xff" + bytes(70_000)):
                sock = await connected(served.port)
                try:
                    await loop.sock_sendall(sock, words)
                    sock.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # it was hung up on already
                await ends(sock)
                sock.close()
            client = await (await served.connect()).handshake()
            await loop.sock_sendall(client.sock, b"\x17\x03\x03\x00\x20" + bytes(32))
            await ends(client.sock)
            client.sock.close()
            await served.works()

    asyncio.run(main())


def test_both_sides_say_goodbye(authority: Authority) -> None:
    async def main() -> None:
        async with Served(authority) as served:
            leaving = await (await served.connect()).handshake()
            with pytest.raises(ssl.SSLWantReadError):
                leaving.tls.unwrap()
            await leaving.flush()
            await ends(leaving.sock)
            leaving.sock.close()
            staying = await (await served.connect()).handshake()
            staying.tls.write(PREFACE)
            await staying.flush()
            await staying.read()
            await served.server.close(Status.UNAVAILABLE, "", 2.0)
            heard = b"."
            while heard:  # b"" is close_notify; without it the read would raise
                heard = await staying.read()
            staying.sock.close()
            assert served.server.connection_count == 0

    asyncio.run(main())


def test_what_one_connection_trips_over_keeps_no_other_from_its_handshake(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Data that comes with the last message of a handshake is handed on in the turn that all handshakes share."""

    async def main() -> None:
        async with Served(authority) as served:
            real = Http2Protocol.connection_made
            left = [True]

            def stumbles(protocol: Http2Protocol, transport: asyncio.BaseTransport) -> None:
                if left:
                    left.pop()
                    raise RuntimeError("an error of ours")
                real(protocol, transport)

            monkeypatch.setattr(Http2Protocol, "connection_made", stumbles)
            first = await served.connect()
            await first.handshake()
            await ends(first.sock)
            first.sock.close()
            assert not left
            async with asyncio.timeout(20.0):
                await served.works()

    asyncio.run(main())
    assert "an error of ours" in caplog.text
