"""Idempotent producers: each sequence is stored once, whoever leads, and whatever is sent again."""

import asyncio
import errno
import random
from typing import Any

import pytest

from bascule.errors import Status
from bascule.node.partition import producers as stored_producers
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, encode
from bascule.wire.kernels import ProducerTable
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import producer_pb2 as pb
from bascule.wire.producers import INVALID_PRODUCER, REFUSALS, REMADE_STREAM, numbered, producer_prefix
from tests.harness.broker import Node, split
from tests.harness.members import Member, isr, leader_of, three, until

GAP, UNKNOWN, FENCED, DUPLICATE, *_ = REFUSALS.values()


class Producer:
    def __init__(self, answer: pb.InitProducerResponse) -> None:
        self.id, self.epoch, self.creation = answer.id, answer.epoch, answer.creation

    def numbered(self, sequence: int, partition: int = 0, creation: int = 0) -> bytes:
        return numbered(producer_prefix(self.id, self.epoch, creation or self.creation, partition), sequence)


async def begin(node: Node | Member, name: str = "", stream: str = "s") -> Producer:
    call = MemoryCall(5.0)
    call.request(pb.InitProducerRequest(name=name, stream=stream).SerializeToString())
    assert node.process is not None
    handler: Any = node.methods["/bascule.v1.Producers/InitProducer"]
    status, text = await node.process.start(call.run(handler))
    assert status is Status.OK, text
    return Producer(pb.InitProducerResponse.FromString(split(bytes(call.responses))[0]))


async def publish(node: Any, value: bytes, producer: bytes, **fields: Any) -> int | str:
    """The offset that is acked, or why it is refused."""
    request = api.PublishRequest(stream="s", value=value, ackPolicy=api.ALL, producer=producer, **fields)
    status, text, responses = await node.call("Publish", request)
    return api.PublishResponse.FromString(responses[0]).ack.offset if status is Status.OK else text


async def values(node: Node) -> list[bytes]:
    return [value for _, value in await node.read("s")]


def tables(members: dict[str, Member]) -> list[ProducerTable]:
    replicas = [member.broker.replicas.find("s", 0) for member in members.values()]
    return [replica.producers for replica in replicas if replica is not None]


def test_a_sequence_is_stored_once_and_acked_with_its_first_offset() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", partitions=2)
        p = await begin(node)
        assert await publish(node, b"plain", b"") == 0
        assert [await publish(node, b"%d" % each, p.numbered(each)) for each in (0, 1, 0, 1, 2)] == [1, 2, 1, 2, 3]
        assert await publish(node, b"gap", p.numbered(4)) == GAP
        assert await publish(node, b"far", p.numbered((1 << 64) - 1)) == GAP
        assert await publish(node, b"other", p.numbered(0, partition=1), partition=1) == 0
        q = await begin(node)
        assert q.id > p.id
        assert await publish(node, b"late", q.numbered(1)) == UNKNOWN
        assert await values(node) == [b"plain", b"0", b"1", b"2"]

    run(main())


def test_who_begins_under_a_name_fences_those_before() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        old = await begin(node, "orders")
        assert await publish(node, b"0", old.numbered(0)) == 0
        new = await begin(node, "orders")
        assert (new.id, new.epoch > old.epoch) == (old.id, True)
        assert await publish(node, b"1", old.numbered(1)) == 1  # nothing of the new one is there yet
        assert await publish(node, b"gap", new.numbered(2)) == GAP
        assert await publish(node, b"2", new.numbered(0)) == 2
        assert await publish(node, b"late", old.numbered(2)) == FENCED
        assert await publish(node, b"late", old.numbered(0)) == FENCED
        assert await publish(node, b"2", new.numbered(0)) == 2
        assert await values(node) == [b"0", b"1", b"2"]

    run(main())


def test_over_nats_and_over_grpc_it_is_the_same_producer() -> None:
    async def main() -> None:
        nats = MemoryNats()
        node = await Node(MemoryDisk(), nats).start()
        await node.create("s")
        p = await begin(node)
        bus = nats.connect("client")
        acks: list[bytes] = []
        bus.subscribe(b"acks", lambda batch, count: acks.append(batch))

        def send(sequence: int, correlation_id: str) -> None:
            message = api.Message(
                offset=-1,
                value=b"n%d" % sequence,
                ackInbox="acks",
                correlationId=correlation_id,
                ackPolicy=api.ALL,
                producer=p.numbered(sequence),
            )
            payload = encode(MsgType.PUBLISH, message.SerializeToString())
            bus.send(b"PUB s %d\r\n%b\r\n" % (len(payload), payload))

        for number, sequence in enumerate((0, 0, 1, 0, 3)):
            send(sequence, str(number))
        await asyncio.sleep(1)
        assert len(b"".join(acks).split(b"acks")) > 5
        assert await publish(node, b"again", p.numbered(1)) == 1
        assert await publish(node, b"g2", p.numbered(2)) == 2
        send(2, "x")
        await asyncio.sleep(1)
        assert await values(node) == [b"n0", b"n1", b"g2"]

    run(main())


def test_another_stream_ignores_what_is_not_about_it() -> None:
    """An archive on `>` stores all, with none of the numbers."""

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        assert (await node.call("CreateStream", api.CreateStreamRequest(name="all", subject=">")))[0] is Status.OK
        p = await begin(node)
        for sequence in (0, 0, 1, 7):
            await publish(node, b"%d" % sequence, p.numbered(sequence))
        assert await values(node) == [b"0", b"1"]
        archived = [value for _, value in await node.read("all") if len(value) == 1]
        assert archived == [b"0", b"0", b"1", b"7"]
        replica = node.broker.replicas.find("all", 0)
        assert replica is not None
        assert len(replica.producers) == 0

    run(main())


@pytest.mark.parametrize("stops", ["clean", "power"])
@pytest.mark.parametrize("stored_every", [1, 1500, 1 << 30])
def test_a_restart_knows_what_was_stored(monkeypatch: pytest.MonkeyPatch, stops: str, stored_every: int) -> None:
    """From what is stored and the records after it, or from all records."""

    async def main() -> None:
        monkeypatch.setattr(stored_producers, "PRODUCER_CHECKPOINT_BYTES", stored_every)
        monkeypatch.setattr(stored_producers, "PRODUCER_CLOSE_BYTES", stored_every)
        monkeypatch.setattr(stored_producers, "SNAPSHOT_SHARE", 0)
        disk = MemoryDisk()
        node = await Node(disk, MemoryNats()).start()
        await node.create("s")
        p, q = await begin(node), await begin(node)
        for sequence in range(40):
            assert await publish(node, b"p", p.numbered(sequence)) == 2 * sequence
            assert await publish(node, b"q", q.numbered(sequence)) == 2 * sequence + 1
        await asyncio.sleep(1)
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        assert ("producers" in await disk.list(replica.log.folder)) == (stored_every < 1 << 30)
        before = replica.producers.snapshot()
        if stops == "clean":
            await node.process.start(node.broker.stop())
        else:
            node.power_off(random.Random(3))
        node = await Node(disk, MemoryNats(), seed=2).start()
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        await until(lambda: replica.producers.ready)
        assert replica.producers.snapshot() == before
        assert [await publish(node, b"again", q.numbered(each)) for each in (0, 17, 39)] == [1, 35, 79]
        assert await publish(node, b"gap", p.numbered(41)) == GAP
        assert await publish(node, b"p", p.numbered(40)) == 80

    run(main())


def test_the_next_leader_knows_what_was_stored() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
        assert (await members["a"].call("CreateStream", request))[0] is Status.OK
        await until(lambda: len(isr(members)) == 3)
        p = await begin(members["b"])
        for sequence in range(5):
            assert await publish(members["b"], b"%d" % sequence, p.numbered(sequence)) == sequence
        leader = leader_of(members, "s")
        leader.kill()
        others = {name: member for name, member in members.items() if member is not leader}
        await until(lambda: leader_of(members, "s") is not leader)
        await asyncio.sleep(2)
        asked = next(iter(others.values()))
        assert [await publish(asked, b"again", p.numbered(each)) for each in (4, 0, 5, 3)] == [4, 0, 5, 3]
        assert await publish(asked, b"gap", p.numbered(9)) == GAP
        await leader.start()
        await until(lambda: len(isr(members)) == 3)
        await until(lambda: all(table.ready and table.end == 6 for table in tables(members)))
        assert len({table.snapshot() for table in tables(members)}) == 1

    run(main())


def test_what_was_truncated_may_be_stored_again() -> None:
    """A record that only its leader had is truncated there: its sequence is free, also on that broker."""

    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
        assert (await members["a"].call("CreateStream", request))[0] is Status.OK
        await until(lambda: len(isr(members)) == 3)
        p = await begin(members["a"])
        assert await publish(members["a"], b"0", p.numbered(0)) == 0
        leader = leader_of(members, "s")
        replica = leader.broker.replicas.find("s", 0)
        assert replica is not None
        known = replica.producers.snapshot()
        assert leader.process is not None
        for member in members.values():
            if member is not leader:
                member.kill(power=False)
        message = api.Message(offset=-1, value=b"lost", producer=p.numbered(1))
        assert replica.leading is not None
        replica.leading.take_own(encode(MsgType.PUBLISH, message.SerializeToString()))
        assert replica.producers.end == 2
        await asyncio.sleep(0.05)
        leader.kill(power=False)
        for member in members.values():
            if member is not leader:
                await member.start()
        others = {name: member for name, member in members.items() if member is not leader}
        await until(lambda: leader_of(members, "s") is not leader)
        await asyncio.sleep(6)
        asked = next(iter(others.values()))
        assert await publish(asked, b"1", p.numbered(1)) == 1
        await leader.start()
        await until(lambda: len(isr(members)) == 3)
        replica = leader.broker.replicas.find("s", 0)
        assert replica is not None
        await until(lambda: replica.producers.ready and replica.producers.end == 2)
        assert replica.producers.snapshot() != known
        assert len({table.snapshot() for table in tables(members)}) == 1
        assert await leader.read("s", replica=True) == [b"0", b"1"]

    run(main())


def test_only_what_is_committed_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest may be truncated: a later start must not trust it."""

    async def main() -> None:
        monkeypatch.setattr(stored_producers, "PRODUCER_CHECKPOINT_BYTES", 1)
        monkeypatch.setattr(stored_producers, "SNAPSHOT_SHARE", 0)
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
        request.minIsr.value = 2
        assert (await members["a"].call("CreateStream", request))[0] is Status.OK
        await until(lambda: len(isr(members)) == 3)
        p = await begin(members["a"])
        leader = leader_of(members, "s")
        for member in members.values():
            if member is not leader:
                member.kill(power=False)
        replica = leader.broker.replicas.find("s", 0)
        assert replica is not None
        assert replica.leading is not None
        for sequence in range(3):
            message = api.Message(offset=-1, value=b"v", producer=p.numbered(sequence))
            replica.leading.take_own(encode(MsgType.PUBLISH, message.SerializeToString()))
            await asyncio.sleep(0.1)
        assert (replica.log.promised_end, replica.log.visible_end) == (3, 0)
        assert "producers" not in await leader.disk.list(replica.log.folder)

    run(main())


EXPIRES: dict[str, Any] = {
    "retentionMaxAge": api.NullableInt64(value=5_000),
    "segmentMaxAge": api.NullableInt64(value=1_000),
    "cleanerInterval": api.NullableInt64(value=1_000),
}


@pytest.mark.parametrize("ends", ["stop", "power loss"])
def test_what_producers_have_stored_is_known_after_a_start_though_it_has_expired(ends: str) -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", **EXPIRES)
        p = await begin(node)
        assert [await publish(node, b"a%d" % each, p.numbered(each)) for each in range(3)] == [0, 1, 2]
        await asyncio.sleep(20.0)
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        assert (replica.log.start, replica.log.end, len(replica.log.segments)) == (3, 3, 1)
        for number in range(2):
            if ends == "stop":
                assert node.process is not None
                await node.process.start(node.broker.stop())
            else:
                node.power_off(random.Random(number))
            node = await Node(node.disk, MemoryNats(), seed=2 + number).start()
            assert await publish(node, b"a0", p.numbered(0)) == 0
            assert await publish(node, b"late", p.numbered(9)) == GAP
        assert await publish(node, b"a3", p.numbered(3)) == 3
        assert await values(node) == [b"a3"]

    run(main())


def test_records_of_a_producer_expire_once_what_they_say_is_stored() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", **EXPIRES)
        p = await begin(node)
        for each in range(3):
            assert await publish(node, b"a%d" % each, p.numbered(each)) == each
        node.disk.injected_error = lambda path: errno.EIO if "producers" in path else None
        await asyncio.sleep(20.0)
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        assert replica.log.start == 3
        assert len(replica.log.segments) > 1, "their files stay"
        node.disk.heal()
        await until(lambda: len(replica.log.segments) == 1)
        node.power_off(random.Random(1))
        node = await Node(node.disk, MemoryNats(), seed=2).start()
        assert await publish(node, b"a0", p.numbered(0)) == 0

    run(main())


def test_numbers_that_are_not_about_the_partition_are_refused_and_not_ignored() -> None:
    """Its leader would store such a message each time that it is sent."""

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", partitions=2)
        p = await begin(node)
        assert await publish(node, b"0", p.numbered(0)) == 0
        assert (await node.call("DeleteStream", api.DeleteStreamRequest(name="s")))[0] is Status.OK
        await node.create("s", partitions=2)
        q = await begin(node)
        wrong = [p.numbered(1), q.numbered(0, partition=1), q.numbered(0)[:-1]]
        why = [REMADE_STREAM, INVALID_PRODUCER, INVALID_PRODUCER]
        assert [await publish(node, b"x", each) for each in wrong] == why
        call = MemoryCall(5.0)
        for number, each in enumerate([*wrong, q.numbered(0)]):
            request = api.PublishRequest(stream="s", value=b"x", producer=each, correlationId=str(number))
            call.request(request.SerializeToString())
        call.half_close()
        assert await call.run(node.handler("PublishAsync")) == (Status.OK, "")
        found = [api.PublishResponse.FromString(each) for each in split(bytes(call.responses))]
        answers = {each.correlationId or each.ack.correlationId: each for each in found}
        assert [answers[str(number)].asyncError.message for number in range(3)] == why
        assert answers["3"].ack.offset == 0
        assert await values(node) == [b"x"]

    run(main())
