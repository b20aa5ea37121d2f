"""Connections that are lost, hang or carry one direction only, and network partitions."""

import asyncio

from bascule.sim.faults.kinds import Family, fault
from bascule.sim.faults.strikes import Faults
from bascule.sim.host import Host
from bascule.testing.bus import MemoryBus

NETWORK = Family("network", likely=0.6)


@fault(NETWORK, weight=2)
async def cut(faults: Faults, host: Host) -> None:
    """One connection is lost, as that of a slow consumer, and made again."""
    bus = _some_bus(faults, host)
    if bus is not None:
        faults.splits += 1
        faults.note("cut", f"{host.name} loses its connection for {bus.name}")
        bus.disconnect()
        await asyncio.sleep(faults.chance.uniform(0.01, 1.0))
        bus.reconnect()


@fault(NETWORK)
async def outage(faults: Faults, host: Host) -> None:
    faults.splits += 1
    faults.note("outage", "NATS is gone")
    faults.world.nats.disconnect()
    await asyncio.sleep(faults.chance.uniform(0.05, 2.0))
    faults.world.nats.reconnect()


@fault(NETWORK, weight=2)
async def hold(faults: Faults, host: Host) -> None:
    """A direction of a connection, or both, carries nothing; if that lasts the connection is given up."""
    bus = _some_bus(faults, host)
    if bus is None:
        return
    faults.splits += 1
    up, down = faults.chance.choice(((True, False), (False, True), (True, True)))
    faults.note("hold", f"{host.name}: {bus.name} carries nothing {'up ' * up}{'down' * down}")
    if up:
        bus.up.hold()
    if down:
        bus.down.hold()
    await asyncio.sleep(faults.chance.uniform(0.1, 3.0))
    given_up = faults.chance.random() < 0.5
    if given_up:
        bus.disconnect()
    bus.up.release()
    bus.down.release()
    if given_up:
        await asyncio.sleep(faults.chance.uniform(0.01, 1.0))
        bus.reconnect()


@fault(NETWORK)
async def sever(faults: Faults, host: Host) -> None:
    """A one-way partition within NATS: messages from one host to another are lost, in either direction, or from this
    host to itself."""
    faults.splits += 1
    other = faults.chance.choice(["", *faults.world.cluster.hosts])
    pair = (host.name, other) if faults.chance.random() < 0.5 else (other, host.name)
    faults.note("sever", f"nothing of {pair[0] or 'the clients'} reaches {pair[1] or 'the clients'}")
    faults.world.nats.sever(*pair)
    await asyncio.sleep(faults.chance.uniform(0.1, 3.0))
    faults.world.nats.rejoin(*pair)


@fault(NETWORK, weight=2, several=True)
async def isolate(faults: Faults, host: Host) -> None:
    """A partition between this host and the rest."""
    faults.counts["isolate"] += 1
    await _part(faults, [host], [other for other in faults.world.cluster.hosts.values() if other is not host])


@fault(NETWORK, several=True)
async def split(faults: Faults, host: Host) -> None:
    faults.counts["split"] += 1
    hosts = list(faults.world.cluster.hosts.values())
    faults.chance.shuffle(hosts)
    cut = faults.chance.randint(1, len(hosts) - 1)
    bridge = faults.chance.random() < 0.3
    await _part(faults, hosts[:cut], hosts[cut + bridge :])


async def _part(faults: Faults, some: list[Host], others: list[Host]) -> None:
    faults.splits += 1
    pairs = [pair for one in some for two in others for pair in ((one.name, two.name), (two.name, one.name))]
    text = f"{', '.join(host.name for host in some)} | {', '.join(host.name for host in others)}"
    faults.world.trace.note("fault", text)
    for pair in pairs:
        faults.world.nats.sever(*pair)
    await asyncio.sleep(faults.chance.choice((0.2, 1.0, 3.0, 5.0)))
    for pair in pairs:
        faults.world.nats.rejoin(*pair)


def _some_bus(faults: Faults, host: Host) -> MemoryBus | None:
    return faults.chance.choice(host.buses) if host.buses else None
