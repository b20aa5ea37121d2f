"""Disks that are lost for good, and brokers that join, are drained and are removed."""

import asyncio
from typing import Any

from bascule.errors import Status
from bascule.sim.faults.kinds import Family, fault
from bascule.sim.faults.strikes import Faults
from bascule.sim.host import Host
from bascule.wire.pb import admin_pb2 as admin

MAX_JOINS = 2
WIPE = Family("wipe", likely=0.25)
EARLY_WIPE = Family("early_wipe", likely=0.25)
MEMBERS = Family("members", likely=0.25)


@fault(WIPE, weight=4, several=True, needs_sync=True, needs_copies=True)
async def wipe(faults: Faults, host: Host) -> None:
    """A disk is lost for good: one at a time, because the contract covers no more."""
    if faults.claim(host):
        await _lose_disk(faults, host, "wipe", f"{host.name} loses its disk")


@fault(EARLY_WIPE, weight=4, several=True, needs_sync=True, needs_copies=True)
async def early_wipe(faults: Faults, host: Host) -> None:
    """The same, even if not all the others are in sync: the rest of the ISR has everything that was acked by ALL."""
    if faults.claim(host, whole=False):
        await _lose_disk(faults, host, "early_wipe", f"{host.name} loses its disk, others may be behind")


@fault(EARLY_WIPE, weight=3, several=True, needs_sync=True, needs_copies=True)
async def wipe_first(faults: Faults, host: Host) -> None:
    """All brokers go at once; one comes back without its disk, with the configuration it had, and before the others: it
    must neither vote as the voter it was, nor found a cluster that the others take for theirs."""
    if not faults.claim(host, whole=False):
        return
    chance = faults.chance
    others = [other for other in faults.world.cluster.hosts.values() if other is not host]
    faults.note("wipe_first", f"all go at once; {host.name} loses its disk, and comes back first")
    for other in others:
        (faults.cut_power if chance.random() < 0.5 else faults.kill)(other)
    faults.crashes += 1
    faults.world.omniscience.lost(host, asyncio.get_running_loop().time())
    host.wipe()
    host.boot()
    chance.shuffle(others)
    await asyncio.sleep(chance.choice((0.0, 0.2, 1.5, 6.0)))
    for other in others:
        await faults.come_back(other)
    await faults.recovered()


async def _lose_disk(faults: Faults, host: Host, kind: str, text: str) -> None:
    faults.note(kind, text)
    faults.crashes += 1
    faults.world.omniscience.lost(host, asyncio.get_running_loop().time())
    host.wipe()
    await faults.come_back(host)
    await faults.recovered()


@fault(MEMBERS, weight=2, several=True)
async def join(faults: Faults, host: Host) -> None:
    cluster, brokers = faults.world.cluster, faults.world.scenario.brokers
    if len(cluster.hosts) == brokers and faults.joined < MAX_JOINS:
        faults.joined += 1
        name = f"broker{brokers + faults.joined}"
        faults.note("join", f"{name} joins")
        cluster.add(name, founds=False).boot()


@fault(MEMBERS, several=True)
async def drain(faults: Faults, host: Host) -> None:
    faults.note("drain", f"{host.name} is drained")
    await _administer(faults, "DrainBroker", admin.DrainBrokerRequest(broker=host.name))
    await asyncio.sleep(faults.chance.uniform(0.2, 2.0))
    while faults.world.cluster.hosts.get(host.name) is host:
        if await _administer(faults, "UndrainBroker", admin.UndrainBrokerRequest(broker=host.name)) is not None:
            return


@fault(MEMBERS, weight=2, several=True)
async def remove(faults: Faults, host: Host) -> None:
    """As many brokers remain as there were at first: if none has joined yet, one joins."""
    cluster = faults.world.cluster
    await join(faults, host)
    if len(cluster.hosts) <= faults.world.scenario.brokers or not await faults.claimed(host):
        return
    if len(cluster.hosts) <= faults.world.scenario.brokers:
        faults.harmed = None
        return
    faults.note("remove", f"{host.name} is removed")
    faults.world.history.replicas_move = True
    done = False
    while not done:
        await _administer(faults, "DrainBroker", admin.DrainBrokerRequest(broker=host.name), host)
        answer = await _administer(faults, "RemoveBroker", admin.RemoveBrokerRequest(broker=host.name), host)
        done = answer is not None and admin.RemoveBrokerResponse.FromString(answer).done
    cluster.remove(host, faults.chance)
    faults.harmed = None


async def _administer(faults: Faults, method: str, request: Any, but: Host | None = None) -> bytes | None:
    """The answer of some broker, if there is one."""
    others = [other for other in faults.world.cluster.serving() if other is not but]
    if not others:
        await asyncio.sleep(0.1)
        return None
    status, text, answers = await faults.chance.choice(others).call(f"/bascule.v1.Admin/{method}", request, 3.0)
    faults.world.trace.note("change", f"{method} {request.broker}: {status.name} {text}")
    if status is not Status.OK:
        await asyncio.sleep(0.1)
    return answers[0] if answers else None
