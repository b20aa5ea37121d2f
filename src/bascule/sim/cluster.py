"""The brokers of a run, and the one function that builds a broker out of the simulated ports."""

import random
from collections.abc import Callable, Mapping

from bascule.limits import MIB
from bascule.node.config.broker import (
    ActivitySettings,
    BrokerSettings,
    CursorSettings,
    GroupSettings,
    StreamDefaults,
)
from bascule.node.process import identity
from bascule.node.process.assemble import assemble
from bascule.node.process.broker import Broker
from bascule.node.runtime.ports import Ports, Process
from bascule.sim.host import Handler, Host, SeededRandom
from bascule.sim.plan import Scenario
from bascule.sim.trace import Part, Trace, Violation
from bascule.testing.bus import MemoryNats

CONSUMER_TIMEOUT_S = 2.0
COORDINATOR_TIMEOUT_S = 1.0

CLEANED_EVERY_S = 0.5
NAMESPACE = "sim"
PARTITIONS_OF_CURSORS = 2


class Builder:
    """How brokers are built in this run."""

    def __init__(self, plan: Scenario, on_controller: Callable[[int, str], None]) -> None:
        self._plan = plan
        self._on_controller = on_controller
        self._defaults = StreamDefaults(
            segment_max_bytes=plan.segment_max_bytes,
            segment_max_age_ns=0,
            min_isr=plan.streams[-1].min_isr,
            optimistic_concurrency=False,
            max_message_bytes=1 << 20,
            max_lag_ns=int(plan.max_lag_s * 1e9),
            cleaner_interval_ns=int(CLEANED_EVERY_S * 1e9),
            key_map_bytes=plan.keyed.map_bytes if plan.keyed is not None else 32 * MIB,
        )

    async def __call__(self, host: Host, boot: int) -> tuple[Broker, Mapping[str, Handler]]:
        chance = SeededRandom(f"{host.seed} {host.name} {boot}")
        settings = BrokerSettings(
            broker_id=await identity.load_or_create(host.disk, chance, host.name),
            namespace=NAMESPACE,
            seed=host.founds and not self._plan.peers,
            peers=self._plan.peers if host.founds else (),
            max_quorum=self._plan.max_quorum,
            snapshot_threshold=self._plan.snapshot_threshold,
            min_replication_factor=0,
            fetch_timeout_s=3.0,
            sync=self._plan.sync,
            defaults=self._defaults,
            groups=GroupSettings(int(CONSUMER_TIMEOUT_S * 1e9), int(COORDINATOR_TIMEOUT_S * 1e9)),
            cursors=CursorSettings(PARTITIONS_OF_CURSORS, self._plan.streams[-1].replication, auto_pause_ns=0),
            activity=ActivitySettings(enabled=bool(self._plan.peers)),  # else it has the founder's replica alone
        )
        buses = [host.connect(purpose) for purpose in ("control", "streams", "publishes", "replication")]
        ports = Ports(host.disk, host.clock, chance, host, *buses)
        broker = await assemble(settings, ports, self._process(host))
        host.node, host.raft = broker, broker.cluster.raft.raft
        await broker.start()
        return broker, broker.methods

    def _process(self, host: Host) -> Process:
        def on_role(term: int, leads: bool) -> None:
            if leads:
                self._on_controller(term, host.name)

        return Process(
            on_fatal=host.die,
            on_stop=None,
            on_grown=lambda: None,
            on_files=lambda gone: None,
            on_role=on_role,
        )


class Cluster:
    def __init__(self, plan: Scenario, nats: MemoryNats, trace: Trace) -> None:
        self.nats = nats
        self.violations: list[Violation] = []
        self._plan = plan
        self._trace = trace
        self._builder = Builder(plan, self._elected)
        self._controllers: dict[tuple[str, int], str] = {}
        """The Raft leader of each term of each cluster: a seed that lost its disk may have founded a second cluster."""
        self._id = ""
        self.hosts: dict[str, Host] = {}
        for number in range(1, plan.brokers + 1):
            self.add(f"broker{number}", founds=bool(plan.peers) or number == 1)

    def add(self, name: str, founds: bool) -> Host:
        self.hosts[name] = host = Host(name, self.nats, self._trace, self._plan.seed, self._builder)
        host.founds = founds
        return host

    def remove(self, host: Host, chance: random.Random) -> None:
        """It is not a member any more, and is never started again."""
        host.kill(chance)
        host.wanted = False
        del self.hosts[host.name]

    def start(self) -> None:
        for host in self.hosts.values():
            host.boot()

    def any_host(self, chance: random.Random) -> Host:
        return self.hosts[chance.choice(list(self.hosts))]

    def serving(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.broker is not None and not host.paused]

    def founded_another(self, host: Host) -> bool:
        """A seed that lost its disk while it was partitioned has founded a cluster of its own, as documented: its
        answers are about that cluster, until it receives messages of the first one and stops. The first cluster is the
        one of the first broker that is asked about."""
        if host.broker is None:
            return False
        own = host.broker.cluster.subjects.cluster
        self._id = self._id or own
        return own != self._id

    @property
    def controller(self) -> Host | None:
        """The true one, which only the simulator can know."""
        leading = [
            host
            for host in self.serving()
            if host.broker and host.broker.cluster.raft.is_leader and not self.founded_another(host)
        ]
        return max(leading, key=lambda host: host.term, default=None)

    def leader(self, part: Part) -> Host | None:
        """The broker that leads it in the newest leader epoch."""
        leading = [
            (replica.leading.epoch, host.name)
            for host in self.hosts.values()
            if (replica := host.replica(part)) is not None and replica.leading is not None
        ]
        return self.hosts[max(leading)[1]] if leading else None

    @property
    def complete(self) -> bool:
        """All brokers are members, there are as many voters as there should be, and all serve in the same cluster."""
        controller = self.controller
        serving = [host for host in self.serving() if not self.founded_another(host)]
        if controller is None or controller.broker is None or len(serving) < len(self.hosts):
            return False
        membership = controller.broker.cluster.raft.membership
        voters = min(self._plan.max_quorum or len(self.hosts), len(self.hosts))
        odd = voters - 1 + voters % 2
        return len(membership.everyone) == len(self.hosts) and len(membership.voters) >= odd

    def votes_without(self, host: Host) -> bool:
        """Whether the voters that any broker knows of can elect without this one. After a removal there are two voters
        for a while, and both must keep their disks."""
        memberships = [each.raft.membership for each in self.hosts.values() if each.raft is not None]
        return all(sum(voter != host.name for voter in each.voters) >= each.quorum for each in memberships)

    def _elected(self, term: int, name: str) -> None:
        self._trace.note("elected", f"{name} leads Raft in term {term}")
        host = self.hosts.get(name)
        cluster = host.raft.membership.cluster if host is not None and host.raft is not None else ""
        other = self._controllers.setdefault((cluster, term), name)
        if other != name:
            self.violations.append(Violation("raft", f"{other} and {name} both lead term {term}"))

    @property
    def elections(self) -> int:
        """How many controllers were elected."""
        return len(self._controllers)
