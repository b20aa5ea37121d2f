"""A broker behind TLS, with certificates made on the spot."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bascule.testing.processes import BrokerProcess
from tests.harness.certificates import Authority


class TlsBroker(BrokerProcess):
    """Ready when it says so: the probe of plain brokers speaks no TLS."""

    def ready(self) -> bool:
        return "ready: clients connect to" in self.logs()


def start(folder: Path, config: Mapping[str, Any], nats_url: str | None = None) -> TlsBroker:
    broker = TlsBroker(folder / "broker", config=config, nats_url=nats_url)
    broker.start().wait_ready()
    return broker


def server_config(authority: Authority, *, clients: Authority | None = None) -> dict[str, Any]:
    cert, key = authority.issue("server")
    config: dict[str, Any] = {"tls.cert": str(cert), "tls.key": str(key)}
    if clients is not None:
        config |= {"tls.client.auth.enabled": True, "tls.client.auth.ca": str(clients.path)}
    return config
