"""A client that subscribes to a partition which is set read-only now and then, at its leader or at any replica. Once it
is told that this is the end, it has everything that was committed; and nothing more is shown while the partition stays
read-only. It is told so of no partition that is writable again.
"""

import asyncio
from dataclasses import dataclass

from bascule.errors import Status
from bascule.sim.checkers import View
from bascule.sim.faults.kinds import REGISTERED
from bascule.sim.host import Host
from bascule.sim.readers import STOPPED, read_all
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.testing.call import MemoryCall
from bascule.wire.pb import api_pb2 as api

OVER = "End of readonly partition"
WATCHED_S = 3.0
SLOW_S = 2.0
"""A client may take nothing for so long."""
ANSWERED_S = 0.5
"""No answer of a leader takes longer, where no fault delays it."""
DELAYING = ("network", "contest", "pause", "disk", "hang")
"""Families of faults that delay answers."""


@dataclass(slots=True)
class Writable:
    """What the client knows that sets partitions read-only, and all of them writable again."""

    since_s: float = float("-inf")
    """When it was answered last that they are writable; after everything while that is asked for."""
    still: bool = True
    """No partition was asked to be read-only since."""

    def asked(self, readonly: bool) -> None:
        if readonly:
            self.still = False
        else:
            self.since_s = float("inf")

    def answered(self, now_s: float) -> None:
        self.since_s, self.still = now_s, True


class EndWatcher:
    def __init__(self, world: World, name: str, part: Part, writable: Writable) -> None:
        self._world = world
        self._chance = world.chance(name)
        self._part = part
        self._writable = writable
        families = {REGISTERED[each].family.name for each in world.scenario.faults}
        self._prompt = not world.scenario.harsh and families.isdisjoint(DELAYING)
        """Answers of leaders take ANSWERED_S at most."""

    async def run(self) -> None:
        while self._world.publishing:
            await self._world.pause(self._chance, 0.1)
            await self._read()

    async def _read(self) -> None:
        world, chance, part = self._world, self._chance, self._part
        stop = api.STOP_LATEST if chance.random() < 0.5 else api.STOP_ON_CANCEL
        anywhere = chance.random() < 0.6
        host = self._some_replica() if anywhere else await world.leader(part)
        view, floor = View(world.checker, part), world.checker.known(part).hw_end
        request = api.SubscribeRequest(
            stream=part.stream,
            partition=part.number,
            startPosition=api.EARLIEST,
            stopPosition=stop,
            readISRReplica=anywhere,
        )
        call = MemoryCall(WATCHED_S)
        call.request(request.SerializeToString())
        call.taking, began_s = chance.random() < 0.7, world.now_s()
        host.open("Subscribe", call)
        try:
            async with asyncio.timeout(WATCHED_S):
                if not call.taking:
                    await asyncio.sleep(chance.uniform(0, SLOW_S))
                    call.taking = True
                    call.take()
                status, text = await call.over()
        except TimeoutError:
            call.cancel()
            status, text = Status.DEADLINE_EXCEEDED, ""
        if not anywhere:
            world.note_status(part, status)
        view.took_s = float("inf")
        view.take(bytes(call.responses))
        where = f"{host.name}, {'a replica' if anywhere else 'the leader'}"
        world.trace.note("ended", f"at {where}: {view.last + 1}, {status.name} {text}", part)
        if text in (OVER, STOPPED):
            over = stop == api.STOP_ON_CANCEL and self._is_new(began_s)
            await self._check(view, floor, over, where)

    def _is_new(self, began_s: float) -> bool:
        """Whether the end that was told just now is not one from before the partition was writable last: its leader
        may have told it then, and the answer have come late."""
        since_s = self._writable.since_s
        return since_s < began_s or (self._prompt and since_s < self._world.now_s() - ANSWERED_S)

    def _some_replica(self) -> Host:
        """One that is not in sync, if there is one: nobody but the simulator can choose like that."""
        world, item = self._world, self._world.newest_partition(self._part)
        behind = [
            host
            for host in world.cluster.serving()
            if host.replica(self._part) is not None and item is not None and host.name not in item.isr
        ]
        return self._chance.choice(behind) if behind else world.some_host()

    async def _check(self, view: View, floor: int, over: bool, where: str) -> None:
        """Everything up to `floor` was committed when the subscription began. `over`: nothing more was to come."""
        world, part = self._world, self._part
        before = world.newest_partition(part)
        readonly = over and before is not None and before.readonly
        if over and self._writable.still:
            text = f"a subscription at {where} was told that it is over, and the partition has long been writable"
            world.checker.violate("over", text, part, view.last)
        if readonly:
            floor = world.checker.known(part).hw_end
        self._is_covered(view, floor, where)
        if not readonly:
            return
        await read_all(world, part)
        after = world.newest_partition(part)
        if before is not None and after is not None and after.readonly_changes == before.readonly_changes:
            self._is_covered(view, world.checker.known(part).top, where)

    def _is_covered(self, view: View, end: int, where: str) -> None:
        known = self._world.checker.known(self._part)
        lost = {**known.damaged, **known.torn}
        missing = [offset for offset in known.names if offset < end and offset not in view.seen and offset not in lost]
        if missing:
            text = f"a subscription at {where} was told that it is over, and lacks {len(missing)} records below {end}"
            self._world.checker.violate("over", text, self._part, min(missing))
