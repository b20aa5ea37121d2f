"""The NATS connection against a real nats-server, with nats-py as the independent peer, and against impostors.

Over 600 lines for one reason: every case needs the same real server, peers and certificates set up here.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client as NatsClient

from bascule.errors import BusUnavailable, ConfigError, InvalidArgument, StartError
from bascule.limits import MIB, NATS_MAX_PENDING_BYTES, NATS_READ_BUFFER_BYTES
from bascule.net.embedded import EmbeddedNats
from bascule.net.nats import Connection, NatsOptions
from bascule.ports import Bus
from bascule.testing.processes import free_port
from bascule.wire.nats import NatsMessage, messages, pub
from tests.certificates import Authority


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


# --- the everyday path -------------------------------------------------------------------------------------


def test_messages_pass_both_ways_between_us_and_another_client() -> None:
    async def scenario() -> None:
        async with server() as running, connection(running.url) as bus:
            as_port: Bus = bus
            peer = await nats.connect(running.url)
            inbox, theirs = Inbox(), await peer.subscribe("there.>")
            as_port.subscribe(b"here.*", inbox)
            await bus.flush()
            await flush_of(peer)
            await peer.publish("here.1", b"plain")
            await peer.publish("here.2", b"with reply", reply="answer.me")
            await peer.publish("here.3", b"with headers", headers={"k": "v"})
            await peer.publish("here.4.deeper", b"not for us")
            await peer.publish("here.5", b"")
            await flush_of(peer)
            await bus.flush()
            assert inbox.messages == [
                (b"here.1", b"", b"plain"),
                (b"here.2", b"answer.me", b"with reply"),
                (b"here.3", b"", b"with headers"),
                (b"here.5", b"", b""),
            ]
            bus.send(pub(b"there.a", b"one") + pub(b"there.b", b"two", b"r"))
            bus.send(pub(b"there.c", b"MSG x 1 3\r\n"))
            got = [await theirs.next_msg(2) for _ in range(3)]
            assert [(m.subject, m.data, m.reply) for m in got] == [
                ("there.a", b"one", ""),
                ("there.b", b"two", "r"),
                ("there.c", b"MSG x 1 3\r\n", ""),
            ]
            await peer.close()

    asyncio.run(scenario())


def test_a_queue_group_shares_and_other_subscriptions_copy() -> None:
    async def scenario() -> None:
        async with server() as running, connection(running.url) as bus:
            first, second, copy = Inbox(), Inbox(), Inbox()
            bus.subscribe(b"s", first, queue=b"g")
            bus.subscribe(b"s", second, queue=b"g")
            bus.subscribe(b"s", copy)
            for number in range(200):
                bus.send(pub(b"s", b"%d" % number))
            await bus.flush()
            everything = [b"%d" % number for number in range(200)]
            assert copy.payloads == everything
            assert sorted(first.payloads + second.payloads) == sorted(everything)
            assert first.payloads
            assert second.payloads

    asyncio.run(scenario())


def test_nothing_arrives_after_unsubscribe() -> None:
    async def scenario() -> None:
        async with server() as running, connection(running.url) as bus:
            gone, stays = Inbox(), Inbox()
            subscription = bus.subscribe(b"s", gone)
            bus.subscribe(b"s", stays)
            await bus.flush()
            bus.send(pub(b"s", b"under way"))
            subscription.unsubscribe()
            subscription.unsubscribe()
            await bus.flush()
            bus.send(pub(b"s", b"later"))
            await bus.flush()
            assert gone.messages == []
            assert stays.payloads == [b"under way", b"later"]

    asyncio.run(scenario())


def test_a_held_connection_takes_nothing_and_then_everything() -> None:
    async def scenario() -> None:
        async with server() as running, connection(running.url) as ours, connection(running.url) as other:
            counts: list[int] = []
            ours.subscribe(b"a", lambda batch, count: counts.append(count))
            await ours.flush()
            ours.hold(True)
            other.send(pub(b"a", b"x") * 1000)
            await other.flush()
            await asyncio.sleep(0.1)
            assert sum(counts) == 0
            ours.hold(False)
            await until(lambda: sum(counts) == 1000)

    asyncio.run(scenario())


def test_a_failing_subscriber_is_logged_and_the_connection_lives(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with server() as running, connection(running.url) as bus:
            inbox = Inbox()

            def fail(batch: bytes, count: int) -> None:
                raise RuntimeError("boom")

            bus.subscribe(b"s", fail)
            bus.subscribe(b"s", inbox)
            bus.send(pub(b"s", b"1"))
            await bus.flush()
            bus.send(pub(b"s", b"2"))
            await bus.flush()
            assert inbox.payloads == [b"1", b"2"]
            assert bus.connected

    asyncio.run(scenario())
    assert caplog.text.count("boom") >= 2


def test_a_message_larger_than_the_buffer_arrives_whole_and_small_ones_around_it(tmp_path: Path) -> None:
    big = os.urandom(7 * MIB + 13)

    async def scenario() -> None:
        async with (
            server(config="max_payload: 8MB\nmax_pending: 64MB", folder=tmp_path) as running,
            connection(running.url) as bus,
        ):
            assert bus.max_payload == 8 * MIB
            inbox = Inbox()
            bus.subscribe(b"s", inbox)
            exact = b"x" * (NATS_READ_BUFFER_BYTES - len(b"MSG s 1 1048576\r\n\r\n"))
            payloads = [b"before", big, b"between", exact, exact + b"y", big, big, b"after"]
            for payload in payloads:
                bus.send(pub(b"s", payload))
            await bus.flush()
            assert inbox.payloads == payloads

    asyncio.run(scenario())


def test_an_oversized_publish_costs_the_connection_which_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with server() as running, connection(running.url) as bus:
            inbox = Inbox()
            bus.subscribe(b"s", inbox)
            bus.send(pub(b"s", b"x" * (bus.max_payload + 1)))
            with pytest.raises(BusUnavailable):
                await bus.flush()
            await until(lambda: bus.connected)
            bus.send(pub(b"s", b"fine"))
            await bus.flush()
            assert inbox.payloads == [b"fine"]

    asyncio.run(scenario())
    assert "acked ones are safe" in caplog.text


def test_subjects_that_would_run_commands_are_refused() -> None:
    async def scenario() -> None:
        async with server() as running, connection(running.url) as bus:
            with pytest.raises(InvalidArgument):
                bus.subscribe(b"a\r\nSUB > 9", Inbox())
            await bus.flush()

    asyncio.run(scenario())


def test_closing_writes_what_was_sent_and_then_refuses() -> None:
    async def scenario() -> None:
        async with server() as running, connection(running.url) as watcher:
            inbox = Inbox()
            watcher.subscribe(b"s", inbox)
            await watcher.flush()
            bus = await Connection.connect(NatsOptions((running.url,)), name="closing")
            for _ in range(100):
                bus.send(pub(b"s", b"x" * 10_000))
            await bus.close()
            await bus.close()
            assert not bus.connected
            with pytest.raises(BusUnavailable, match="closed"):
                bus.send(pub(b"s", b"late"))
            with pytest.raises(BusUnavailable, match="closed"):
                await bus.flush()
            await until(lambda: len(inbox.messages) == 100)

    asyncio.run(scenario())


# --- losing the server -------------------------------------------------------------------------------------


def test_after_a_killed_server_is_back_so_are_the_connection_and_its_subscriptions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        port = free_port()
        async with server(port) as first:
            bus = await Connection.connect(NatsOptions((first.url,)), name="survivor")
            inbox, dropped = Inbox(), Inbox()
            bus.subscribe(b"s", inbox)
            drop = bus.subscribe(b"s", dropped)
            await bus.flush()
            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)
            await until(lambda: not bus.connected)
            assert bus.unavailable_reason
            with pytest.raises(BusUnavailable):
                bus.send(pub(b"s", b"x"))
            with pytest.raises(BusUnavailable):
                await bus.flush()
            await asyncio.wait_for(bus.drained(), 1)
            meanwhile = Inbox()
            bus.subscribe(b"s", meanwhile)
            drop.unsubscribe()
        try:
            async with server(port):
                await until(lambda: bus.connected)
                bus.send(pub(b"s", b"again"))
                await bus.flush()
                assert inbox.payloads == meanwhile.payloads == [b"again"]
                assert dropped.messages == []
        finally:
            await bus.close()

    caplog.set_level(logging.INFO)
    asyncio.run(scenario())
    assert "Plain messages published until it is back may be gone" in caplog.text
    assert "connected to NATS again" in caplog.text


def test_the_next_server_of_the_list_takes_over() -> None:
    async def scenario() -> None:
        async with (
            server() as second,
            server() as first,
            connection("nats://127.0.0.1:1", first.url, second.url) as bus,
        ):
            inbox = Inbox()
            bus.subscribe(b"s", inbox)
            await bus.flush()
            await first.stop()
            await until(lambda: not bus.connected)
            await until(lambda: bus.connected)
            bus.send(pub(b"s", b"x"))
            await bus.flush()
            assert inbox.payloads == [b"x"]

    asyncio.run(scenario())


def test_a_server_that_falls_silent_is_given_up() -> None:
    async def scenario() -> None:
        async with server() as running, connection(running.url, ping_interval_s=0.1) as bus:
            await asyncio.sleep(0.5)
            assert bus.connected, "an idle but living server must not be given up"
            assert running.pid is not None
            stat = Path(f"/proc/{running.pid}/stat")
            os.kill(running.pid, signal.SIGSTOP)
            try:
                await until(lambda: stat.read_text().rpartition(") ")[2].startswith("T"))
                waiting = asyncio.create_task(bus.flush())
                await until(lambda: not bus.connected)
                with pytest.raises(BusUnavailable, match="PING"):
                    await waiting
            finally:
                os.kill(running.pid, signal.SIGCONT)
            await until(lambda: bus.connected)

    asyncio.run(scenario())


def test_what_the_server_does_not_take_is_bounded_and_drained_waits() -> None:
    async def scenario() -> None:
        async with server() as running, connection(running.url) as bus:
            await asyncio.wait_for(bus.drained(), 1)
            assert running.pid is not None
            os.kill(running.pid, signal.SIGSTOP)
            try:
                chunk = pub(b"nobody", b"x" * MIB) * 8

                async def send_twice_the_bound() -> None:
                    for _ in range(2 * NATS_MAX_PENDING_BYTES // len(chunk)):
                        bus.send(chunk)
                        await asyncio.sleep(0)

                with pytest.raises(BusUnavailable, match="takes too little"):
                    await send_twice_the_bound()
                drained = asyncio.ensure_future(bus.drained())
                await asyncio.sleep(0.05)
                assert not drained.done()
            finally:
                os.kill(running.pid, signal.SIGCONT)
            await asyncio.wait_for(drained, 10)
            bus.send(pub(b"nobody", b"x"))
            await bus.flush()

    asyncio.run(scenario())


def test_a_slow_consumer_is_cut_told_so_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        config = 'max_pending: 2MB\nmax_payload: 1MB\nwrite_deadline: "100ms"'
        async with server(config=config, folder=tmp_path) as running, connection(running.url) as bus:
            inbox = Inbox()

            def slow(batch: bytes, count: int) -> None:
                if not inbox.messages:
                    flood(port_of(running), pub(b"s", b"x" * 100_000) * 400)
                    time.sleep(0.3)  # what this test is about: the loop does not read
                inbox(batch, count)

            bus.subscribe(b"s", slow)
            bus.send(pub(b"s", b"first"))
            await until(lambda: not bus.connected)
            await until(lambda: bus.connected)
            bus.send(pub(b"s", b"after"))
            await bus.flush()
            assert inbox.payloads[0] == b"first"
            assert inbox.payloads[-1] == b"after"
            assert 2 <= len(inbox.messages) < 402

    asyncio.run(scenario())
    assert "slow consumer" in caplog.text
    assert "acked ones are safe" in caplog.text


def flood(port: int, commands: bytes) -> None:
    """Publish from this very thread, whatever its event loop is doing, until the server has taken it all."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(b"CONNECT {}\r\n" + commands + b"PING\r\n")
        said = b""
        while b"PONG\r\n" not in said:
            said += peer.recv(65536)


# --- who we are --------------------------------------------------------------------------------------------


def test_user_and_password_from_options_or_url(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = 'authorization { user: "me", password: "p@ss:\\"word" }'
        async with server(config=config, folder=tmp_path) as running:
            async with connection(running.url, user="me", password='p@ss:"word') as bus:
                await bus.flush()
            url = running.url.replace("://", "://me:p%40ss%3A%22word@")
            async with connection(url, user="nobody", password="wrong") as bus:
                await bus.flush()

    asyncio.run(scenario())


def test_a_token_from_options_or_url(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server(config='authorization { token: "s3cret" }', folder=tmp_path) as running:
            async with connection(running.url, token="s3cret") as bus:
                await bus.flush()
            async with connection(running.url.replace("://", "://s3cret@")) as bus:
                await bus.flush()

    asyncio.run(scenario())


def test_wrong_credentials_are_an_error_at_once_in_one_line_without_the_secret(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = 'authorization { user: "me", password: "right" }'
        async with server(config=config, folder=tmp_path) as running:
            began = time.monotonic()
            with pytest.raises(StartError, match=r"nats\.user and nats\.password") as caught:
                await Connection.connect(NatsOptions((running.url,), user="me", password="wr0ng"), name="x")
            assert "wr0ng" not in str(caught.value)
            assert "\n" not in str(caught.value)
            assert "check" in str(caught.value)
            with pytest.raises(StartError, match="wants credentials"):
                await Connection.connect(NatsOptions((running.url,)), name="x")
            assert time.monotonic() - began < 5

    asyncio.run(scenario())


def test_credentials_that_become_wrong_later_are_tried_again_until_they_are_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def config(password: str) -> str:
        return f'authorization {{ user: "me", password: "{password}" }}'

    async def scenario() -> None:
        port = free_port()
        async with server(port, config("old"), tmp_path) as running:
            bus = await Connection.connect(NatsOptions((running.url,), user="me", password="old"), name="x")
        try:
            async with server(port, config("new"), tmp_path):
                await until(lambda: "refused our credentials" in bus.unavailable_reason)
            async with server(port, config("old"), tmp_path):
                await until(lambda: bus.connected)
                await bus.flush()
        finally:
            await bus.close()

    asyncio.run(scenario())
    assert "refused our credentials" in caplog.text


def test_a_refused_subscription_is_logged_and_the_rest_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        users = '{ user: "me", password: "p", permissions: { subscribe: ["ok.>"], publish: ["ok.>"] } }'
        config = f"authorization {{ users: [ {users} ] }}"
        async with (
            server(config=config, folder=tmp_path) as running,
            connection(running.url, user="me", password="p") as bus,
        ):
            allowed, denied = Inbox(), Inbox()
            bus.subscribe(b"ok.1", allowed)
            bus.subscribe(b"secret", denied)
            for _ in range(50):
                bus.send(pub(b"secret", b"x"))
            bus.send(pub(b"ok.1", b"x"))
            await bus.flush()
            assert bus.connected
            assert allowed.payloads == [b"x"]
            assert denied.payloads == []

    asyncio.run(scenario())
    assert "Permissions Violation for Subscription" in caplog.text
    assert caplog.text.count("Permissions Violation for Publish") == 1, "one line for the same complaint"


# --- TLS ---------------------------------------------------------------------------------------------------


def tls_config(authority: Authority, verify: bool = False) -> str:
    cert, key = authority.issue("server")
    client = f', ca_file: "{authority.path}", verify: true' if verify else ""
    return f'tls {{ cert_file: "{cert}", key_file: "{key}"{client} }}'


def test_tls_after_info_carries_messages_of_every_size(tmp_path: Path) -> None:
    async def scenario() -> None:
        authority = Authority(tmp_path)
        config = tls_config(authority) + "\nmax_payload: 4MB"
        async with (
            server(config=config, folder=tmp_path) as running,
            connection(running.url.replace("nats://", "tls://"), tls=authority.context()) as bus,
        ):
            inbox = Inbox()
            bus.subscribe(b"s", inbox)
            payloads = [b"", b"x", os.urandom(3 * MIB), b"y" * 100_000, b"z"] * 2
            for payload in payloads:
                bus.send(pub(b"s", payload))
            await bus.flush()
            assert inbox.payloads == payloads

    asyncio.run(scenario())


def test_a_certificate_we_do_not_trust_is_an_error_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "other").mkdir()
        stranger = Authority(tmp_path / "other").context()
        async with server(config=tls_config(Authority(tmp_path)), folder=tmp_path) as running:
            for tls in (stranger, None):  # without a context the system's authorities decide
                with pytest.raises(StartError, match=r"certificate not accepted.*nats\.tls\.ca"):
                    await Connection.connect(NatsOptions((running.url,), tls=tls), name="x")

    asyncio.run(scenario())


def test_a_server_that_wants_client_certificates_gets_ours_or_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        authority = Authority(tmp_path)
        async with server(config=tls_config(authority, verify=True), folder=tmp_path) as running:
            with pytest.raises(StartError, match=r"nats\.tls\.cert"):
                await Connection.connect(NatsOptions((running.url,), tls=authority.context()), name="x")
            context = authority.context()
            cert, key = authority.issue("client")
            context.load_cert_chain(cert, key)
            async with connection(running.url, tls=context) as bus:
                await bus.flush()

    asyncio.run(scenario())


def test_we_never_fall_back_to_plain_text_when_tls_was_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server() as running:
            with pytest.raises(StartError, match="does not offer TLS"):
                await Connection.connect(
                    NatsOptions((running.url.replace("nats://", "tls://"),), password="p", user="u"), name="x"
                )

    asyncio.run(scenario())


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


def test_an_endless_line_is_cut_off_at_the_bound() -> None:
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
    ("garbage", "reason"),
    [
        (b"MSG s 1 2\r\nxyz\r\n", "does not end where"),
        (b"MSG s x 2\r\nxy\r\n", "number"),
        (b"MSG s 1 999999999999\r\n", "payload"),
        (b"BOO\r\n", "unknown verb"),
        (b"INFO {\r\n", "JSON"),
        (b"-ERR 'Stale Connection'\r\n", "Stale Connection"),
        (b"-ERR 'Slow Consumer'\r\n", "too slowly"),
        (b"-ERR 'User Authentication Expired'\r\n", "credentials"),
    ],
)
def test_garbage_from_the_server_ends_that_link_and_the_next_one_works(garbage: bytes, reason: str) -> None:
    visits = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visits
        visits += 1
        await reader.readuntil(b"SUB s 1\r\n")
        writer.write(garbage if visits == 1 else b"MSG s 1 2\r\nok\r\n")
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
