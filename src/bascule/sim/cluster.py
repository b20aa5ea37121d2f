"""The brokers of a run, and the one function that builds a broker out of the simulated ports.

Today every broker is a cluster of its own, with a namespace of its own on the one NATS that all of them share.
"""

import random
from collections.abc import Mapping

from bascule.log.sync import GROUP, SyncMode, SyncScheduler
from bascule.node import identity
from bascule.node.api import Api
from bascule.node.assemble import Buses, Settings, assemble
from bascule.node.broker import Broker
from bascule.node.environment import StreamDefaults
from bascule.sim.history import StreamInfo
from bascule.sim.host import Handler, Host, SeededRandom
from bascule.sim.trace import Trace
from bascule.testing.bus import MemoryNats

SNAPSHOT_THRESHOLD = 3


class Builder:
    """How brokers are built in this run."""

    def __init__(self, segment_max_bytes: int, sync: SyncMode = GROUP) -> None:
        self._sync = sync
        self._defaults = StreamDefaults(
            segment_max_bytes=segment_max_bytes,
            segment_max_age_ns=0,
            min_isr=1,
            optimistic_concurrency=False,
            max_message_bytes=1 << 20,
        )

    async def __call__(self, host: Host, boot: int) -> tuple[Broker, Mapping[str, Handler]]:
        chance = SeededRandom(f"{host.seed} {host.name} {boot}")
        settings = Settings(
            broker_id=await identity.settle(host.disk, chance, ""),
            namespace=host.namespace,
            seed=True,
            peers=(),
            max_quorum=0,
            snapshot_threshold=SNAPSHOT_THRESHOLD,
            min_replication_factor=0,
            fetch_timeout_s=3.0,
            defaults=self._defaults,
        )
        buses = Buses(*(host.connect(purpose) for purpose in ("control", "streams", "publishes", "replication")))
        scheduler = SyncScheduler(host.disk, host.clock, self._sync)
        scheduler.on_pressure = buses.streams.hold
        broker = await assemble(settings, host.disk, host.clock, chance, buses, scheduler, host)
        await broker.start()
        return broker, Api(broker, host).methods()


class Cluster:
    def __init__(self, seed: int, brokers: int, nats: MemoryNats, trace: Trace, builder: Builder) -> None:
        self.nats = nats
        self.hosts = {
            name: Host(name, f"ns{number}", nats, trace, seed, builder)
            for number, name in ((number, f"broker{number}") for number in range(1, brokers + 1))
        }

    def start(self) -> None:
        for host in self.hosts.values():
            host.boot()

    def any_host(self, chance: random.Random) -> Host:
        return self.hosts[chance.choice(list(self.hosts))]

    def host_of(self, stream: StreamInfo) -> Host:
        """Where clients of this stream go."""
        return self.hosts[stream.host]

    @property
    def elections(self) -> int:
        """Leaders chosen: none, for a broker alone leads all it has."""
        return 0
