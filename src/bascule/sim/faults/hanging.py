"""Disks that hang: what is written is not stored, and no error says so, until they go on."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from bascule.node.process.broker import Broker
from bascule.sim.faults.kinds import Family, fault
from bascule.sim.faults.strikes import Faults
from bascule.sim.host import Host
from bascule.sim.trace import Part

HANG = Family("hang", likely=0.15, drawn_apart=True)
TRIED = 4
"""Partitions of each stream that are written to while a disk hangs at peace."""
_NOT_TRIED = ("wild", "restricted")
"""One has no subject of its own, and the other may be read-only for as long as its client asks a broker that hangs."""


@fault(HANG, several=True)
async def hang(faults: Faults, host: Host) -> None:
    """A while, in the midst of everything; and once more at peace, see below."""
    if host.disk.hanging is None:
        with _hanging(faults, host):
            await faults.last(faults.chance.uniform(0.3, 6.0))


@contextmanager
def hanging_at_peace(faults: Faults) -> Iterator[list[Part]]:
    """When all faults are over the disk of one broker hangs inside the `with` block, which begins with partitions that
    do not need it: another broker leads them, and enough others are in sync. So it has to leave their in-sync sets."""
    world = faults.world
    controller = world.cluster.controller
    hosts = [host for host in world.cluster.serving() if host is not controller and host.disk.hanging is None]
    if controller is None or controller.broker is None or not hosts:
        yield []
        return
    host = world.chance("hang at peace").choice(hosts)
    with _hanging(faults, host):
        yield [
            part
            for stream in world.history.streams.values()
            for part in stream.parts()[:TRIED]
            if _spares(controller.broker, host, part, stream.min_isr, world.scenario.sync.relaxed)
        ]


@contextmanager
def _hanging(faults: Faults, host: Host) -> Iterator[None]:
    faults.note("hang", f"the disk of {host.name} hangs")
    host.disk.hanging = released = asyncio.Event()
    try:
        yield
    finally:
        host.disk.hanging = None
        released.set()
        faults.world.trace.note("fault", f"the disk of {host.name} goes on")


def _spares(controller: Broker, host: Host, part: Part, min_isr: int, relaxed: bool) -> bool:
    """Whether the partition needs nothing of this broker. A paused one may: nobody has compared its logs since their
    brokers lost power, and under relaxed sync only this one may be whole."""
    item = controller.cluster.metadata.partition(part.stream, part.number)
    if item is None or part.stream in _NOT_TRIED or (relaxed and item.paused):
        return False
    return len([each for each in item.isr if each != host.name]) >= min_isr
