"""Bulk writes to a real broker: from our client, and from grpcio, which knows only the .proto file."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from bascule import limits
from bascule.client import AckPolicy, BlockingClient, Client, Message, Outgoing, WrittenBatch, batches_of
from bascule.errors import FailedPrecondition, InvalidArgument, NotFound, PublishError, Unconfirmed
from bascule.testing.processes import BrokerProcess, start_broker
from bascule.wire.grpc import frame
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as pb

TIMEOUT_S = 60.0
COUNT = 40_000
WRITE = "/bascule.v1.Log/Write"


async def everything(client: Client, stream: str) -> list[Message]:
    return [message async for message in client.subscribe(stream, stop="latest")]


def test_what_is_written_in_batches_is_what_a_subscriber_reads(broker: BrokerProcess, stream: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream(stream)
            await client.publish(stream, b"before")
            sent = [Outgoing(b"%d" % n, b"k%d" % (n % 7) if n % 3 else None, {"n": b"%d" % n}) for n in range(COUNT)]
            written = [each async for each in client.write_batches(stream, batches_of(sent, 100_000))]
            assert [each.number for each in written] == list(range(len(written)))
            assert len(written) > 5
            assert [each.first_offset for each in written] == [1, *(each.last_offset + 1 for each in written[:-1])]
            assert written[-1].last_offset == COUNT
            assert {each.creation for each in written} == {(await client.log_bounds(stream)).creation}
            await client.publish(stream, b"after")
            read = await everything(client, stream)
            assert [message.value for message in (read[0], read[-1])] == [b"before", b"after"]
            for message, outgoing in zip(read[1:-1], sent, strict=True):
                assert (message.value, message.key) == (outgoing.value, outgoing.key)
                assert message.headers == {"n": outgoing.value}

    asyncio.run(main())


def test_a_log_is_copied_from_stream_to_stream(broker: BrokerProcess, stream: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream(stream)
            await client.create_stream(f"{stream}-copy")
            await client.publish_many(stream, (b"%d" % n for n in range(COUNT)))
            pieces = client.read_range(stream, max_bytes=500_000)
            written = [each async for each in client.write_batches(f"{stream}-copy", pieces, ack=AckPolicy.LEADER)]
            assert written[-1].last_offset == COUNT - 1
            copied = await everything(client, f"{stream}-copy")
            assert [message.value for message in copied] == [b"%d" % n for n in range(COUNT)]

    asyncio.run(main())


def test_the_blocking_client_writes_batches_too(broker: BrokerProcess, stream: str) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
        written = list(client.write_batches(stream, [[b"a", b"b"], [b"c"]]))
        assert [each[:3] for each in written] == [(0, 0, 1), (1, 2, 2)]
        assert [message.value for message in client.subscribe(stream, stop="latest")] == [b"a", b"b", b"c"]


def test_messages_are_published_together(broker: BrokerProcess, stream: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream(stream)
            written = await client.publish_batch(stream, [b"a", Outgoing(b"b", b"key", {"h": b"1"})])
            assert (written.first_offset, written.last_offset) == (0, 1)
            with pytest.raises(InvalidArgument, match="an atomic one may, which"):
                await client.publish_batch(stream, [b"x" * 600_000, b"y" * 600_000])
            with pytest.raises(InvalidArgument, match="a batch has 1 to"):
                await client.publish_batch(stream, [])
            read = await everything(client, stream)
            assert [(message.key, message.value) for message in read] == [(None, b"a"), (b"key", b"b")]

    asyncio.run(main())
    with BlockingClient(broker.address) as client:
        assert client.publish_batch(stream, [b"c"]).first_offset == 2


def test_errors_say_what_is_wrong_and_what_is_stored(broker: BrokerProcess, stream: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            with pytest.raises(NotFound, match="no such stream"):
                await first(client, stream, [[b"a"]])
            await client.create_stream(stream)
            with pytest.raises(InvalidArgument, match="a batch has 1 to 16384"):
                await first(client, stream, [[]])
            with pytest.raises(InvalidArgument, match="a batch has 1 to 16384"):
                await first(client, stream, [[b""] * (limits.BULK_WRITE_MESSAGES + 1)])
            with pytest.raises(InvalidArgument, match="message 1 of batch 0: the value is text"):
                await first(client, stream, [[b"a", "text"]])  # type: ignore[list-item]
            with pytest.raises(InvalidArgument, match=r"AckPolicy\.ALL"):
                client.write_batches(stream, [], ack=AckPolicy.NONE)
            with pytest.raises(
                PublishError, match=r"batch 1 was refused: message 0 .* larger than .* \(1 batches"
            ) as refused:
                await first(client, stream, [[b"good"], [b"x" * 1_100_000], [b"never"]])
            assert (refused.value.index, refused.value.acked) == (1, 1)
            assert isinstance(refused.value.__cause__, InvalidArgument)

            async def breaking() -> AsyncIterator[list[bytes]]:
                yield [b"also good"]
                raise ZeroDivisionError("in the source")

            with pytest.raises(ZeroDivisionError):
                async for _ in client.write_batches(stream, breaking()):
                    pass
            bounds = await client.log_bounds(stream)
            await client.delete_stream(stream)
            await client.create_stream(stream)
            with pytest.raises(FailedPrecondition, match="deleted and made again"):
                async for _ in client.write_batches(stream, [[b"a"]], creation=bounds.creation):
                    pass
            assert bounds.end == 2
            await client.create_stream(f"{stream}-all", subject=f"{stream}.>")
            await client.create_stream(f"{stream}-one", subject=f"{stream}.one")
            with pytest.raises(FailedPrecondition, match=f"stream {stream}-all takes messages"):
                await first(client, f"{stream}-one", [[b"a"]])
            async for written in client.write_batches(f"{stream}-one", [[b"a"]], bypass_others=True):
                assert written.last_offset == 0

    async def first(client: Client, name: str, batches: list[list[bytes]]) -> None:
        async for _ in client.write_batches(name, batches):
            pass

    asyncio.run(main())


def test_an_idle_call_goes_on_after_its_partition_was_paused(broker: BrokerProcess, stream: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream(stream)
            goes_on = asyncio.Event()

            async def batches() -> AsyncIterator[list[bytes]]:
                yield [b"before"]
                await goes_on.wait()
                yield [b"after"]

            written: list[WrittenBatch] = []
            async for each in client.write_batches(stream, batches()):
                written.append(each)
                if len(written) == 1:
                    await client.pause_stream(stream)
                    asyncio.get_running_loop().call_later(0.5, goes_on.set)
            assert [(each.number, each.first_offset) for each in written] == [(0, 0), (1, 1)]

    asyncio.run(main())


def numbered_batches(count: int, size: int = 500_000) -> Iterator[list[bytes]]:
    return iter([[b"%02d" % number + bytes(size)] * 2 for number in range(count)])


def test_who_iterates_again_while_batches_have_no_ack_is_told(tmp_path: Path) -> None:
    async def main(broker: BrokerProcess) -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream("w")
            writing = client.write_batches("w", numbered_batches(24))
            first = asyncio.ensure_future(anext(aiter(writing)))
            while not writing._unacked:
                await asyncio.sleep(0)
            broker.pause()
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            broker.resume()
            for _ in range(2):
                with pytest.raises(Unconfirmed, match="interrupted") as caught:
                    await anext(aiter(writing))
                assert caught.value.acked == 0

    with start_broker(tmp_path) as broker:
        asyncio.run(main(broker))


def test_who_iterates_again_when_all_is_acked_goes_on_with_the_next_batch(broker: BrokerProcess, stream: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream(stream)
            ready = asyncio.Event()
            acked: list[WrittenBatch] = []

            def one_by_one() -> Iterator[list[bytes]]:
                for number in range(10):
                    assert len(acked) >= number - 1, "each is given when the one before is acked"
                    yield [b"%d" % number]

            writing = client.write_batches(stream, one_by_one())
            send = writing._send

            async def after_the_ack(batch: Any) -> None:
                while writing._unacked:
                    ready.clear()
                    await ready.wait()
                await send(batch)

            writing._send = after_the_ack  # type: ignore[method-assign]
            while len(acked) < 10:
                async for each in writing:
                    acked.append(each)
                    ready.set()
                    break
                ready.set()
            assert [each.number for each in acked] == list(range(10))
            assert [each.first_offset for each in acked] == list(range(10))
            assert [each async for each in writing] == []
            assert [message.value for message in await everything(client, stream)] == [b"%d" % n for n in range(10)]

    asyncio.run(main())


def test_a_source_that_was_interrupted_is_not_taken_for_one_that_has_ended(broker: BrokerProcess, stream: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream(stream)

            async def source() -> AsyncIterator[list[bytes]]:
                yield [b"first"]
                await asyncio.Event().wait()

            writing = client.write_batches(stream, source())
            async for each in writing:
                assert each.number == 0
                while not writing._taking:
                    await asyncio.sleep(0)
                break
            with pytest.raises(FailedPrecondition, match="waited for its source"):
                await anext(aiter(writing))

    asyncio.run(main())


def test_grpcio_writes_batches(broker: BrokerProcess, stream: str) -> None:
    async def create() -> None:
        async with await Client.connect(broker.address) as client:
            await client.create_stream(stream)

    def requests() -> Iterator[pb.WriteRequest]:
        yield pb.WriteRequest(open=pb.WriteOpen(stream=stream))
        for number in range(20):
            messages = [api.Message(key=b"k", value=b"%d %d" % (number, n)) for n in range(100)]
            framed = b"".join(frame(message.SerializeToString()) for message in messages)
            yield pb.WriteRequest(batch=pb.WriteBatch(count=100, messages=framed))

    asyncio.run(create())
    with grpc.insecure_channel(broker.address) as channel:
        write = channel.stream_stream(
            WRITE,
            request_serializer=pb.WriteRequest.SerializeToString,
            response_deserializer=pb.WriteResponse.FromString,
        )
        opened, *responses = list(write(requests(), timeout=TIMEOUT_S))
        assert opened.batch == 0
        assert [(each.batch, each.firstOffset, each.lastOffset) for each in responses] == [
            (n + 1, 100 * n, 100 * n + 99) for n in range(20)
        ]


def test_malformed_bytes_in_place_of_batches_stop_nothing(broker: BrokerProcess, stream: str) -> None:
    """Any bytes, as requests and as messages of a batch; large, empty, truncated. What is acked is stored, and nothing
    else."""
    chance = random.Random(5)
    good = b"".join(frame(api.Message(value=b"%d" % n).SerializeToString()) for n in range(10))

    def bent() -> bytes:
        match chance.randrange(6):
            case 0:
                return chance.randbytes(chance.randrange(200))
            case 1:
                count = chance.choice((0, -1, 1, 9, 11, 1 << 30))
                return pb.WriteRequest(batch=pb.WriteBatch(count=count, messages=good)).SerializeToString()
            case 2:
                cut = chance.randrange(len(good))
                return pb.WriteRequest(batch=pb.WriteBatch(count=10, messages=good[:cut])).SerializeToString()
            case 3:
                changed = bytearray(good)
                changed[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
                return pb.WriteRequest(batch=pb.WriteBatch(count=10, messages=bytes(changed))).SerializeToString()
            case 4:
                return pb.WriteRequest(open=pb.WriteOpen(stream=stream, partition=7)).SerializeToString()
            case _:
                size = chance.choice((4 << 20, (4 << 20) + 100))
                return pb.WriteRequest(batch=pb.WriteBatch(count=1, messages=bytes(size))).SerializeToString()

    async def main() -> None:
        acked, statuses = 0, set()
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream(stream)
            with grpc.insecure_channel(broker.address) as channel:
                write = channel.stream_stream(
                    WRITE, request_serializer=bytes, response_deserializer=pb.WriteResponse.FromString
                )
                for _ in range(150):
                    opening = pb.WriteRequest(open=pb.WriteOpen(stream=stream)).SerializeToString()
                    requests = [opening, bent()] if chance.random() < 0.9 else [bent(), bent()]
                    try:
                        for response in await asyncio.to_thread(
                            lambda sent: list(write(iter(sent), timeout=5)), requests
                        ):
                            acked += 10 if response.batch and not response.HasField("error") else 0
                    except grpc.RpcError as error:
                        statuses.add(error.code())
            assert statuses <= {
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.INTERNAL,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.StatusCode.NOT_FOUND,
            }
            assert (await client.log_bounds(stream)).end == acked
            async for written in client.write_batches(stream, [[b"still there"]]):
                assert written.first_offset == acked
        assert broker.running
        assert "Traceback" not in broker.logs()

    asyncio.run(main())


@pytest.mark.slow
def test_acked_batches_are_there_after_kill_minus_nine(tmp_path: Path) -> None:
    """Ten kills while batches are on their way. What is acked is there, at its offsets, and nothing is there twice."""
    acked: dict[bytes, int] = {}
    chance = random.Random(3)
    numbers = iter(range(1 << 30))

    def batches(sent: list[list[bytes]]) -> Iterator[list[bytes]]:
        while True:
            sent.append([b"%d " % next(numbers) + b"x" * 200 for _ in range(chance.randint(1, 500))])
            yield sent[-1]

    async def write(client: Client) -> None:
        sent: list[list[bytes]] = []
        async for written in client.write_batches("s", batches(sent)):
            batch = sent[written.number]
            assert written.last_offset - written.first_offset + 1 == len(batch)
            acked.update(zip(batch, range(written.first_offset, written.last_offset + 1), strict=True))
            sent[written.number] = []

    async def main() -> None:
        for number in range(10):
            async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
                if not number:
                    await client.create_stream("s", segment_max_bytes=1 << 20)
                before = len(acked)
                writing = asyncio.create_task(write(client))
                while len(acked) == before:  # a call that is not open yet is no batch on its way
                    await asyncio.sleep(0.01)
                await asyncio.sleep(chance.uniform(0.0, 0.8))
                await asyncio.to_thread(broker.kill9)
                with pytest.raises(Unconfirmed):
                    await writing
            await asyncio.to_thread(lambda: broker.start().wait_ready())
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            stored = {message.offset: message.value async for message in client.subscribe("s", stop="latest")}
            assert list(stored) == list(range(len(stored)))
            assert len(acked) > 1000
            for value, offset in acked.items():
                assert stored[offset] == value
            assert len(set(stored.values())) == len(stored), "nothing was sent twice"

    with start_broker(tmp_path) as broker:
        asyncio.run(main())
