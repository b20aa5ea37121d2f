"""A client that creates a stream, uses it, deletes it and creates it again under the same name. No message of the old
stream may be in the new one, and what was acked in the new one stays, whatever happened to the broker in between. Once
a deletion is answered there are no acks for that stream, not even from a leader that does not know of the deletion yet.
With replicas that holds for ALL acks: a leader that was replaced and does not know it may still send LEADER acks, which
promise no more than that broker.

It is the only user of its stream and waits for each answer, so that it always knows which creation it uses.
"""

import asyncio

from bascule.errors import BusUnavailable
from bascule.sim.history import StreamInfo
from bascule.sim.publishers import UnaryPublisher
from bascule.sim.readers import read_all
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.nats import messages, pub
from bascule.wire.pb import api_pb2 as api

AFTERWARDS_S = 0.5


class Churn:
    def __init__(self, world: World, name: str, replication: int, min_isr: int) -> None:
        self._world = world
        self._chance = world.chance(name)
        self._stream = StreamInfo(name, f"made.{name}", 1, replication, min_isr)
        self._bus = world.nats.connect(name, name)
        self._inbox = f"inbox.{name}"
        self._bus.subscribe(self._inbox.encode(), self._on_acks)

    async def run(self) -> None:
        while True:
            await self._world.create(self._stream)
            (part,) = self._stream.parts()
            await self._use(part)
            if not self._world.publishing:
                return
            if await self._world.delete(self._stream):
                await self._publish_to_nobody(part)
            self._stream.incarnation += 1
            await self._world.pause(self._chance, 0.2)

    async def _publish_to_nobody(self, part: Part) -> None:
        sent = self._world.history.send(part, 0)
        self._world.checker.unknown(sent, "its stream is deleted")
        policy = api.LEADER if self._stream.replication == 1 else api.ALL
        message = api.Message(
            value=sent.value, ackInbox=self._inbox, ackPolicy=policy, correlationId=sent.token.decode()
        )
        payload = encode(MsgType.PUBLISH, message.SerializeToString())
        try:
            self._bus.send(pub(self._stream.subject_of(part.number).encode(), payload))
        except BusUnavailable:
            return
        await asyncio.sleep(AFTERWARDS_S)

    def _on_acks(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            payload = decode(message.payload, MsgType.ACK)
            assert payload is not None, "a broker sent something that is no ack"
            ack = api.Ack.FromString(payload)
            if ack.ackError:
                continue
            sent = self._world.history.sent[ack.correlationId.encode()]
            if ack.stream != self._stream.name:
                self._world.checker.acked(sent, ack, named_stream=False)
            elif not self._world.checker.repeats:  # or it was repeated when the stream was there again
                text = f"{sent.token!r} was acked, and sent when the deletion of its stream had been answered"
                self._world.checker.violate("deleted", text, sent.target, ack.offset)

    async def _use(self, part: Part) -> None:
        publisher = UnaryPublisher(self._world, f"{part}", [part], 0.05)
        for _ in range(self._chance.randint(0, 6)):
            await publisher.round(part)
            await self._world.pause(self._chance, 0.1)
        await read_all(self._world, part)
