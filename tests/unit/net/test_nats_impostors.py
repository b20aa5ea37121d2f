"""The NATS connection where there is no server, or something else on its port."""

import asyncio
import socket

import pytest

from bascule.errors import BusUnavailable, ConfigError, StartError
from bascule.limits import MIB
from bascule.net.nats import Connection, NatsOptions
from bascule.testing.processes import free_port
from bascule.wire.nats import pub
from tests.harness.nats_peers import INFO, Inbox, after_login, connection, impostor, port_of, server, until

# --- no server, or something else --------------------------------------------------------------------------


def test_no_server_is_an_error_with_every_address_and_what_to_do() -> None:
    async def scenario() -> None:
        dead = f"nats://127.0.0.1:{free_port()}"
        options = NatsOptions((dead, "nats://name.invalid:4222"), start_timeout_s=0.5)
        with pytest.raises(StartError, match="--embedded-nats") as caught:
            await Connection.connect(options, name="x")
        assert f"{dead}: connection refused" in str(caught.value)
        assert "name.invalid" in str(caught.value)
        assert "\n" not in str(caught.value)

    asyncio.run(scenario())


def test_a_server_that_comes_up_a_little_later_is_waited_for() -> None:
    async def scenario() -> None:
        port = free_port()
        waiting = asyncio.create_task(Connection.connect(NatsOptions((f"nats://127.0.0.1:{port}",)), name="early"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        async with server(port):
            bus = await waiting
            await bus.flush()
            await bus.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("servers", [(), ("ws://host",), ("nats://",)])
def test_servers_that_are_none_are_a_configuration_error(servers: tuple[str, ...]) -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigError, match=r"nats\.servers"):
            await Connection.connect(NatsOptions(servers), name="x")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "greeting",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"INFO nonsense\r\n",
        b"INFO []\r\n",
        b"MSG s 1 99999999999999999999999\r\n",
        b"MSG s 1 999999999999\r\n",
        b"MSG s -1 5\r\nhello\r\n",
        b"",
    ],
)
def test_something_that_is_no_nats_server_is_refused_in_one_line(greeting: bytes) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read(1) if greeting else None

    async def scenario() -> None:
        async with impostor(greet) as url:
            with pytest.raises(StartError, match="no NATS server") as caught:
                await Connection.connect(NatsOptions((url,), start_timeout_s=0.3), name="x")
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 500

    asyncio.run(scenario())


def test_an_endless_line_ends_the_connection_at_the_bound() -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"INFO ")
        while True:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    async def scenario() -> None:
        async with impostor(endless) as url:
            with pytest.raises(StartError, match="line of more than"):
                await Connection.connect(NatsOptions((url,), start_timeout_s=0.3), name="x")

    asyncio.run(scenario())
    assert sent > MIB


def test_lines_that_come_byte_by_byte_are_understood() -> None:
    got = Inbox()

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in INFO + b"PONG\r\n":
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await reader.readuntil(b"SUB s 1\r\n")
        for byte in b"MSG s 1 5\r\nhello\r\nmsg\ts  1 r 2\r\nhi\r\nPING\r\n+OK\r\nMSG s 99 1\r\nx\r\n":
            writer.write(bytes([byte]))
            await asyncio.sleep(0.001)
        await reader.readuntil(b"PONG\r\n")
        writer.write(b"MSG s 1 4\r\nlast\r\n")
        await reader.read()

    async def scenario() -> None:
        async with impostor(trickle) as url, connection(url) as bus:
            bus.subscribe(b"s", got)
            await until(lambda: len(got.messages) == 3)

    asyncio.run(scenario())
    assert got.messages == [(b"s", b"", b"hello"), (b"s", b"r", b"hi"), (b"s", b"", b"last")]


def test_unsubscribing_one_from_the_other_in_the_same_read_is_respected() -> None:
    async def deliver_to_both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"SUB s 2\r\nPING\r\n")
        writer.write(b"MSG s 1 1\r\nx\r\nMSG s 2 1\r\nx\r\nPONG\r\n")
        assert await reader.readuntil(b"\r\n") == b"UNSUB 2\r\n"
        await reader.read()

    async def scenario() -> None:
        async with impostor(after_login(deliver_to_both)) as url, connection(url) as bus:
            first, second = Inbox(), Inbox()

            def drop_the_other(batch: bytes, count: int) -> None:
                first(batch, count)
                other.unsubscribe()

            bus.subscribe(b"s", drop_the_other)
            other = bus.subscribe(b"s", second)
            await bus.flush()
            assert first.payloads == [b"x"]
            assert second.payloads == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("malformed", "reason"),
    [
        (b"MSG s 1 2\r\nxyz\r\n", "does not end where"),
        (b"MSG s x 2\r\nxy\r\n", "number"),
        (b"MSG s 1 999999999999\r\n", "payload"),
        (b"BOO\r\n", "unknown verb"),
        (b"INFO {\r\n", "JSON"),
        (b"-ERR 'Stale Connection'\r\n", "Stale Connection"),
        (b"-ERR 'Slow Consumer'\r\n", "slow consumer"),
        (b"-ERR 'User Authentication Expired'\r\n", "credentials"),
    ],
)
def test_malformed_bytes_from_the_server_end_that_link_and_the_next_one_works(malformed: bytes, reason: str) -> None:
    visits = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visits
        visits += 1
        await reader.readuntil(b"SUB s 1\r\n")
        writer.write(malformed if visits == 1 else b"MSG s 1 2\r\nok\r\n")
        await reader.read()

    async def scenario() -> None:
        async with impostor(after_login(once)) as url, connection(url) as bus:
            inbox = Inbox()
            bus.subscribe(b"s", inbox)
            with pytest.raises(BusUnavailable, match=reason):
                await bus.flush()
            await until(lambda: inbox.payloads == [b"ok"])
            assert visits == 2

    asyncio.run(scenario())


def test_a_server_that_throws_us_out_again_and_again_is_visited_less_and_less() -> None:
    visits = 0

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visits
        visits += 1
        await asyncio.sleep(0.01)

    async def scenario() -> None:
        async with impostor(after_login(leave)) as url, connection(url):
            await asyncio.sleep(1.0)

    asyncio.run(scenario())
    assert 3 <= visits <= 7


def test_a_server_that_asks_for_endless_pongs_and_takes_none_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bascule.net.nats_link.NATS_MAX_PENDING_BYTES", 100_000)

    async def never_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"SUB s 1\r\n")
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while True:
            writer.write(b"PING\r\n" * 10_000)
            await writer.drain()

    async def scenario() -> None:
        async with impostor(after_login(never_read)) as url, connection(url) as bus:
            bus.subscribe(b"s", Inbox())
            await until(lambda: "takes too little" in bus.unavailable_reason)

    asyncio.run(scenario())


def test_servers_that_a_server_announces_are_used_when_it_is_gone() -> None:
    async def scenario() -> None:
        async with server() as real:
            announced = f"127.0.0.1:{port_of(real)}"
            stale = f"127.0.0.1:{free_port()}"

            async def announce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(b'INFO {"connect_urls":["%b","%b","bad:port"]}\r\n' % (stale.encode(), announced.encode()))
                await reader.readuntil(b"PING\r\n")
                writer.write(b"PONG\r\n")
                await reader.readuntil(b"SUB s 1\r\n")
                writer.write(b'INFO {"connect_urls":["%b"]}\r\n' % announced.encode())

            async with impostor(announce) as url:
                bus = await Connection.connect(NatsOptions((url,)), name="x")
                alone = await Connection.connect(NatsOptions((url,), discover=False), name="alone")
                inbox = Inbox()
                bus.subscribe(b"s", inbox)  # at which the impostor leaves
                alone.subscribe(b"s", inbox)
            try:
                await until(lambda: bus.connected and not alone.connected)
                bus.send(pub(b"s", b"x"))
                await bus.flush()
                assert inbox.payloads == [b"x"]
                assert not alone.connected
            finally:
                await bus.close()
                await alone.close()

    asyncio.run(scenario())
