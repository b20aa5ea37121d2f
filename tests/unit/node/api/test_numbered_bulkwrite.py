"""Bulk writes of idempotent producers: each message once, however often its batch is sent, and in whatever batches."""

from typing import Any

import pytest

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.grpc import frame
from bascule.wire.kernels import decode_records
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as pb
from tests.harness.broker import Node
from tests.harness.bulk_write import Writer, stored, with_stream
from tests.harness.members import Member, leader_of, three, until

PRODUCER = pb.WriteProducer(id=1 << 62, epoch=3)


def numbered(sequence: int, *values: bytes, **fields: Any) -> bytes:
    framed = b"".join(frame(api.Message(value=value, key=b"k").SerializeToString()) for value in values)
    body = pb.WriteBatch(**{"count": len(values), "messages": framed, "sequence": sequence, **fields})
    return pb.WriteRequest(batch=body).SerializeToString()


async def write(node: Any, *batches: bytes, **fields: Any) -> tuple[list[pb.WriteResponse], Status, str]:
    """The responses of a call, and how it ended."""
    writer = Writer(node, producer=fields.pop("producer", PRODUCER), **fields)
    for batch in batches:
        writer.call.request(batch)
    status, text = await writer.ends()
    return writer.responses, status, text


async def values(node: Node) -> list[bytes]:
    records = await stored(node)
    return [record[2] for record in decode_records(records, 0, len(records), 100)[1]]


def answers(responses: list[pb.WriteResponse]) -> list[tuple[int, int, int]]:
    return [(each.firstOffset, each.lastOffset, each.duplicates) for each in responses[1:]]


def test_what_is_sent_again_is_acked_and_not_stored_again() -> None:
    async def main() -> None:
        node = await with_stream()
        responses, status, _ = await write(node, numbered(0, b"a", b"b"), numbered(2, b"c"))
        assert (status, responses[0].numbered, responses[0].nextSequence) == (Status.OK, True, 0)
        assert answers(responses) == [(0, 1, 0), (2, 2, 0)]
        # The same in other batches, and more.
        responses, status, _ = await write(node, numbered(0, b"a"), numbered(1, b"b", b"c", b"d"), numbered(4, b"e"))
        assert (status, responses[0].nextSequence) == (Status.OK, 3)
        assert answers(responses) == [(0, 0, 1), (3, 3, 2), (4, 4, 0)]
        responses, *_ = await write(node, numbered(1, b"b", b"c"))
        assert answers(responses) == [(1, 2, 2)]
        assert await values(node) == [b"a", b"b", b"c", b"d", b"e"]
        counted = {each.name: dict(each.values) for each in node.broker.environment.metrics.read()}
        assert counted["bascule_duplicate_messages_total"] == {"": 5}
        assert counted["bascule_refused_messages_total"] == {}

    run(main())


def test_a_higher_epoch_begins_at_0_and_fences_the_one_before() -> None:
    async def main() -> None:
        node = await with_stream()
        await write(node, numbered(0, b"old"))
        old = Writer(node, producer=PRODUCER)
        responses, status, _ = await write(
            node, numbered(0, b"new"), producer=pb.WriteProducer(id=PRODUCER.id, epoch=PRODUCER.epoch + 1)
        )
        assert (status, answers(responses)) == (Status.OK, [(1, 1, 0)])
        old.call.request(numbered(1, b"late"))
        status, text = await old.ends()
        assert (status, "fenced" in text) == (Status.FAILED_PRECONDITION, True)
        responses, status, text = await write(node, numbered(0, b"old"))
        assert (responses, status, "fenced" in text) == ([], Status.FAILED_PRECONDITION, True)
        assert await values(node) == [b"old", b"new"]

    run(main())


@pytest.mark.parametrize(
    ("batch", "status", "reason"),
    [
        (numbered(3, b"x"), Status.FAILED_PRECONDITION, "sequence gap"),
        (numbered(2, b"x", atomic=True), Status.INVALID_ARGUMENT, "is not atomic"),
        (numbered(2**63 - 1, b"x"), Status.INVALID_ARGUMENT, "numbers are below"),
        (numbered(1, b"b", b"c", messages=b"\0\0\0\0\x09torn"), Status.INVALID_ARGUMENT, "batch"),
        (numbered(0, b"a", b"b", b"c", messages=b"\0"), Status.INVALID_ARGUMENT, "the batch says that it has 3"),
    ],
)
def test_a_gap_and_a_batch_that_cannot_be_numbered_are_refused(batch: bytes, status: Status, reason: str) -> None:
    async def main() -> None:
        node = await with_stream()
        await write(node, numbered(0, b"a", b"b"))
        responses, ended, text = await write(node, batch)
        assert (ended, reason in text, responses[-1].error.mayBeStored) == (status, True, False), text
        assert await values(node) == [b"a", b"b"]

    run(main())


def test_producers_and_partitions_do_not_know_each_other() -> None:
    async def main() -> None:
        node = await with_stream()
        other = pb.WriteProducer(id=PRODUCER.id + 1, epoch=1)
        for producer in (PRODUCER, other):
            responses, *_ = await write(node, numbered(0, b"v"), producer=producer)
            assert answers(responses)[0][2] == 0
        responses, *_ = await write(node, numbered(0, b"v"), producer=None)
        assert (responses[0].numbered, answers(responses)) == (False, [(2, 2, 0)])

    run(main())


def test_the_next_leader_knows_what_the_last_one_stored() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        leader = leader_of(members, "s")
        responses, *_ = await write(leader, numbered(0, b"a", b"b"))
        assert answers(responses) == [(0, 1, 0)]
        leader.kill()
        others = [member for member in members.values() if member is not leader]
        await until(lambda: any(map(_leads, others)))
        following = next(filter(_leads, others))
        responses, status, text = await write(following, numbered(0, b"a", b"b", b"c"), timeout_s=60.0)
        assert (status, text) == (Status.OK, "")
        assert (responses[0].nextSequence, answers(responses)) == (2, [(2, 2, 2)])

    run(main())


def _leads(member: Member) -> bool:
    replica = member.broker.replicas.find("s", 0)
    return replica is not None and replica.leading is not None
