"""Idempotent producers of three brokers as processes, whose leaders are killed: each sequence is stored once.

The first one repeats messages that were acked long ago, up to the whole window later, over NATS and over gRPC. The
others, up to a thousand, send a message now and then, so that its runs are short. Our client publishes beside them.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from bascule.client import Client
from bascule.errors import BasculeError
from bascule.limits import PRODUCER_WINDOW
from bascule.testing.probe import call
from bascule.testing.processes import HOST
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import producer_pb2 as pb
from bascule.wire.producers import numbered, producer_prefix
from tests.harness.cluster_load import Brokers
from tests.harness.nats_peers import close

STREAM = "numbered"
IN_FLIGHT = 400
AGAIN_S = 1.0
PATIENCE_S = 60.0
INIT_PRODUCER, PUBLISH = "/bascule.v1.Producers/InitProducer", "/proto.API/Publish"


@dataclass(eq=False)
class Producer:
    number: int
    name: bytes
    prefix: bytes
    sent: int = 0
    acked: dict[int, int] = field(default_factory=dict)
    """Sequence -> offset."""
    oldest: int = 0
    sent_at: float = 0.0

    def unacked(self) -> list[int]:
        while self.oldest in self.acked:
            self.oldest += 1
        return [sequence for sequence in range(self.oldest, self.sent) if sequence not in self.acked]


@dataclass
class Outcome:
    acked: int = 0
    repeated: int = 0
    by_client: int = 0
    kills: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        wrong = "; ".join(self.wrong[:5]) or "nothing"
        return (
            f"acked={self.acked} repeated={self.repeated} by_client={self.by_client} kills={self.kills} wrong: {wrong}"
        )


class NumberedLoad:
    def __init__(self, brokers: Brokers, others: int, seed: int = 1) -> None:
        self.outcome = Outcome()
        self._brokers = brokers
        self._others = others
        self._chance = random.Random(seed)
        self._producers: list[Producer] = []
        self._stop = asyncio.Event()

    async def run(self, kills: int, messages: int) -> Outcome:
        """Until so many leaders were killed, and the first producer has sent so many messages."""
        async with await Client.connect(self._brokers.addresses) as client:
            await client.create_stream(STREAM, replication_factor=3, timeout=20.0)
            await asyncio.to_thread(self._begin)
            connection = await nats.connect(self._brokers.nats.nats_url, max_reconnect_attempts=-1)
            await connection.subscribe("acks.>", cb=self._on_ack)
            tasks = [
                asyncio.create_task(self._publish(connection)),
                asyncio.create_task(self._repeat(connection)),
                asyncio.create_task(self._publish_by_client(client)),
            ]
            try:
                for _ in range(kills):
                    await asyncio.sleep(self._chance.uniform(0.5, 1.5))
                    await self._kill_leader(client)
                while self._producers[0].sent < messages:
                    await asyncio.sleep(0.1)
            finally:
                self._stop.set()
                for result in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(result, BaseException):
                        self.outcome.wrong.append(repr(result))
                await close(connection)
            await self._check(client)
        return self.outcome

    def _begin(self) -> None:
        request = pb.InitProducerRequest(stream=STREAM).SerializeToString()
        broker = self._brokers["a"]
        for number in range(self._others + 1):
            answer = call(HOST, broker.port, INIT_PRODUCER, request, 10.0)
            assert answer.status == 0, answer.text
            init = pb.InitProducerResponse.FromString(answer.message)
            self._producers.append(
                Producer(number, b"p%d" % number, producer_prefix(init.id, init.epoch, init.creation, 0))
            )

    async def _kill_leader(self, client: Client) -> None:
        for _ in range(100):
            try:
                leader = (await client.fetch_metadata([STREAM])).streams[STREAM].partitions[0].leader
                break
            except (BasculeError, KeyError):
                await asyncio.sleep(0.2)
        broker = self._brokers[leader]
        await asyncio.to_thread(broker.kill9)
        self.outcome.kills += 1
        await asyncio.sleep(2.5)
        await asyncio.to_thread(lambda: broker.start().wait_ready())

    # --- publishing ------------------------------------------------------------------------------------------

    async def _publish(self, connection: NatsClient) -> None:
        first, others = self._producers[0], self._producers[1:]
        loop = asyncio.get_running_loop()
        ended_s = 0.0
        while True:
            await asyncio.sleep(0.02)
            if self._stop.is_set():
                ended_s = ended_s or loop.time()
                if not any(each.unacked() for each in self._producers):
                    return
                assert loop.time() - ended_s < PATIENCE_S, "some messages are never acked"
            else:
                room = max(0, IN_FLIGHT - len(first.unacked()))
                await self._send_new(connection, first, min(room, 60))
                for producer in self._chance.sample(others, min(10, len(others))):
                    await self._send_new(connection, producer, 1)
            for producer in self._producers:
                if loop.time() - producer.sent_at > AGAIN_S and (unacked := producer.unacked()):
                    producer.sent_at = loop.time()
                    for sequence in unacked:
                        await self._send(connection, producer, sequence)

    async def _send_new(self, connection: NatsClient, producer: Producer, count: int) -> None:
        if count:
            producer.sent_at = asyncio.get_running_loop().time()
        for _ in range(count):
            producer.sent += 1
            await self._send(connection, producer, producer.sent - 1)

    async def _send(self, connection: NatsClient, producer: Producer, sequence: int) -> None:
        message = api.Message(
            offset=-1,
            value=b"%b-%d" % (producer.name, sequence),
            ackInbox="acks.numbered",
            correlationId=f"{producer.number}:{sequence}",
            ackPolicy=api.ALL,
            producer=numbered(producer.prefix, sequence),
        )
        await connection.publish(STREAM, encode(MsgType.PUBLISH, message.SerializeToString()))

    async def _on_ack(self, message: Msg) -> None:
        payload = decode(message.data, MsgType.ACK)
        assert payload is not None
        ack = api.Ack.FromString(payload)
        if not ack.ackError:
            number, _, sequence = ack.correlationId.partition(":")
            self._note(self._producers[int(number)], int(sequence), ack.offset)

    def _note(self, producer: Producer, sequence: int, offset: int) -> None:
        first = producer.acked.setdefault(sequence, offset)
        if first != offset:
            self.outcome.wrong.append(f"{producer.name!r} {sequence} is acked at {first} and at {offset}")

    async def _repeat(self, connection: NatsClient) -> None:
        """What was acked, over NATS and over gRPC."""
        producer = self._producers[0]
        while not self._stop.is_set():
            await asyncio.sleep(0.05)
            if not producer.oldest:
                continue
            sequence = self._chance.randrange(max(0, producer.sent - PRODUCER_WINDOW), producer.oldest)
            self.outcome.repeated += 1
            if self._chance.random() < 0.5:
                await self._send(connection, producer, sequence)
            else:
                await asyncio.to_thread(self._call, producer, sequence)

    def _call(self, producer: Producer, sequence: int) -> None:
        request = api.PublishRequest(
            stream=STREAM,
            value=b"again",
            expectedOffset=-1,
            ackPolicy=api.ALL,
            producer=numbered(producer.prefix, sequence),
        )
        broker = self._chance.choice(list(self._brokers.brokers.values()))
        try:
            call(HOST, broker.port, PUBLISH, request.SerializeToString(), 2.0)  # without a deadline no ack comes
        except OSError:
            return

    async def _publish_by_client(self, client: Client) -> None:
        async def values() -> AsyncIterator[bytes]:
            while not self._stop.is_set():
                yield b"client-%d" % self.outcome.by_client
                self.outcome.by_client += 1
                if self.outcome.by_client % 50 == 0:
                    await asyncio.sleep(0.02)

        await client.publish_many(STREAM, values(), retry_s=PATIENCE_S, timeout=3.0)

    # --- what is stored --------------------------------------------------------------------------------------

    async def _check(self, client: Client) -> None:
        stored: dict[bytes, list[tuple[int, int]]] = {}
        async with client.subscribe(STREAM, stop="latest") as subscription:
            async for record in subscription:
                name, _, number = record.value.rpartition(b"-")
                if not number.isdigit():
                    self.outcome.wrong.append(f"{record.value!r} is stored at {record.offset}")
                    continue
                stored.setdefault(name, []).append((int(number), record.offset))
        for producer in self._producers:
            found = stored.get(producer.name, [])
            self.outcome.acked += len(producer.acked)
            if [sequence for sequence, _ in found] != list(range(producer.sent)):
                self.outcome.wrong.append(f"{producer.name!r}: not each sequence of {producer.sent} once, in order")
            elif dict(found) != producer.acked:
                self.outcome.wrong.append(f"{producer.name!r}: an ack names another offset")
        by_client = [sequence for sequence, _ in stored.get(b"client", [])]
        if by_client != list(range(self.outcome.by_client)):
            self.outcome.wrong.append(f"the client's messages are not there once, in order: {len(by_client)}")


async def repeat_over_kills(folder: Path, kills: int, others: int, messages: int) -> Outcome:
    with Brokers(folder, peers=True) as brokers:
        return await NumberedLoad(brokers, others).run(kills, messages)
