"""Disks that are slow, full or failing, or remove no files."""

import asyncio
import errno
import random

from bascule.sim.faults.kinds import Family, fault
from bascule.sim.faults.strikes import Faults
from bascule.sim.host import Host

DISK = Family("disk", likely=0.4)
MISREAD = Family("misread", likely=0.2)
UNLINK = Family("unlink", likely=0.12, drawn_apart=True)


@fault(DISK)
async def slow(faults: Faults, host: Host) -> None:
    faults.note("slow", f"the disk of {host.name} is slow")
    host.disk.sync_delay_s = faults.chance.choice((0.02, 0.3))
    await asyncio.sleep(faults.chance.uniform(0.2, 2.0))
    host.disk.sync_delay_s = faults.world.scenario.sync_delay_s


@fault(DISK, weight=2, needs_sync=True)
async def eio(faults: Faults, host: Host) -> None:
    rate = faults.chance.choice((0.02, 0.2, 1.0))
    faults.note("eio", f"the disk of {host.name} fails {rate:.0%} of its calls")
    chance = random.Random(faults.chance.random())
    host.disk.injected_error = lambda path: errno.EIO if chance.random() < rate else None
    await asyncio.sleep(faults.chance.uniform(0.05, 0.8))
    host.disk.injected_error = None


@fault(MISREAD, weight=5)
async def misread(faults: Faults, host: Host) -> None:
    """Reads of any file give a wrong bit now and then, and the right one when they are repeated."""
    rate = faults.chance.choice((0.02, 0.2))
    faults.note("misread", f"the disk of {host.name} reads {rate:.0%} wrong")
    chance = random.Random(faults.chance.random())

    def wrong(path: str, data: bytes) -> bytes:
        if not data or chance.random() >= rate:
            return data
        bent = bytearray(data)
        bent[chance.randrange(len(bent))] ^= 1 << chance.randrange(8)
        return bytes(bent)

    host.disk.misread = wrong
    await asyncio.sleep(faults.chance.uniform(0.2, 2.0))
    host.disk.misread = None


@fault(DISK)
async def full(faults: Faults, host: Host) -> None:
    faults.note("full", f"the disk of {host.name} is full")
    host.disk.capacity_bytes = host.disk.used_bytes + faults.chance.randint(0, 2000)
    await asyncio.sleep(faults.chance.uniform(0.2, 2.0))
    host.disk.capacity_bytes = None


@fault(UNLINK, weight=8)
async def unlink(faults: Faults, host: Host) -> None:
    """Files of segments cannot be removed; everything else of the disk works."""
    rate = faults.chance.choice((0.3, 1.0))
    faults.note("unlink", f"the disk of {host.name} fails {rate:.0%} of the removals of segments")
    chance = random.Random(faults.chance.random())
    host.disk.unremovable = lambda path: path.endswith((".log", ".index")) and chance.random() < rate
    await faults.last(faults.chance.uniform(0.3, 4.0))
    host.disk.unremovable = None
