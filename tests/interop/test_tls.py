"""A broker behind TLS, with and without client certificates, and on a NATS server that wants TLS and a password; seen
by grpcio and by our own client.
"""

import asyncio
import os
import ssl
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import grpc
import pytest

from bascule.client import Client
from bascule.errors import TlsRefused
from bascule.net.tls import client_context
from bascule.testing.processes import BrokerProcess, NatsProcess, poll, script, start_nats
from bascule.wire.pb import api_pb2 as api
from tests.harness.certificates import Authority
from tests.harness.stub import Stub
from tests.harness.tls_broker import TlsBroker, server_config, start

TIMEOUT_S = 30.0
PASSWORD = "open sesame"


def credentials(trusted: Authority, pair: tuple[Path, Path] | None = None) -> grpc.ChannelCredentials:
    cert, key = pair or (None, None)
    return grpc.ssl_channel_credentials(
        trusted.path.read_bytes(), key.read_bytes() if key else None, cert.read_bytes() if cert else None
    )


def round_trip(stub: Stub, name: str) -> None:
    """Every kind of call, with more than one TLS record of data."""
    stub.CreateStream(api.CreateStreamRequest(name=name, subject=name), timeout=TIMEOUT_S)
    value = bytes(100_000)
    ack = stub.Publish(api.PublishRequest(stream=name, value=value), timeout=TIMEOUT_S).ack
    assert ack.offset == 0
    requests = [api.PublishRequest(stream=name, value=value, ackPolicy=api.ALL) for _ in range(20)]
    offsets = [response.ack.offset for response in stub.PublishAsync(iter(requests), timeout=TIMEOUT_S)]
    assert offsets == list(range(1, 21))
    request = api.SubscribeRequest(stream=name, startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST)
    subscription = stub.Subscribe(request, timeout=TIMEOUT_S)
    received = [next(subscription) for _ in range(22)]
    assert [len(message.value) for message in received[1:]] == [100_000] * 21


def publishes(stub: Stub, name: str) -> bool:
    try:
        return bool(stub.Publish(api.PublishRequest(stream=name), timeout=2.0).HasField("ack"))
    except grpc.RpcError:
        return False


def refused(broker: BrokerProcess, given: grpc.ChannelCredentials | None) -> bool:
    with Stub(broker.address, given) as stub:
        with pytest.raises(grpc.RpcError) as caught:
            stub.FetchMetadata(api.FetchMetadataRequest(), timeout=10.0)
        return caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def own_round_trip(
    broker: BrokerProcess, tls: ssl.SSLContext | None, stream: str, timeout_s: float = TIMEOUT_S
) -> list[bytes]:
    async with await Client.connect(broker.address, tls=tls, timeout=timeout_s) as client:
        await client.create_stream(stream)
        await client.publish(stream, b"by our client")
        subscription = client.subscribe(stream, start="earliest", stop="latest")
        return [message.value async for message in subscription]


def own_refused(broker: BrokerProcess, tls: ssl.SSLContext | None) -> str:
    """The reason, said at once and not when the time is up."""
    began = time.monotonic()
    with pytest.raises(TlsRefused) as caught:
        asyncio.run(own_round_trip(broker, tls, "never", timeout_s=60.0))
    assert time.monotonic() - began < 20.0
    return str(caught.value)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def another(tmp_path: Path) -> Authority:
    (tmp_path / "another").mkdir()
    return Authority(tmp_path / "another")


def test_tls_serves_those_who_trust_its_certificate(tmp_path: Path, authority: Authority, another: Authority) -> None:
    with start(tmp_path, server_config(authority)) as broker:
        with Stub(broker.address, credentials(authority)) as stub:
            round_trip(stub, "orders")
        own = asyncio.run(own_round_trip(broker, client_context(str(authority.path)), "own"))
        assert own == [b"by our client"]
        assert refused(broker, None), "plain text on a port with TLS"
        assert refused(broker, credentials(another))
        assert "certificate" in own_refused(broker, client_context(str(another.path))).lower()
        assert broker.terminate() == 0
        assert "Traceback" not in broker.logs()


def test_client_certificates_are_asked_for_and_checked(
    tmp_path: Path, authority: Authority, another: Authority
) -> None:
    with start(tmp_path, server_config(authority, clients=authority)) as broker:
        own_pair, foreign_pair = authority.issue("client"), another.issue("client")
        with Stub(broker.address, credentials(authority, own_pair)) as stub:
            round_trip(stub, "orders")
        tls = client_context(str(authority.path), *map(str, own_pair))
        assert asyncio.run(own_round_trip(broker, tls, "own")) == [b"by our client"]
        assert refused(broker, credentials(authority)), "no certificate"
        assert refused(broker, credentials(authority, foreign_pair)), "one of another authority"
        assert "client certificate" in own_refused(broker, client_context(str(authority.path)))
        foreign = client_context(str(authority.path), *map(str, foreign_pair))
        assert "client certificate" in own_refused(broker, foreign)
        with Stub(broker.address, credentials(authority, own_pair)) as stub:
            assert len(stub.FetchMetadata(api.FetchMetadataRequest(), timeout=TIMEOUT_S).streamMetadata) == 2
        assert broker.terminate() == 0
        assert "Traceback" not in broker.logs()


def secure_nats(folder: Path, authority: Authority) -> NatsProcess:
    """Wants TLS with a client certificate, and a password."""
    cert, key = authority.issue("nats")
    server = start_nats(folder)
    server.kill9()
    (folder / "nats" / "nats.conf").write_text(
        f'host: 127.0.0.1\nport: {server.port}\nauthorization {{ user: broker, password: "{PASSWORD}" }}\n'
        f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{authority.path}", verify: true }}\n'
    )
    server.start().wait_ready()
    return server


def nats_client(authority: Authority) -> dict[str, str]:
    """The settings of a broker that such a server lets in."""
    cert, key = authority.issue("client-of-nats")
    return {
        "nats.tls.ca": str(authority.path),
        "nats.tls.cert": str(cert),
        "nats.tls.key": str(key),
        "nats.user": "broker",
        "nats.password": PASSWORD,
    }


def test_nats_with_tls_client_certificate_and_password(tmp_path: Path, authority: Authority) -> None:
    config = nats_client(authority)
    with (
        secure_nats(tmp_path, authority) as nats,
        start(tmp_path, config, nats.nats_url) as broker,
        Stub(broker.address) as stub,
    ):
        round_trip(stub, "orders")
        nats.kill9()
        nats.start().wait_ready()
        assert poll(lambda: publishes(stub, "orders")), "it comes back over TLS too"
        assert PASSWORD not in broker.logs()
        assert broker.terminate() == 0


@pytest.mark.parametrize(
    ("without", "told"),
    [("nats.tls.ca", "certificate"), ("nats.tls.cert", "TLS"), ("nats.password", "nats.user and nats.password")],
)
def test_nats_settings_that_do_not_fit_stop_the_start(
    tmp_path: Path, authority: Authority, without: str, told: str
) -> None:
    config = nats_client(authority)
    del config[without]
    if without == "nats.tls.cert":
        del config["nats.tls.key"]
    with (
        secure_nats(tmp_path, authority) as nats,
        TlsBroker(tmp_path / "broker", config=config, nats_url=nats.nats_url) as broker,
    ):
        broker.start()
        assert broker.process is not None
        assert broker.process.wait(TIMEOUT_S) == 1
        line = broker.logs().splitlines()[-1]
        assert line.startswith("error: NATS at ")
        assert told in line
        assert PASSWORD not in broker.logs()


def run_bascule(
    broker: BrokerProcess, *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [str(script("bascule")), *arguments, "--server", broker.address]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60.0, check=False, env={**os.environ, **(env or {})}
    )


def test_commands_reach_a_broker_that_wants_tls_and_a_client_certificate(
    tmp_path: Path, authority: Authority, another: Authority
) -> None:
    with start(tmp_path, server_config(authority, clients=authority)) as broker:
        cert, key = map(str, authority.issue("client"))
        options = ["--tls-ca", str(authority.path), "--tls-cert", cert, "--tls-key", key]
        published = run_bascule(broker, "pub", "--create", "orders", "by a command", *options)
        assert published.returncode == 0, published.stderr
        env = {"BASCULE_TLS_CA": str(authority.path), "BASCULE_TLS_CERT": cert, "BASCULE_TLS_KEY": key}
        read = run_bascule(broker, "sub", "orders", env=env)
        assert (read.returncode, read.stdout) == (0, "by a command\n"), read.stderr
        for words in (["stream", "list"], ["cluster", "status"], ["group", "list"]):
            answer = run_bascule(broker, *words, env=env)
            assert answer.returncode == 0, answer.stderr
        refusals = {
            "client certificate": ["--tls-ca", str(authority.path)],
            "check the CA": ["--tls-ca", str(another.path)],
            "To connect over TLS give --tls-ca or --tls": [],
            "--tls-cert and --tls-key belong together": ["--tls-ca", str(authority.path), "--tls-cert", cert],
            "--tls-ca: cannot read /nowhere": ["--tls-ca", "/nowhere"],
            "does not belong to the certificate": [*options[:4], "--tls-key", str(another.issue("other")[1])],
        }
        for told, given in refusals.items():
            refusal = run_bascule(broker, "stream", "list", *given)
            assert refusal.returncode == 1
            assert told in refusal.stderr, (told, refusal.stderr)
            assert refusal.stderr.count("\n") == 1, refusal.stderr
