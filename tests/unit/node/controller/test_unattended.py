"""What nobody expects, and nobody would notice: errors of our own in the tasks that keep a broker in its cluster, and
requests that cannot be right."""

import asyncio
import logging

import pytest

from bascule.core.metadata.commands import Command, DiskLost
from bascule.errors import StartError
from bascule.node.membership.bootstrap import PROMISE_FILE
from bascule.node.membership.raft import RaftDriver
from bascule.node.membership.waiting import Waiting
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import VirtualClock, VirtualLoop, run
from bascule.wire.envelope import MsgType, decode_checked, encode
from bascule.wire.nats import messages, pub
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.raft_messages import Membership, Message
from bascule.wire.subjects import RESERVED_IDS
from tests.harness.founders import controllers_of
from tests.harness.members import Member, isr, leader_of, three, until


def test_reasons_that_change_to_and_fro_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        waiting = Waiting(VirtualClock(loop), "waiting for the cluster")
        for number in range(500):
            waiting.say("nobody answers" if number % 2 else "there is no leader")
            await asyncio.sleep(0.02)

    with caplog.at_level(logging.INFO, logger="bascule.node.membership.waiting"):
        run(main())
    assert 2 <= len(caplog.records) <= 11, "ten seconds of it"


def test_a_join_request_with_an_id_or_incarnation_that_cannot_be_is_answered_and_keeps_nobody_from_joining() -> None:
    """It is in one batch with a good one, and is not to end the handler."""

    async def main() -> None:
        nats = MemoryNats()
        members = {name: Member(name, nats, seed=name == "a") for name in "ab"}
        await members["a"].start()
        heard: list[pb.RaftJoinResponse] = []
        bus = nats.connect("unknown", "unknown")

        def on_batch(batch: bytes, count: int) -> None:
            for message in messages(batch):
                payload = decode_checked(message.payload, MsgType.RAFT_JOIN_RESPONSE)
                assert payload is not None
                heard.append(pb.RaftJoinResponse.FromString(bytes(payload)))

        bus.subscribe(b"answers", on_batch)
        incarnations, ids = ("", "two words", "a.b", "x" * 5_000), (*RESERVED_IDS, "", "a.b", "two words", "*", ">")
        for request in (
            *(pb.RaftJoinRequest(nodeID="x", incarnation=each) for each in incarnations),
            *(pb.RaftJoinRequest(nodeID=each, incarnation="i") for each in ids),
        ):
            asked = request.SerializeToString()
            for _ in range(5):
                bus.send(pub(b"ns.raft.metadata.join", encode(MsgType.RAFT_JOIN_REQUEST, asked, crc=True), b"answers"))
                await asyncio.sleep(0.05)
        await members["b"].start()
        await until(lambda: "b" in members["a"].broker.cluster.raft.membership.everyone)
        assert members["a"].broker.cluster.raft.membership.everyone == ("a", "b")
        said = [f"{each!r} is not a valid incarnation" for each in incarnations]
        said += [f"{each!r} is not a valid broker id" for each in ids]
        assert [answer.error for answer in heard] == [text for text in said for _ in range(5)]
        assert all(answer.final for answer in heard)

    run(main())


def test_the_lost_disk_of_a_broker_is_recorded_once_however_often_it_asks() -> None:
    """Recorded once more when it has joined, it would cost the broker its place in every in-sync set."""

    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        members["c"].kill()
        members["c"].wipe()
        await until(lambda: "c" not in isr(members))
        controller = next(each for name, each in members.items() if name in controllers_of(members)).broker.controller
        recorded: list[Command] = []
        proposals = controller.proposals
        submit = proposals.submit

        async def slowly(command: Command) -> None:
            if isinstance(command, DiskLost):
                recorded.append(command)
                await asyncio.sleep(3.0)  # it is asked for several times meanwhile
            await submit(command)

        proposals.submit = slowly  # type: ignore[method-assign]
        await members["c"].start()
        await until(lambda: "c" in isr(members))
        await asyncio.sleep(5.0)
        assert len(recorded) == 1
        assert "c" in isr(members)

    run(main())


def test_a_raft_that_cannot_go_on_ends_its_broker_with_the_reason() -> None:
    """A timer that trips over an error is not set again: without ticks a broker would neither campaign nor step down,
    and look alive."""

    async def main() -> None:
        members = await three(MemoryNats())
        raft = members["b"].broker.cluster.raft.raft

        def fails() -> None:
            raise AssertionError("from term 2 back to 1")

        raft.tick = fails  # type: ignore[method-assign]
        await until(lambda: "from term 2 back to 1" in members["b"].fatal)

        def fails_too(message: Message) -> None:
            raise AssertionError("committed 7, but the log ends at 3")

        members["c"].broker.cluster.raft.raft.step = fails_too  # type: ignore[method-assign]
        await until(lambda: "committed 7" in members["c"].fatal)

    run(main())


def test_a_lag_watcher_that_fails_works_again(caplog: pytest.LogCaptureFixture) -> None:
    """Else nobody would leave an in-sync set again, and commits would wait for the dead."""

    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await until(lambda: len(isr(members)) == 3)
        leader = leader_of(members, "s")
        real, left = leader.broker.lag_watch._say_below, [True]

        def fails_once(below: list[str]) -> None:
            if left:
                left.pop()
                raise RuntimeError("an error of ours")
            real(below)

        leader.broker.lag_watch._say_below = fails_once  # type: ignore[method-assign]
        await until(lambda: sum(leader.broker.environment.jobs.failures.values.values()) == 1)
        for member in members.values():  # the controller does not know that it is dead; its leader finds out
            member.broker.controller.live.expired = list  # type: ignore[method-assign]
        victim = next(member for member in members.values() if member is not leader)
        victim.kill()
        await until(lambda: victim.name not in isr(members), 90.0)
        assert leader.fatal == ""

    run(main())
    assert "the check for lag failed" in caplog.text
    assert "an error of ours" in caplog.text


def test_a_broker_that_cannot_take_roles_ends_with_the_reason() -> None:
    """It would lead and follow what the metadata said long ago."""

    async def main() -> None:
        members = await three(MemoryNats())
        members["b"].broker.changes._one_done = None  # type: ignore[assignment]
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await until(lambda: "the taking of roles ended unexpectedly" in members["b"].fatal)
        assert members["a"].fatal == ""

    run(main())


def test_a_change_that_cannot_be_carried_out_ends_the_broker_and_does_not_count_as_made() -> None:
    async def main() -> None:
        members = await three(MemoryNats())

        async def take_roles(stream: object, partitions: object) -> None:
            raise LookupError("a bug")

        members["b"].broker.manager.take_roles = take_roles  # type: ignore[method-assign]
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await until(lambda: "the taking of roles ended unexpectedly" in members["b"].fatal)
        assert members["b"].broker.replicas.behind

    run(main())


def test_a_question_about_the_in_sync_set_that_fails_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader waits for an outcome: without one it would count with a dead replica, and commit nothing, for good."""

    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await until(lambda: len(isr(members)) == 3)
        leader = leader_of(members, "s")
        real, left = leader.broker.client.change, [True] * 3

        async def change(request: pb.PropagatedRequest, timeout_s: float | None, patience_s: float = 0.0) -> int:
            if request.op == pb.SHRINK_ISR and left:
                left.pop()
                raise ValueError("99 is not a valid Status")
            return await real(request, timeout_s, patience_s)

        monkeypatch.setattr(leader.broker.client, "change", change)
        victim = next(member for member in members.values() if member is not leader)
        for member in members.values():  # the controller does not know that it is dead; its leader finds out
            member.broker.controller.live.expired = list  # type: ignore[method-assign]
        victim.kill()
        await until(lambda: victim.name not in isr(members), 90.0)
        assert not left

    run(main())


def test_a_damaged_promise_is_not_taken_for_an_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """b may have promised itself before it let a found: with that promise back, or with none, two could found."""

    async def never(driver: RaftDriver, membership: Membership) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        nats = MemoryNats()
        members = {name: Member(name, nats, peers=tuple("abc")) for name in "abc"}
        monkeypatch.setattr(RaftDriver, "found", never)
        coming = [asyncio.ensure_future(members[name].start()) for name in "ab"]
        await until(lambda: PROMISE_FILE in members["b"].disk.paths())
        await asyncio.sleep(1.0)
        for name in "ab":
            members[name].kill()
        for task in coming:
            task.cancel()
        members["b"].disk.flip(PROMISE_FILE, len(members["b"].disk.content(PROMISE_FILE)) - 1, 3)
        with pytest.raises(StartError, match="raft/promise is damaged"):
            async with asyncio.timeout(30.0):
                await members["b"].start()

    run(main())
