"""Folders that are gone when a broker starts again, and restarts of brokers that wait for another one.

Within the contract: on one broker at a time, and only what another replica in sync has on its disk. That nobody leads
with less is for the broker to see: neither the folder nor a clean shutdown says that records are missing.
"""

import asyncio

from bascule.log import cachedends, promised
from bascule.sim.faults.kinds import Family, fault
from bascule.sim.faults.strikes import Faults
from bascule.sim.faults.vanish import removable
from bascule.sim.host import Host

MAX_LATE_S = 12.0
WATCHED_S = 10.0
REST = Family("rest", likely=0.12, drawn_apart=True)


@fault(REST, weight=8, several=True, needs_sync=True, needs_copies=True)
async def gone_at_rest(faults: Faults, host: Host) -> None:
    """All brokers go; a partition of one is gone when it starts, sometimes with all that is on record about ends. One
    of the others comes late, and whoever waits for it is restarted in good order."""
    if not await faults.claimed(host):
        return
    chance = faults.chance
    hosts = list(faults.world.cluster.hosts.values())
    for other in hosts:
        if chance.random() < 0.5:
            faults.kill(other)
        else:
            faults.cut_power(other)
    await asyncio.sleep(0)
    found = None if host.running else removable(faults, host)
    if found is not None:
        folder, offsets = found
        ends = chance.random() < 0.5
        what = f"{folder}{' and the promised ends' if ends else ''}"
        faults.note("gone_at_rest", f"{what} of {host.name}, offsets {min(offsets)} to {max(offsets)}")
        faults.world.omniscience.vanished(host, folder, offsets)
        for path in (folder, *((promised.FILE, cachedends.FILE) if ends else ())):
            host.disk.vanish(path)
    chance.shuffle(hosts)
    for other in hosts[:-1]:
        await faults.come_back(other)
    if chance.random() < 0.5:
        await _restart_who_waits(faults, hosts[:-1])
    await faults.last(chance.uniform(0, MAX_LATE_S))
    await faults.come_back(hosts[-1])
    await faults.recovered()


async def _restart_who_waits(faults: Faults, hosts: list[Host]) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + WATCHED_S
    while loop.time() < until and not faults.stopped:
        await asyncio.sleep(0.2)
        for host in hosts:
            if host.broker is not None and any(each.repair.waits_for for each in host.broker.replicas.values()):
                faults.note("restart", f"clean restart of {host.name}, which waits for others before it leads")
                await host.stop()
                host.boot()
                return
