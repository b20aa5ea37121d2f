"""Python programs that know nothing of us: gufo_liftbridge, python-liftbridge, nats-py and grpcio."""

import asyncio
import itertools
import struct
from collections.abc import AsyncIterable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import google_crc32c
import nats
import pytest
from gufo.liftbridge.client import LiftbridgeClient
from gufo.liftbridge.error import ErrorAlreadyExists, ErrorNotFound
from gufo.liftbridge.types import AckPolicy, Message, StartPosition
from nats.aio.client import Client as NatsClient

from bascule.testing.jsonlines import JsonProgram
from bascule.testing.processes import BrokerProcess, start_broker
from bascule.wire.pb import api_pb2 as api
from tests.harness.stub import Stub

HERE = Path(__file__).parent
OLD_PYTHON = HERE.parent.parent / ".venv-python-liftbridge" / "bin" / "python"
TIMEOUT_S = 20.0
ENVELOPE = bytes.fromhex("b90e43b4 00 08 00 00")
ACK_ENVELOPE = bytes.fromhex("b90e43b4 00 08 00 01")

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, TIMEOUT_S))


async def take(messages: AsyncIterable[Message], count: int) -> list[Message]:
    """The next messages of a subscription, which stays open."""
    following = aiter(messages)
    return [await anext(following) for _ in range(count)]


# --- gufo_liftbridge --------------------------------------------------------------------------------------


def test_gufo_creates_lists_and_deletes_streams(broker: BrokerProcess, stream: str) -> None:
    async def work() -> None:
        async with LiftbridgeClient([broker.address]) as client:
            await client.create_stream(stream, subject=f"{stream}.in", partitions=2, wait_for_stream=True)
            with pytest.raises(ErrorAlreadyExists):
                await client.create_stream(stream)
            (found,) = (await client.get_metadata(stream)).metadata
            assert (found.name, found.subject, sorted(found.partitions)) == (stream, f"{stream}.in", [0, 1])
            assert (await client.get_partition_metadata(stream, 1)).high_watermark == -1
            await client.delete_stream(stream)
            with pytest.raises(ErrorNotFound):
                await client.delete_stream(stream)

    run(work())


def test_gufo_publishes_and_subscribes(broker: BrokerProcess, stream: str) -> None:
    async def work() -> None:
        async with LiftbridgeClient([broker.address]) as client:
            await client.create_stream(stream, partitions=2, wait_for_stream=True)
            for number in range(10):
                await client.publish(
                    b"value %d" % number, stream=stream, key=b"k", partition=1, headers={"n": b"%d" % number}
                )
            read = await take(client.subscribe(stream, partition=1, start_position=StartPosition.EARLIEST), 10)
            assert [(m.offset, m.value, m.key, m.partition, m.subject) for m in read] == [
                (number, b"value %d" % number, b"k", 1, f"{stream}.1") for number in range(10)
            ]
            assert dict(read[3].headers) == {"n": b"3", "subject": f"{stream}.1".encode(), "reply": b""}
            at = read[6].timestamp
            later = await take(client.subscribe(stream, partition=1, start_offset=6), 4)
            assert [message.offset for message in later] == [6, 7, 8, 9]
            assert later[0].timestamp == at

    run(work())


def test_gufo_gets_an_ack_for_each_of_a_bulk(broker: BrokerProcess, stream: str) -> None:
    async def work() -> None:
        async with LiftbridgeClient([broker.address]) as client:
            await client.create_stream(stream, wait_for_stream=True)
            requests = [
                client.get_publish_request(b"v%d" % number, stream=stream, ack_policy=AckPolicy.ALL)
                for number in range(300)
            ]
            answers: list[Any] = [answer async for answer in client.publish_bulk(requests)]
            assert [answer.ack.offset for answer in answers] == list(range(300))

    run(work())


def test_gufo_reads_its_own_compressed_values(broker: BrokerProcess, stream: str) -> None:
    async def work() -> None:
        async with LiftbridgeClient([broker.address], compression_method="zlib") as client:
            await client.create_stream(stream, wait_for_stream=True)
            await client.publish(b"x" * 10_000, stream=stream, auto_compress=True)
            (message,) = await take(client.subscribe(stream, start_position=StartPosition.EARLIEST), 1)
            assert message.value == b"x" * 10_000

    run(work())


def test_gufo_is_told_when_there_is_no_such_stream(broker: BrokerProcess) -> None:
    async def work() -> None:
        async with LiftbridgeClient([broker.address]) as client:
            with pytest.raises(ErrorNotFound, match="no such stream: never-made"):
                await client.publish(b"v", stream="never-made")

    run(work())


@pytest.mark.slow
def test_gufo_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    async def work(broker: BrokerProcess) -> None:
        async with LiftbridgeClient([broker.address]) as client:
            await client.create_stream("kept", wait_for_stream=True)
            requests = [client.get_publish_request(b"%d" % number, stream="kept") for number in range(3)]
            assert len([answer async for answer in client.publish_bulk(requests)]) == 3
            read = client.subscribe("kept", start_position=StartPosition.EARLIEST)
            assert [message.value for message in await take(read, 3)] == [b"0", b"1", b"2"]
            broker.kill9()
            broker.start().wait_ready()
            async with LiftbridgeClient([broker.address]) as other:
                await other.publish(b"after", stream="kept")
            (message,) = await take(read, 1)
            assert (message.offset, message.value) == (3, b"after")

    with start_broker(tmp_path) as broker:
        run(work(broker))


# --- python-liftbridge ------------------------------------------------------------------------------------


@pytest.fixture
def old(broker: BrokerProcess) -> JsonProgram:
    if not OLD_PYTHON.exists():
        pytest.skip(f"no {OLD_PYTHON.parent.parent.name}: `make test` creates it")
    return JsonProgram([str(OLD_PYTHON), str(HERE / "python_liftbridge_client.py")], address=broker.address)


def test_python_liftbridge_creates_streams(old: JsonProgram, broker: BrokerProcess, stream: str) -> None:
    assert old.one("create", stream=stream)["event"] == "created"
    assert old.one("create", stream=stream)["is"] == "ErrStreamExists"
    events = old("metadata")
    assert {"event": "broker", "host": "127.0.0.1", "port": broker.port} in events
    assert {"event": "stream", "name": stream, "subject": stream, "partitions": [0]} in events


def test_python_liftbridge_publishes_and_subscribes(old: JsonProgram, stream: str) -> None:
    old.one("create", stream=stream)
    published = old("publish", stream=stream, count=3, key="k")
    assert [event["acked"] for event in published] == [False] * 3, "without a deadline there is no ack to wait for"
    handshake, *read = old("subscribe", stream=stream, start="earliest", count=4)
    assert handshake == {"event": "message", "offset": 0, "key": "", "value": ""}
    assert [(m["offset"], m["key"], m["value"]) for m in read] == [(n, "k", f"value {n}") for n in range(3)]
    assert [m["value"] for m in old("subscribe", stream=stream, start="1", count=3)[1:]] == ["value 1", "value 2"]


def test_python_liftbridge_publishes_to_a_subject(old: JsonProgram, stream: str) -> None:
    old.one("create", stream=stream, subject=f"{stream}.in")
    old.one("publish-to-subject", subject=f"{stream}.in", value="direct")
    assert old("subscribe", stream=stream, start="earliest", count=2)[-1]["value"] == "direct"


def test_python_liftbridge_is_told_what_is_missing(old: JsonProgram) -> None:
    assert old.one("publish", stream="never-made")["is"] == "ErrNoSuchStream"
    assert old.one("subscribe", stream="never-made")["is"] == "ErrNoSuchStream"


# --- nats-py ----------------------------------------------------------------------------------------------


@pytest.fixture
def stub(broker: BrokerProcess) -> Iterator[Stub]:
    with Stub(broker.address) as connected:
        yield connected


def create(stub: Stub, stream: str, **fields: Any) -> None:
    stub.CreateStream(api.CreateStreamRequest(name=stream, subject=stream, **fields), timeout=5)


def read(stub: Stub, stream: str, count: int, **fields: Any) -> list[api.Message]:
    """The first messages of a stream, without the handshake."""
    request = api.SubscribeRequest(stream=stream, startPosition=api.EARLIEST, **fields)
    call = stub.Subscribe(request, timeout=TIMEOUT_S)
    handshake, *messages = itertools.islice(call, count + 1)
    call.cancel()
    assert handshake == api.Message()
    return messages


def crc_envelope(payload: bytes, crc: int) -> bytes:
    return bytes.fromhex("b90e43b4 00 0c 01 00") + struct.pack(">I", crc) + payload


async def connected(broker: BrokerProcess) -> NatsClient:
    return await nats.connect(broker.nats_url)


def test_plain_nats_messages_are_stored_as_they_are(broker: BrokerProcess, stub: Stub, stream: str) -> None:
    create(stub, stream)
    payloads = [b"text", b"", b"\x00\xff" * 1000, ENVELOPE[:4], ENVELOPE + b"\xff", ACK_ENVELOPE]

    async def work() -> None:
        client = await connected(broker)
        for payload in payloads:
            await client.publish(stream, payload)
        await client.publish(stream, b"with headers", headers={"Kept": "no"})
        await client.publish(stream, b"with reply", reply="answer.here")
        await client.drain()

    run(work())
    messages = read(stub, stream, len(payloads) + 2)
    assert [message.value for message in messages] == [*payloads, b"with headers", b"with reply"]
    assert [message.offset for message in messages] == list(range(len(messages)))
    assert dict(messages[-2].headers) == {"subject": stream.encode(), "reply": b""}
    assert (messages[-1].replySubject, messages[-1].headers["reply"]) == ("answer.here", b"answer.here")


def test_envelopes_with_and_without_a_checksum_are_acked(broker: BrokerProcess, stub: Stub, stream: str) -> None:
    create(stub, stream)

    def message(number: int, inbox: str) -> bytes:
        fields = {"value": b"%d" % number, "key": b"k", "ackInbox": inbox, "correlationId": f"c{number}"}
        return api.Message(**fields, ackPolicy=api.ALL).SerializeToString()  # type: ignore[arg-type]

    async def work() -> list[bytes]:
        client = await connected(broker)
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        await client.publish(stream, ENVELOPE + message(0, inbox))
        checked = message(1, inbox)
        await client.publish(stream, crc_envelope(checked, google_crc32c.value(checked)))
        received = [(await answers.next_msg(timeout=5)).data for _ in range(2)]
        await client.close()
        return received

    answers = run(work())
    assert all(answer.startswith(ACK_ENVELOPE) for answer in answers)
    acks = [api.Ack.FromString(answer[len(ACK_ENVELOPE) :]) for answer in answers]
    assert [(ack.stream, ack.offset, ack.correlationId, ack.ackError) for ack in acks] == [
        (stream, 0, "c0", api.Ack.OK),
        (stream, 1, "c1", api.Ack.OK),
    ]
    assert [(found.key, found.value) for found in read(stub, stream, 2)] == [(b"k", b"0"), (b"k", b"1")]


def test_an_envelope_with_a_wrong_checksum_is_stored_whole(broker: BrokerProcess, stub: Stub, stream: str) -> None:
    create(stub, stream)
    broken = crc_envelope(api.Message(value=b"v", ackInbox="never.answered").SerializeToString(), 1)

    async def work() -> None:
        client = await connected(broker)
        await client.publish(stream, broken)
        await client.drain()

    run(work())
    (message,) = read(stub, stream, 1)
    assert (message.value, message.key) == (broken, b"")


def test_a_burst_of_envelopes_keeps_its_order(broker: BrokerProcess, stub: Stub, stream: str) -> None:
    create(stub, stream)
    count = 5000

    async def work() -> list[int]:
        client = await connected(broker)
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox, pending_msgs_limit=count)
        for number in range(count):
            payload = api.Message(value=b"%d" % number, ackInbox=inbox).SerializeToString()
            await client.publish(stream, ENVELOPE + payload)
        acks = [(await answers.next_msg(timeout=10)).data for _ in range(count)]
        await client.close()
        return [api.Ack.FromString(ack[len(ACK_ENVELOPE) :]).offset for ack in acks]

    assert run(work()) == list(range(count))
    assert [message.value for message in read(stub, stream, count)] == [b"%d" % n for n in range(count)]


# --- grpcio -----------------------------------------------------------------------------------------------


def test_grpcio_publishes_a_stream_of_requests_and_half_closes(stub: Stub, stream: str) -> None:
    create(stub, stream, partitions=2)
    count = 2000
    requests = (
        api.PublishRequest(stream=stream, partition=n % 2, value=b"%d" % n, correlationId=str(n)) for n in range(count)
    )
    answers = list(stub.PublishAsync(requests, timeout=TIMEOUT_S))
    assert sorted(int(answer.correlationId) for answer in answers) == list(range(count))
    for partition in range(2):
        mine = [answer.ack for answer in answers if int(answer.correlationId) % 2 == partition]
        assert [ack.offset for ack in mine] == list(range(count // 2))
        messages = read(stub, stream, count // 2, partition=partition)
        assert [message.value for message in messages] == [b"%d" % n for n in range(partition, count, 2)]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 65_536, 900_000])
def test_grpcio_reads_back_values_of_every_size(stub: Stub, stream: str, size: int) -> None:
    create(stub, stream)
    value = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    answer = stub.Publish(api.PublishRequest(stream=stream, value=value, key=value[:100]), timeout=5)
    assert answer.ack.offset == 0
    (message,) = read(stub, stream, 1)
    assert (message.value, message.key) == (value, value[:100])


def test_a_slow_grpcio_reader_gets_everything(stub: Stub, stream: str) -> None:
    """More than every buffer on the way holds, read only after all of it was published."""
    create(stub, stream)
    subscription = stub.Subscribe(api.SubscribeRequest(stream=stream, startPosition=api.EARLIEST), timeout=TIMEOUT_S)
    assert next(subscription) == api.Message()
    value = b"x" * 100_000
    requests = (api.PublishRequest(stream=stream, value=value) for _ in range(200))
    assert len(list(stub.PublishAsync(requests, timeout=TIMEOUT_S))) == 200
    assert [message.offset for message in itertools.islice(subscription, 200)] == list(range(200))
    subscription.cancel()
