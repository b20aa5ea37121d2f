"""Bulk writes: batches that the leader stores without NATS, whole, in order, with one ack each."""

import asyncio
import errno
from dataclasses import replace
from typing import Any

import pytest

from bascule import limits
from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.grpc import frame
from bascule.wire.kernels import decode_records
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as pb
from tests.harness.broker import DEFAULTS, Node
from tests.harness.bulk_write import WRITE, Writer, batch, stored, with_stream
from tests.harness.members import followers, leader_of, three


def test_batches_are_stored_in_order_and_each_is_acked_with_its_offsets() -> None:
    async def main() -> None:
        node = await with_stream()
        await node.publish("s", b"before")
        writer = Writer(node)
        writer.send(b"a", b"b", b"c")
        writer.send(b"d")
        assert await writer.ends() == (Status.OK, "")
        opened, *_ = writer.responses
        assert (opened.batch, opened.HasField("error")) == (0, False)
        assert opened.creation == node.broker.cluster.metadata.streams["s"].creation_index
        assert writer.acked == [(1, 1, 3), (2, 4, 4)]
        await node.publish("s", b"after")
        assert [value for _, value in await node.read("s")] == [b"before", b"a", b"b", b"c", b"d", b"after"]

    run(main())


def test_key_value_and_headers_are_stored_and_nothing_else() -> None:
    async def main() -> None:
        node = await with_stream()
        message = api.Message(
            key=b"k",
            value=b"v",
            headers={"h": b"1", "subject": b"not mine", "reply": b"nor this"},
            offset=77,
            stream="another",
            subject="elsewhere",
            ackInbox="ns.ack.me.x",
            correlationId="c",
        )
        writer = Writer(node)
        writer.send(count=1, messages=frame(message.SerializeToString()))
        assert (await writer.ends())[0] is Status.OK
        records = await stored(node)
        ((offset, key, value, _, stream, _, subject, reply, headers),) = decode_records(records, 0, len(records), 9)[1]
        assert (offset, key, value, stream, subject, reply) == (0, b"k", b"v", "s", "s", "")
        assert headers == {"subject": b"s", "reply": b"", "h": b"1"}

    run(main())


def test_records_of_a_bulk_read_can_be_written_as_they_are() -> None:
    async def main() -> None:
        node = await with_stream()
        await node.create("copy")
        for value in (b"x", b"y"):
            await node.publish("s", value, key=b"k" + value)
        records = await stored(node)
        writer = Writer(node, stream="copy")
        writer.send(count=2, messages=records)
        assert (await writer.ends())[0] is Status.OK
        assert await node.read("copy") == [(0, b"x"), (1, b"y")]

    run(main())


@pytest.mark.parametrize(
    ("bent", "reason"),
    [
        (batch(b"a", b"b", count=3), "the batch says that it has 3 messages, and has 2"),
        (batch(b"a", b"b", count=1), "the batch says that it has 1 messages, and has more than 1"),
        (batch(), "a batch has 1 to 16384 messages, and this one says 0"),
        (batch(b"a", count=-1), "a batch has 1 to 16384 messages, and this one says -1"),
        (batch(b"a", count=16_385), "a batch has 1 to 16384 messages, and this one says 16385"),
        (batch(count=1, messages=b"\0\0\0\0\x09abc"), "message 0 of the batch is torn"),
        (batch(count=1, messages=b"\0\0"), "message 0 of the batch is torn"),
        (batch(count=1, messages=b"\1\0\0\0\0"), "message 0 of the batch is torn"),
        (batch(count=2, messages=frame(b"") + frame(b"\xff\xff")), "message 1 of the batch is no proto.Message"),
        (batch(count=1, messages=frame(b"\x2a\x01\xff")), "message 0 of the batch is no proto.Message"),
        (batch(b"a", b"x" * 2000), "message 1 of the batch is larger than the cluster replicates, which is 1000 bytes"),
        (pb.WriteRequest(open=pb.WriteOpen(stream="s")).SerializeToString(), "after the first one is a batch"),
        (b"", "after the first one is a batch"),
    ],
)
def test_a_batch_that_is_not_as_it_should_be_is_refused_whole_and_ends_the_call(bent: bytes, reason: str) -> None:
    async def main() -> None:
        node = await with_stream(defaults=replace(DEFAULTS, max_message_bytes=1000))
        writer = Writer(node)
        writer.send(b"good")
        writer.call.request(bent)
        writer.send(b"never")
        status, text = await writer.ends()
        assert status is Status.INVALID_ARGUMENT
        assert reason in text
        assert writer.acked == [(1, 0, 0), (2, 0, 0)]
        error = writer.responses[-1].error
        assert (error.code, error.message, error.mayBeStored) == (int(status), text, False)
        assert await node.read("s") == [(0, b"good")]

    run(main())


def test_bytes_that_are_no_request_end_the_call() -> None:
    async def main() -> None:
        node = await with_stream()
        writer = Writer(node)
        writer.call.request(b"\xff\xff\xff")
        status, text = await writer.ends()
        assert status is Status.INTERNAL
        assert "unmarshalling" in text

    run(main())


def test_the_first_request_opens() -> None:
    async def main() -> None:
        node = await with_stream()
        call = MemoryCall()
        call.request(batch(b"a"))
        handler: Any = node.methods[WRITE]
        status, text = await call.run(handler)
        assert status is Status.INVALID_ARGUMENT
        assert "opens it" in text
        assert await node.read("s") == []

    run(main())


def test_an_atomic_batch_is_stored_as_any_other() -> None:
    async def main() -> None:
        node = await with_stream()
        writer = Writer(node)
        writer.send(b"a", b"b", atomic=True)
        writer.send(b"c", atomic=True)
        assert (await writer.ends())[0] is Status.OK
        assert writer.acked == [(1, 0, 1), (2, 2, 2)]
        assert await node.read("s") == [(0, b"a"), (1, b"b"), (2, b"c")]

    run(main())


def test_an_atomic_batch_is_at_most_as_large_as_a_message() -> None:
    async def main() -> None:
        node = await with_stream(defaults=replace(DEFAULTS, max_message_bytes=1000))
        writer = Writer(node)
        writer.send(*[b"x" * 100] * 20)
        writer.send(*[b"x" * 100] * 5, atomic=True)
        writer.send(*[b"x" * 100] * 6, atomic=True)
        status, text = await writer.ends()
        assert status is Status.INVALID_ARGUMENT
        assert "with message 5 the batch takes more bytes than an atomic one may" in text
        assert writer.acked == [(1, 0, 19), (2, 20, 24), (3, 0, 0)]

    run(main())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stream": "t"}, (Status.NOT_FOUND, "No such partition")),
        ({"partition": 1}, (Status.NOT_FOUND, "No such partition")),
        ({"partition": -1}, (Status.NOT_FOUND, "No such partition")),
    ],
)
def test_what_does_not_exist_is_not_written(fields: dict[str, Any], expected: tuple[Status, str]) -> None:
    async def main() -> None:
        writer = Writer(await with_stream(), **fields)
        assert await writer.ends() == expected

    run(main())


def test_a_stream_that_was_made_again_is_told_apart() -> None:
    async def main() -> None:
        node = await with_stream()
        creation = node.broker.cluster.metadata.streams["s"].creation_index
        assert (await Writer(node, creation=creation).ends())[0] is Status.OK
        await node.call("DeleteStream", api.DeleteStreamRequest(name="s"))
        await node.create("s")
        writer = Writer(node, creation=creation)
        writer.send(b"a")
        status, text = await writer.ends()
        assert status is Status.FAILED_PRECONDITION
        assert "deleted and made again" in text
        assert await node.read("s") == []

    run(main())


def test_a_stream_that_is_deleted_meanwhile_ends_the_call() -> None:
    async def main() -> None:
        node = await with_stream()
        writer = Writer(node)
        writer.send(b"a")
        await asyncio.sleep(0.1)
        await node.call("DeleteStream", api.DeleteStreamRequest(name="s"))
        await node.create("s")
        writer.send(b"b")
        status, text = await writer.ends()
        assert status is Status.NOT_FOUND
        assert "was deleted" in text
        assert await node.read("s") == []

    run(main())


def test_others_that_would_miss_the_messages_are_respected_unless_the_caller_says_so() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.call("CreateStream", api.CreateStreamRequest(name="s", subject="a.s", partitions=3))
        await node.call("CreateStream", api.CreateStreamRequest(name="grouped", subject="g", group="workers"))
        assert (await Writer(node, partition=2).ends())[0] is Status.OK
        status, text = await Writer(node, stream="grouped").ends()
        assert status is Status.FAILED_PRECONDITION
        assert "has the group workers" in text
        writer = Writer(node, partition=2, timeout_s=None)
        writer.send(b"nobody else listens")
        await asyncio.sleep(0.1)
        await node.call("CreateStream", api.CreateStreamRequest(name="archive", subject="*.s.2"))
        writer.send(b"the archive would miss it")
        status, text = await writer.ends()
        assert status is Status.FAILED_PRECONDITION
        assert text.startswith("stream archive takes messages of a.s.2, too; a bulk write does not go through NATS.")
        assert writer.acked == [(1, 0, 0), (2, 0, 0)]
        status, text = await Writer(node, partition=2).ends()
        assert (status, "archive" in text) == (Status.FAILED_PRECONDITION, True)
        assert (await Writer(node, partition=1).ends())[0] is Status.OK
        await node.call("CreateStream", api.CreateStreamRequest(name="newer", subject="b.s.2"))
        status, text = await Writer(node, stream="newer").ends()
        assert (status, "archive" in text) == (Status.FAILED_PRECONDITION, True)
        writer = Writer(node, partition=2, bypassOthers=True)
        writer.send(b"on purpose")
        assert (await writer.ends())[0] is Status.OK
        assert [value for _, value in await node.read("s", 2)] == [b"nobody else listens", b"on purpose"]
        assert await node.read("archive") == []

    run(main())


def test_a_partition_that_is_set_readonly_takes_no_more() -> None:
    async def main() -> None:
        node = await with_stream()
        writer = Writer(node)
        writer.send(b"a")
        await asyncio.sleep(0.1)
        await node.call("SetStreamReadonly", api.SetStreamReadonlyRequest(name="s", readonly=True))
        writer.send(b"b")
        assert await writer.ends() == (Status.FAILED_PRECONDITION, "readonly partition: 0")
        assert await node.read("s") == [(0, b"a")]

    run(main())


def test_a_paused_partition_is_resumed() -> None:
    async def main() -> None:
        node = await with_stream()
        assert (await node.call("PauseStream", api.PauseStreamRequest(name="s")))[0] is Status.OK
        writer = Writer(node)
        writer.send(b"a")
        assert (await writer.ends())[0] is Status.OK
        assert await node.read("s") == [(0, b"a")]

    run(main())


def test_a_partition_that_is_paused_meanwhile_ends_the_call() -> None:
    async def main() -> None:
        node = await with_stream()
        writer = Writer(node)
        writer.send(b"a")
        await asyncio.sleep(0.1)
        assert (await node.call("PauseStream", api.PauseStreamRequest(name="s")))[0] is Status.OK
        status, text = await writer.running
        assert status is Status.UNAVAILABLE
        assert "not led by this broker any more" in text

    run(main())


def test_nothing_is_acked_before_it_is_synced() -> None:
    async def main() -> None:
        node = await with_stream()
        writer = Writer(node, timeout_s=None)
        await asyncio.sleep(0.1)
        node.disk.sync_delay_s = 3.0
        writer.send(b"a")
        await asyncio.sleep(2.0)
        assert writer.acked == []
        assert (await writer.ends())[0] is Status.OK
        assert writer.acked == [(1, 0, 0)]

    run(main())


def test_a_failing_disk_leaves_the_outcome_open_and_ends_the_call() -> None:
    async def main() -> None:
        node = await with_stream()
        writer = Writer(node, timeout_s=None)
        writer.send(b"a")
        await asyncio.sleep(0.1)
        node.disk.fail_at(node.disk.steps + 1, errno.EIO, times=1000)
        writer.send(b"b")
        status, text = await writer.running
        assert status is Status.UNKNOWN
        assert "may be stored or not" in text
        assert writer.responses[-1].error.mayBeStored
        refused = Writer(node, timeout_s=None)
        refused.send(b"c")
        status, text = await refused.running
        assert status is Status.INTERNAL
        assert "takes no writes" in text

    run(main())


def test_a_call_is_not_read_while_too_much_of_it_is_not_acked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.node.api.bulkwrite.BULK_WRITE_UNACKED_BYTES", 100)

    async def main() -> None:
        node = await with_stream()
        writer = Writer(node, timeout_s=None)
        await asyncio.sleep(0.1)
        node.disk.sync_delay_s = 3.0
        for _ in range(50):
            writer.send(b"x" * 60)
        await asyncio.sleep(1.0)
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        assert replica.log.end == 2
        node.disk.sync_delay_s = 0.0
        assert (await writer.ends())[0] is Status.OK
        assert replica.log.visible_end == 50

    run(main())


def test_batches_of_a_call_that_are_not_acked_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.node.api.bulkwrite.BULK_WRITE_UNACKED", 3)

    async def main() -> None:
        node = await with_stream()
        writer = Writer(node, timeout_s=None)
        await asyncio.sleep(0.1)
        node.disk.sync_delay_s = 3.0
        for _ in range(50):
            writer.send(b"x")
        await asyncio.sleep(1.0)
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        assert replica.log.end == 3
        node.disk.sync_delay_s = 0.0
        assert (await writer.ends())[0] is Status.OK

    run(main())


def test_while_too_much_waits_for_the_disk_no_call_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a further bound the log would refuse, and fail."""
    monkeypatch.setattr(limits, "UNSYNCED_HIGH_BYTES", 1000)
    monkeypatch.setattr(limits, "UNSYNCED_LOW_BYTES", 500)
    monkeypatch.setattr(limits, "MAX_UNSYNCED_BYTES", 3000)

    async def main() -> None:
        node = await with_stream()
        writers = [Writer(node, timeout_s=None) for _ in range(10)]
        await asyncio.sleep(0.1)
        node.disk.sync_delay_s = 1.0
        for writer in writers:
            for _ in range(5):
                writer.send(b"x" * 300)
        for writer in writers:
            assert (await writer.ends())[0] is Status.OK
        assert len(await node.read("s")) == 50

    run(main())


def test_calls_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        node = await with_stream()
        monkeypatch.setattr("bascule.node.api.bulkwrite.BULK_WRITES", 1)
        first = Writer(node)
        await asyncio.sleep(0.1)
        status, text = await Writer(node).ends()
        assert status is Status.RESOURCE_EXHAUSTED
        assert "try again later" in text
        assert (await first.ends())[0] is Status.OK
        assert (await Writer(node).ends())[0] is Status.OK

    run(main())


def test_a_client_that_goes_away_leaves_nothing_behind() -> None:
    async def main() -> None:
        node = await with_stream()
        writer = Writer(node, timeout_s=None)
        await asyncio.sleep(0.1)
        node.disk.sync_delay_s = 3.0
        writer.send(b"a")
        await asyncio.sleep(0.1)
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        assert replica.leading is not None
        assert len(replica.leading.unanswered) == 1
        writer.call.cancel()
        writer.running.cancel()
        await asyncio.sleep(5.0)
        assert not replica.leading.unanswered
        assert await node.read("s") == [(0, b"a")]

    run(main())


def test_only_the_leader_takes_batches_and_acks_them_when_all_in_sync_have_them() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        leader = leader_of(members, "s")
        for member in members.values():
            if member is not leader:
                refused = Writer(member)
                refused.send(b"a")
                assert await refused.ends() == (Status.FAILED_PRECONDITION, "Server not partition leader")
        writer = Writer(leader)
        writer.send(b"a", b"b")
        assert (await writer.ends())[0] is Status.OK
        for member in members.values():
            replica = member.broker.replicas.find("s", 0)
            assert replica is not None
            assert replica.log.promised_end == 2

    run(main())


def test_a_leader_without_its_followers_acks_policy_leader_alone() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
        request.minIsr.value = 3
        await members["a"].call("CreateStream", request)
        leader = leader_of(members, "s")
        to_all, to_leader = (
            Writer(leader, timeout_s=None),
            Writer(leader, timeout_s=None, ackPolicy=pb.WriteOpen.LEADER),
        )
        await asyncio.sleep(0.1)
        for member in followers(members)[:1]:
            member.kill()
        to_all.send(b"a")
        to_leader.send(b"b")
        await asyncio.sleep(1.0)
        assert (to_all.acked, to_leader.acked) == ([], [(1, 1, 1)])
        to_all.running.cancel()
        to_leader.running.cancel()

    run(main())


def test_a_leader_that_is_replaced_ends_the_call_and_acks_nothing_more() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        leader = leader_of(members, "s")
        writer = Writer(leader, timeout_s=20.0)
        writer.send(b"a")
        await asyncio.sleep(0.5)
        assert writer.acked == [(1, 0, 0)]
        leader.disk.sync_delay_s = 30.0
        writer.send(b"b")
        await asyncio.sleep(0.1)
        replica = leader.broker.replicas.find("s", 0)
        assert replica is not None
        replica.resign()
        status, text = await writer.running
        assert (status, "not led by this broker any more" in text) == (Status.UNAVAILABLE, True)
        assert writer.acked == [(1, 0, 0)]

    run(main())
