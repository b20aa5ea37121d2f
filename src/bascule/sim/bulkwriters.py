"""A client that writes in bulk: batches to the leader of a partition, several in flight on one call.

A batch is stored whole, in order, and acked once. Some batches are not as they should be: they are refused, and nothing
of them, nor of what was sent after them on the same call, is ever stored. Where another stream takes messages of the
same subject, a call that does not ask for it is refused."""

import asyncio
from dataclasses import dataclass

from bascule.errors import Status
from bascule.sim.history import Sent
from bascule.sim.host import messages_of
from bascule.sim.publishers import Publisher
from bascule.sim.trace import Part
from bascule.testing.call import MemoryCall
from bascule.wire.grpc import frame
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as pb
from bascule.wire.subjects import subjects_overlap

WRITE = "/bascule.v1.Log/Write"
NOT_OPENED = (Status.FAILED_PRECONDITION, Status.NOT_FOUND, Status.RESOURCE_EXHAUSTED)
CALL_S = 6.0


@dataclass(slots=True)
class Batch:
    number: int
    sent: list[Sent]
    bent: bool
    answered: bool = False


class BulkWriter(Publisher):
    sessions = 0

    async def round(self, part: Part) -> None:
        self.sessions += 1
        session = f"{self.name}.{self.sessions}"
        opening = pb.WriteOpen(
            stream=part.stream,
            partition=part.number,
            ackPolicy=self.chance.choice((pb.WriteOpen.ALL, pb.WriteOpen.ALL, pb.WriteOpen.LEADER)),
            bypassOthers=self.chance.random() < 0.6,
        )
        host = await self.world.leader(part)
        call = MemoryCall(None)
        call.request(pb.WriteRequest(open=opening).SerializeToString())
        host.open(WRITE, call)
        batches: list[Batch] = []
        for _ in range(self.chance.randint(1, 5)):
            if not call.ended:
                batches.append(self._send(call, part, session, len(batches) + 1))
            if self.chance.random() < 0.5:
                await self.world.pause(self.chance, 0.1)
        call.half_close()
        try:
            async with asyncio.timeout(CALL_S):
                status, text = await call.over()
        except TimeoutError:
            call.cancel()
            status, text = Status.DEADLINE_EXCEEDED, "the client waited long enough"
        self.world.note_status(part, status)
        self._learn(part, opening, batches, [*messages_of(bytes(call.responses))], status, text)

    def _send(self, call: MemoryCall, part: Part, session: str, number: int) -> Batch:
        count = self.chance.randint(1, self.world.scenario.burst)
        batch = Batch(number, [self.send(part, session) for _ in range(count)], self.chance.random() < 0.05)
        atomic = self.chance.random() < 0.6
        if atomic:
            for sent in batch.sent:
                sent.batch = batch.sent
        messages = b"".join(frame(api.Message(**sent.fields).SerializeToString()) for sent in batch.sent)
        if batch.bent:
            messages = messages[:-1] if self.chance.random() < 0.5 else messages + b"\0"
        request = pb.WriteRequest(batch=pb.WriteBatch(count=count, messages=messages, atomic=atomic))
        call.request(request.SerializeToString())
        return batch

    def _learn(
        self, part: Part, opening: pb.WriteOpen, batches: list[Batch], answers: list[bytes], status: Status, text: str
    ) -> None:
        opened, refused_from = bool(answers), len(batches) + 1
        for response in map(pb.WriteResponse.FromString, answers[1:]):
            batch = batches[response.batch - 1]
            batch.answered = True
            if not response.HasField("error"):
                self._acked(part, opening, batch, response)
            elif not response.error.mayBeStored:
                batch.answered = False
                refused_from = response.batch
        if not opened and status in NOT_OPENED:
            refused_from = 1
        for batch in batches:
            if batch.answered:
                continue
            for sent in batch.sent:
                if batch.number >= refused_from:
                    self.checker.refused(sent, f"{status.name} {text}")
                else:
                    self.checker.unknown(sent, f"{status.name} {text}")

    def _acked(self, part: Part, opening: pb.WriteOpen, batch: Batch, response: pb.WriteResponse) -> None:
        count = response.lastOffset - response.firstOffset + 1
        if batch.bent or count != len(batch.sent):
            text = f"a batch of {len(batch.sent)}, {'bent' if batch.bent else 'valid'}, was acked with {count} offsets"
            self.checker.violate("batch", text, part, response.firstOffset)
        if not opening.bypassOthers and (other := self._overlapping(part)):
            text = f"a bulk write was acked that {other} misses, and nobody asked for that"
            self.checker.violate("bypass", text, part, response.firstOffset)
        policy = api.LEADER if opening.ackPolicy == pb.WriteOpen.LEADER else api.ALL
        for offset, sent in enumerate(batch.sent, response.firstOffset):
            ack = api.Ack(stream=part.stream, msgSubject=self.subject(part), offset=offset, ackPolicy=policy)
            self.checker.acked(sent, ack, self.names_stream)

    def _overlapping(self, part: Part) -> str:
        """Another stream that was there before the writers began, and takes messages of this partition."""
        wild = self.world.history.streams.get("wild")
        return wild.name if wild is not None and subjects_overlap(self.subject(part), wild.subject) else ""
