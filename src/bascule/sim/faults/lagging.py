"""Replication that hangs: a broker gets no records from the others, and everything else of it works. If that lasts its
replicas leave the in-sync sets, while clients go on reading from them."""

import asyncio

from bascule.sim.faults.kinds import Family, fault
from bascule.sim.faults.strikes import Faults
from bascule.sim.host import Host

LAG = Family("lag", likely=0.15, drawn_apart=True)
MAX_LAG_S = 8.0


@fault(LAG, weight=8, several=True)
async def lag(faults: Faults, host: Host) -> None:
    """In the end its connection goes on, or is lost and made again."""
    bus = next((bus for bus in host.buses if bus.name == "replication"), None)
    if bus is None:
        return
    faults.note("lag", f"{host.name} gets no records")
    bus.down.hold("lag")
    await faults.last(faults.chance.uniform(0.5, MAX_LAG_S))
    again = faults.chance.random() < 0.5
    if again:
        bus.disconnect()
    bus.down.release("lag")
    if again:
        await asyncio.sleep(faults.chance.uniform(0.01, 1.0))
        bus.reconnect()
