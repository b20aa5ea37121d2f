"""What goes wrong, when, and for how long. Every fault is drawn from the seed, noted in the trace, and ends by itself;
`heal` ends all that still last.
"""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

from bascule.errors import PeerError, Status
from bascule.sim.history import StreamInfo
from bascule.sim.host import Host
from bascule.sim.readers import watch
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.testing.bus import MemoryBus
from bascule.wire.kernels import decode_records, scan_records
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.raft import decode_message
from bascule.wire.raft_messages import VoteRequest
from bascule.wire.record import FRAME_PREFIX_BYTES, Record

Fault = Callable[[Host], Coroutine[Any, Any, None]]
MAX_JOINS = 2
MAX_FLIPS = 5
"""In one run: each may cost a record, and too few would be left to check."""


class Faults:
    def __init__(self, world: World) -> None:
        self.count = 0
        self.crashes = 0
        self.splits = 0
        self._world = world
        self._chance = world.chance("faults")
        self._flips = 0
        self._flipped: dict[tuple[Part, int], None] = {}
        """Of one record one copy is damaged, not two: the contract says no more."""
        self._snapshot_flipped = False
        self._wiping = False
        """A disk is lost, or a broker about to go: one at a time."""
        self._joined = 0
        self._stopped = False
        self._lasting: list[asyncio.Task[None]] = []
        self._kinds: dict[str, Fault] = {
            "kill": self._kill,
            "power": self._power,
            "double": self._double,
            "restart": self._restart,
            "pause": self._pause,
            "cut": self._cut,
            "outage": self._outage,
            "hold": self._hold,
            "sever": self._sever,
            "slow": self._slow,
            "eio": self._eio,
            "full": self._full,
            "flip": self._flip,
            "clock": self._clock,
            "several": self._several,
            "blackout": self._blackout,
            "isolate": self._isolate,
            "split": self._split,
            "contest": self._contest,
            "wipe": self._wipe,
            "join": self._join,
            "drain": self._drain,
            "remove": self._remove,
        }

    async def run(self) -> None:
        """Strike until told to stop."""
        scenario = self._world.scenario
        while scenario.faults:
            await self._world.pause(self._chance, scenario.fault_every_s)
            if self._stopped:
                return
            kind = self._chance.choice(scenario.faults)
            host = self._victim()
            self._lasting = [task for task in self._lasting if not task.done()]
            self._lasting.append(asyncio.get_running_loop().create_task(self._kinds[kind](host)))

    def _victim(self) -> Host:
        """Now and then the one it hurts most."""
        cluster, draw = self._world.cluster, self._chance.random()
        chosen: Host | None = None
        if draw < 0.3:
            chosen = cluster.controller
        elif draw < 0.6:
            chosen = cluster.leader(self._chance.choice(self._world.parts()))
        return chosen or cluster.any_host(self._chance)

    async def heal(self) -> None:
        """No new faults; those that last come to their end, and every broker runs."""
        self._stopped = True
        for task in self._lasting:
            await task
        weather = self._world.nats.weather
        if weather is not None:
            weather.drop = weather.duplicate = weather.reorder = 0.0
        for host in self._world.cluster.hosts.values():
            host.disk.heal()
            host.disk.sync_delay_s = 0.0
            host.boot()
        self._world.trace.note("heal", "no more faults")

    def _note(self, text: str) -> None:
        self.count += 1
        self._world.trace.note("fault", text)

    # --- processes --------------------------------------------------------------------------------------------

    async def _kill(self, host: Host) -> None:
        self._note(f"kill -9 {host.name}")
        self.crashes += 1
        host.kill(self._chance)
        await self._come_back(host)

    async def _power(self, host: Host) -> None:
        if self._chance.random() < 0.7:
            await self._ask(host)  # what a client was told at the last moment holds like anything else
        self._note(f"power loss of {host.name}")
        self.crashes += 1
        host.power_off(self._chance)
        await self._come_back(host)
        for _ in range(20):
            if host.broker is not None:
                await self._ask(host)
                return
            await asyncio.sleep(0.02)

    async def _ask(self, host: Host) -> None:
        for part in self._world.parts():
            if self._world.cluster.leader(part) is host:
                await watch(self._world, part, 0.02)

    async def _double(self, host: Host) -> None:
        """The power goes again while the broker recovers."""
        for _ in range(self._chance.randint(2, 4)):
            await self._power(host)
            await asyncio.sleep(self._chance.uniform(0, 0.05))

    async def _come_back(self, host: Host) -> None:
        await asyncio.sleep(self._chance.choice((0.0, 0.05, 0.5)))
        host.boot()

    async def _restart(self, host: Host) -> None:
        self._note(f"clean restart of {host.name}")
        await host.stop()
        host.boot()

    async def _pause(self, host: Host) -> None:
        pause_s = self._chance.choice((0.1, 1.0, 6.0))
        self._note(f"{host.name} stands still for {pause_s} s")
        host.pause()
        await asyncio.sleep(pause_s)
        host.resume()

    async def _clock(self, host: Host) -> None:
        jump_ns = int(self._chance.uniform(-3600, 3600) * 1e9)
        self._note(f"the clock of {host.name} jumps by {jump_ns / 1e9:.3f} s")
        host.clock.skew_ns += jump_ns

    async def _several(self, host: Host) -> None:
        hosts = [other for other in self._world.cluster.hosts.values() if self._chance.random() < 0.6]
        self._note(f"kill -9 {', '.join(other.name for other in hosts)}")
        for other in hosts:
            self.crashes += 1
            other.kill(self._chance)
        for other in hosts:
            await self._come_back(other)

    async def _blackout(self, host: Host) -> None:
        """The power of all goes at once, and comes back here and there."""
        self._note("power loss of all")
        hosts = list(self._world.cluster.hosts.values())
        for other in hosts:
            self.crashes += 1
            other.power_off(self._chance)
        self._chance.shuffle(hosts)
        for other in hosts:
            await self._come_back(other)

    async def _contest(self, host: Host) -> None:
        """Two rivals that do not hear each other ask the third for its vote; it loses power as soon as it has given it
        to one, and then hears the other: who forgets a vote gives it twice."""
        hosts = list(self._world.cluster.hosts.values())
        if len(hosts) != 3 or any(not other.buses for other in hosts):
            return
        self._chance.shuffle(hosts)
        hosts.sort(key=lambda other: other.raft is not None and other.raft.is_leader)
        first, second, voter = hosts
        self._note(f"{first.name} and {second.name} contest the vote of {voter.name}")
        nats, late = self._world.nats, second.buses[0]
        pairs = ((first.name, second.name), (second.name, first.name))
        for pair in pairs:
            nats.sever(*pair)
        self._lose_power(voter)
        late.up.hold("contest")
        # A leader's word would tell the voter what it has forgotten: it hears only questions.
        nats.swallows = lambda source, target, message: (
            (source, target) == (first.name, voter.name) and not _asks_for_a_vote(message.payload)
        )
        await asyncio.sleep(1.2)
        voter.boot()
        await self._soon(lambda: first.raft is not None and first.raft.is_leader)
        self._lose_power(voter)
        voter.boot()
        await self._soon(lambda: voter.raft is not None)
        await asyncio.sleep(self._chance.uniform(0.05, 0.4))
        late.up.release("contest")
        await asyncio.sleep(1.0)
        nats.swallows = None
        for pair in pairs:
            nats.mend(*pair)

    @staticmethod
    async def _soon(condition: Callable[[], bool]) -> None:
        for _ in range(2000):
            if condition():
                return
            await asyncio.sleep(0.001)

    def _lose_power(self, host: Host) -> None:
        self.crashes += 1
        host.power_off(self._chance)

    async def _wipe(self, host: Host) -> None:
        """A disk is lost for good: one at a time, for the contract says no more."""
        if self._wiping or self._world.missing:
            return
        self._wiping = True
        self._note(f"{host.name} loses its disk")
        self.crashes += 1
        self._world.omniscience.lost(host, asyncio.get_running_loop().time())
        host.wipe()
        await self._come_back(host)
        await self._refilled()
        self._wiping = False

    async def _refilled(self) -> None:
        while self._world.missing and not self._stopped:
            await asyncio.sleep(0.1)

    async def _join(self, host: Host) -> None:
        cluster = self._world.cluster
        if len(cluster.hosts) == self._world.scenario.brokers and self._joined < MAX_JOINS:
            self._joined += 1
            name = f"broker{self._world.scenario.brokers + self._joined}"
            self._note(f"{name} joins")
            cluster.add(name, founds=False).boot()

    async def _drain(self, host: Host) -> None:
        self._note(f"{host.name} is drained")
        await self._administer("DrainBroker", admin.DrainBrokerRequest(broker=host.name))
        await asyncio.sleep(self._chance.uniform(0.2, 2.0))
        while self._world.cluster.hosts.get(host.name) is host:
            if await self._administer("UndrainBroker", admin.UndrainBrokerRequest(broker=host.name)) is not None:
                return

    async def _remove(self, host: Host) -> None:
        """As many stay as there were at first: one joined before."""
        cluster = self._world.cluster
        if self._wiping or self._world.missing or len(cluster.hosts) <= self._world.scenario.brokers:
            return
        self._wiping = True
        self._note(f"{host.name} is removed")
        done = False
        while not done:
            await self._administer("DrainBroker", admin.DrainBrokerRequest(broker=host.name), host)
            answer = await self._administer("RemoveBroker", admin.RemoveBrokerRequest(broker=host.name), host)
            done = answer is not None and admin.RemoveBrokerResponse.FromString(answer).done
        cluster.remove(host, self._chance)
        self._wiping = False

    async def _administer(self, method: str, request: Any, but: Host | None = None) -> bytes | None:
        """The answer of some broker, if there is one."""
        others = [other for other in self._world.cluster.serving() if other is not but]
        if not others:
            await asyncio.sleep(0.1)
            return None
        status, text, answers = await self._chance.choice(others).call(f"/bascule.Admin/{method}", request, 3.0)
        self._world.trace.note("change", f"{method} {request.broker}: {status.name} {text}")
        if status is not Status.OK:
            await asyncio.sleep(0.1)
        return answers[0] if answers else None

    # --- the network ------------------------------------------------------------------------------------------

    async def _cut(self, host: Host) -> None:
        """One connection is lost, as by a slow-consumer cut, and comes back."""
        bus = self._some_bus(host)
        if bus is not None:
            self.splits += 1
            self._note(f"{host.name} loses its connection for {bus.name}")
            await self._lose(bus)

    async def _lose(self, bus: MemoryBus) -> None:
        bus.disconnect()
        await asyncio.sleep(self._chance.uniform(0.01, 1.0))
        bus.reconnect()

    async def _outage(self, host: Host) -> None:
        self.splits += 1
        self._note("NATS is gone")
        self._world.nats.disconnect()
        await asyncio.sleep(self._chance.uniform(0.05, 2.0))
        self._world.nats.reconnect()

    async def _hold(self, host: Host) -> None:
        """A direction of a connection, or both, carries nothing; if that lasts the connection is given up."""
        bus = self._some_bus(host)
        if bus is None:
            return
        self.splits += 1
        up, down = self._chance.choice(((True, False), (False, True), (True, True)))
        self._note(f"{host.name}: {bus.name} carries nothing {'up ' * up}{'down' * down}")
        if up:
            bus.up.hold()
        if down:
            bus.down.hold()
        await asyncio.sleep(self._chance.uniform(0.1, 3.0))
        given_up = self._chance.random() < 0.5
        if given_up:
            bus.disconnect()
        bus.up.release()
        bus.down.release()
        if given_up:
            await asyncio.sleep(self._chance.uniform(0.01, 1.0))
            bus.reconnect()

    async def _sever(self, host: Host) -> None:
        """NATS itself is split: this host does not hear the others, or they do not hear it, or itself."""
        self.splits += 1
        others = ["", *self._world.cluster.hosts]
        other = self._chance.choice(others)
        pair = (host.name, other) if self._chance.random() < 0.5 else (other, host.name)
        self._note(f"nothing of {pair[0] or 'the clients'} reaches {pair[1] or 'the clients'}")
        self._world.nats.sever(*pair)
        await asyncio.sleep(self._chance.uniform(0.1, 3.0))
        self._world.nats.mend(*pair)

    async def _isolate(self, host: Host) -> None:
        """Neither hears the other: this host, and the rest."""
        await self._part([host], [other for other in self._world.cluster.hosts.values() if other is not host])

    async def _split(self, host: Host) -> None:
        hosts = list(self._world.cluster.hosts.values())
        self._chance.shuffle(hosts)
        cut = self._chance.randint(1, len(hosts) - 1)
        bridge = self._chance.random() < 0.3
        await self._part(hosts[:cut], hosts[cut + bridge :])

    async def _part(self, some: list[Host], others: list[Host]) -> None:
        self.splits += 1
        pairs = [pair for one in some for two in others for pair in ((one.name, two.name), (two.name, one.name))]
        self._note(f"{', '.join(host.name for host in some)} | {', '.join(host.name for host in others)}")
        for pair in pairs:
            self._world.nats.sever(*pair)
        await asyncio.sleep(self._chance.choice((0.2, 1.0, 3.0, 5.0)))
        for pair in pairs:
            self._world.nats.mend(*pair)

    def _some_bus(self, host: Host) -> MemoryBus | None:
        return self._chance.choice(host.buses) if host.buses else None

    # --- disks ------------------------------------------------------------------------------------------------

    async def _slow(self, host: Host) -> None:
        self._note(f"the disk of {host.name} is slow")
        host.disk.sync_delay_s = self._chance.choice((0.02, 0.3))
        await asyncio.sleep(self._chance.uniform(0.2, 2.0))
        host.disk.sync_delay_s = self._world.scenario.sync_delay_s

    async def _eio(self, host: Host) -> None:
        rate = self._chance.choice((0.02, 0.2, 1.0))
        self._note(f"the disk of {host.name} fails {rate:.0%} of its calls")
        chance = random.Random(self._chance.random())
        host.disk.misfortune = lambda path: errno.EIO if chance.random() < rate else None
        await asyncio.sleep(self._chance.uniform(0.05, 0.8))
        host.disk.misfortune = None

    async def _full(self, host: Host) -> None:
        self._note(f"the disk of {host.name} is full")
        host.disk.capacity_bytes = host.disk.used_bytes + self._chance.randint(0, 2000)
        await asyncio.sleep(self._chance.uniform(0.2, 2.0))
        host.disk.capacity_bytes = None

    async def _flip(self, host: Host) -> None:
        if self._flips < MAX_FLIPS:
            paths = [path for path in host.disk.paths() if path.startswith(("streams/", "metadata/"))]
            path = self._chance.choice(paths) if paths else ""
            if path.endswith(".index"):
                self._flip_anywhere(host, path)
            elif path.endswith(".log"):
                self._flip_record(host, path)
            elif path.endswith(".snapshot"):
                self._flip_snapshot(host, [other for other in paths if other.endswith(".snapshot")])

    def _flip_snapshot(self, host: Host, snapshots: list[str]) -> None:
        """The newest one, if there is another to fall back on, and once: nothing helps against the loss of both."""
        if len(snapshots) > 1 and not self._snapshot_flipped:
            self._snapshot_flipped = True
            self._flip_anywhere(host, snapshots[-1])

    def _flip_anywhere(self, host: Host, path: str) -> None:
        size = len(host.disk.durable(path))
        if size and host.disk.durable(path) == host.disk.content(path):
            self._flips += 1
            self._note(f"a bit of {path} flips")
            host.disk.flip(path, self._chance.randrange(size), self._chance.randrange(8))

    def _flip_record(self, host: Host, path: str) -> None:
        """One record that is at rest and has another one behind it: the very last one, damaged, looks like a write
        that was never finished, and only another replica could know better."""
        data = host.disk.durable(path)
        good, count, *_ = scan_records(data, 0, len(data), 0)
        if count < 2 or good < len(data) or data != host.disk.content(path)[: len(data)]:
            return
        starts = record_starts(data)
        number = self._chance.randrange(len(starts) - 1)
        start, end = starts[number], starts[number + 1]
        record = Record._make(decode_records(data, start, end, 1)[1][0])
        part = self._part_of(path, record)
        if part is None or (part, record.offset) in self._flipped or self._wiping:
            return
        self._flips += 1
        self._flipped[part, record.offset] = None
        position, bit = self._chance.randrange(start, end), self._chance.randrange(8)
        self._note(f"bit {bit} of byte {position - start} of {part} @{record.offset} flips, in {path}")
        host.disk.flip(path, position, bit)
        self._world.omniscience.destroyed(host, path.rpartition("/")[0], record.offset)
        if not self._copies(part, host):
            self._world.checker.known(part).damaged[record.offset] = None

    def _copies(self, part: Part, host: Host) -> int:
        """In-sync replicas of it on other hosts: the record comes back from them."""
        controller = self._world.cluster.controller
        metadata = controller.broker.cluster.metadata if controller is not None and controller.broker else None
        partition = metadata.partition(part.stream, part.number) if metadata is not None else None
        return sum(name != host.name for name in partition.isr) if partition is not None else 0

    def _part_of(self, path: str, record: Record) -> Part | None:
        stream: StreamInfo | None = self._world.history.streams.get(record.stream)
        return None if stream is None else Part(stream.name, stream.incarnation, record.partition)


def _asks_for_a_vote(payload: bytes) -> bool:
    try:
        return isinstance(decode_message(payload), VoteRequest)
    except PeerError:
        return False


def record_starts(data: bytes) -> list[int]:
    starts, position = [], 0
    while position < len(data):
        starts.append(position)
        position += FRAME_PREFIX_BYTES + int.from_bytes(data[position + 1 : position + FRAME_PREFIX_BYTES], "big")
    return starts
