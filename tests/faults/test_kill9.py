"""kill -9 of the real process under load, twenty times: every acked message is visible at once after the restart,
at the offset its ack named, in order, once.

Two publishers write to one partition all the time: one through gRPC (our client), one through raw NATS envelopes
(nats-py, which knows nothing of us). NATS itself keeps running, so that what is tested is the broker.
"""

import asyncio
import random
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

from bascule.client import Client
from bascule.errors import BasculeError
from bascule.testing.processes import BrokerProcess, start_broker, start_nats
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.pb import api_pb2 as api

KILLS = 20
IN_FLIGHT = 500


class Acked:
    """value -> offset, for everything any publisher was told is stored."""

    def __init__(self) -> None:
        self.offset_of: dict[bytes, int] = {}

    def add(self, value: bytes, offset: int) -> None:
        assert value not in self.offset_of, f"{value!r} was acked twice"
        self.offset_of[value] = offset


async def publish_by_nats(url: str, acked: Acked, stop: asyncio.Event, numbers: "list[int]") -> None:
    connection = await nats.connect(url)
    inbox = connection.new_inbox()
    room = asyncio.Semaphore(IN_FLIGHT)

    async def on_ack(message: Msg) -> None:
        payload = decode(message.data, MsgType.ACK)
        assert payload is not None
        ack = api.Ack.FromString(payload)
        assert ack.ackError == 0
        acked.add(ack.correlationId.encode(), ack.offset)
        room.release()

    await connection.subscribe(inbox, cb=on_ack)
    try:
        while not stop.is_set():
            try:
                await asyncio.wait_for(room.acquire(), 0.05)
            except TimeoutError:
                continue
            numbers[0] += 1
            value = b"nats %d" % numbers[0]
            message = api.Message(value=value, ackInbox=inbox, correlationId=value.decode(), ackPolicy=api.ALL)
            await connection.publish("orders", encode(MsgType.PUBLISH, message.SerializeToString(), crc=True))
    finally:
        await connection.close()


async def publish_by_grpc(address: str, acked: Acked, stop: asyncio.Event, numbers: "list[int]") -> None:
    sent: list[bytes] = []

    async def values() -> "asyncio.AsyncIterator[bytes]":  # type: ignore[name-defined]
        while not stop.is_set():
            numbers[1] += 1
            sent.append(b"grpc %d" % numbers[1])
            yield sent[-1]
            if len(sent) % 64 == 0:
                await asyncio.sleep(0)

    def on_acks(acks: "list[tuple[int, int, int]]") -> None:
        for index, offset, _ in acks:
            acked.add(sent[index], offset)

    try:
        async with await Client.connect(address) as client:
            await client.publish_many("orders", values(), on_acks=on_acks)
    except BasculeError:
        assert stop.is_set() or True  # the broker was killed under us: what was not acked is unknown


async def one_run(broker: BrokerProcess, nats_url: str, acked: Acked, seconds: float, numbers: "list[int]") -> None:
    stop = asyncio.Event()
    publishers = [
        asyncio.create_task(publish_by_nats(nats_url, acked, stop, numbers)),
        asyncio.create_task(publish_by_grpc(broker.address, acked, stop, numbers)),
    ]
    await asyncio.sleep(seconds)
    await asyncio.to_thread(broker.kill9)
    stop.set()
    for publisher in publishers:
        await publisher


async def read_everything(address: str) -> list[tuple[int, bytes]]:
    async with await Client.connect(address) as client:
        subscription = client.subscribe("orders", start="earliest", stop="latest")
        return [(message.offset, message.value) async for batch in subscription.batches() for message in batch]


def check(stored: list[tuple[int, bytes]], acked: Acked) -> None:
    offsets = [offset for offset, _ in stored]
    assert offsets == sorted(set(offsets)), "offsets repeat or run backwards"
    at = {value: offset for offset, value in stored}
    assert len(at) == len(stored), "a message was stored twice"
    lost = [value for value, offset in acked.offset_of.items() if at.get(value) != offset]
    assert not lost, f"{len(lost)} of {len(acked.offset_of)} acked messages are gone or moved: {lost[:5]}"
    for publisher in (b"nats ", b"grpc "):
        order = [int(value[5:]) for _, value in stored if value.startswith(publisher)]
        assert order == sorted(order), "the order of one publisher was not kept"


@pytest.mark.slow
def test_everything_acked_is_there_after_kill_minus_nine(tmp_path: Path) -> None:
    chance = random.Random(9)
    acked = Acked()
    numbers = [0, 0]
    with start_nats(tmp_path) as nats_server:
        config = {"streams.segment.max.bytes": 300_000}
        with start_broker(tmp_path, nats_url=nats_server.nats_url, config=config) as broker:

            async def create() -> None:
                async with await Client.connect(broker.address) as client:
                    await client.create_stream("orders")

            asyncio.run(create())
            for _ in range(KILLS):
                asyncio.run(one_run(broker, nats_server.nats_url, acked, chance.uniform(0.1, 0.4), numbers))
                broker.start()
                broker.wait_ready()
                check(asyncio.run(read_everything(broker.address)), acked)
            assert len(acked.offset_of) > 1000, "too little was acked for this to show anything"
