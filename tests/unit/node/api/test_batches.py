"""Atomic batches through a broker: by any client in one NATS message, by the API, and in bulk with numbers."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.grpc import frame
from bascule.wire.nats import messages, pub
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as log
from bascule.wire.pb import producer_pb2 as pb
from bascule.wire.producers import REFUSALS, numbered, producer_prefix
from tests.harness.broker import DEFAULTS, Node, split
from tests.harness.bulk_write import Writer, with_stream
from tests.harness.drafts import drafted_envelope

GAP, UNKNOWN, FENCED, DUPLICATE, OVERLAP, EMPTY, BENT, LONG = REFUSALS


def framed(*values: bytes) -> bytes:
    return b"".join(frame(api.Message(value=value).SerializeToString()) for value in values)


def envelope(*values: bytes, **fields: Any) -> bytes:
    fields = {"ackInbox": "my.inbox", "ackPolicy": api.ALL, "offset": -1, **fields}
    return encode(MsgType.BATCH, api.Message(value=framed(*values), **fields).SerializeToString())


class RawPublisher:
    """A client that speaks NATS alone."""

    def __init__(self, node: Node, nats: MemoryNats) -> None:
        self._bus = nats.connect("raw", "raw")
        self.acks: list[api.Ack] = []
        self._bus.subscribe(b"my.inbox", self._on_batch)

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            content = decode(message.payload, MsgType.ACK)
            assert content is not None
            self.acks.append(api.Ack.FromString(content))

    async def send(self, subject: bytes, payload: bytes, acks: int = 1) -> list[tuple[str, int, int]]:
        """Stream, offset and error of the acks, by stream."""
        self.acks.clear()
        self._bus.send(pub(subject, payload))
        async with asyncio.timeout(5.0):
            while len(self.acks) < acks:
                await asyncio.sleep(0.01)
        return sorted((ack.stream, ack.offset, ack.ackError) for ack in self.acks)


async def archive(node: Node) -> None:
    """A stream that takes whatever has a subject of one token."""
    status, text, _ = await node.call("CreateStream", api.CreateStreamRequest(name="archive", subject="*"))
    assert status is Status.OK, text


async def begin(node: Node, name: str = "") -> bytes:
    """The prefix of a producer to partition 0 of stream s."""
    request = pb.InitProducerRequest(stream="s", name=name)
    status, text, answers = await node.call("/bascule.v1.Producers/InitProducer", request)
    assert status is Status.OK, text
    answer = pb.InitProducerResponse.FromString(answers[0])
    return producer_prefix(answer.id, answer.epoch, answer.creation, 0)


async def publish(node: Node, *values: bytes, **fields: Any) -> tuple[Status, str, int | None]:
    request = pb.PublishBatchRequest(**{"stream": "s", "messages": framed(*values), **fields})
    status, text, answers = await node.call("/bascule.v1.Producers/PublishBatch", request)
    if status is not Status.OK:
        return status, text, None
    return status, text, pb.PublishBatchResponse.FromString(answers[0]).firstOffset


def test_everybody_who_listens_on_the_subject_stores_the_whole_batch() -> None:
    async def main() -> None:
        nats = MemoryNats()
        node = await Node(MemoryDisk(), nats).start()
        await node.create("s")
        await archive(node)
        raw = RawPublisher(node, nats)
        await node.publish("s", b"before")
        assert await raw.send(b"s", envelope(b"a", b"b", b"c"), acks=2) == [("archive", 1, 0), ("s", 1, 0)]
        expected = [(0, b"before"), (1, b"a"), (2, b"b"), (3, b"c")]
        assert await node.read("s") == await node.read("archive") == expected

    run(main())


def test_a_retry_is_a_duplicate_as_a_whole_and_an_archive_stores_every_try() -> None:
    async def main() -> None:
        nats = MemoryNats()
        node = await Node(MemoryDisk(), nats).start()
        await node.create("s")
        await archive(node)
        raw, prefix = RawPublisher(node, nats), await begin(node)
        first = envelope(b"a", b"b", producer=numbered(prefix, 0))
        assert await raw.send(b"s", first, acks=2) == [("archive", 0, 0), ("s", 0, 0)]
        assert await raw.send(b"s", first, acks=2) == [("archive", 2, 0), ("s", 0, 0)]
        longer = envelope(b"a", b"b", b"c", producer=numbered(prefix, 0))
        assert await raw.send(b"s", longer, acks=2) == [("archive", 4, 0), ("s", 0, OVERLAP)]
        assert await node.read("s") == [(0, b"a"), (1, b"b")]
        assert len(await node.read("archive")) == 7
        found = {each.name: dict(each.values) for each in node.broker.environment.metrics.read()}
        assert found["bascule_duplicate_messages_total"] == {"": 1}, "a batch counts as one message"
        assert found["bascule_refused_messages_total"] == {"not_acceptable": 1}, "the overlap"

    run(main())


def test_what_is_refused_is_told_in_the_ack_and_counted_as_one_message() -> None:
    async def main() -> None:
        nats = MemoryNats()
        node = await Node(MemoryDisk(), nats, defaults=replace(DEFAULTS, max_message_bytes=1000)).start()
        await node.create("s")
        raw = RawPublisher(node, nats)
        torn = api.Message(value=framed(b"a", b"b")[:-1], ackInbox="my.inbox")
        cases = {
            envelope(): EMPTY,
            encode(MsgType.BATCH, torn.SerializeToString()): BENT,
            envelope(*[b"x" * 100] * 9): api.Ack.TOO_LARGE,
            envelope(*[b"x" * 100] * 11): api.Ack.TOO_LARGE,
        }
        for payload, error in cases.items():
            assert await raw.send(b"s", payload) == [("s", 0, error)]
        assert await raw.send(b"s", envelope(*[b"x"] * 5)) == [("s", 0, 0)]
        found = {each.name: dict(each.values) for each in node.broker.environment.metrics.read()}
        assert found["bascule_refused_messages_total"] == {"not_acceptable": 3, "too_large": 1}
        assert len(await node.read("s")) == 5

    run(main())


def test_what_is_refused_is_counted_by_message_beside_a_batch() -> None:
    """Whether NATS delivers them together or not."""

    async def main() -> None:
        nats = MemoryNats()
        node = await Node(MemoryDisk(), nats).start()
        await node.create("s")
        bus = nats.connect("both", "both")
        bus.send(pub(b"s", envelope(*[b"x"] * 5)) + pub(b"s", envelope()) + pub(b"s", b"plain"))
        async with asyncio.timeout(5.0):
            while len(await node.read("s")) < 6:
                await asyncio.sleep(0.01)
        found = {each.name: dict(each.values) for each in node.broker.environment.metrics.read()}
        assert found["bascule_refused_messages_total"] == {"not_acceptable": 1}

    run(main())


def test_a_batch_is_published_by_a_call_to_any_broker() -> None:
    async def main() -> None:
        node = await with_stream()
        prefix = await begin(node)
        one, two = {"producer": numbered(prefix, 0)}, {"producer": numbered(prefix, 2)}
        assert await publish(node, b"a", b"b", **one) == (Status.OK, "", 0)
        assert await publish(node, b"a", b"b", **one) == (Status.OK, "", 0)
        assert await publish(node, b"c", **two) == (Status.OK, "", 2)
        assert await publish(node, b"b", b"c", b"d", producer=numbered(prefix, 1)) == (
            Status.FAILED_PRECONDITION,
            REFUSALS[OVERLAP],
            None,
        )
        assert await node.read("s") == [(0, b"a"), (1, b"b"), (2, b"c")]

    run(main())


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"messages": b""}, Status.INVALID_ARGUMENT, "empty batch: it has no message"),
        ({"messages": b"\0\0\0\0\5a"}, Status.INVALID_ARGUMENT, "a message of the batch is torn"),
        ({"messages": framed(b"a") + frame(b"\xff")}, Status.INVALID_ARGUMENT, "is torn, or no proto.Message"),
        ({"messages": framed(b"x" * 2000)}, Status.INVALID_ARGUMENT, "message exceeds max replication size"),
        ({"messages": framed(*[b"x" * 90] * 9)}, Status.INVALID_ARGUMENT, "message exceeds max replication size"),
        ({"stream": "t"}, Status.NOT_FOUND, "no such stream"),
        ({"partition": 3}, Status.NOT_FOUND, "no such partition"),
        ({"expectedOffset": 7}, Status.UNKNOWN, "incorrect expected offset"),
    ],
)
def test_a_batch_that_is_not_as_it_should_be_is_refused(fields: dict[str, Any], status: Status, reason: str) -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats(), defaults=replace(DEFAULTS, max_message_bytes=1000)).start()
        await node.create("s", optimisticConcurrencyControl=api.NullableBool(value=True))
        found, text, _ = await publish(node, b"a", **fields)
        assert (found, reason in text) == (status, True), text
        assert await publish(node, b"b", b"c", expectedOffset=0) == (Status.OK, "", 0)
        assert await publish(node, b"d") == (Status.OK, "", 2)

    run(main())


def test_a_readonly_partition_refuses_and_a_paused_one_is_resumed() -> None:
    async def main() -> None:
        node = await with_stream()
        await node.call("SetStreamReadonly", api.SetStreamReadonlyRequest(name="s", readonly=True))
        status, text, _ = await publish(node, b"a")
        assert (status, text) == (Status.FAILED_PRECONDITION, "readonly partition: 0")
        await node.call("SetStreamReadonly", api.SetStreamReadonlyRequest(name="s", readonly=False))
        await node.call("PauseStream", api.PauseStreamRequest(name="s"))
        assert await publish(node, b"a", b"b") == (Status.OK, "", 0)

    run(main())


def test_a_bulk_write_with_numbers_is_stored_once_over_either_path() -> None:
    async def main() -> None:
        node = await with_stream()
        prefix = await begin(node)
        writer = Writer(node)

        def send(*values: bytes, at: int, atomic: bool = True, count: int | None = None) -> None:
            body = log.WriteBatch(
                count=len(values) if count is None else count,
                messages=framed(*values),
                atomic=atomic,
                producer=numbered(prefix, at),
            )
            writer.call.request(log.WriteRequest(batch=body).SerializeToString())

        send(b"a", b"b", at=0)
        send(b"a", b"b", at=0)
        send(b"c", b"d", b"e", at=2)
        assert await writer.ends() == (Status.OK, "")
        assert writer.acked == [(1, 0, 1), (2, 0, 1), (3, 2, 4)]
        assert await publish(node, b"c", b"d", b"e", producer=numbered(prefix, 2)) == (Status.OK, "", 2)
        for arguments, reason in (
            ({"at": 4}, REFUSALS[OVERLAP]),
            ({"at": 6}, REFUSALS[GAP]),
            ({"at": 5, "atomic": False}, "a batch of a producer is atomic"),
            ({"at": 5, "count": 3}, "the batch says that it has 3 messages, and has 2"),
        ):
            writer = Writer(node)
            send(b"x", b"y", **arguments)  # type: ignore[arg-type]
            status, text = await writer.ends()
            assert status is not Status.OK
            assert reason in text
        assert [value for _, value in await node.read("s")] == [b"a", b"b", b"c", b"d", b"e"]

    run(main())


def test_a_bulk_write_with_numbers_of_another_partition_is_refused() -> None:
    async def main() -> None:
        node = await with_stream()
        writer = Writer(node)
        body = log.WriteBatch(
            count=1, messages=framed(b"a"), atomic=True, producer=numbered(producer_prefix(1, 2, 999, 0), 0)
        )
        writer.call.request(log.WriteRequest(batch=body).SerializeToString())
        status, text = await writer.ends()
        assert (status, "about another stream or partition" in text) == (Status.INVALID_ARGUMENT, True)
        assert split(bytes(writer.call.responses))

    run(main())


# --- the FlatBuffers draft ------------------------------------------------------------------------------------


def test_a_stream_understands_the_draft_if_it_is_told_to_and_from_then_on() -> None:
    async def main() -> None:
        nats = MemoryNats()
        node = await Node(MemoryDisk(), nats).start()
        draft = drafted_envelope(value=b"v", key=b"k", policy=1, ack_inbox="my.inbox")
        request = api.CreateStreamRequest(name="s", subject="s", flatbuffersDraft=api.NullableBool(value=True))
        assert (await node.call("CreateStream", request))[0] is Status.OK
        await node.create("t")
        raw = RawPublisher(node, nats)
        assert await raw.send(b"s", draft) == [("s", 0, 0)]
        await raw.send(b"t", draft, acks=0)
        await node.publish("t", b"after")
        assert [value for _, value in await node.read("t")] == [draft, b"after"]
        altered = admin.AlterStreamRequest(stream="t", settings=admin.StreamSettings(flatbuffersDraft=True))
        assert (await node.call("/bascule.v1.Admin/AlterStream", altered))[0] is Status.OK
        assert await raw.send(b"t", draft) == [("t", 2, 0)]
        assert await node.read("s") == [(0, b"v")]

    run(main())


def test_a_batch_whose_numbers_are_not_about_its_partition_is_refused_and_not_stored_each_time() -> None:
    async def main() -> None:
        node = await with_stream()
        creation = node.broker.cluster.metadata.streams["s"].creation_index
        good = numbered(producer_prefix(7, 1, creation, 0), 0)
        bent = [
            b"x",
            good[:-1],
            good + b"x",
            numbered(producer_prefix(7, 1, creation + 1, 0), 0),
            numbered(producer_prefix(7, 1, creation, 1), 0),
        ]
        for producer in bent:
            request = pb.PublishBatchRequest(stream="s", messages=framed(b"a"), producer=producer)
            status, text, _ = await node.call("/bascule.v1.Producers/PublishBatch", request)
            assert (status, "about another stream" in text) == (Status.INVALID_ARGUMENT, True)
        for _ in range(2):
            request = pb.PublishBatchRequest(stream="s", messages=framed(b"a"), producer=good)
            assert (await node.call("/bascule.v1.Producers/PublishBatch", request))[0] is Status.OK
        assert await node.read("s") == [(0, b"a")]

    run(main())
