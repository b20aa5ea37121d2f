"""A whole broker in memory: real machines, real log, real handlers, on a virtual clock, a disk with a page cache and a
NATS without sockets. Power is lost at random moments; what was acked is there afterwards.
"""

import asyncio
import errno
import random

import pytest

from bascule import limits
from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.nats import messages
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node, split


def test_publish_and_read_back_through_every_door() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        assert (await node.publish("s", b"by gRPC")).offset == 0
        node.nats.publish(b"s", b"plain")
        message = api.Message(value=b"by envelope", ackInbox="in.box", correlationId="c")
        acks: list[bytes] = []
        listener = node.nats.connect("listener")
        listener.subscribe(b"in.box", lambda batch, count: acks.extend(item.payload for item in messages(batch)))
        node.nats.publish(b"s", encode(MsgType.PUBLISH, message.SerializeToString()))
        while not acks:
            await asyncio.sleep(0.01)
        payload = decode(acks[0], MsgType.ACK)
        assert payload is not None
        assert (api.Ack.FromString(payload).offset, api.Ack.FromString(payload).correlationId) == (2, "c")
        assert await node.read("s") == [(0, b"by gRPC"), (1, b"plain"), (2, b"by envelope")]

    run(main())


def test_a_disk_that_falls_behind_holds_back_what_nats_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would pile up in memory until appends are refused."""
    monkeypatch.setattr(limits, "UNSYNCED_HIGH_BYTES", 200)
    monkeypatch.setattr(limits, "UNSYNCED_LOW_BYTES", 100)

    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk, MemoryNats()).start()
        await node.create("s")
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        disk.sync_delay_s = 5.0
        for _ in range(10):
            node.nats.publish(b"s", bytes(300))
            await asyncio.sleep(0.1)
        assert replica.log.end == 1, "what came after the first one waits in NATS"
        disk.sync_delay_s = 0.0
        while replica.log.promised_end < 10:
            await asyncio.sleep(0.1)
        assert len(await node.read("s")) == 10

    run(main())


def test_publish_async_pipelines_and_settles_before_it_ends() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        call = MemoryCall()
        for number in range(100):
            request = api.PublishRequest(stream="s", value=b"%d" % number, correlationId=str(number))
            call.request(request.SerializeToString())
        call.half_close()
        assert await call.run(node.handler("PublishAsync")) == (Status.OK, "")
        answers = [api.PublishResponse.FromString(item) for item in split(bytes(call.responses))]
        assert [(item.correlationId, item.ack.offset) for item in answers] == [(str(n), n) for n in range(100)]

    run(main())


def test_nothing_is_shown_or_acked_while_the_disk_has_not_synced() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk, MemoryNats()).start()
        await node.create("s")
        disk.sync_delay_s = 1.0
        publishing = asyncio.create_task(node.publish("s", b"slow"))
        await asyncio.sleep(0.5)
        assert not publishing.done()
        _, _, (response,) = await node.call("FetchPartitionMetadata", api.FetchPartitionMetadataRequest(stream="s"))
        metadata = api.FetchPartitionMetadataResponse.FromString(response).metadata
        assert (metadata.newestOffset, metadata.highWatermark) == (0, -1)
        assert (await publishing).offset == 0
        assert await node.read("s") == [(0, b"slow")]

    run(main())


def test_a_full_disk_refuses_with_the_reason_and_recovers_by_itself() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk, MemoryNats()).start()
        await node.create("s")
        await node.publish("s", b"before")
        disk.fail_at(0, errno.ENOSPC, times=10_000)
        request = api.PublishRequest(stream="s", value=b"lost", ackPolicy=api.ALL)
        status, text, _ = await node.call("Publish", request)
        assert status is Status.UNKNOWN
        assert text.startswith("unknown error: the message may be stored in partition 0 or not")
        assert "No space left" in text
        status, text, _ = await node.call("Publish", request)
        assert status is Status.INTERNAL
        assert "takes no writes" in text
        assert "No space left" in text
        assert await node.read("s") == [(0, b"before")]
        disk.heal()
        await asyncio.sleep(60)
        assert (await node.publish("s", b"after")).offset == 1
        assert await node.read("s") == [(0, b"before"), (1, b"after")]

    run(main())


def test_without_nats_publishes_fail_fast_and_reads_go_on() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        await node.publish("s", b"kept")
        node.nats.disconnect()
        status, text, _ = await node.call("Publish", api.PublishRequest(stream="s", value=b"x"))
        assert status is Status.UNKNOWN
        assert text.startswith("failed to publish to NATS: ")
        call = MemoryCall()
        call.request(api.PublishRequest(stream="s", correlationId="c").SerializeToString())
        call.half_close()
        await call.run(node.handler("PublishAsync"))
        (answer,) = (api.PublishResponse.FromString(item) for item in split(bytes(call.responses)))
        assert answer.asyncError.code == api.PublishAsyncError.Code.INTERNAL
        assert await node.read("s") == [(0, b"kept")]
        node.nats.reconnect()
        assert (await node.publish("s", b"again")).offset == 1

    run(main())


def test_a_subscriber_that_stops_reading_holds_one_buffer_and_nobody_up() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        for _ in range(20):
            await node.publish("s", bytes(100_000))
        slow = MemoryCall(None)
        slow.taking = False
        slow.request(api.SubscribeRequest(stream="s", startPosition=api.EARLIEST).SerializeToString())
        serving = asyncio.create_task(slow.run(node.handler("Subscribe")))
        await asyncio.sleep(1)
        slow.take()
        await asyncio.sleep(1)
        assert 0 < slow.queued_bytes < 500_000
        assert len(await node.read("s")) == 20
        slow.cancel()
        await serving

    run(main())


def test_folders_no_stream_claims_are_moved_aside_not_deleted() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        disk.put("streams/gone@7/0/00000000000000000000.log", b"precious")
        await Node(disk, MemoryNats()).start()
        (path,) = [path for path in disk.paths() if path.endswith(".log")]
        assert path.startswith("quarantine/")
        assert disk.content(path) == b"precious"

    run(main())


def test_a_client_that_gives_up_on_creating_a_stream_leaves_a_whole_one() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk, MemoryNats()).start()
        disk.sync_delay_s = 1.0
        status, _, _ = await node.call(
            "CreateStream", api.CreateStreamRequest(name="s", subject="s", partitions=20), 0.5
        )
        assert status is Status.DEADLINE_EXCEEDED
        await asyncio.sleep(10)
        assert (await node.publish("s", b"x", partition=19)).offset == 0
        status, text, _ = await node.call("CreateStream", api.CreateStreamRequest(name="s", subject="s"))
        assert (status, text) == (Status.ALREADY_EXISTS, "stream already exists")

    run(main())


def test_a_recreated_stream_starts_empty_and_survives_a_restart() -> None:
    async def main() -> None:
        disk, nats = MemoryDisk(), MemoryNats()
        node = await Node(disk, nats).start()
        await node.create("s", partitions=2)
        await node.publish("s", b"old", partition=1)
        assert (await node.call("DeleteStream", api.DeleteStreamRequest(name="s")))[0] is Status.OK
        await node.create("s", partitions=2)
        await node.publish("s", b"new", partition=1)
        node.power_off(random.Random(1))
        node = await Node(disk, nats, seed=2).start()
        assert await node.read("s", 1) == [(0, b"new")]
        assert await node.read("s", 0) == []

    run(main())


@pytest.mark.parametrize("seed", range(25))
def test_what_was_acked_is_there_after_a_power_cut_at_any_moment(seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        disk, nats = MemoryDisk(), MemoryNats()
        acked: dict[bytes, int] = {}
        number = 0
        for boot in range(6):
            node = await Node(disk, nats, seed=seed * 100 + boot).start()
            if boot == 0:
                await node.create("s")
            stored = await node.read("s")
            at = {value: offset for offset, value in stored}
            assert [offset for offset, _ in stored] == sorted(offset for offset, _ in stored)
            assert {value: at.get(value) for value in acked} == acked
            disk.sync_delay_s = chance.choice([0.0, 0.001, 0.01])
            publishing = []
            for _ in range(chance.randint(1, 40)):
                number += 1
                value = b"%d " % number + bytes(chance.randint(0, 300))
                publishing.append((value, asyncio.create_task(node.publish("s", value))))
                if chance.random() < 0.5:
                    await asyncio.sleep(chance.uniform(0, 0.01))
            await asyncio.sleep(chance.uniform(0, 0.02))
            acked |= {value: task.result().offset for value, task in publishing if task.done()}
            node.power_off(chance)
            for _, task in publishing:
                task.cancel()

    run(main())
