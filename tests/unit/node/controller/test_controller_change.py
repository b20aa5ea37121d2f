"""A change whose controller dies is made once, by whoever comes next, and answered. On a virtual clock the controller
is killed at each turn of the event loop between the request and its answer, so that no moment is left out."""

import asyncio
from typing import Any

import pytest

from bascule.core.metadata.commands import BrokerDied, Command, CreateStream, DeleteStream, ExpandIsr, ShrinkIsr
from bascule.core.metadata.operations import Operation, Operations
from bascule.core.metadata.state import Change, Metadata, Rejected, Repeated, StreamCreated, StreamDeleted
from bascule.errors import BasculeError, DeadlineExceeded, FailedPrecondition, Internal, Outdated, Status
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.nats import messages
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import internal_pb2 as pb
from tests.harness.members import CONTROL, Member, isr, leader_of, three, until, within
from tests.harness.metadata import a_stream

CREATE = api.CreateStreamRequest(name="s", subject="s", partitions=3, replicationFactor=3)
DELETE = api.DeleteStreamRequest(name="s")
CREATE_TURNS = 45
DELETE_TURNS = 20
"""Of the event loop, from the request to its answer, and some more."""


def controller(members: dict[str, Member]) -> Member | None:
    return next((item for item in members.values() if item.process and item.broker.cluster.raft.is_leader), None)


async def the_controller(members: dict[str, Member]) -> Member:
    await until(lambda: controller(members) is not None)
    found = controller(members)
    assert found is not None
    return found


def another(members: dict[str, Member], not_this: Member) -> Member:
    return next(member for member in members.values() if member.process and member is not not_this)


async def killed_after(turns: int, members: dict[str, Member], asker: Member, method: str, request: Any) -> Status:
    """The answer, when the controller is killed so many turns after the request."""
    victim = await the_controller(members)
    answer = asyncio.ensure_future(asker.call(method, request, timeout_s=10.0))
    for _ in range(turns):
        await asyncio.sleep(0)
    victim.kill()
    status, text, _ = await answer
    assert status is Status.OK, f"{method}, controller killed after {turns} turns: {status.name} {text}"
    await victim.start()
    return status


def created_at(members: dict[str, Member]) -> list[int]:
    """Where the stream was created, as each broker knows it; 0 where it is not known."""
    streams = [member.broker.cluster.metadata.stream("s") for member in members.values() if member.process]
    return [stream.creation_index if stream else 0 for stream in streams]


async def same_everywhere(members: dict[str, Member], exists: bool) -> None:
    await until(lambda: len(set(created_at(members))) == 1 and bool(created_at(members)[0]) == exists)


async def takes_messages(member: Member) -> None:
    for partition in range(CREATE.partitions):
        deadline = asyncio.get_running_loop().time() + 20
        while True:
            try:
                await member.publish("s", b"x", partition, timeout_s=0.5)
                break
            except AssertionError:
                assert asyncio.get_running_loop().time() < deadline, f"partition {partition} takes nothing"


@pytest.mark.parametrize("part", range(3))
def test_a_change_is_answered_whenever_the_controller_is_killed(part: int) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        for turns in range(part, CREATE_TURNS, 3):
            asker = another(members, await the_controller(members))
            await killed_after(turns, members, asker, "CreateStream", CREATE)
            await same_everywhere(members, exists=True)
            if turns % 9 == part:
                await takes_messages(asker)
            asker = another(members, await the_controller(members))
            await killed_after(turns % DELETE_TURNS, members, asker, "DeleteStream", DELETE)
            await same_everywhere(members, exists=False)

    run(main())


def test_a_controller_that_dies_with_its_client_leaves_a_whole_stream_or_none() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        seen = set()
        for turns in range(0, CREATE_TURNS, 2):
            victim = await the_controller(members)
            asyncio.ensure_future(victim.call("CreateStream", CREATE))  # noqa: RUF006 - it dies with its broker
            for _ in range(turns):
                await asyncio.sleep(0)
            victim.kill()
            survivor = another(members, victim)
            status, _, _ = await survivor.call("CreateStream", CREATE, timeout_s=10.0)
            assert status in (Status.OK, Status.ALREADY_EXISTS)
            seen.add(status)
            await takes_messages(survivor)
            await victim.start()
            await same_everywhere(members, exists=True)
            assert (await survivor.call("DeleteStream", DELETE, timeout_s=10.0))[0] is Status.OK
        assert seen == {Status.OK, Status.ALREADY_EXISTS}, "both sides of the commit were tried"

    run(main())


def test_a_paused_controller_changes_nothing_when_it_goes_on() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        for turns in range(0, CREATE_TURNS, 4):
            lead = await the_controller(members)
            asker = another(members, lead)
            answer = asyncio.ensure_future(asker.call("CreateStream", CREATE, timeout_s=10.0))
            for _ in range(turns):
                await asyncio.sleep(0)
            assert lead.process is not None
            lead.process.pause()
            assert (await answer)[:2] == (Status.OK, "")
            assert (await asker.call("DeleteStream", DELETE, timeout_s=10.0))[:2] == (Status.OK, "")
            lead.process.resume()
            await asyncio.sleep(3)
            await same_everywhere(members, exists=False)

    run(main())


def test_a_deposed_controller_refuses_nothing_by_what_it_knew() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        lead = await the_controller(members)
        assert (await lead.call("CreateStream", CREATE))[0] is Status.OK
        assert lead.process is not None
        lead.process.pause()
        assert (await another(members, lead).call("DeleteStream", DELETE, timeout_s=10.0))[0] is Status.OK
        lead.process.resume()
        assert (await lead.call("CreateStream", CREATE, timeout_s=10.0))[:2] == (Status.OK, "")

    run(main())


def test_late_copies_of_requests_neither_make_nor_delete_a_stream() -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        lead = await the_controller(members)
        asker = another(members, lead)
        captured: list[bytes] = []
        spy = nats.connect("spy")
        subject = within(members, "raft.metadata.propagate")
        spy.subscribe(subject, lambda batch, count: captured.extend(item.payload for item in messages(batch)))

        async def replay() -> None:
            for payload in list(captured):
                nats.publish(subject, payload, b"ns.reply.nobody")
            await asyncio.sleep(1)

        assert (await asker.call("CreateStream", CREATE))[0] is Status.OK
        assert (await asker.call("CreateStream", CREATE))[0] is Status.ALREADY_EXISTS
        assert (await asker.call("DeleteStream", DELETE))[0] is Status.OK
        assert len(captured) >= 3
        await replay()
        assert created_at(members) == [0, 0, 0], "made again by a copy"
        assert (await asker.call("CreateStream", CREATE))[0] is Status.OK
        before = created_at(members)
        await replay()
        assert created_at(members) == before, "deleted by a copy"

    run(main())


def test_without_a_majority_the_text_is_the_protocols() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        for name in "bc":
            members[name].kill()
        await asyncio.sleep(5)
        loop = asyncio.get_running_loop()
        for timeout_s, least_s in ((None, 0.0), (3.0, 2.9)):
            began = loop.time()
            with pytest.raises(Internal, match=r"^no known metadata leader$"):
                await members["a"].broker.client.delete_stream("s", timeout_s)
            assert least_s <= loop.time() - began <= least_s + 0.2

    run(main())


def test_a_request_waits_for_a_controller_as_long_as_it_may() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        for name in "bc":
            members[name].kill()
        await asyncio.sleep(5)
        answer = asyncio.ensure_future(members["a"].call("CreateStream", CREATE, timeout_s=30.0))
        await asyncio.sleep(8)
        assert not answer.done()
        await members["b"].start()
        assert (await answer)[:2] == (Status.OK, "")

    run(main())


def test_who_may_be_in_sync_by_a_late_decision_counts_until_that_is_known() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await until(lambda: len(isr(members)) == 3)
        lead = leader_of(members, "s")
        third = another(members, lead)
        third.kill()
        await until(lambda: len(isr(members)) == 2)
        undecided = asyncio.Event()

        changes = lead.broker.client
        answered = changes._try

        async def unanswered(request: pb.PropagatedRequest, timeout_s: float) -> int:
            if request.op == pb.BARRIER:
                return await answered(request, timeout_s)
            undecided.set()
            await asyncio.sleep(timeout_s)
            raise DeadlineExceeded("no answer")

        changes._try = unanswered  # type: ignore[method-assign]
        await third.start()
        await undecided.wait()
        await asyncio.sleep(3)
        assert third.process is not None
        third.process.pause()
        status, _, _ = await lead.call("Publish", api.PublishRequest(stream="s", ackPolicy=api.ALL), timeout_s=4.0)
        assert status is Status.DEADLINE_EXCEEDED, "acked without one who may be elected next"
        del changes._try
        assert (await lead.publish("s", b"x", timeout_s=5.0)).offset == 1, "it is asked again, and refused"

    run(main())


def test_a_deposed_controller_is_none_from_that_moment_on_even_if_its_disk_holds_it_up() -> None:
    """Its Raft knows of a newer term while the round before waits for a sync: its answers do not count meanwhile, and
    what it had proposed is given up."""

    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        old = controller(members)
        assert old is not None
        old.disk.sync_delay_s = 20.0
        loop = asyncio.get_running_loop()
        began = loop.time()
        raft = old.broker.cluster.raft
        proposed = asyncio.ensure_future(old.broker.controller.proposals.propose(lambda: BrokerDied("nobody", ())))
        await asyncio.sleep(0.05)
        old.buses[CONTROL].disconnect()
        others = [member for member in members.values() if member is not old]
        await until(lambda: any(member.broker.controller.active for member in others))
        old.buses[CONTROL].reconnect()
        await until(lambda: not raft.raft.is_leader and bool(raft.raft.leader))
        assert loop.time() - began < 15.0
        assert raft._known_leader[1] is False
        assert not old.broker.controller.active
        assert not raft._proposals
        with pytest.raises(BasculeError, match="whether the change was made is not known"):
            await proposed
        status, text, _ = await old.call("DeleteStream", api.DeleteStreamRequest(name="s"), 12.0)
        assert (status, text) == (Status.OK, "")
        assert loop.time() - began < 20.0, "the disk still holds it up"

    run(main())


# --- the machine ------------------------------------------------------------------------------------------------


def applied(metadata: Metadata, command: Command) -> Change:
    (change,) = metadata.apply(metadata.index + 1, command)
    return change


def refused(metadata: Metadata, command: Command) -> BasculeError:
    change = applied(metadata, command)
    assert isinstance(change, Rejected)
    return change.error


def test_the_same_operation_is_carried_out_once() -> None:
    metadata = Metadata()
    create = CreateStream(a_stream(), Operation("o1", 0))
    assert isinstance(applied(metadata, create), StreamCreated)
    assert applied(metadata, create) == Repeated(1)
    delete = DeleteStream("orders", Operation("o2", 2))
    assert isinstance(applied(metadata, delete), StreamDeleted)
    assert applied(metadata, delete) == Repeated(3)
    assert applied(metadata, create) == Repeated(1)
    metadata = Metadata.restore(metadata.snapshot())
    assert applied(metadata, create) == Repeated(1)
    assert not metadata.streams


def test_what_was_not_made_then_is_not_made_after_things_have_changed() -> None:
    metadata = Metadata()
    applied(metadata, CreateStream(a_stream(), Operation("o1", 0)))
    late = CreateStream(a_stream(), Operation("o2", 1))
    assert "already exists" in str(refused(metadata, late))
    applied(metadata, DeleteStream("orders", Operation("o3", 1)))
    metadata = Metadata.restore(metadata.snapshot())
    assert isinstance(refused(metadata, late), Outdated)
    early_delete = DeleteStream("orders", Operation("o4", metadata.index))
    assert "does not exist" in str(refused(metadata, early_delete))
    assert isinstance(applied(metadata, CreateStream(a_stream(), Operation("o2", metadata.index))), StreamCreated)
    assert isinstance(refused(metadata, early_delete), Outdated)
    assert isinstance(applied(metadata, DeleteStream("orders", Operation("o4", metadata.index))), StreamDeleted)


def test_what_is_too_old_to_be_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Operations, "remembered", 2)
    metadata = Metadata()
    first = CreateStream(a_stream("s1"), Operation("o1", 0))
    applied(metadata, first)
    for number in range(2, 5):
        applied(metadata, CreateStream(a_stream(f"s{number}"), Operation(f"o{number}", metadata.index)))
    applied(metadata, DeleteStream("s1"))
    error = refused(metadata, first)
    assert isinstance(error, Internal)
    assert "not known any more" in str(error)
    assert "s1" not in metadata.streams
    assert isinstance(applied(metadata, CreateStream(a_stream("s1"), Operation("o9", metadata.index))), StreamCreated)


def test_a_late_copy_does_not_bring_a_replica_back_into_the_in_sync_set() -> None:
    metadata = Metadata()
    applied(metadata, CreateStream(a_stream(partitions=1, servers=("a", "b", "c"))))

    def change(kind: type[ShrinkIsr] | type[ExpandIsr]) -> ShrinkIsr | ExpandIsr:
        item = metadata.streams["orders"].partitions[0]
        return kind("orders", 0, "c", item.leader, item.leader_epoch, item.epoch)

    applied(metadata, change(ShrinkIsr))
    expand = change(ExpandIsr)
    applied(metadata, expand)
    assert sorted(metadata.streams["orders"].partitions[0].isr) == ["a", "b", "c"]
    applied(metadata, change(ShrinkIsr))
    assert isinstance(refused(metadata, expand), FailedPrecondition)
    assert sorted(metadata.streams["orders"].partitions[0].isr) == ["a", "b"]
