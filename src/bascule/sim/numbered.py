"""Idempotent producers: they number their messages, send them over gRPC, over NATS and in bulk, and send them again
until each is acked, and sometimes without need. Whatever happens, a partition has each sequence once, in their order,
and every ack of a message names its first offset. A stream that stores a copy of everything stores every try.

Now and then one begins again under its name, in a new epoch, and the last one goes on sending for a while: it is fenced
once there is a message of the new epoch, and what it has stored by then stays.

Some send atomic batches, over NATS, by a call and in bulk: sent again, a batch is stored once as a whole. Now and then
another batch begins with sequences that are in use: nothing of it is ever stored.

In some runs a partition remembers few producers. Who is forgotten begins again, as our client does, and is never told
what became of the messages that had no ack.
"""

import asyncio
from dataclasses import dataclass, field

from bascule.errors import AckError, BusUnavailable, Status
from bascule.sim.bulkwriters import WRITE
from bascule.sim.history import Outcome, Producer, Sent, StreamInfo
from bascule.sim.host import messages_of
from bascule.sim.publishers import Publisher
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.testing.call import MemoryCall
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.grpc import frame
from bascule.wire.nats import messages, pub
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as log
from bascule.wire.pb import producer_pb2 as pb
from bascule.wire.producers import REFUSALS, numbered, producer_prefix

STORED_BEFORE = (REFUSALS[AckError.DUPLICATE], REFUSALS[AckError.OVERLAP])
WAIT_S = 1.0
ANEW = 0.03
"""How often one begins again."""
PATIENCE_S = 40.0
"""After the last fault every message is acked within this time."""
MOST_UNACKED = 30
STUCK_ROUNDS = 20
"""A producer of a partition that has lost records begins again after so many rounds without an ack."""
FORGOTTEN_ROUNDS = 3
"""The same, of one that remembers few producers."""


@dataclass(slots=True)
class Epoch:
    """What one producer has sent to one partition in one epoch."""

    prefix: bytes
    producer: log.WriteProducer
    sent: list[Sent] = field(default_factory=list)
    rounds: int = 0
    """Without an ack."""

    def unacked(self) -> list[Sent]:
        return [each for each in self.sent[-4 * MOST_UNACKED :] if each.outcome is not Outcome.ACKED]


class NumberedProducer(Publisher):
    def __init__(
        self, world: World, name: str, stream: StreamInfo, mean_pause_s: float, passes_by: bool = False
    ) -> None:
        """`passes_by`: it is another producer each time."""
        super().__init__(world, name, stream.parts(), mean_pause_s)
        self._named = name if self.chance.random() < 0.7 and not passes_by else ""
        self._anew = 1.0 if passes_by else ANEW
        self._stream = stream
        self._bus = world.nats.connect(name, name)
        self._inbox = f"inbox.{name}"
        self._epochs: dict[Part, Epoch] = {}
        self._former: list[tuple[Part, Epoch]] = []
        self._epoch = 0
        self._creation = self._deleted = 0
        """Of the stream, by its creation index; and of the last one of the name that was deleted."""
        self._after_ack: dict[bytes, int] = {}
        """Messages that were sent when one of the same producer had been acked: from then on the partition knows it.
        The offset of the last one that was."""
        self._acked = asyncio.Event()
        self._together = self.chance.random() < 0.5
        """Some of its messages are atomic batches. Nothing writes a part of one again, so it does not write in bulk as
        the others do."""
        self._calls: list[asyncio.Task[None]] = []
        self._bus.subscribe(self._inbox.encode(), self._on_batch)

    async def run(self) -> None:
        await super().run()
        await self._finish()
        for call in self._calls:
            await call

    async def _finish(self) -> None:
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        for part, epoch in list(self._epochs.items()):
            while epoch.unacked() and not self._has_lost(part) and not self._may_be_forgotten(epoch):
                if asyncio.get_running_loop().time() > deadline_s:
                    text = f"{epoch.unacked()[0].token!r} of {self.name} is sent again and again, and never acked"
                    self.checker.violate("I9", text, part)
                    break
                await self._send_again(part, epoch)

    async def round(self, part: Part) -> None:
        if self._epoch == 0 or self.chance.random() < self._anew:
            await self._begin()
        epoch = self._epochs.get(part)
        if epoch is None:
            return
        if (epoch.rounds > STUCK_ROUNDS and self._has_lost(part)) or self._may_be_forgotten(epoch):
            self._epoch = 0
            return
        if len(epoch.unacked()) < MOST_UNACKED:
            acked = [each.stored.get(part, 0) for each in epoch.sent if each.outcome is Outcome.ACKED]
            new = [self._new(part, epoch, max(acked, default=-1)) for _ in range(self.chance.randint(1, 6))]
            if self._together and self.chance.random() < 0.6 and self._fits(new):
                for sent in new:
                    sent.batch = new
        await self._send_again(part, epoch)
        if self._former and self.chance.random() < 0.3:
            was, former = self.chance.choice(self._former)
            self._publish(was, former, self.chance.choice(former.sent))

    def _new(self, part: Part, epoch: Epoch, acked: int) -> Sent:
        sent = self.send(part, self.name)
        if acked >= 0:
            self._after_ack[sent.token] = acked
        sent.producer = Producer(self.name, epoch.producer.id, epoch.producer.epoch)
        sent.sequence = len(epoch.sent)
        epoch.sent.append(sent)
        return sent

    def _fits(self, batch: list[Sent]) -> bool:
        return sum(sent.nbytes for sent in batch) + 500 <= self._bus.max_payload

    async def _begin(self) -> None:
        request = pb.InitProducerRequest(name=self._named, stream=self._stream.name)
        status, text, answers = await self.world.call("/bascule.v1.Producers/InitProducer", request, 3.0)
        self.world.trace.note("begin", f"{self.name}: {status.name} {text}")
        if status is not Status.OK:
            return
        answer = pb.InitProducerResponse.FromString(answers[0])
        if answer.epoch <= self._epoch:
            self.checker.violate("once", f"{self.name} began in epoch {answer.epoch} after {self._epoch}")
        if answer.creation <= self._deleted:
            self.checker.violate("once", f"{self.name} began in stream {answer.creation}, which was deleted")
        self._creation = answer.creation
        if self._named:
            self._former += [(part, epoch) for part, epoch in self._epochs.items() if epoch.sent]
        self._epoch = answer.epoch
        self._epochs = {
            part: Epoch(
                producer_prefix(answer.id, answer.epoch, answer.creation, part.number),
                log.WriteProducer(id=answer.id, epoch=answer.epoch),
            )
            for part in self._parts
        }

    def _has_lost(self, part: Part) -> bool:
        """Records of this partition were damaged or lost, by all that the simulator knows."""
        known = self.checker.known(part)
        return bool(known.damaged or known.torn) or self.world.scenario.sync.relaxed

    def _may_be_forgotten(self, epoch: Epoch) -> bool:
        return bool(self.checker.producers_known) and epoch.rounds > FORGOTTEN_ROUNDS

    async def _send_again(self, part: Part, epoch: Epoch) -> None:
        """Everything without an ack, in order, and now and then something that has one."""
        epoch.rounds += 1
        self._acked.clear()
        if not self._together and epoch.unacked() and self.chance.random() < 0.25:
            await self._write(part, epoch)
        for sent in epoch.unacked():
            if not sent.batch or sent is sent.batch[0]:
                self._publish(part, epoch, sent)
        if epoch.sent and self.chance.random() < 0.3:
            self._publish(part, epoch, self.chance.choice(epoch.sent))
        try:
            async with asyncio.timeout(WAIT_S):
                while epoch.unacked():
                    self._acked.clear()
                    await self._acked.wait()
        except TimeoutError:
            pass

    def _publish(self, part: Part, epoch: Epoch, sent: Sent) -> None:
        if sent.batch:
            self._publish_batch(part, epoch, sent.batch)
            return
        if self.chance.random() < 0.15:
            self._calls = [call for call in self._calls if not call.done()]
            self._calls.append(asyncio.get_running_loop().create_task(self._call(part, epoch, sent)))
            return
        message = api.Message(
            offset=-1,
            **sent.fields,
            ackInbox=self._inbox,
            ackPolicy=api.ALL,
            correlationId=sent.token.decode(),
            producer=numbered(epoch.prefix, sent.sequence),
        )
        payload = encode(MsgType.PUBLISH, message.SerializeToString())
        try:
            self._bus.send(pub(self.subject(part).encode(), payload))
        except BusUnavailable:
            return

    async def _write(self, part: Part, epoch: Epoch) -> None:
        """Everything from the first one without an ack on, and perhaps some before it, in bulk: in batches of any size,
        whatever they were in before."""
        first = max(0, epoch.unacked()[0].sequence - self.chance.choice((0, 0, 1, 3)))
        host = await self.world.leader(part)
        call = MemoryCall(None)
        opening = log.WriteOpen(stream=part.stream, partition=part.number, bypassOthers=True, producer=epoch.producer)
        call.request(log.WriteRequest(open=opening).SerializeToString())
        host.open(WRITE, call)
        batches: list[list[Sent]] = []
        while first < len(epoch.sent):
            batches.append(epoch.sent[first : first + self.chance.randint(1, 5)])
            messages = b"".join(frame(api.Message(**each.fields).SerializeToString()) for each in batches[-1])
            batch = log.WriteBatch(count=len(batches[-1]), messages=messages, sequence=first)
            call.request(log.WriteRequest(batch=batch).SerializeToString())
            first += len(batches[-1])
        call.half_close()
        try:
            async with asyncio.timeout(WAIT_S):
                status, text = await call.over()
        except TimeoutError:
            call.cancel()
            status, text = Status.DEADLINE_EXCEEDED, "the client waited long enough"
        for response in map(log.WriteResponse.FromString, [*messages_of(bytes(call.responses))][1:]):
            if not response.HasField("error"):
                self._written(part, batches[response.batch - 1], response)
        if status is not Status.OK and text == REFUSALS[AckError.FENCED]:
            self._refused(epoch.sent[-1], text)

    def _written(self, part: Part, batch: list[Sent], response: log.WriteResponse) -> None:
        """The offsets of what was not there before are known; of a batch that was there, if they are told."""
        new = batch[response.duplicates :]
        told = new or (
            batch if response.lastOffset - response.firstOffset == len(batch) - 1 and response.lastOffset else []
        )
        if part in self.checker.compacted and not told:
            self._compacted(batch)
        if new and response.lastOffset - response.firstOffset != len(new) - 1:
            text = (
                f"a batch of {len(batch)} with {response.duplicates} duplicates has offsets up to {response.lastOffset}"
            )
            self.checker.violate("batch", text, part, response.firstOffset)
        for offset, sent in enumerate(told, response.firstOffset):
            ack = api.Ack(stream=part.stream, msgSubject=self.subject(part), offset=offset, ackPolicy=api.ALL)
            self._learn(sent, ack)

    # --- atomic batches --------------------------------------------------------------------------------------

    def _publish_batch(self, part: Part, epoch: Epoch, batch: list[Sent]) -> None:
        way = self.chance.random()
        if way < 0.3:
            self._calls = [call for call in self._calls if not call.done()]
            try_it = self._call_batch(part, epoch, batch) if way < 0.15 else self._write_batch(part, epoch, batch)
            self._calls.append(asyncio.get_running_loop().create_task(try_it))
            return
        if way > 0.97:
            self._overlap(part, epoch, batch)
        self._send_batch(part, numbered(epoch.prefix, batch[0].sequence), batch)

    def _overlap(self, part: Part, epoch: Epoch, batch: list[Sent]) -> None:
        """Another batch, which begins with the sequences of all but the first message of this one. At no time is one of
        them the next that the partition expects."""
        if len(batch) > 1 and not self._has_lost(part):
            other = [self.send(part) for _ in batch]
            if self._fits(other):
                self._send_batch(part, numbered(epoch.prefix, batch[1].sequence), other)
            for sent in other:
                sent.batch = other
                self.checker.refused(sent, "its sequences are those of another batch")

    def _send_batch(self, part: Part, producer: bytes, batch: list[Sent]) -> None:
        message = api.Message(
            offset=-1,
            value=_framed(batch),
            ackInbox=self._inbox,
            ackPolicy=api.ALL,
            correlationId=batch[0].token.decode(),
            producer=producer,
        )
        payload = encode(MsgType.BATCH, message.SerializeToString(), crc=self.chance.random() < 0.3)
        try:
            self._bus.send(pub(self.subject(part).encode(), payload))
        except BusUnavailable:
            return

    async def _call_batch(self, part: Part, epoch: Epoch, batch: list[Sent]) -> None:
        request = pb.PublishBatchRequest(
            stream=part.stream,
            partition=part.number,
            producer=numbered(epoch.prefix, batch[0].sequence),
            messages=_framed(batch),
        )
        status, text, answers = await self.world.call("/bascule.v1.Producers/PublishBatch", request, WAIT_S)
        if status is Status.OK and answers:
            first = pb.PublishBatchResponse.FromString(answers[0]).firstOffset
            self._learn(
                batch[0], api.Ack(stream=part.stream, msgSubject=self.subject(part), offset=first, ackPolicy=api.ALL)
            )
        else:
            self._refused(batch[0], text)

    async def _write_batch(self, part: Part, epoch: Epoch, batch: list[Sent]) -> None:
        """Past NATS; nothing is sent where another stream would miss it."""
        call = MemoryCall(None)
        call.request(
            log.WriteRequest(open=log.WriteOpen(stream=part.stream, partition=part.number)).SerializeToString()
        )
        body = log.WriteBatch(
            count=len(batch),
            atomic=True,
            messages=_framed(batch),
            producer=numbered(epoch.prefix, batch[0].sequence),
        )
        call.request(log.WriteRequest(batch=body).SerializeToString())
        (await self.world.leader(part)).open("/bascule.v1.Log/Write", call)
        call.half_close()
        try:
            async with asyncio.timeout(WAIT_S):
                _, text = await call.over()
        except TimeoutError:
            call.cancel()
            text = "the client waited long enough"
        for response in map(log.WriteResponse.FromString, [*messages_of(bytes(call.responses))][1:]):
            if not response.HasField("error"):
                ack = api.Ack(
                    stream=part.stream, msgSubject=self.subject(part), offset=response.firstOffset, ackPolicy=api.ALL
                )
                self._learn(batch[0], ack)
                return
        self._refused(batch[0], text)

    async def _call(self, part: Part, epoch: Epoch, sent: Sent) -> None:
        request = api.PublishRequest(
            stream=part.stream,
            partition=part.number,
            **sent.fields,
            ackPolicy=api.ALL,
            expectedOffset=-1,
            correlationId=sent.token.decode(),
            producer=numbered(epoch.prefix, sent.sequence),
        )
        status, text, answers = await self.world.call("Publish", request, WAIT_S)
        if status is Status.OK and answers:
            self._learn(sent, api.PublishResponse.FromString(answers[0]).ack)
        else:
            self._refused(sent, text)

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            payload = decode(message.payload, MsgType.ACK)
            assert payload is not None, "a broker sent something that is no ack"
            ack = api.Ack.FromString(payload)
            self._learn(self.world.history.sent[ack.correlationId.encode()], ack)

    def _learn(self, sent: Sent, ack: api.Ack) -> None:
        if ack.stream != sent.target.stream:
            return  # a stream that stores a copy
        if sent.outcome is Outcome.REFUSED:
            return  # acked as a duplicate of what has its sequences, if that was stored meanwhile
        if ack.ackError:
            self._refused(sent, REFUSALS.get(ack.ackError, "unknown error"))
            return
        for offset, each in enumerate(sent.batch or [sent], ack.offset):
            ack.offset = offset
            self.checker.acked(each, ack, named_stream=False)
        for epoch in self._epochs.values():
            epoch.rounds = 0
        self._acked.set()

    def _compacted(self, stored: list[Sent]) -> None:
        """It is stored, at offsets that a leader does not know which was fed from a compacted log."""
        for each in stored:
            if each.outcome is not Outcome.REFUSED:
                each.outcome = Outcome.ACKED
        for epoch in self._epochs.values():
            epoch.rounds = 0
        self._acked.set()

    def _refused(self, sent: Sent, text: str) -> None:
        """A gap closes when what is before it is sent again. Whatever else is said of a producer is the truth."""
        if sent.target in self.checker.compacted and text in STORED_BEFORE:
            self._compacted(sent.batch or [sent])
            return
        for each in sent.batch or [sent]:
            self.checker.unknown(each, text)
        part = sent.target
        current = sent.producer is not None and sent.producer.epoch == self._epoch
        if text == REFUSALS[AckError.FENCED] and current:
            self.checker.violate("once", f"{sent.producer} is fenced, and nobody has begun after it", part)
        forgotten = text == REFUSALS[AckError.UNKNOWN_PRODUCER] and sent.token in self._after_ack
        if forgotten and self.checker.producers_known:
            self.checker.forgotten(sent, self._after_ack[sent.token])
        elif (forgotten or text in STORED_BEFORE) and not self._has_lost(part):
            self.checker.violate("once", f"{sent.producer}, {sent.token!r}: {text}", part)


def _framed(batch: list[Sent]) -> bytes:
    return b"".join(frame(api.Message(**sent.fields).SerializeToString()) for sent in batch)
