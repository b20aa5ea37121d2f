"""A leader that is partitioned together with its publishers, as processes: two NATS servers whose route goes
through a proxy, so that both sides work on and neither receives anything from the other."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.node.membership.lease import LEASE_S, LEASE_WAIT_S, OVERDUE_S
from bascule.testing.probe import Answer, call
from bascule.testing.processes import HOST, BrokerProcess, NatsProcess, free_port, poll
from bascule.testing.proxy import Proxy
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.pb import api_pb2 as api
from tests.harness.raw_nats import RawNats

SETTLE_S = 60.0
LATE_S = 1.0
"""That this process may take to see an answer."""


class Apart:
    """Brokers a and b on one NATS server, c on another, with a route that can be blocked."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.proxy = Proxy(HOST, port)
        self.servers = [
            NatsProcess(folder / "near", more=(_cluster(port, ""),)),
            NatsProcess(folder / "far", more=(_cluster(free_port(), f"nats://{HOST}:{self.proxy.port}"),)),
        ]
        self.brokers: dict[str, BrokerProcess] = {}
        try:
            for server in self.servers:
                server.start().wait_ready()
            for name in "abc":
                url = self.servers[name == "c"].nats_url
                config = {"clustering.server.id": name}
                self.brokers[name] = BrokerProcess(folder / name, nats_url=url, seed=name == "a", config=config)
                self.brokers[name].start().wait_ready()
            self.client = RawNats(self.servers[1].nats_url)
            self.client.subscribe(b"inbox")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.proxy.heal()
        for process in (*self.brokers.values(), *self.servers):
            process.kill9()
            process.close()
        self.proxy.close()

    def ask(self, name: str, method: str, request: bytes, timeout_s: float = 5.0) -> Answer:
        return call(HOST, self.brokers[name].port, f"/proto.API/{method}", request, timeout_s)

    def publish(self, value: bytes) -> int:
        """A NATS client on the side of c publishes it with ack ALL: the error of the ack, 0 if it is stored."""
        message = api.Message(value=value, ackInbox="inbox", ackPolicy=api.ALL, correlationId=value.decode())
        self.client.publish(self.stream.encode(), encode(MsgType.PUBLISH, message.SerializeToString(), crc=True))
        while True:
            (received,) = self.client.messages(1)
            payload = decode(received.payload, MsgType.ACK)
            assert payload is not None
            ack = api.Ack.FromString(payload)
            if ack.correlationId == value.decode():
                return ack.ackError

    def create_stream_on_c(self) -> None:
        for number in range(10):
            self.stream = f"s{number}"
            request = api.CreateStreamRequest(name=self.stream, subject=self.stream, replicationFactor=1)
            assert self.ask("a", "CreateStream", request.SerializeToString(), 20.0).status == 0
            if self.folders():
                return
            asked = api.FetchMetadataRequest(streams=[self.stream]).SerializeToString()
            answer = api.FetchMetadataResponse.FromString(self.ask("a", "FetchMetadata", asked).message)
            if answer.streamMetadata[0].partitions[0].leader == "c":
                return
        raise AssertionError("c leads nothing")

    def folders(self) -> list[Path]:
        return sorted((self.brokers["c"].data_dir / "streams").glob(f"{self.stream}@*"))

    def quarantine(self) -> bytes:
        files = (self.brokers["c"].data_dir / "quarantine").rglob("*")
        return b"".join(file.read_bytes() for file in files if file.is_file())


def _cluster(port: int, route: str) -> str:
    routes = f'routes: ["{route}"]' if route else ""
    return f"cluster {{ name: apart, listen: {HOST}:{port}, no_advertise: true, {routes} }}"


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    brokers = Apart(tmp_path)
    with brokers.client:
        yield brokers
    brokers.close()


def test_a_leader_partitioned_with_its_publishers_stops_in_time_and_a_deletion_waits_for_it(apart: Apart) -> None:
    apart.create_stream_on_c()
    assert apart.publish(b"before") == api.Ack.OK
    time.sleep(OVERDUE_S)  # the controller has been asked since, so that this one is not kept
    apart.proxy.cut()
    cut_at = time.monotonic()
    answers: list[tuple[Answer, float]] = []

    def delete() -> None:
        request = api.DeleteStreamRequest(name=apart.stream).SerializeToString()
        answers.append((apart.ask("b", "DeleteStream", request, 30.0), time.monotonic()))

    deleting = threading.Thread(target=delete)
    deleting.start()
    taken: dict[bytes, float] = {}
    refused = 0
    while deleting.is_alive() or not refused:
        value = b"taken after %.3f s" % (time.monotonic() - cut_at)
        error = apart.publish(value)
        if error:
            assert error == api.Ack.UNKNOWN
            refused += 1
        else:
            assert not refused, "it takes messages again"
            taken[value] = time.monotonic()
        assert time.monotonic() < cut_at + SETTLE_S, "it takes messages for ever, or the deletion does not end"
        time.sleep(0.05)
    deleting.join()
    ((answer, deleted_at),) = answers
    assert answer.status == 0, answer.text
    assert len(taken) > 10, "hardly anything was taken within the lease"
    assert max(taken.values()) - cut_at < LEASE_S + LATE_S
    assert max(taken.values()) < deleted_at, "taken when the deletion had been answered"
    assert deleted_at - cut_at > LEASE_S - 2.0, "the deletion did not wait for a leader that takes messages"
    assert deleted_at - cut_at < LEASE_WAIT_S + 10.0
    assert poll(lambda: "this broker refuses writes" in apart.brokers["c"].logs(), SETTLE_S)
    request = api.PublishRequest(stream=apart.stream, value=b"why", ackPolicy=api.ALL).SerializeToString()
    assert poll(
        lambda: "has had no contact with the controller for 5 s" in apart.ask("c", "Publish", request).text, SETTLE_S
    )
    apart.proxy.heal()
    assert poll(lambda: not apart.folders(), SETTLE_S), "it never received the deletion"
    retained = apart.quarantine()
    assert [value for value in taken if value not in retained] == [], "acked messages were erased"
    assert b"before" not in retained, "what was there before is erased, as it was asked for"
    assert poll(lambda: "this broker takes writes" in apart.brokers["c"].logs(), SETTLE_S)
