"""What TLS connections cost a real broker: while they are open, and when they are gone."""

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bascule.testing.processes import HOST, BrokerProcess, poll, start_broker
from tests.harness.certificates import Authority

CONNECTIONS = 300
ROUNDS = 5
MAX_KB_BEFORE_HANDSHAKE = 40.0
MAX_KB_IN_HANDSHAKE = 80.0
MAX_KB_AFTER_HANDSHAKE = 110.0
MAX_LEFT_MB = 40.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def broker(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    cert, key = authority.issue("server")
    monkeypatch.setattr(BrokerProcess, "ready", lambda self: _listens(self.port))
    with start_broker(tmp_path, config={"tls.cert": str(cert), "tls.key": str(key)}) as running:
        yield running


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
        return True
    except OSError:
        return False


def resident_kb(broker: BrokerProcess) -> float:
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1])
    raise AssertionError("no VmRSS")


def silent(broker: BrokerProcess, context: ssl.SSLContext) -> socket.socket:
    """Connected, and sends nothing."""
    return socket.create_connection((HOST, broker.port), timeout=10.0)


def half(broker: BrokerProcess, context: ssl.SSLContext) -> socket.socket:
    """A handshake that is begun, answered, and left there."""
    sock = silent(broker, context)
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=HOST)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    sock.sendall(outgoing.read())
    assert sock.recv(1)
    return sock


def whole(broker: BrokerProcess, context: ssl.SSLContext) -> socket.socket:
    sock = context.wrap_socket(silent(broker, context), server_hostname=HOST)
    sock.sendall(PREFACE)
    assert sock.recv(9)
    return sock


def sockets(broker: BrokerProcess) -> int:
    folder = f"/proc/{broker.pid}/fd"
    found = 0
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # closed meanwhile
            found += os.readlink(f"{folder}/{name}").startswith("socket:")
    return found


def test_a_tls_connection_costs_little_and_leaves_less(broker: BrokerProcess, authority: Authority) -> None:
    context = authority.context()
    context.set_alpn_protocols(["h2"])
    whole(broker, context).close()  # what the first one loads stays
    idle_sockets, before = sockets(broker), resident_kb(broker)
    costs = []
    for connect in (silent, half, whole):
        now = resident_kb(broker)
        connections = [connect(broker, context) for _ in range(CONNECTIONS)]
        costs.append((resident_kb(broker) - now) / CONNECTIONS)
        for each in connections:
            each.close()
        assert poll(lambda: sockets(broker) <= idle_sockets, 30.0)
    assert costs[0] < MAX_KB_BEFORE_HANDSHAKE
    assert costs[1] < MAX_KB_IN_HANDSHAKE
    assert costs[2] < MAX_KB_AFTER_HANDSHAKE
    for _ in range(ROUNDS):
        for connect in (whole, half, silent):
            for each in [connect(broker, context) for _ in range(CONNECTIONS)]:
                each.close()
    assert poll(lambda: sockets(broker) <= idle_sockets, 30.0)
    left_mb = (resident_kb(broker) - before) / 1024
    assert left_mb < MAX_LEFT_MB, f"{costs} KB a connection, {left_mb:.0f} MB left"
