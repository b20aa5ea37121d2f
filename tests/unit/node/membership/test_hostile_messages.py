"""Whoever reaches the NATS server can say anything on the cluster's own subjects, and again what others said before.
What was changed on its way, made up, or played back changes nothing, and the brokers go on."""

import asyncio
import random
from typing import Any

import pytest

from bascule.core.replication.feed import SILENCE_S
from bascule.errors import InvalidArgument, Status
from bascule.node.membership.newstream import NewStream
from bascule.node.membership.peers import DOUBLES, SESSION_S
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, decode_checked, encode
from bascule.wire.nats import messages
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.raft import encode_message
from bascule.wire.raft_messages import Heartbeat, VoteRequest
from bascule.wire.replication import decode_request, encode_request
from tests.harness.administration import (
    another,
    answer,
    controller_of,
    create,
    partitions_of,
    publish,
    watch,
    with_stream,
)
from tests.harness.members import Member, leader_of, three, until, within
from tests.harness.metadata import a_stream

RAFT = b"ns.raft.metadata"
Words = list[tuple[bytes, bytes, bytes]]


def listen(nats: MemoryNats, subject: bytes = b"ns.>") -> Words:
    """Everything said from here on: subject, reply, payload."""
    heard: Words = []
    nats.connect("spy").subscribe(
        subject, lambda batch, count: heard.extend((item.subject, item.reply, item.payload) for item in messages(batch))
    )
    return heard


async def busy(members: dict[str, Member]) -> None:
    """A little of everything that brokers talk about."""
    await create(members)
    for number in range(10):
        await publish(members["b"], b"%d" % number, number % 3)
    victim = leader_of(members, "s")
    await answer(another(members, victim.name), "DrainBroker", admin.DrainBrokerRequest(broker=victim.name))
    await answer(another(members, victim.name), "UndrainBroker", admin.UndrainBrokerRequest(broker=victim.name))
    await members["c"].call("CreateStream", api.CreateStreamRequest(name="gone", subject="gone"))
    await members["c"].call("DeleteStream", api.DeleteStreamRequest(name="gone"))


def state(members: dict[str, Member]) -> list[Any]:
    """What no unknown_broker may change: streams, their replicas, who drains, who is a member."""
    found = []
    for member in members.values():
        cluster = member.broker.cluster
        streams = [(name, [item.replicas for item in stream]) for name, stream in cluster.metadata.streams.items()]
        found.append((streams, cluster.metadata.brokers, cluster.raft.membership))
    return found


async def goes_on(members: dict[str, Member]) -> None:
    """Everything is in sync, takes messages, and a change can be decided."""
    await until(lambda: all(len(item.isr) == 3 for item in partitions_of(members["a"])))
    for partition in range(3):
        await publish(members["a"], b"after", partition)
    await asyncio.sleep(1)
    await until(lambda: all(len(item.isr) == 3 for item in partitions_of(members["a"])))
    request = api.CreateStreamRequest(name="after", subject="after", replicationFactor=3)
    assert (await members["c"].call("CreateStream", request, timeout_s=10.0))[0] is Status.OK


def test_what_was_changed_on_its_way_changes_nothing() -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        heard = listen(nats)
        await busy(members)
        await asyncio.sleep(1)
        before, terms = state(members), [member.broker.cluster.raft.raft.term for member in members.values()]
        chance = random.Random(1)
        captured = [word for word in heard if word[2]]
        for number in range(6000):
            subject, reply, payload = chance.choice(captured)
            changed = bytearray(payload)
            at = chance.randrange(len(changed))
            if number % 2:
                changed[at] ^= 1 << chance.randrange(8)
            else:
                changed[at : at + 8] = chance.choice((b"\xff" * 7 + b"\x7f", b"\0" * 8, chance.randbytes(8)))
            nats.publish(subject, bytes(changed), reply)
            if number % 100 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(2)
        assert state(members) == before
        assert [member.broker.cluster.raft.raft.term for member in members.values()] == terms, "an election was forced"
        await goes_on(members)

    run(main())


def test_what_is_played_back_changes_nothing() -> None:
    """All of it, shuffled and doubled, after each broker has been restarted."""

    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        heard = listen(nats)
        await busy(members)
        for name in "abc":
            await asyncio.sleep(2)
            members[name].kill()
            await members[name].start()
            await until(lambda: all(len(item.isr) == 3 for item in partitions_of(members["a"])))
        await asyncio.sleep(2)
        reasons = [watch(member) for member in members.values()]
        captured, before = list(heard), state(members)
        chance = random.Random(2)
        for _ in range(2):
            chance.shuffle(captured)
            for number, (subject, reply, payload) in enumerate(captured):
                nats.publish(subject, payload, reply)
                if number % 200 == 0:
                    await asyncio.sleep(0.01)
        await asyncio.sleep(2)
        assert state(members) == before
        assert not any(reasons)
        await goes_on(members)

    run(main())


@pytest.mark.parametrize("same_controller", [True, False])
def test_an_order_of_an_administrator_that_is_played_back_is_not_carried_out(same_controller: bool) -> None:
    async def main() -> None:
        nats, members = await with_stream()
        lead = controller_of(members)
        asker = another(members, lead.name)
        drained = another(members, lead.name, asker.name)
        heard = listen(nats, within(members, "raft.metadata.propagate"))
        await answer(asker, "DrainBroker", admin.DrainBrokerRequest(broker=drained.name))
        orders = list(heard)
        await answer(asker, "UndrainBroker", admin.UndrainBrokerRequest(broker=drained.name))
        if not same_controller:
            lead.kill()
            await lead.start()
            await until(lambda: sum(member.broker.cluster.raft.is_leader for member in members.values()) == 1)
        for subject, reply, payload in orders:
            nats.publish(subject, payload, reply)
        await asyncio.sleep(2)
        assert [list(member.broker.cluster.metadata.brokers.draining) for member in members.values()] == [[], [], []]
        await answer(asker, "DrainBroker", admin.DrainBrokerRequest(broker=drained.name))
        assert drained.name in asker.broker.cluster.metadata.brokers.draining

    run(main())


def test_heartbeats_of_an_earlier_boot_neither_end_a_broker_nor_move_what_it_leads() -> None:
    async def main() -> None:
        nats, members = await with_stream()
        heard = listen(nats, RAFT + b".info")
        await asyncio.sleep(1)
        captured = list(heard)
        victim = another(members, controller_of(members).name)
        victim.kill()
        await victim.start()
        await goes_on(members)
        await asyncio.sleep(2 * SESSION_S)
        reasons, epochs = watch(victim), [item.leader_epoch for item in partitions_of(victim)]
        for _ in range(4 * DOUBLES):
            for subject, _, payload in captured:
                nats.publish(subject, payload)
            await asyncio.sleep(0.1)
        assert reasons == []
        assert [item.leader_epoch for item in partitions_of(victim)] == epochs

    run(main())


def test_a_follower_counts_again_when_a_second_process_with_its_id_has_ended() -> None:
    """Its data folder was copied and started beside it: the copy's requests seemed to be those of its next boot."""

    async def main() -> None:
        nats, members = await with_stream()
        leader = leader_of(members, "s")
        heard = listen(nats, within(members, f"replicate.{leader.name}"))
        for number in range(5):
            await publish(leader, b"%d" % number)
        subject, _, payload = heard[-1]
        content = decode_checked(payload, MsgType.REPLICATION_REQUEST)
        assert content is not None
        request = decode_request(content)._replace(session=99, request_id=1, full=True)
        nats.publish(subject, encode(MsgType.REPLICATION_REQUEST, encode_request(request), crc=True))
        await asyncio.sleep(1.5 * SILENCE_S)
        await goes_on(members)

    run(main())


def test_what_a_follower_promised_to_an_earlier_leader_counts_for_no_later_one() -> None:
    async def main() -> None:
        nats, members = await with_stream()
        leader = leader_of(members, "s")
        heard = listen(nats, within(members, f"replicate.{leader.name}"))
        await publish(leader, b"x")
        captured = list(heard)
        leader.kill()
        await leader.start()
        await goes_on(members)
        taken: list[str] = []
        for follower, feed in leader.broker.manager.feeds._feeds.items():
            feed.asked = lambda request, at, follower=follower: taken.append(follower)  # type: ignore[method-assign,misc]
        for *_, payload in captured:
            opened = decode_checked(payload, MsgType.REPLICATION_REQUEST)
            assert opened is not None
            leader.broker.manager.feeds._on_request(decode_request(opened))
        assert captured
        assert taken == []

    run(main())


@pytest.mark.parametrize("term", [1 << 40, (1 << 63) - 1])
def test_a_forged_term_does_not_use_up_the_terms(term: int) -> None:
    """After the largest one there would be none to elect anybody in, for ever."""

    async def main() -> None:
        nats, members = await with_stream()
        for name in "abc":
            for source in ("abc".replace(name, "")[0], "unknown"):
                subject = within(members, f"raft.metadata.{name}")
                nats.publish(subject, encode_message(Heartbeat(source, name, term, 0, 0, 1)))
                vote = VoteRequest(source, name, term, 9, 9, "", False, True)
                nats.publish(subject, encode_message(vote))
        await asyncio.sleep(1)
        assert all(member.broker.cluster.raft.raft.term < 100 for member in members.values())
        await goes_on(members)

    run(main())


def test_questions_nobody_can_read_or_answer_keep_nobody_elses_from_an_answer() -> None:
    """In one batch with a good one, which comes last."""

    async def main() -> None:
        nats, members = await with_stream()
        answers = listen(nats, b"ns.reply.spy.*")
        (index,) = {stream.creation_index for stream in members["a"].broker.cluster.metadata.streams.values()}
        good = pb.PartitionStatusRequest(creationIndex=index).SerializeToString()
        kind = MsgType.PARTITION_STATUS_REQUEST
        for name in members:
            replies = (b"*", b"a..b", b"x" * 5000, b"", b"ns.reply.spy." + name.encode())
            batch = [(b"ns.reply.spy.1", encode(kind, b"\xff\xff", crc=True))]
            batch += [(reply, encode(kind, good, crc=True)) for reply in replies]
            for asked in ("status", "admin"):
                subject = within(members, f"raft.metadata.{asked}.{name}")
                commands = [b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(data), data) for reply, data in batch]
                nats.route("", b"".join(commands))
        await asyncio.sleep(1)
        assert sorted(subject[-1:] for subject, _, _ in answers) == [b"a", b"a", b"b", b"b", b"c", b"c"]

    run(main())


@pytest.mark.parametrize(
    ("name", "subject", "partitions", "factor"),
    [
        ("", "s", 1, 1),
        ("../up", "s", 1, 1),
        ("o" * 5000, "s", 1, 1),
        ("s", "a b", 1, 1),
        ("s", "", 1, 1),
        ("s", "s", 0, 1),
        ("s", "s", 2**31 - 1, 1),
        ("s", "s", 1, 0),
        ("s", "s", 1, -2),
    ],
)
def test_a_stream_that_no_broker_would_ask_for_is_not_made(
    name: str, subject: str, partitions: int, factor: int
) -> None:
    with pytest.raises(InvalidArgument):
        NewStream(name, subject, "", partitions, factor, a_stream("x").config).check()
