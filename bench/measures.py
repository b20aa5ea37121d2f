"""What is measured: one entry per measure, each a call of the load driver against one of the servers.

A measure makes its own stream and removes it, except for reading: that happens on a stream filled once. Both
sides get the same count, size of values (128 bytes) and messages in flight (1 000, over all publishers unless the
name says otherwise).
"""

import itertools
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bascule.testing.golang import build_go
from bascule.testing.processes import Process
from bench.servers import Servers, cpu_seconds, tree_cpu_seconds

ROOT = Path(__file__).parent.parent
DRIVER_TIMEOUT_S = 300
PARTITIONS = 100
WINDOW = 1000
TUNED_PULL = 5000  # the fastest of 500, 1 000, 5 000 and 20 000

_names = itertools.count()


@dataclass(frozen=True)
class Sample:
    """One run of one measure. The CPU times are microseconds a message."""

    rate: float
    driver_us: float
    broker_us: float
    """Of the server process itself."""
    server_us: float
    """With its children: a broker and its embedded NATS server."""
    p50_us: float = 0.0
    p99_us: float = 0.0


class Field:
    """The servers and the driver, ready to measure."""

    def __init__(self, servers: Servers, scale: float) -> None:
        self.servers = servers
        self.scale = scale
        self.driver = build_go(ROOT / "bench" / "driver", ROOT / ".bin" / "bench-driver")
        self._filled: set[str] = set()

    def count(self, full: int) -> int:
        return max(PARTITIONS, int(full * self.scale))

    def drive(self, command: str, **flags: object) -> dict[str, float]:
        arguments = [f"-{name}={value}" for name, value in flags.items()]
        done = subprocess.run(
            [str(self.driver), command, *arguments],
            capture_output=True,
            text=True,
            timeout=DRIVER_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the load driver failed: {done.stderr.strip()}")
        measured: dict[str, float] = json.loads(done.stdout)
        return measured

    def sample(self, server: Process, command: str, **flags: object) -> Sample:
        """Run the driver and charge the server with the processor time it used meanwhile."""
        broker, tree = cpu_seconds(server.pid), tree_cpu_seconds(server.pid)
        measured = self.drive(command, **flags)
        broker, tree = cpu_seconds(server.pid) - broker, tree_cpu_seconds(server.pid) - tree
        messages = measured["messages"]
        return Sample(
            rate=messages / measured["seconds"],
            driver_us=measured["cpu_seconds"] / messages * 1e6,
            broker_us=broker / messages * 1e6,
            server_us=tree / messages * 1e6,
            p50_us=measured.get("p50_us", 0.0),
            p99_us=measured.get("p99_us", 0.0),
        )

    def bascule(self, sync: str, command: str, count: int, partitions: int = 1, window: int = WINDOW) -> Sample:
        """A command that publishes, on a stream of its own, with `window` messages in flight over all partitions."""
        broker = self.servers.broker(sync)
        name = f"bench-{next(_names)}"
        stream = {"address": broker.address, "stream": name, "subject": name, "partitions": partitions}
        self.drive("create", **stream)
        try:
            flags = {"nats": broker.nats_url, "count": self.count(count), "window": window}
            return self.sample(broker, command, **flags, **stream)
        finally:
            self.drive("delete", **stream)

    def jetstream(self, command: str, count: int, *, sync_always: bool = False) -> Sample:
        server = self.servers.jetstream(sync_always=sync_always)
        name = f"bench-{next(_names)}"
        stream = {"nats": server.nats_url, "stream": name, "subject": name}
        try:
            return self.sample(server, command, count=self.count(count), **stream)
        finally:
            self.drive("jetstream-delete", **stream)

    def stored(self, side: str, fill: Callable[[str], None]) -> str:
        """The name of a stream with messages to read, filled when first asked for."""
        name = f"stored-{self.count(READ)}"
        if side not in self._filled:
            fill(name)
            self._filled.add(side)
        return name

    def subscribe(self, command: str, count: int) -> Sample:
        broker = self.servers.broker("group")

        def fill(name: str) -> None:
            stream = {"address": broker.address, "stream": name, "subject": name}
            self.drive("create", **stream)
            self.drive("envelopes", nats=broker.nats_url, count=self.count(count), **stream)

        name = self.stored("bascule", fill)
        return self.sample(broker, command, address=broker.address, stream=name, count=self.count(count))

    def consume(self, count: int, pull: int = 0) -> Sample:
        server = self.servers.jetstream()

        def fill(name: str) -> None:
            self.drive("jetstream-lean", nats=server.nats_url, count=self.count(count), stream=name, subject=name)

        name = self.stored("jetstream", fill)
        flags = {"stream": name, "subject": name, "count": self.count(count), "pull": pull}
        return self.sample(server, "jetstream-consume", nats=server.nats_url, **flags)


@dataclass(frozen=True)
class Measure:
    name: str
    run: Callable[[Field], Sample]


ACKED = 400_000
SYNCED = 5_000
PLAIN = 1_500_000
READ = 1_500_000
STEADY = 15_000

MEASURES = {
    measure.name: measure
    for measure in (
        Measure("envelopes, group", lambda field: field.bascule("group", "envelopes", ACKED)),
        Measure("envelopes, os", lambda field: field.bascule("os", "envelopes", ACKED)),
        Measure("JetStream async", lambda field: field.jetstream("jetstream", ACKED)),
        Measure("JetStream lean client", lambda field: field.jetstream("jetstream-lean", ACKED)),
        Measure("JetStream sync always", lambda field: field.jetstream("jetstream", SYNCED, sync_always=True)),
        Measure("gRPC PublishAsync, group", lambda field: field.bascule("group", "grpc", ACKED)),
        Measure("plain NATS, group", lambda field: field.bascule("group", "plain", PLAIN)),
        Measure("Subscribe, decoded", lambda field: field.subscribe("subscribe", READ)),
        Measure("Subscribe, undecoded", lambda field: field.subscribe("subscribe-raw", READ)),
        Measure("JetStream ordered consumer", lambda field: field.consume(READ)),
        Measure("JetStream tuned consumer", lambda field: field.consume(READ, TUNED_PULL)),
        Measure(
            "100 publishers, 10 in flight each", lambda field: field.bascule("group", "envelopes", ACKED, PARTITIONS)
        ),
        Measure(
            "100 publishers, 1 000 in flight each",
            lambda field: field.bascule("group", "envelopes", ACKED, PARTITIONS, PARTITIONS * WINDOW),
        ),
        Measure("latency, group", lambda field: field.bascule("group", "latency", STEADY)),
        Measure("latency, JetStream", lambda field: field.jetstream("jetstream-latency", STEADY)),
    )
}
