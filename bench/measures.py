"""What is measured: one entry per measure, each a call of the load driver against one of the servers.

A measure makes its own stream and removes it, except for reading: that happens on a stream filled once. Both
sides get the same count, size of values (128 bytes) and messages in flight (1 000, over all publishers unless the
name says otherwise).
"""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bascule.testing.golang import build_go
from bascule.testing.processes import Process, poll
from bench.failover import whole, worst_stall_s
from bench.servers import REPLICAS, Servers, cpu_seconds, tree_cpu_seconds

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
    """Of the server processes themselves."""
    server_us: float
    """With the NATS server that brokers need."""
    p50_us: float = 0.0
    p99_us: float = 0.0
    stall_s: float = 0.0
    """The longest time in which nothing was acked, where that is what is measured: then there is no rate."""


class Field:
    """The servers and the driver, ready to measure."""

    def __init__(self, servers: Servers, scale: float) -> None:
        self.servers = servers
        self.scale = scale
        self.driver = build_go(ROOT / "bench" / "driver", ROOT / ".bin" / "bench-driver")
        self._filled: set[str] = set()
        self._python_filled: set[tuple[str, str]] = set()

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

    def sample(
        self, command: str, servers: Sequence[Process], beside: Sequence[Process] = (), /, **flags: object
    ) -> Sample:
        """Run the driver and charge the servers with the processor time they and those beside them used meanwhile."""

        def used() -> tuple[float, float]:
            alone = sum(cpu_seconds(server.pid) for server in servers)
            return alone, sum(tree_cpu_seconds(server.pid) for server in (*servers, *beside))

        broker, tree = used()
        measured = self.drive(command, **flags)
        broker, tree = (after - before for after, before in zip(used(), (broker, tree), strict=True))
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
            return self.sample(command, [broker], **flags, **stream)
        finally:
            self.drive("delete", **stream)

    def jetstream(self, command: str, count: int, *, sync_always: bool = False) -> Sample:
        server = self.servers.jetstream(sync_always=sync_always)
        name = f"bench-{next(_names)}"
        stream = {"nats": server.nats_url, "stream": name, "subject": name}
        try:
            return self.sample(command, [server], count=self.count(count), **stream)
        finally:
            self.drive("jetstream-delete", **stream)

    def replicated(self, command: str, count: int, rate: int = 0) -> Sample:
        """A command that publishes with ack ALL, on a stream with a replica on each of three brokers."""
        cluster = self.servers.bascule_cluster()
        name = f"bench-{next(_names)}"
        stream = {"address": cluster.addresses[0], "stream": name, "subject": name, "replicas": REPLICAS}
        self.drive("create", **stream)
        try:
            asyncio.run(whole(cluster, name))
            flags: dict[str, object] = {"nats": cluster.nats.nats_url, "policy": "ALL", "count": self.count(count)}
            flags |= _steady(rate)
            brokers = list(cluster.brokers.values())
            return self.sample(command, brokers, [cluster.nats], **flags, **stream)
        finally:
            self.drive("delete", **stream)

    def jetstream_replicated(self, command: str, count: int, rate: int = 0) -> Sample:
        cluster = self.servers.jetstream_cluster()
        name = f"bench-{next(_names)}"
        stream = {"nats": cluster.nats_urls, "stream": name, "subject": name, "replicas": REPLICAS}
        if not poll(lambda: self._deletes(stream)):
            raise RuntimeError(f"the JetStream cluster is not ready:\n{cluster.servers[0].log_tail()}")
        try:
            return self.sample(command, cluster.servers, count=self.count(count), **_steady(rate), **stream)
        finally:
            self.drive("jetstream-delete", **stream)

    def _deletes(self, stream: dict[str, object]) -> bool:
        """Whether a stream can be made and removed: a cluster has a leader only some time after its servers answer."""
        try:
            self.drive("jetstream-delete", timeout="2s", **stream)
        except RuntimeError:
            return False
        return True

    def fail_over(self, kills: int) -> Sample:
        name, kills = f"bench-{next(_names)}", max(1, int(kills * self.scale))
        stall_s = asyncio.run(worst_stall_s(self.servers.bascule_cluster(), name, kills))
        return Sample(rate=0.0, driver_us=0.0, broker_us=0.0, server_us=0.0, stall_s=stall_s)

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
        return self.sample(command, [broker], address=broker.address, stream=name, count=self.count(count))

    def python(self, client: str, way: str, count: int, *, sync_always: bool = False) -> Sample:
        """A program in Python, which says itself what it cost. One that reads has what another one wrote before."""
        server: Process
        if client == "jetstream":
            server = self.servers.jetstream(sync_always=sync_always)
            address = server.nats_url
        else:
            server = self.servers.broker("group")
            address = server.address
        count = self.count(count)
        filled = FILLED.get(way)
        if filled is None:
            name = f"bench-{next(_names)}"
        else:
            filler = "jetstream" if client == "jetstream" else "bascule"
            name = f"{filled}-{count}"
            if (filler, name) not in self._python_filled:
                _python(filler, filled, address, name, count)
                self._python_filled.add((filler, name))
        measured = _python(client, way, address, name, count)
        messages = measured["messages"]
        return Sample(
            rate=messages / measured["seconds"],
            driver_us=measured["cpu_seconds"] / messages * 1e6,
            broker_us=0.0,
            server_us=0.0,
        )

    def consume(self, count: int, pull: int = 0) -> Sample:
        server = self.servers.jetstream()

        def fill(name: str) -> None:
            self.drive("jetstream-lean", nats=server.nats_url, count=self.count(count), stream=name, subject=name)

        name = self.stored("jetstream", fill)
        flags = {"stream": name, "subject": name, "count": self.count(count), "pull": pull}
        return self.sample("jetstream-consume", [server], nats=server.nats_url, **flags)


def _python(client: str, way: str, address: str, stream: str, count: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.pythonclients", client, way, address, stream, str(count)],
        capture_output=True,
        text=True,
        timeout=DRIVER_TIMEOUT_S,
        check=False,
        cwd=ROOT,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the Python client {client} failed, {way}: {done.stderr.strip()[-2000:]}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def _steady(rate: int) -> dict[str, int]:
    return {"rate": rate} if rate else {}


@dataclass(frozen=True)
class Measure:
    name: str
    run: Callable[[Field], Sample]


ACKED = 400_000
SYNCED = 5_000
PLAIN = 1_500_000
READ = 1_500_000
WRITTEN = 1_500_000
STEADY = 15_000
STEADY_RATE = 5_000  # the driver's own
REPLICATED = 200_000
REPLICATED_STEADY = 10_000
REPLICATED_RATE = 2_000
KILLS = 4  # a round: 20 in the usual five

FILLED = {
    "iterated": "filled",
    "iterated-in-batches": "filled",
    "columns": "filled",
    "iterated-keyed": "filled-keyed",
}
"""Programs that read, and those that write what they read."""


def _of_python(client: str, way: str, count: int, text: str, server: str = "", *, sync_always: bool = False) -> Measure:
    made_by = {"bascule": "Bascule", "jetstream": "nats-py", "gufo": "gufo_liftbridge"}[client]
    return Measure(
        f"Python, {made_by}{server}: {text}",
        lambda field: field.python(client, way, count, sync_always=sync_always),
    )


PYTHON = (
    _of_python("bascule", "awaited", 2_000, "awaited one by one"),
    _of_python("jetstream", "awaited", 5_000, "awaited one by one"),
    _of_python("jetstream", "awaited", 2_000, "awaited one by one", ", sync always", sync_always=True),
    _of_python("gufo", "awaited", 2_000, "awaited one by one"),
    _of_python("bascule", "gathered", 40_000, "gathered"),
    _of_python("jetstream", "gathered", 40_000, "gathered"),
    _of_python("bascule", "pipelined", 300_000, "pipelined"),
    _of_python("bascule", "pipelined-keyed", 300_000, "pipelined, key and headers"),
    _of_python("bascule", "produced", 100_000, "producer"),
    _of_python("bascule", "produced-keyed", 100_000, "producer, key and headers"),
    _of_python("jetstream", "pipelined", 40_000, "pipelined"),
    _of_python("jetstream", "pipelined-keyed", 40_000, "pipelined, key and headers"),
    _of_python("gufo", "pipelined", 10_000, "pipelined"),
    _of_python("bascule", "iterated", 500_000, "iterated"),
    _of_python("bascule", "iterated-keyed", 500_000, "iterated, key and headers"),
    _of_python("jetstream", "iterated", 50_000, "iterated"),
    _of_python("jetstream", "iterated-keyed", 50_000, "iterated, key and headers"),
    _of_python("gufo", "iterated", 20_000, "iterated"),
    _of_python("bascule", "columns", 3_000_000, "Arrow batches"),
)
"""Of these the processor time of the program counts."""

MEASURES = {
    measure.name: measure
    for measure in (
        Measure("envelopes, group", lambda field: field.bascule("group", "envelopes", ACKED)),
        Measure("envelopes, os", lambda field: field.bascule("os", "envelopes", ACKED)),
        Measure("numbered envelopes, group", lambda field: field.bascule("group", "numbered", ACKED)),
        Measure("JetStream async", lambda field: field.jetstream("jetstream", ACKED)),
        Measure("JetStream lean client", lambda field: field.jetstream("jetstream-lean", ACKED)),
        Measure("JetStream sync always", lambda field: field.jetstream("jetstream", SYNCED, sync_always=True)),
        Measure("gRPC PublishAsync, group", lambda field: field.bascule("group", "grpc", ACKED)),
        Measure("bulk Write, group", lambda field: field.bascule("group", "bulk-write", WRITTEN)),
        Measure("plain NATS, group", lambda field: field.bascule("group", "plain", PLAIN)),
        Measure("Subscribe, decoded", lambda field: field.subscribe("subscribe", READ)),
        Measure("Subscribe, undecoded", lambda field: field.subscribe("subscribe-raw", READ)),
        Measure("bulk Read", lambda field: field.subscribe("bulk-read", READ)),
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
        Measure("ack ALL, three brokers", lambda field: field.replicated("envelopes", REPLICATED)),
        Measure("JetStream R3, async", lambda field: field.jetstream_replicated("jetstream", REPLICATED)),
        Measure("JetStream R3, lean client", lambda field: field.jetstream_replicated("jetstream-lean", REPLICATED)),
        Measure("latency, ack ALL", lambda field: field.replicated("latency", REPLICATED_STEADY, REPLICATED_RATE)),
        Measure(
            "latency, JetStream R3",
            lambda field: field.jetstream_replicated("jetstream-latency", REPLICATED_STEADY, REPLICATED_RATE),
        ),
        Measure("kill -9 of the leader", lambda field: field.fail_over(KILLS)),
        *PYTHON,
    )
}
