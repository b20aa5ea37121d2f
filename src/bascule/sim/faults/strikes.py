"""When faults happen, and to which broker. Every fault is drawn from the seed, noted in the trace, and ends by itself;
`heal` ends those that still last.
"""

import asyncio
from collections import Counter

from bascule.log.manifest import MANIFEST_SUFFIX
from bascule.sim.faults.kinds import REGISTERED
from bascule.sim.host import Host
from bascule.sim.readers import watch
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.wire.kernels import scan_records

CLAIM_TRIES, CLAIM_EVERY_S = 20, 0.2
SWAP_TRIES, SWAP_EVERY_S = 400, 0.005
SWAP_STEP_S, SWAP_STEPS = 0.002, 25
TEAR_TRIES, TEAR_EVERY_S = 250, 0.002
TEAR_SYNC_DELAY_S = 0.02


class Faults:
    def __init__(self, world: World) -> None:
        self.counts: Counter[str] = Counter()
        self.crashes = 0
        self.splits = 0
        self.world = world
        self.chance = world.chance("faults")
        self.flips = 0
        self.flipped: dict[tuple[Part, int], None] = {}
        """The damaged records. At most one copy of a record is damaged: the contract covers no more."""
        self.harmed: Host | None = None
        """The broker whose disk was lost or damaged, or that is being removed: one at a time, until all replicas are in
        sync."""
        self.joined = 0
        self.stopped = False
        self._lasting: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Start faults until `heal`."""
        scenario = self.world.scenario
        while scenario.faults:
            await asyncio.sleep(self.chance.uniform(0, 2 * scenario.fault_every_s))
            if self.stopped:
                return
            kind = self.chance.choice(scenario.faults)
            host = self._victim()
            self._lasting = [task for task in self._lasting if not task.done()]
            self._lasting.append(asyncio.get_running_loop().create_task(REGISTERED[kind].work(self, host)))

    def _victim(self) -> Host:
        """Often the controller, or the leader of a partition."""
        cluster, draw = self.world.cluster, self.chance.random()
        chosen: Host | None = None
        if draw < 0.3:
            chosen = cluster.controller
        elif draw < 0.6:
            chosen = cluster.leader(self.chance.choice(self.world.parts()))
        return chosen or cluster.any_host(self.chance)

    async def heal(self) -> None:
        """No new faults; those that last end, and every broker runs."""
        self.stopped = True
        for task in self._lasting:
            await task
        conditions = self.world.nats.conditions
        if conditions is not None:
            conditions.drop = conditions.duplicate = conditions.reorder = 0.0
        for host in self.world.cluster.hosts.values():
            host.disk.heal()
            host.disk.sync_delay_s = 0.0
            host.boot()
        self.world.trace.note("heal", "no more faults")

    # --- what faults share ------------------------------------------------------------------------------------

    def note(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        self.world.trace.note("fault", text)

    async def last(self, seconds: float) -> None:
        """Wait so long, or until all faults are to end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0 and not self.stopped:
            await asyncio.sleep(min(left, 0.5))

    def kill(self, host: Host) -> None:
        self.crashes += 1
        host.kill(self.chance)

    def cut_power(self, host: Host) -> None:
        self.crashes += 1
        if self.world.scenario.sync.relaxed:
            self.world.omniscience.lost(host, asyncio.get_running_loop().time())
        self.world.omniscience.power_goes(host)
        host.power_off(self.chance)

    async def amid_write(self, *hosts: Host) -> None:
        """Often the power goes just while one of them writes several records in several sectors, which is a rare
        moment: it is waited for, and the disks take their time, so that more comes together."""
        if self.chance.random() < 0.3:
            return
        for _ in range(TEAR_TRIES):
            for host in hosts:
                host.disk.sync_delay_s = max(host.disk.sync_delay_s, TEAR_SYNC_DELAY_S)
            if self.stopped or any(map(_writes_several, hosts)):
                break
            await asyncio.sleep(TEAR_EVERY_S)
        for host in hosts:
            host.disk.sync_delay_s = self.world.scenario.sync_delay_s

    async def amid_swap(self, host: Host) -> bool:
        """Whether this broker replaces small segments by a new one. That is a short moment: it is waited for, and the
        disk takes its time meanwhile."""
        usual, host.disk.latency_s = host.disk.latency_s, lambda: SWAP_STEP_S
        try:
            for _ in range(SWAP_TRIES):
                if self.stopped:
                    break
                if any(MANIFEST_SUFFIX in path for path in host.disk.paths()):
                    await asyncio.sleep(SWAP_STEP_S * self.chance.randrange(SWAP_STEPS))
                    return True
                await asyncio.sleep(SWAP_EVERY_S)
        finally:
            host.disk.latency_s = usual
        return False

    async def come_back(self, host: Host) -> None:
        await asyncio.sleep(self.chance.choice((0.0, 0.05, 0.5)))
        host.boot()

    async def ask(self, host: Host) -> None:
        """A client asks this broker for the high watermarks of the partitions it leads."""
        for part in self.world.parts():
            if self.world.cluster.leader(part) is host:
                await watch(self.world, part, 0.02)

    def claim(self, host: Host, whole: bool = True) -> bool:
        """Whether this broker may lose data for good now: no other broker has lost any, the voters of Raft have a
        majority without it, and with `whole` all other replicas are in sync."""
        if self.harmed is not None or (whole and self.world.missing) or not self.world.cluster.votes_without(host):
            return False
        self.harmed = host
        return True

    async def claimed(self, host: Host) -> bool:
        """As `claim`, tried again for a while."""
        for _ in range(CLAIM_TRIES):
            if self.stopped or self.world.cluster.hosts.get(host.name) is not host:
                return False
            if self.claim(host):
                return True
            await asyncio.sleep(CLAIM_EVERY_S)
        return False

    async def recovered(self) -> None:
        """Wait until the harmed broker has everything again."""
        while self.world.missing and not self.stopped:
            await asyncio.sleep(0.1)
        self.harmed = None


def _writes_several(host: Host) -> bool:
    pieces = host.disk.torn_by_power_loss("streams")
    return any(scan_records(piece, 0, len(piece), 0)[1] > 1 for piece in pieces)
