"""The server under test, by the settings that a file of tests declares as `SETTINGS`.

Without --address the tests start it: one broker, or --brokers of them, and one more for each other `SETTINGS`. With it
they test what runs there, and skip what they cannot see: settings that --has does not name, and everything that needs
the processes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bascule.testing.processes import BrokerProcess
from tests.harness.cluster_load import Brokers
from tests.harness.conformance import Server

NAMES = "abcdefg"
OWN_STREAMS = {"cursors.stream.partitions": "__cursors", "activity.stream.enabled": "__activity"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    foreign = config.getoption("--address") is not None
    for item in items:
        if foreign and (mark := item.get_closest_marker("differs")):
            item.add_marker(pytest.mark.skip(reason=f"Bascule differs on purpose: {mark.args[0]}"))
        if foreign and item.get_closest_marker("processes"):
            item.add_marker(pytest.mark.skip(reason="stops, kills or starts brokers, which it does not do to yours"))


class Servers:
    """One for each combination of settings, started when a test asks for it first."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._address: str | None = config.getoption("--address")
        self._nats: str | None = config.getoption("--nats")
        self._has = dict(pair.partition("=")[::2] for pair in config.getoption("--has"))
        self._brokers: int = config.getoption("--brokers")
        self._folder = folder
        self._running: dict[str, Server] = {}
        self._owned: list[Brokers | BrokerProcess] = []

    def get(self, settings: dict[str, Any]) -> Server:
        if self._address is not None:
            lacking = [f"{key}: {value}" for key, value in settings.items() if self._has.get(key) != str(value)]
            if lacking:
                pytest.skip(f"needs a server with {', '.join(lacking)}; if yours has it, say so in HAS")
            settings = {}
        key = repr(sorted(settings.items()))
        if key not in self._running:
            self._running[key] = self._started(settings)
        return self._running[key]

    def _started(self, settings: dict[str, Any]) -> Server:
        if self._address is not None:
            nats = self._nats or f"nats://{self._address.rpartition(':')[0]}:4222"
            return Server(self._address, nats, {}, {})
        server, owned = start(self._folder / str(len(self._running)), self._brokers, settings)
        self._owned.append(owned)
        return server

    def close(self) -> None:
        for server in self._running.values():
            server.close()
        for owned in self._owned:
            owned.__exit__()


def start(folder: Path, brokers: int, settings: dict[str, Any]) -> tuple[Server, Brokers | BrokerProcess]:
    """Ready, with the streams of its own that it is to have."""
    server, owned = _start(folder, brokers, settings)
    for setting, stream in OWN_STREAMS.items():
        if setting in settings:
            server.known(stream)
            if stream == "__cursors":
                server.leads_cursors()
    return server, owned


def _start(folder: Path, brokers: int, settings: dict[str, Any]) -> tuple[Server, Brokers | BrokerProcess]:
    if brokers == 1:
        broker = BrokerProcess(folder, config={"clustering.server.id": "a", **settings}).start().wait_ready()
        return Server(broker.address, broker.nats_url, settings, {"a": broker}), broker
    config = {"clustering.min.insync.replicas": 1, **settings}
    cluster = Brokers(folder, NAMES[:brokers], peers=True, config=config)  # so that -1 replicas are one on each
    return Server(cluster["a"].address, cluster.nats.nats_url, settings, cluster.brokers), cluster


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    running = Servers(request.config, tmp_path_factory.mktemp("conformance"))
    yield running
    running.close()


@pytest.fixture
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """With the settings of the file; shared with all other tests that need no others."""
    found = servers.get(getattr(request.module, "SETTINGS", {}))
    if request.node.get_closest_marker("three") and len(found) < 3:
        pytest.skip("needs a cluster of three: make conformance")
    return found


@pytest.fixture
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own, to stop and kill."""
    brokers: int = request.config.getoption("--brokers")
    if request.node.get_closest_marker("three") and brokers < 3:
        pytest.skip("needs a cluster of three: make conformance")
    server, owned = start(tmp_path, brokers, getattr(request.module, "SETTINGS", {}))
    try:
        with server:
            yield server
    finally:
        owned.__exit__()
