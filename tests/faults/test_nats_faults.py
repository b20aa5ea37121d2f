"""NATS goes away and comes back under load: publishers are told at once, readers notice nothing, what was acked
is there afterwards, and nobody has to do anything for it.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil

from bascule.testing.processes import BrokerProcess, poll, start_broker, start_nats
from bascule.wire.pb import api_pb2 as api
from tests.harness.grpc_calls import create, publish, status_of, stored
from tests.harness.stub import Stub

ROUNDS = 3
FAST_S = 5.0
"""A refusal that needs no waiting, on a busy machine."""


class Publisher:
    """Publishes through one PublishAsync call all the time, whatever happens, and keeps what it is told."""

    def __init__(self, stub: Stub, stream: str) -> None:
        self.acked: dict[bytes, int] = {}
        self.refused: list[str] = []
        self._stream = stream
        self._stop = threading.Event()
        self._sent = 0
        self._responses = stub.PublishAsync(self._requests(), timeout=300)
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def _requests(self) -> Iterator[api.PublishRequest]:
        while not self._stop.wait(0.001):
            self._sent += 1
            name = str(self._sent)
            yield api.PublishRequest(
                stream=self._stream, value=name.encode(), correlationId=name, ackPolicy=api.ALL, expectedOffset=-1
            )

    def _receive(self) -> None:
        for response in self._responses:
            if response.HasField("asyncError"):
                self.refused.append(response.asyncError.message)
            else:
                assert response.ack.ackError == 0
                self.acked[response.ack.correlationId.encode()] = response.ack.offset

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def probe(stub: Stub) -> tuple[grpc.StatusCode, str]:
    """A publish that waits a moment only: one on its way when NATS dies has no other answer to hope for."""
    return status_of(lambda: publish(stub, "probe", timeout=2.0))


def check_refused_fast(stub: Stub) -> None:
    """As soon as the broker has noticed."""
    assert poll(lambda: "failed to publish to NATS" in probe(stub)[1])
    begin = time.monotonic()
    code, text = status_of(lambda: publish(stub, "probe"))
    assert (code, time.monotonic() - begin < FAST_S) == (grpc.StatusCode.UNKNOWN, True)
    what, why = text.split(": ", 1)
    assert what == "failed to publish to NATS"
    assert re.search("connection|closed|NATS", why)


def check_accepted_again(stub: Stub) -> None:
    assert poll(lambda: probe(stub)[0] is grpc.StatusCode.OK)


def check_goes_on(publisher: Publisher) -> None:
    goal = len(publisher.acked) + 100
    assert poll(lambda: len(publisher.acked) >= goal), "the same call goes on when NATS is back"


def check_stored(stub: Stub, publisher: Publisher) -> None:
    at = {message.offset: message.value for message in stored(stub, "orders")}
    assert sorted(at) == list(range(len(at)))
    lost = [value for value, offset in publisher.acked.items() if at.get(offset) != value]
    assert not lost, f"{len(lost)} of {len(publisher.acked)} acked messages are gone or moved: {lost[:5]}"
    order = [int(value) for _, value in sorted(at.items())]
    assert order == sorted(set(order)), "the order of one publisher was not kept"


def embedded_server(broker: BrokerProcess) -> psutil.Process | None:
    children = [child for child in psutil.Process(broker.pid).children() if child.name() == "nats-server"]
    return children[0] if children else None


def test_an_external_server_killed_and_started_again_under_load(tmp_path: Path) -> None:
    with (
        start_nats(tmp_path) as nats,
        start_broker(tmp_path, nats_url=nats.nats_url) as broker,
        Stub(broker.address) as stub,
    ):
        create(stub, "probe")
        create(stub, "orders")
        follow = api.SubscribeRequest(stream="orders", startPosition=api.EARLIEST)
        subscription = stub.Subscribe(follow, timeout=300)
        assert next(subscription) == api.Message()
        with Publisher(stub, "orders") as publisher:
            for number in range(ROUNDS):
                check_goes_on(publisher)
                nats.kill9()
                check_refused_fast(stub)
                acked = len(publisher.acked)
                assert len(stored(stub, "orders")) >= acked > 0, "reading goes on without NATS"
                name = f"made-without-nats-{number}"
                create(stub, name)
                nats.start().wait_ready()
                check_accepted_again(stub)
                assert publish(stub, name).offset == 0
            check_goes_on(publisher)
        assert publisher.refused
        assert all(text.startswith("failed to publish to NATS: ") for text in publisher.refused)
        check_stored(stub, publisher)
        received = [next(subscription).offset for _ in range(max(publisher.acked.values()) + 1)]
        assert received == list(range(len(received))), "the subscriber missed nothing"
        subscription.cancel()
        assert "connected to NATS again" in broker.logs()


def test_an_embedded_server_that_is_killed_is_reported_and_comes_back_where_it_was(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker, Stub(broker.address) as stub:
        create(stub, "probe")
        create(stub, "orders")
        with Publisher(stub, "orders") as publisher:
            for _ in range(ROUNDS):
                check_goes_on(publisher)
                assert poll(lambda: embedded_server(broker) is not None)
                server = embedded_server(broker)
                assert server is not None
                server.kill()
                server.wait(30)
                acked = len(publisher.acked)
                assert len(stored(stub, "orders")) >= acked > 0
                check_accepted_again(stub)
            check_goes_on(publisher)
        check_stored(stub, publisher)
        log = broker.logs()
        assert log.count("the embedded NATS server ended with code -9 and is started again") == ROUNDS
        assert log.count(f"the embedded NATS server runs again, at {broker.nats_url}") == ROUNDS
        assert broker.terminate() == 0
        assert broker.logs().count("ended with code") == ROUNDS, "being stopped is no death"


def test_a_broker_whose_nats_port_was_taken_meanwhile_uses_the_server_there(tmp_path: Path) -> None:
    """Held first, so that the other one can take the port before ours comes back to it."""
    with start_broker(tmp_path) as broker, Stub(broker.address) as stub:
        create(stub, "probe")
        server = embedded_server(broker)
        assert server is not None
        broker.pause()
        server.kill()
        port = int(broker.nats_url.rpartition(":")[2])
        assert poll(lambda: server.status() == psutil.STATUS_ZOMBIE)
        with start_nats(tmp_path, port=port):
            broker.resume()
            check_accepted_again(stub)
            assert poll(lambda: "is in use by another program" in broker.logs())
            os.kill(broker.pid, signal.SIGTERM)
            assert broker.process is not None
            assert broker.process.wait(30) == 0
