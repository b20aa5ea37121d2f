"""Brokers in memory with a partition that commits nothing: what waits there for acks is bounded, and dropped when
nobody waits for it any more.
"""

import asyncio
import logging

import pytest

from bascule.limits import PENDING_ACK_BYTES
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, encode
from bascule.wire.nats import pub
from bascule.wire.pb import api_pb2 as api
from tests.harness.acks import create, one_node
from tests.harness.broker import Node
from tests.harness.members import Member, leader_of, three, until

LONG = "c" * 1024


def held(member: Member | Node) -> int:
    return member.broker.environment.pending.nbytes


async def stuck(replication: int = 3) -> dict[str, Member]:
    """Three brokers and a stream below its minimal in-sync set: one of them is dead."""
    members = await three(MemoryNats())
    await create(members["a"], "s", "s", replicationFactor=replication, minIsr=api.NullableInt32(value=3))
    leader = leader_of(members, "s")
    dead = next(name for name, member in members.items() if member is not leader)
    members.pop(dead).kill()
    return members


def publish_async(member: Member, count: int, correlation: str = LONG) -> MemoryCall:
    call = MemoryCall(None)
    assert member.process is not None
    member.process.start(call.run(member.methods["/proto.API/PublishAsync"]))
    request = api.PublishRequest(stream="s", value=b"v", ackPolicy=api.ALL, correlationId=correlation)
    for _ in range(count):
        call.request(request.SerializeToString())
    return call


@pytest.mark.parametrize("through_leader", [True, False])
def test_what_waits_for_a_client_that_left_is_dropped(through_leader: bool) -> None:
    async def main() -> None:
        members = await stuck()
        leader = leader_of(members, "s")
        door = leader if through_leader else next(item for item in members.values() if item is not leader)
        staying = publish_async(door, 3, "who stays")
        leaving = [publish_async(door, 500) for _ in range(4)]
        await until(lambda: held(leader) > 2000 * 1024)
        for call in leaving:
            call.cancel()
        await until(lambda: held(leader) < 3000)
        assert held(leader) > 0
        assert not staying.responses
        status = await door.call("Publish", api.PublishRequest(stream="s", value=b"v", ackPolicy=api.ALL), 0.5)
        assert status[0].name == "DEADLINE_EXCEEDED"
        before = held(leader)
        await until(lambda: held(leader) < before)
        staying.cancel()
        await until(lambda: held(leader) == 0)

    run(main())


def test_memory_is_flat_while_clients_come_publish_and_leave() -> None:
    async def main() -> None:
        members = await stuck()
        leader = leader_of(members, "s")
        tops = []
        for _ in range(12):
            call = publish_async(leader, 300)
            await until(lambda: held(leader) > 300 * 1024)
            tops.append(held(leader))
            call.cancel()
            await until(lambda: held(leader) == 0)
        assert max(tops) < 2 * min(tops)

    run(main())


def test_calls_that_ended_are_told_though_their_broker_gave_up_before() -> None:
    """A half-closed call ends by itself after 5 s; nobody waits for its acks then."""

    async def main() -> None:
        members = await stuck()
        leader = leader_of(members, "s")
        door = next(item for item in members.values() if item is not leader)
        call = publish_async(door, 10)
        await until(lambda: held(leader) > 10 * 1024)
        call.half_close()
        await call.over()
        await until(lambda: held(leader) == 0)

    run(main())


def test_acks_that_wait_are_paid_when_the_in_sync_set_has_grown() -> None:
    """Nothing of this drops what somebody waits for."""

    async def main() -> None:
        members = await three(MemoryNats())
        await create(members["a"], "s", "s", replicationFactor=3, minIsr=api.NullableInt32(value=3))
        leader = leader_of(members, "s")
        name, dead = next((name, member) for name, member in members.items() if member is not leader)
        dead.kill()
        door = next(item for other, item in members.items() if item is not leader and other != name)
        calls = [publish_async(member, 50, str(index)) for index, member in enumerate((leader, door))]
        left = publish_async(door, 50)
        await until(lambda: held(leader) > 50 * 1024)
        left.cancel()
        await asyncio.sleep(10)
        await dead.start()
        await until(lambda: all(len(call.responses) > 50 * 20 for call in calls), 60)
        for call in calls:
            call.half_close()
            await call.over()
        assert held(leader) == 0

    run(main())


def test_acks_of_a_broker_that_leads_no_more_hold_nothing() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members["a"], "s", "s", replicationFactor=3, minIsr=api.NullableInt32(value=3))
        leader = leader_of(members, "s")
        other = next(item for item in members.values() if item is not leader)
        other.kill()
        publish_async(leader, 100)
        await until(lambda: held(leader) > 100 * 1024)
        status = await leader.call("DeleteStream", api.DeleteStreamRequest(name="s"))
        assert status[0].name == "OK"
        assert held(leader) == 0

    run(main())


def test_over_the_bound_acks_are_dropped_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Many partitions, programs on NATS that nobody knows to be gone, correlation ids as long as they may be."""

    async def main() -> None:
        nats = MemoryNats()
        node = await Node(MemoryDisk(), nats).start()
        node.broker.environment.pending.most = 1 << 20
        await create(node, "s", "s", partitions=5, minIsr=api.NullableInt32(value=2))
        await create(node, "fine", "fine")
        client = nats.connect("client")
        message = api.Message(value=b"v", ackInbox="in.box", correlationId=LONG, ackPolicy=api.ALL)
        payload = encode(MsgType.PUBLISH, message.SerializeToString())
        for number in range(4000):
            subject = b"s" if number % 5 == 0 else b"s.%d" % (number % 5)
            client.send(pub(subject, payload))
            if number % 100 == 0:
                await asyncio.sleep(0.05)
                assert held(node) <= 1 << 20
                assert (await node.publish("fine", b"v")).stream == "fine"
        await until(lambda: len(caplog.records) > 2)
        assert held(node) > 1 << 19

    with caplog.at_level(logging.ERROR, logger="bascule.node.partition.leading"):
        run(main())
    said = [record.getMessage() for record in caplog.records if "are dropped" in record.getMessage()]
    assert said
    assert all(text.startswith("s/") for text in said)
    assert "The messages stay stored, but their publishers receive no ack." in said[0]


def test_a_correlation_id_over_its_bound_is_stored_from_nats_and_waits_for_nothing() -> None:
    async def main() -> None:
        node = await one_node()
        await create(node, "s", "s", minIsr=api.NullableInt32(value=2))
        message = api.Message(value=b"v", ackInbox="in.box", correlationId=LONG + "c", ackPolicy=api.ALL)
        node.nats.publish(b"s", encode(MsgType.PUBLISH, message.SerializeToString()))
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        await until(lambda: replica.log.promised_end == 1)
        assert held(node) == 0
        assert node.broker.environment.pending.most == PENDING_ACK_BYTES

    run(main())


def test_an_unary_publish_that_waits_for_no_ack_leaves_none_behind() -> None:
    """Without a deadline, as some clients call it, or with policy NONE."""

    async def main() -> None:
        node = await one_node()
        await create(node, "s", "s", minIsr=api.NullableInt32(value=2))
        for policy, timeout_s in ((api.ALL, None), (api.NONE, 5.0)):
            request = api.PublishRequest(stream="s", value=b"v", ackPolicy=policy)
            assert (await node.call("Publish", request, timeout_s))[0].name == "OK"
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        await until(lambda: replica.log.promised_end == 2)
        assert held(node) == 0

    run(main())
