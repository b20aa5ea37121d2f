"""A producer of numbers, and a writer of batches, on a stream that its client deletes and makes again.

Numbers name the stream that they are of. So the producer begins again in each one; and whoever goes on by the numbers
of the stream that was deleted is refused, by every call, before the stream is made again and after that. Over NATS such
a message would be one like any other, for who else listens on the subject must take it; so is one that is sent to a
broker that has not heard of the deletion yet.
"""

import asyncio

from bascule.errors import Status
from bascule.sim.bulkwriters import BulkWriter
from bascule.sim.history import Sent, StreamInfo
from bascule.sim.host import messages_of
from bascule.sim.numbered import WAIT_S, Epoch, NumberedProducer
from bascule.sim.publishers import is_refusal
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.testing.call import MemoryCall
from bascule.wire.pb import api_pb2 as api
from bascule.wire.producers import INVALID_PRODUCER, REMADE_STREAM, numbered

UNDER_WAY_S = 0.2
"""Messages on NATS have arrived, or are lost."""
NOT_OF_THIS_STREAM = ("No such partition", "No such stream", INVALID_PRODUCER, REMADE_STREAM)
MADE_AGAIN = "was deleted and made again"


class RemadeProducer(NumberedProducer):
    def __init__(self, world: World, stream: StreamInfo) -> None:
        super().__init__(world, f"{stream.name}-numbered", stream, 0.05)
        self._bulk = BulkWriter(world, f"{stream.name}-bulk", self._parts, 0.05)
        self._gone: list[Epoch] = []
        """What it has sent to the stream that was deleted last."""
        self._late: dict[bytes, None] = {}
        """Messages that were sent by the numbers of a stream that was deleted."""

    async def use(self) -> None:
        """The stream is there until this returns. What is under way then is lost with it."""
        self._parts = self._stream.parts()
        (part,) = self._parts
        for _ in range(self.chance.randint(0, 5)):
            draw = self.chance.random()
            if draw < 0.25:
                await self._bulk.round(part)
            elif draw < 0.45:
                await self.send_late(part)
            else:
                await self.round(part)
            await self.world.pause(self.chance, self._mean_pause_s)
        await self._answered()

    async def finish(self) -> None:
        """Everything in the last stream is acked."""
        await self._finish()
        await self._answered()

    async def _answered(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            await call
        await asyncio.sleep(UNDER_WAY_S)

    def was_deleted(self) -> None:
        """A broker has said so. It begins anew in the next stream of the name."""
        used = [epoch for epoch in (*self._epochs.values(), *(epoch for _, epoch in self._former)) if epoch.sent]
        if used:
            self._gone = used
        self._deleted = self._creation
        self._epoch, self._epochs, self._former = 0, {}, []

    async def send_late(self, part: Part) -> None:
        """By a call, as if nobody had said that the stream was deleted."""
        if not self._gone or self._is_routed_somewhere():
            return
        epoch = self.chance.choice(self._gone)
        batch = [self.send(part) for _ in range(self.chance.randint(1, 3))]
        first = self.chance.choice((0, max(0, len(epoch.sent) - 1), len(epoch.sent)))
        for sequence, sent in enumerate(batch, first):
            sent.sequence = sequence
            self._late[sent.token] = None
        way = self.chance.randrange(4)
        if way < 2:
            for sent in batch[1:]:
                self.checker.refused(sent, "it is not sent")
            await (self._call if way else self._call_async)(part, epoch, batch[0])
            return
        for sent in batch:
            sent.batch = batch
        if self._fits(batch):
            await (self._call_batch if way == 2 else self._write_batch)(part, epoch, batch)

    def _is_routed_somewhere(self) -> bool:
        """Some broker would still send messages to the stream that was deleted: to who listens there now."""
        name = self._stream.name.encode()
        brokers = [host.broker for host in self.world.cluster.hosts.values() if host.broker is not None]
        routes = [route for broker in brokers for route in broker.environment.routes.table.get(name, ())]
        return any(route is not None and route[3] <= self._deleted for route in routes)

    async def _call_async(self, part: Part, epoch: Epoch, sent: Sent) -> None:
        call = MemoryCall(None)
        self.world.some_host().open("PublishAsync", call)
        request = api.PublishRequest(
            stream=part.stream,
            partition=part.number,
            **sent.fields,
            ackPolicy=api.ALL,
            correlationId=sent.token.decode(),
            producer=numbered(epoch.prefix, sent.sequence),
        )
        if not call.ended:
            call.request(request.SerializeToString())
        call.half_close()
        try:
            async with asyncio.timeout(WAIT_S):
                status, text = await call.over()
        except TimeoutError:
            call.cancel()
            status, text = Status.DEADLINE_EXCEEDED, "the client waited long enough"
        for response in map(api.PublishResponse.FromString, messages_of(bytes(call.responses))):
            if response.HasField("asyncError"):
                text = response.asyncError.message
            else:
                self._learn(sent, response.ack)
                return
        self._refused(sent, f"{text}" if text else status.name)

    # --- answers ---------------------------------------------------------------------------------------------

    def _learn(self, sent: Sent, ack: api.Ack) -> None:
        if sent.token in self._late and not ack.ackError:
            text = f"{sent.token!r} is acked, and has the numbers of a stream that was deleted"
            self.checker.violate("deleted", text, sent.target, ack.offset)
        if sent.target in self._parts:
            super()._learn(sent, ack)

    def _refused(self, sent: Sent, text: str) -> None:
        late = sent.token in self._late
        if late and (is_refusal(text) or text in NOT_OF_THIS_STREAM or MADE_AGAIN in text):
            for each in sent.batch or [sent]:
                self.checker.refused(each, text)
        elif late or sent.target not in self._parts:
            for each in sent.batch or [sent]:
                self.checker.unknown(each, text)
        else:
            super()._refused(sent, text)
