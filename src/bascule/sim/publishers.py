"""Clients that publish, one kind for each way to publish: unary calls, a pipelined stream, envelopes and plain messages
over NATS, a subject instead of a stream, and writers that race for expected offsets. All of them retry now and then, as
real ones do: a second try is a message of its own.
"""

import asyncio
from abc import ABC, abstractmethod

from bascule.errors import BusUnavailable, Status
from bascule.sim.history import Outcome, Sent
from bascule.sim.host import LOST, REFUSED, messages_of
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.testing.call import MemoryCall
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.nats import messages, pub
from bascule.wire.pb import api_pb2 as api

POLICIES = (api.LEADER, api.ALL, api.ALL, api.ALL, api.NONE)
ACK_TIMEOUT_S = 3.0
NOT_SENT = (
    "failed to publish to NATS: ",
    "failed to resume stream: ",
    "no such stream",
    "no such partition",
    "readonly partition: ",
    "the broker is stopping",
    REFUSED,
)
NOT_STORED = ("incorrect expected offset",)
TAKES_NO_WRITES = " takes no writes: "
NOT_KNOWN = "unknown error"
"""The leader could not store it. Its followers may have it all the same, and one of them may lead next."""


def is_refusal(text: str) -> bool:
    """Whether this text says that the message is not stored and never will be."""
    if text.startswith(NOT_KNOWN):
        return False
    return text.startswith(NOT_SENT + NOT_STORED) or TAKES_NO_WRITES in text


class Publisher(ABC):
    names_stream = True
    """False: every stream with the subject may ack."""

    def __init__(self, world: World, name: str, parts: list[Part], mean_pause_s: float) -> None:
        self.world = world
        self.name = name
        self.chance = world.chance(name)
        self.checker = world.checker
        self._parts = parts
        self._mean_pause_s = mean_pause_s

    async def run(self) -> None:
        while self.world.publishing:
            await self.world.pause(self.chance, self._mean_pause_s)
            await self.round(self.chance.choice(self._parts))

    @abstractmethod
    async def round(self, part: Part) -> None: ...

    def send(self, part: Part, session: str = "", expected_offset: int | None = None, keyed: bool = True) -> Sent:
        floor = self.checker.known(part).top
        sent = self.world.history.send(part, floor, session, expected_offset, keyed)
        self.world.trace.note("send", f"{sent.token!r} by {self.name}", part)
        return sent

    def subject(self, part: Part) -> str:
        return self.world.history.streams[part.stream].subject_of(part.number)

    def learn(self, sent: Sent, status: Status, text: str, ack: api.Ack | None) -> None:
        """The end of a unary publish."""
        if status is Status.OK and ack is not None and ack.ByteSize():
            self.learn_ack(sent, ack)
        elif status is not Status.OK and is_refusal(text):
            self.checker.refused(sent, text)
        else:
            self.checker.unknown(sent, f"{status.name} {text}")

    def learn_ack(self, sent: Sent, ack: api.Ack) -> None:
        if not ack.ackError:
            self.checker.acked(sent, ack, self.names_stream)
        elif ack.ackError == api.Ack.INCORRECT_OFFSET:
            self.checker.refused(sent, "incorrect expected offset")
        else:
            self.checker.unknown(sent, f"ack error {ack.ackError}")


class UnaryPublisher(Publisher):
    """Publish, one call at a time, tried again if the outcome is not known."""

    async def round(self, part: Part) -> None:
        policy = self.chance.choice(POLICIES)
        for _ in range(self.chance.choice((1, 1, 3))):
            sent = self.send(part)
            sent.key = sent.key or b"k" * self.chance.randint(0, 3)
            request = api.PublishRequest(
                stream=part.stream,
                partition=part.number,
                **sent.fields,
                ackPolicy=policy,
                correlationId=sent.token.decode(),
            )
            if self.chance.random() < 0.3:
                request.headers["h"] = b"v"
            status, text, answers = await self.world.call("Publish", request, ACK_TIMEOUT_S)
            ack = api.PublishResponse.FromString(answers[0]).ack if answers else None
            self.learn(sent, status, text, ack)
            if sent.outcome is Outcome.ACKED or policy == api.NONE:
                return


class SubjectPublisher(Publisher):
    """PublishToSubject: every stream with the subject stores it."""

    names_stream = False

    async def round(self, part: Part) -> None:
        sent = self.send(part)
        request = api.PublishToSubjectRequest(
            subject=self.subject(part),
            **sent.fields,
            ackPolicy=self.chance.choice(POLICIES),
            correlationId=sent.token.decode(),
        )
        status, text, answers = await self.world.call("PublishToSubject", request, ACK_TIMEOUT_S)
        ack = api.PublishToSubjectResponse.FromString(answers[0]).ack if answers else None
        self.learn(sent, status, text, ack)


class AsyncPublisher(Publisher):
    """PublishAsync: bursts down one stream, acks as they come."""

    sessions = 0

    async def round(self, part: Part) -> None:
        self.sessions += 1
        session = f"{self.name}.{self.sessions}"
        call = MemoryCall(None)
        self.world.some_host().open("PublishAsync", call)
        waiting: dict[str, Sent] = {}
        for _ in range(self.chance.randint(1, 4)):
            for _ in range(self.chance.randint(1, self.world.scenario.burst)):
                if call.ended:
                    break
                self._request(call, part, session, waiting)
            await self.world.pause(self.chance, 0.1)
            self._take(call, waiting)
        call.half_close()
        try:
            async with asyncio.timeout(6.0):
                await call.over()
        except TimeoutError:
            call.cancel()
        self._take(call, waiting)
        for sent in waiting.values():
            self.checker.unknown(sent, "the stream ended without an ack")

    def _request(self, call: MemoryCall, part: Part, session: str, waiting: dict[str, Sent]) -> None:
        sent = self.send(part, session)
        policy = self.chance.choice(POLICIES)
        request = api.PublishRequest(
            stream=part.stream,
            partition=part.number,
            **sent.fields,
            ackPolicy=policy,
            correlationId=sent.token.decode(),
        )
        waiting[request.correlationId] = sent
        call.request(request.SerializeToString())

    def _take(self, call: MemoryCall, waiting: dict[str, Sent]) -> None:
        frames = bytes(call.responses)
        call.responses.clear()
        for message in messages_of(frames):
            response = api.PublishResponse.FromString(message)
            sent = self.world.history.sent[response.correlationId.encode()]
            waiting.pop(response.correlationId, None)
            if not response.HasField("asyncError"):
                self.checker.acked(sent, response.ack, self.names_stream)
            elif is_refusal(response.asyncError.message):
                self.checker.refused(sent, response.asyncError.message)
            else:
                self.checker.unknown(sent, response.asyncError.message)


class NatsPublisher(Publisher):
    """Envelopes, and plain messages, straight to NATS, with acks to an inbox of its own."""

    names_stream = False

    def __init__(self, world: World, name: str, parts: list[Part], mean_pause_s: float) -> None:
        super().__init__(world, name, parts, mean_pause_s)
        self.bus = world.nats.connect(name, name)
        self._inbox = f"inbox.{name}"
        self._waiting: dict[str, Sent] = {}
        self._acked = asyncio.Event()
        self.bus.subscribe(self._inbox.encode(), self._on_batch)

    async def round(self, part: Part) -> None:
        plain = self.chance.random() < 0.2
        for _ in range(self.chance.randint(1, 8)):
            self._publish(part, plain)
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                while self._waiting:
                    self._acked.clear()
                    await self._acked.wait()
        except TimeoutError:
            waiting, self._waiting = self._waiting, {}
            for sent in waiting.values():
                self.checker.unknown(sent, "no ack came")

    def _publish(self, part: Part, plain: bool) -> None:
        sent = self.send(part, self.name, keyed=not plain)
        payload = sent.value
        policy = self.chance.choice(POLICIES)
        if not plain:
            message = api.Message(
                **sent.fields,
                ackInbox=self._inbox,
                ackPolicy=policy,
                correlationId=sent.token.decode(),
            )
            payload = encode(MsgType.PUBLISH, message.SerializeToString(), crc=self.chance.random() < 0.2)
        try:
            self.bus.send(pub(self.subject(part).encode(), payload))
        except BusUnavailable as error:
            self.checker.refused(sent, f"failed to publish to NATS: {error}")
            return
        if plain or policy == api.NONE:
            self.checker.unknown(sent, "nobody waits for an ack")
        else:
            self._waiting[sent.token.decode()] = sent

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            payload = decode(message.payload, MsgType.ACK)
            assert payload is not None, "a broker sent something that is no ack"
            ack = api.Ack.FromString(payload)
            self.learn_ack(self.world.history.sent[ack.correlationId.encode()], ack)
            self._waiting.pop(ack.correlationId, None)
        self._acked.set()


class RacingWriter(Publisher):
    """Reads the log end and tries to write there with an expected offset, before others do."""

    async def round(self, part: Part) -> None:
        floor = self.checker.known(part).hw_end
        question = api.FetchPartitionMetadataRequest(stream=part.stream, partition=part.number)
        status, _, answers = await self.world.call_leader(part, "FetchPartitionMetadata", question, ACK_TIMEOUT_S)
        if status is not Status.OK:
            return
        metadata = api.FetchPartitionMetadataResponse.FromString(answers[0]).metadata
        self.checker.watermark(part, floor, metadata)
        expected = metadata.newestOffset + 1
        sent = self.send(part, expected_offset=expected)
        request = api.PublishRequest(
            stream=part.stream,
            partition=part.number,
            value=sent.value,
            ackPolicy=self.chance.choice((api.LEADER, api.ALL)),
            expectedOffset=expected,
            correlationId=sent.token.decode(),
        )
        status, text, answers = await self.world.call("Publish", request, ACK_TIMEOUT_S)
        ack = api.PublishResponse.FromString(answers[0]).ack if answers else None
        self.learn(sent, status, text, ack)


assert LOST not in NOT_SENT, "a lost connection leaves the outcome unknown"
