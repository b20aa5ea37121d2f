"""A client that makes a stream, uses it, deletes it and makes it again under the same name. Nothing of the old one may
ever be seen in the new one, and what was acked in the new one stays, whatever happened to the broker in between.

It is the only user of its stream and waits for each answer, so that it always knows which making it talks to.
"""

from bascule.sim.history import StreamInfo
from bascule.sim.publishers import UnaryPublisher
from bascule.sim.readers import read_all
from bascule.sim.trace import Part
from bascule.sim.world import World


class Churn:
    def __init__(self, world: World, name: str, replication: int, min_isr: int) -> None:
        self._world = world
        self._chance = world.chance(name)
        self._stream = StreamInfo(name, f"made.{name}", 1, replication, min_isr)

    async def run(self) -> None:
        while True:
            await self._world.create(self._stream)
            (part,) = self._stream.parts()
            await self._use(part)
            if not self._world.publishing:
                return
            await self._world.delete(self._stream)
            self._stream.incarnation += 1
            await self._world.pause(self._chance, 0.2)

    async def _use(self, part: Part) -> None:
        publisher = UnaryPublisher(self._world, f"{part}", [part], 0.05)
        for _ in range(self._chance.randint(0, 6)):
            await publisher.round(part)
            await self._world.pause(self._chance, 0.1)
        await read_all(self._world, part)
