"""The NATS connection against a real nats-server, with nats-py as the independent peer: messages, and lost servers."""

import asyncio
import logging
import os
import signal
import socket
import time
from pathlib import Path

import nats
import pytest

from bascule.errors import BusUnavailable, InvalidArgument
from bascule.limits import MIB, NATS_MAX_PENDING_BYTES, NATS_READ_BUFFER_BYTES
from bascule.net.nats import Connection, NatsOptions
from bascule.ports import Bus
from bascule.testing.processes import free_port
from bascule.wire.nats import pub
from tests.harness.nats_peers import Inbox, connection, flush_of, port_of, server, until

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
            ours.pause_reading(True)
            other.send(pub(b"a", b"x") * 1000)
            await other.flush()
            await asyncio.sleep(0.1)
            assert sum(counts) == 0
            ours.pause_reading(False)
            await until(lambda: sum(counts) == 1000)

    asyncio.run(scenario())


def test_a_failing_subscriber_is_logged_and_the_connection_goes_on(caplog: pytest.LogCaptureFixture) -> None:
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


def test_an_unexpected_error_while_connecting_does_not_end_the_connection_for_good(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with server() as running, connection(running.url) as bus:
            real, left = bus._try_servers, [True]

            async def fails_once(deadline: float | None) -> object:
                if left:
                    left.pop()
                    raise RuntimeError("an error of ours")
                return await real(deadline)

            monkeypatch.setattr(bus, "_try_servers", fails_once)
            link = bus._link
            assert link is not None
            link.end(BusUnavailable("the test cuts it"))
            await until(lambda: not left)
            await until(lambda: bus.connected)

    asyncio.run(scenario())
    assert "an error of ours" in caplog.text


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


def test_a_slow_consumer_is_disconnected_with_the_reason_and_reconnects(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
