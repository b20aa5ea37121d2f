"""A leader without contact to the cluster takes messages for a while and then none: its streams may be gone."""

import asyncio
import errno
from functools import partial

import pytest

from bascule.errors import FailedPrecondition, Status
from bascule.node.membership.lease import LEASE_S, LEASE_WAIT_S, Lease
from bascule.node.runtime.jobs import Jobs
from bascule.node.runtime.metrics import Metrics
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import VirtualClock, VirtualLoop, run
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import internal_pb2 as pb
from tests.harness.acks import Publishing
from tests.harness.led import apart, made_apart, replica_of
from tests.harness.members import Member, until

CLOCKS_S = 0.2
"""What a question may take, beyond the time that counts."""


def cut(member: Member, *, off: bool = True) -> None:
    """Its connection for Raft and heartbeats; messages and acks pass."""
    for bus in member.buses[:1]:
        bus.disconnect() if off else bus.reconnect()


def quarantined(member: Member) -> bytes:
    paths = [path for path in member.disk.paths() if path.startswith("quarantine/")]
    return b"".join(member.disk.content(path) for path in paths)


@pytest.mark.parametrize("replication", [1, 3])
def test_a_leader_that_is_partitioned_takes_nothing_after_its_lease(replication: int) -> None:
    async def main() -> None:
        made = await apart(replication)
        nats, members, leader = made.nats, made.members, made.leader
        for member in members.values():  # or others lead at once, and take what comes
            if member is not leader and replication > 1:
                member.broker.controller.live.expired = list  # type: ignore[method-assign]
        client = Publishing(nats)
        loop = asyncio.get_running_loop()
        cut(leader)
        began = loop.time()
        while loop.time() < began + LEASE_S + 2:
            client.send(f"{loop.time():.3f}")
            await asyncio.sleep(0.05)
        taken = [float(name) for name in client.taken]
        assert max(taken) > began + LEASE_S - 2.5, "an election, or a hiccup, refuses nothing"
        assert max(client.taken.values()) <= began + LEASE_S + 0.1
        refused = [float(name) for name, (_, error) in client.acks.items() if error == api.Ack.UNKNOWN]
        # Where there are other replicas one of them may lead by now, and an error must not come before its ack.
        assert min(refused) > max(taken) if replication == 1 else not refused
        status, text, _ = await leader.call("Publish", api.PublishRequest(stream="s", value=b"x", ackPolicy=api.ALL))
        assert status is Status.INTERNAL
        assert "takes no writes: this broker has had no contact with the controller for 5 s" in text
        replica = leader.broker.replicas.find("s", 0)
        assert replica is not None
        stored = replica.log.end
        client.send("too late")
        await asyncio.sleep(0.5)
        assert replica.log.end == stored
        assert client.acks.get("too late", (0.0, -1))[1] == (api.Ack.UNKNOWN if replication == 1 else -1)
        cut(leader, off=False)
        await until(lambda: not leader.broker.environment.lease.over())
        await asyncio.sleep(0.5)
        await leader.publish("s", b"again")

    run(main())


def test_a_deletion_waits_until_an_unreachable_leader_takes_nothing_and_what_that_took_is_set_aside() -> None:
    async def main() -> None:
        made = await apart()
        nats, leader, other = made.nats, made.leader, made.other
        client = Publishing(nats)
        loop = asyncio.get_running_loop()
        client.send("before")
        await asyncio.sleep(2)
        cut(leader)
        await asyncio.sleep(0.5)
        asked = loop.time()
        deleting = asyncio.ensure_future(other.call("DeleteStream", api.DeleteStreamRequest(name="s"), 20.0))
        while not deleting.done():
            client.send(f"{loop.time():.3f}")
            await asyncio.sleep(0.05)
        ended = loop.time()
        assert deleting.result()[:2] == (Status.OK, "")
        assert 3.0 < ended - asked <= LEASE_WAIT_S + CLOCKS_S
        client.send("after")
        await asyncio.sleep(1)
        assert client.acks["after"][1] == api.Ack.UNKNOWN
        assert max(client.taken.values()) < ended, "nothing is acked once the deletion is answered"
        taken = [name for name in client.taken if name != "before"]
        assert len(taken) > 20
        cut(leader, off=False)
        await until(lambda: not [path for path in leader.disk.paths() if path.startswith("streams/s@")])
        retained = quarantined(leader)
        assert all(name.encode() in retained for name in taken if float(name) > asked)
        assert b"before" not in retained, "what was there before is erased, as it was asked for"

    run(main())


def test_a_deletion_waits_for_a_leader_that_was_replaced_unawares() -> None:
    """The metadata name another leader; the old one acks by LEADER until its lease is over."""

    async def main() -> None:
        made = await apart(3)
        nats, leader, other = made.nats, made.leader, made.other
        client = Publishing(nats)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(2)
        cut(leader)

        def replaced() -> bool:
            item = other.broker.cluster.metadata.partition("s", 0)
            return item is not None and item.leader != leader.name

        await until(replaced)
        assert replica_of(leader).leading is not None
        deleting = asyncio.ensure_future(other.call("DeleteStream", api.DeleteStreamRequest(name="s"), 20.0))
        while not deleting.done():
            client.send(f"{loop.time():.3f}", api.LEADER)
            await asyncio.sleep(0.05)
        ended = loop.time()
        assert deleting.result()[:2] == (Status.OK, "")
        for number in range(20):
            client.send(f"after {number}", api.LEADER)
            await asyncio.sleep(0.05)
        assert len(client.taken) > 5
        assert max(client.taken.values()) < ended, "nothing is acked once the deletion is answered"

    run(main())


def test_what_a_leader_took_last_stays_if_its_stream_was_deleted_while_it_was_down() -> None:
    async def main() -> None:
        made = await apart()
        leader, other = made.leader, made.other
        await other.publish("s", b"long ago")
        await asyncio.sleep(20)
        await other.publish("s", b"just now")
        leader.kill()
        assert (await other.call("DeleteStream", api.DeleteStreamRequest(name="s"), 20.0))[0] is Status.OK
        await leader.start()
        await until(lambda: not [path for path in leader.disk.paths() if path.startswith("streams/s@")])
        assert b"just now" in quarantined(leader)
        assert b"long ago" not in quarantined(leader)

    run(main())


def test_a_deletion_does_not_wait_for_leaders_that_answer_nor_for_those_dead_for_long() -> None:
    async def main() -> None:
        made = await apart()
        members, leader, other = made.members, made.leader, made.other
        loop = asyncio.get_running_loop()
        await other.publish("s", b"x")
        began = loop.time()
        assert (await other.call("DeleteStream", api.DeleteStreamRequest(name="s")))[0] is Status.OK
        assert loop.time() - began < 0.5
        replica = leader.broker.replicas._open
        assert not [key for key in replica if replica[key].stream.name == "s" and replica[key].leading]
        assert not quarantined(leader)
        leader = await made_apart(members)
        leader.kill()
        other = next(member for member in members.values() if member is not leader)
        await asyncio.sleep(LEASE_WAIT_S + 1)
        began = loop.time()
        assert (await other.call("DeleteStream", api.DeleteStreamRequest(name="s")))[0] is Status.OK
        assert loop.time() - began < 0.5

    run(main())


def test_a_client_that_cannot_wait_is_told_that_the_outcome_is_not_known() -> None:
    async def main() -> None:
        made = await apart()
        leader, other = made.leader, made.other
        leader.kill()
        loop = asyncio.get_running_loop()
        began = loop.time()
        status, text, _ = await other.call("DeleteStream", api.DeleteStreamRequest(name="s"), 2.0)
        assert loop.time() - began < 2.5
        assert status in (Status.INTERNAL, Status.DEADLINE_EXCEEDED), text

    run(main())


def test_a_deletion_whose_controller_dies_is_waited_for_by_the_next_one() -> None:
    async def main() -> None:
        made = await apart()
        nats, members, leader = made.nats, made.members, made.leader
        controller = made.controller
        third = next(member for member in members.values() if member not in (leader, controller))
        client = Publishing(nats)
        cut(leader)
        loop = asyncio.get_running_loop()
        deleting = asyncio.ensure_future(third.call("DeleteStream", api.DeleteStreamRequest(name="s"), 30.0))
        await until(lambda: "s" not in third.broker.cluster.metadata.streams)
        controller.kill()
        starting = asyncio.ensure_future(controller.start())
        ended: list[float] = []
        deleting.add_done_callback(lambda _: ended.append(loop.time()))
        while not ended or loop.time() < ended[0] + LEASE_S:
            client.send(f"{loop.time():.3f}")
            await asyncio.sleep(0.05)
        await starting
        assert deleting.result()[:2] == (Status.OK, "")
        assert client.taken
        assert max(client.taken.values()) < ended[0]

    run(main())


def test_a_broker_that_stood_still_takes_nothing_when_it_goes_on() -> None:
    """Whatever its timers, and however long the answers waited that were given meanwhile."""

    async def main() -> None:
        made = await apart()
        nats, leader, other = made.nats, made.leader, made.other
        client = Publishing(nats)
        await asyncio.sleep(1)
        assert leader.process is not None
        leader.process.pause()
        assert (await other.call("DeleteStream", api.DeleteStreamRequest(name="s"), 20.0))[0] is Status.OK
        client.send("meanwhile")
        await asyncio.sleep(20)
        leader.process.resume()
        await asyncio.sleep(2)
        assert not client.taken

    run(main())


def test_a_leader_whose_sync_outlasts_its_lease_confirms_nothing_as_stored() -> None:
    async def main() -> None:
        made = await apart()
        nats, leader = made.nats, made.leader
        client = Publishing(nats)
        client.send("first")
        await asyncio.sleep(1)
        leader.disk.sync_delay_s = LEASE_S + 1
        cut(leader)
        client.send("slow")
        await asyncio.sleep(LEASE_S + 3)
        assert client.acks["slow"][1] == api.Ack.UNKNOWN

    run(main())


def test_a_broker_that_receives_commands_and_cannot_store_them_has_no_lease() -> None:
    async def main() -> None:
        made = await apart()
        nats, leader, other = made.nats, made.leader, made.other
        client = Publishing(nats)
        leader.disk.injected_error = lambda path: errno.EIO if path.startswith("raft") else None
        deleting = asyncio.ensure_future(other.call("DeleteStream", api.DeleteStreamRequest(name="s"), 20.0))
        loop = asyncio.get_running_loop()
        while not deleting.done():
            client.send(f"{loop.time():.3f}")
            await asyncio.sleep(0.05)
        ended = loop.time()
        assert deleting.result()[:2] == (Status.OK, "")
        client.send("after")
        await asyncio.sleep(2)
        assert max(client.taken.values()) < ended
        leader.disk.heal()

    run(main())


def test_a_single_voter_never_refuses_and_neither_does_anybody_during_an_election() -> None:
    async def main() -> None:
        nats = MemoryNats()
        alone = await Member("a", nats, seed=True).start()
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=1)
        assert (await alone.call("CreateStream", request))[0] is Status.OK
        cut(alone)
        assert alone.process is not None
        alone.process.pause()
        await asyncio.sleep(3 * LEASE_S)
        alone.process.resume()
        client = Publishing(nats)
        client.send("x")
        await asyncio.sleep(1)
        assert "x" in client.taken
        await alone.publish("s", b"y")
        alone.kill()

        made = await apart()
        nats, leader = made.nats, made.leader
        client = Publishing(nats)
        controller = made.controller
        controller.kill()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() < began + 10:
            client.send(f"{loop.time():.3f}")
            await asyncio.sleep(0.1)
        assert leader.process is not None
        assert len(client.acks) > 90
        assert len(client.taken) == len(client.acks)

    run(main())


def test_a_lease_counts_from_the_question_not_from_the_answer() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        lease = Lease(VirtualClock(loop), alone=lambda: False)

        async def late(timeout_s: float) -> None:
            await asyncio.sleep(LEASE_S - 1)

        assert lease.over()
        assert await lease.ask(late)
        assert not lease.over()
        await asyncio.sleep(1.01)
        assert lease.over()

    run(main())


def test_a_broker_that_does_not_know_a_stream_yet_does_not_say_that_it_is_gone() -> None:
    async def main() -> None:
        members = (await apart()).members
        cluster, status = members["a"].broker.cluster, members["a"].broker.stream_status
        stream = cluster.metadata.streams["s"]
        assert status.exists(stream.creation_index)
        assert status.exists(cluster.metadata.index + 1), "it may be created and led here yet"
        assert (await members["b"].call("DeleteStream", api.DeleteStreamRequest(name="s")))[0] is Status.OK
        await until(lambda: not status.exists(stream.creation_index))

    run(main())


def test_an_unexpected_error_does_not_end_the_lease_for_good(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else asks: a task that ended would leave a broker that refuses every write and never says why."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        lease = Lease(VirtualClock(loop), alone=lambda: False)
        errors = [ValueError("99 is not a valid Status")] * 3

        async def current(timeout_s: float) -> None:
            if errors:
                raise errors.pop()

        jobs = Jobs(lambda reason: None, Metrics())
        jobs.run("the lease", partial(lease.keep, current, lambda: None), "this broker takes no writes")
        await asyncio.sleep(LEASE_S + 2.0)
        assert not errors
        assert not lease.over()
        await jobs.close()

    run(main())
    assert "99 is not a valid Status" in caplog.text


def test_who_is_no_member_gets_no_lease() -> None:
    """DeleteStream waits for the leases that the controller knows of, and it knows of none of a broker that a
    membership leaves out, decided or not."""

    async def main() -> None:
        controller = (await apart()).controller
        for name, expected in (("b", ""), ("z", "z is not a member of the cluster")):
            request = pb.PropagatedRequest(op=pb.BARRIER)
            request.brokerOp.broker = name
            request.operation.id = f"ask {name}"
            try:
                await controller.broker.client.change(request, 5.0)
                answer = ""
            except FailedPrecondition as error:
                answer = str(error)
            assert answer == expected

    run(main())
