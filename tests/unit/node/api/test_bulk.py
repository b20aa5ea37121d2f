"""Bulk reads: ranges of the log in large messages."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bascule import limits
from bascule.errors import Status
from bascule.node.api import bulk
from bascule.node.partition.manager import ReplicaManager
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.testing.records import split as split_records
from bascule.testing.records import values
from bascule.wire.kernels import decode_records
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as pb
from tests.harness.broker import DEFAULTS, Node, split

READ = "/bascule.v1.Log/Read"


async def read(node: Node, **fields: Any) -> tuple[Status, str, list[pb.ReadResponse]]:
    call = MemoryCall()
    call.request(pb.ReadRequest(stream="s", **fields).SerializeToString())
    handler: Any = node.methods[READ]
    status, text = await call.run(handler)
    return status, text, [pb.ReadResponse.FromString(each) for each in split(bytes(call.responses))]


def offsets(response: pb.ReadResponse) -> list[int]:
    return [record[0] for record in decode_records(response.records, 0, len(response.records), 1 << 30)[1]]


async def with_messages(count: int, **settings: Any) -> Node:
    node = await Node(MemoryDisk(), MemoryNats(), **settings).start()
    await node.create("s")
    for number in range(count):
        await node.publish("s", b"%d" % number)
    return node


def test_a_range_comes_whole_and_each_response_names_its_part_of_it() -> None:
    async def main() -> None:
        node = await with_messages(100)  # several segments
        status, text, responses = await read(node, start=7, end=93, maxBytes=500)
        assert (status, text) == (Status.OK, "")
        assert len(responses) > 3
        assert [offset for each in responses for offset in offsets(each)] == list(range(7, 93))
        assert [each.start for each in responses] == [7, *(each.end for each in responses[:-1])]
        for each in responses:
            assert offsets(each) == list(range(each.start, each.end))
            assert each.count == each.end - each.start
            assert (each.logStart, each.highWatermarkEnd, each.compactedEnd) == (0, 100, 0)
        assert responses[-1].end == 93

    run(main())


def test_without_an_end_it_goes_to_the_high_watermark() -> None:
    async def main() -> None:
        node = await with_messages(30)
        _, _, responses = await read(node)
        assert [offset for each in responses for offset in offsets(each)] == list(range(30))
        _, _, responses = await read(node, start=29, end=1000)
        assert [(each.start, each.end, offsets(each)) for each in responses] == [(29, 30, [29])]

    run(main())


def test_a_range_without_records_is_answered_once() -> None:
    async def main() -> None:
        node = await with_messages(0)
        for fields in ({}, {"end": 10}, {"start": 5}, {"start": 5, "end": 5}):
            status, _, responses = await read(node, **fields)
            start = fields.get("start", 0)
            assert status is Status.OK
            assert [(each.start, each.end, each.count, each.highWatermarkEnd) for each in responses] == [
                (start, start, 0, 0)
            ], fields

    run(main())


async def delete_records(node: Node, before: int) -> None:
    call = MemoryCall()
    call.request(admin.DeleteRecordsRequest(stream="s", before=before).SerializeToString())
    handler: Any = node.methods["/bascule.v1.Admin/DeleteRecords"]
    assert (await call.run(handler))[0] is Status.OK


def test_a_range_that_was_removed_is_told_and_not_taken_for_an_empty_one() -> None:
    async def main() -> None:
        node = await with_messages(100)
        await delete_records(node, 50)
        status, text, responses = await read(node, start=49, end=60)
        assert (status, responses) == (Status.OUT_OF_RANGE, [])
        assert text == "Offset 49 of s/0 was removed: its log begins at 50; begin there"
        _, _, responses = await read(node, start=50)
        assert [offset for each in responses for offset in offsets(each)] == list(range(50, 100))
        assert {each.logStart for each in responses} == {50}

    run(main())


def test_a_reader_that_is_overtaken_by_a_removal_is_told() -> None:
    async def main() -> None:
        node = await with_messages(100)
        call = MemoryCall()
        call.taking = False
        call.request(pb.ReadRequest(stream="s", maxBytes=300).SerializeToString())
        handler: Any = node.methods[READ]
        reading = asyncio.create_task(call.run(handler))
        await asyncio.sleep(0.1)
        await delete_records(node, 90)
        call.taking = True
        call.take()
        status, text = await reading
        assert status is Status.OUT_OF_RANGE, text
        assert "begins at 90" in text
        responses = [pb.ReadResponse.FromString(each) for each in split(bytes(call.responses))]
        assert all(offsets(each) == list(range(each.start, each.end)) for each in responses)

    run(main())


@pytest.mark.parametrize("compacts", [False, True])
def test_a_response_says_what_is_damaged_wherever_compaction_may_have_been(
    monkeypatch: pytest.MonkeyPatch, compacts: bool
) -> None:
    if compacts:
        monkeypatch.setattr(bulk, "compacted_end", lambda replica: replica.log.visible_end)

    async def main() -> None:
        node = await with_messages(100, defaults=replace(DEFAULTS, compact_enabled=compacts))
        for number in (0, 17, 18, 99):
            harm(node.disk, b"%d" % number)
        for fields in ({"maxBytes": 300}, {}, {"start": 18, "end": 60}):
            status, _, responses = await read(node, **fields)
            first, end = fields.get("start", 0), fields.get("end", 100)
            assert status is Status.OK
            assert {each.compactedEnd for each in responses} == {100 if compacts else 0}
            damaged = [offset for each in responses for one in each.damaged for offset in range(one.start, one.end)]
            assert damaged == [offset for offset in (0, 17, 18, 99) if first <= offset < end]
            for each in responses:
                assert all(each.start <= one.start < one.end <= each.end for one in each.damaged)

    run(main())


def harm(disk: MemoryDisk, value: bytes) -> None:
    """The record of stream s that has it."""
    for path in disk.paths():
        if "/s@" in path and path.endswith(".log"):
            position = 0
            for record in split_records(disk.content(path)):
                if values(record)[0][1] == value:
                    disk.flip(path, position + len(record) - 1, 1)
                position += len(record)


def test_what_has_expired_is_not_served_from_the_moment_that_the_metadata_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The change reaches the log later, after all changes before it."""

    async def main() -> None:
        node = await with_messages(100)
        held = asyncio.Event()

        async def waits(manager: ReplicaManager, *arguments: Any) -> None:
            await held.wait()

        monkeypatch.setattr(ReplicaManager, "take_roles", waits)
        deleting = asyncio.create_task(delete_records(node, 50))
        while node.broker.cluster.metadata.streams["s"].partitions[0].start != 50:
            await asyncio.sleep(0.01)
        assert (await read(node, start=49))[0] is Status.OUT_OF_RANGE
        assert (await read(node, start=50))[2][0].logStart == 50
        assert [offset for offset, _ in await node.read("s")] == list(range(50, 100))
        request = api.SubscribeRequest(stream="s", startPosition=api.LATEST, reverse=True)
        backwards = MemoryCall()
        backwards.request(request.SerializeToString())
        await backwards.run(node.handler("Subscribe"))
        frames = bytes(backwards.responses[5:])
        assert [record[0] for record in decode_records(frames, 0, len(frames), 1 << 30)[1]] == list(range(99, 49, -1))
        held.set()
        deleting.cancel()

    run(main())


def test_a_stream_that_was_made_again_is_told_apart() -> None:
    async def main() -> None:
        node = await with_messages(3)
        creation = (await read(node))[2][0].creation
        assert creation
        assert (await read(node, creation=creation))[0] is Status.OK
        await node.call("DeleteStream", api.DeleteStreamRequest(name="s"))
        await node.create("s")
        status, text, responses = await read(node, creation=creation)
        assert status is Status.FAILED_PRECONDITION
        assert "deleted and made again" in text
        assert not responses

    run(main())


def test_bad_requests_are_refused_with_the_reason() -> None:
    async def main() -> None:
        node = await with_messages(3)
        assert (await read(node, start=2, end=1))[:2] == (
            Status.INVALID_ARGUMENT,
            "the range ends before it begins: 1 < 2",
        )
        assert (await read(node, partition=1))[:2] == (Status.NOT_FOUND, "No such partition")
        assert (await read(node, partition=-1))[:2] == (Status.NOT_FOUND, "No such partition")
        most = 2**64 - 1
        status, _, responses = await read(node, start=most, end=most, maxBytes=2**32 - 1)
        assert (status, [each.end for each in responses]) == (Status.OK, [most])

    run(main())


def test_a_paused_partition_is_neither_read_nor_resumed() -> None:
    async def main() -> None:
        node = await with_messages(3)
        assert (await node.call("PauseStream", api.PauseStreamRequest(name="s")))[0] is Status.OK
        status, text, _ = await read(node)
        assert (status, text) == (Status.FAILED_PRECONDITION, "The partition is paused; resume it to read it")
        described = await node.call("FetchMetadata", api.FetchMetadataRequest(streams=["s"]))
        metadata = api.FetchMetadataResponse.FromString(described[2][0])
        assert metadata.streamMetadata[0].partitions[0].paused

    run(main())


def test_a_client_that_does_not_read_holds_two_responses_and_no_more() -> None:
    async def main() -> None:
        node = await with_messages(100)
        call = MemoryCall(timeout_s=1.0)
        call.taking = False
        call.request(pb.ReadRequest(stream="s", maxBytes=300).SerializeToString())
        handler: Any = node.methods[READ]
        assert (await call.run(handler))[0] is Status.DEADLINE_EXCEEDED
        assert len(split(bytes(call.responses))) == 1

    run(main())


def test_reads_are_bounded_in_number(monkeypatch: Any) -> None:
    async def main() -> None:
        node = await with_messages(3)
        monkeypatch.setattr("bascule.node.api.bulk.BULK_READS", 0)
        status, text, _ = await read(node)
        assert status is Status.RESOURCE_EXHAUSTED
        assert "another replica" in text
        monkeypatch.setattr("bascule.node.api.bulk.BULK_READS", limits.BULK_READS)
        assert (await read(node))[0] is Status.OK

    run(main())
