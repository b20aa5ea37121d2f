"""A client that creates a stream, uses it, deletes it and creates it again under the same name. No message of the old
stream may be in the new one, and what was acked in the new one stays, whatever happened to the broker in between. Once
a deletion is answered there are no acks for that stream, not even from a leader that does not know of the deletion yet.
With replicas that holds for ALL acks: a leader that was replaced and does not know it may still send LEADER acks, which
promise no more than that broker.

It is the only user of its stream and waits for each answer, so that it always knows which creation it uses. In half of
the seeds it numbers messages and writes batches, too (`remade`).
"""

from bascule.sim.history import Sent, StreamInfo
from bascule.sim.publishers import UnaryPublisher
from bascule.sim.readers import read_all
from bascule.sim.remade import RemadeProducer
from bascule.sim.trace import Part
from bascule.sim.unwanted import UnwantedPublisher
from bascule.sim.world import World
from bascule.wire.pb import api_pb2 as api


class Churn:
    def __init__(self, world: World, name: str, replication: int, min_isr: int) -> None:
        self._world = world
        self._chance = world.chance(name)
        self._stream = StreamInfo(name, f"made.{name}", 1, replication, min_isr)
        self._unwanted = UnwantedPublisher(world, self._stream, self._on_acked)
        numbers = world.chance(f"{name}, numbers").random() < 0.5  # its own: other seeds draw everything as before
        self._numbered = RemadeProducer(world, self._stream) if numbers else None

    async def run(self) -> None:
        while True:
            await self._world.create(self._stream)
            (part,) = self._stream.parts()
            await self._use(part)
            if not self._world.publishing:
                if self._numbered is not None:
                    await self._numbered.finish()
                return
            if await self._world.delete(self._stream):
                await self._unwanted.send(part, "its stream is deleted")
            if self._numbered is not None:
                self._numbered.was_deleted()
                await self._numbered.send_late(part)
            self._stream.incarnation += 1
            await self._world.pause(self._chance, 0.2)

    def _on_acked(self, sent: Sent, ack: api.Ack) -> None:
        text = f"{sent.token!r} was acked, and sent when the deletion of its stream had been answered"
        self._world.checker.violate("deleted", text, sent.target, ack.offset)

    async def _use(self, part: Part) -> None:
        publisher = UnaryPublisher(self._world, f"{part}", [part], 0.05)
        for _ in range(self._chance.randint(0, 6)):
            await publisher.round(part)
            await self._world.pause(self._chance, 0.1)
        if self._numbered is not None:
            await self._numbered.use()
        await read_all(self._world, part)
