"""The activity stream: every change of a stream is an event, at least once, in order."""

import asyncio
import random
from typing import Any

import pytest

from bascule.core.metadata.streams import ACTIVITY, CURSORS
from bascule.errors import Status
from bascule.node.config.broker import ActivitySettings, CursorSettings
from bascule.node.controller import activity
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node
from tests.harness.led import is_controller
from tests.harness.members import Member, leader_of, three, until

ENABLED = ActivitySettings(enabled=True)


async def one(disk: MemoryDisk | None = None, seed: int = 1, **settings: Any) -> Node:
    node = await Node(disk or MemoryDisk(), MemoryNats(), seed=seed, activity=ENABLED, **settings).start()
    await until(lambda: node.broker.cluster.metadata.stream(ACTIVITY) is not None)
    return node


def unpublished(node: Node | Member) -> int:
    return len(node.broker.cluster.metadata.activity.unpublished)


async def events(node: Node) -> list[api.ActivityStreamEvent]:
    await until(lambda: not unpublished(node))
    return [api.ActivityStreamEvent.FromString(value) for _, value in await node.read(ACTIVITY)]


def told(event: api.ActivityStreamEvent) -> tuple[str, str]:
    """The operation, and the stream it is about."""
    name = api.ActivityStreamOp.Name(event.op)
    ((_, op),) = [(field, value) for field, value in event.ListFields() if field.name.endswith("Op")]
    return name, op.stream


async def change(node: Node | Member, method: str, request: Any) -> None:
    assert (await node.call(method, request))[0] is Status.OK


def test_every_change_is_published_and_the_creation_of_the_stream_first() -> None:
    async def main() -> None:
        node = await one(cursors=CursorSettings(1))
        await until(lambda: node.broker.cluster.metadata.stream(CURSORS) is not None)
        await node.create("s", partitions=2)
        await change(node, "PauseStream", api.PauseStreamRequest(name="s", partitions=[1]))
        await node.publish("s", b"x", partition=1)
        await change(node, "SetStreamReadonly", api.SetStreamReadonlyRequest(name="s", readonly=True))
        await change(node, "SetStreamReadonly", api.SetStreamReadonlyRequest(name="s", readonly=False))
        await change(node, "DeleteStream", api.DeleteStreamRequest(name="s"))
        found = await events(node)
        assert [told(event) for event in found] == [
            ("CREATE_STREAM", ACTIVITY),
            ("CREATE_STREAM", CURSORS),
            ("CREATE_STREAM", "s"),
            ("PAUSE_STREAM", "s"),
            ("RESUME_STREAM", "s"),
            ("SET_STREAM_READONLY", "s"),
            ("SET_STREAM_READONLY", "s"),
            ("DELETE_STREAM", "s"),
        ]
        ids = [event.id for event in found]
        assert ids == sorted(set(ids))
        assert found[3].pauseStreamOp.partitions == [1]
        assert found[5].setStreamReadonlyOp.readonly
        stream = node.broker.cluster.metadata.stream(ACTIVITY)
        assert stream is not None
        assert (stream.subject, len(stream.partitions), found[0].id) == ("ns.activity", 1, stream.creation_index)

    run(main())


def test_the_automatic_pause_is_an_event_and_the_stream_itself_is_never_idle() -> None:
    async def main() -> None:
        node = await one(cursors=CursorSettings(1, auto_pause_ns=1_000_000_000))
        await asyncio.sleep(30)
        assert [told(event) for event in await events(node)][-1] == ("PAUSE_STREAM", CURSORS)
        assert len(await events(node)) == 3

    run(main())


def test_a_restart_publishes_nothing_twice_that_is_on_record_and_forgets_nothing() -> None:
    async def main() -> None:
        node = await one()
        for round in range(5):
            await node.create(f"s{round}")
            await change(node, "DeleteStream", api.DeleteStreamRequest(name=f"s{round}"))
            if round % 2:
                await events(node)
            node.power_off(random.Random(round))
            node = await one(node.disk, seed=round + 2)
        found = [event.id for event in await events(node)]
        assert len(set(found)) == 11
        firsts = list(dict.fromkeys(found))
        assert firsts == sorted(firsts), "each id comes first in order"

    run(main())


def test_while_it_cannot_be_published_later_events_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        node = await one()
        await events(node)
        await change(node, "SetStreamReadonly", api.SetStreamReadonlyRequest(name=ACTIVITY, readonly=True))
        for name in ("x", "y", "z"):
            await node.create(name)
        await asyncio.sleep(60)
        assert unpublished(node) == 4
        await change(node, "SetStreamReadonly", api.SetStreamReadonlyRequest(name=ACTIVITY, readonly=False))
        found = await events(node)
        assert [told(event)[1] for event in found] == [ACTIVITY, ACTIVITY, "x", "y", "z", ACTIVITY]

    run(main())


def test_pauses_between_tries_double_from_one_second_to_ten() -> None:
    pauses = [0.0]
    for _ in range(6):
        pauses.append(activity.next_pause_s(pauses[-1]))
    assert pauses == [0, 1, 2, 4, 8, 10, 10]


def test_a_paused_activity_stream_is_resumed_by_its_next_event() -> None:
    async def main() -> None:
        node = await one()
        await change(node, "PauseStream", api.PauseStreamRequest(name=ACTIVITY))
        await node.create("s")
        found = [told(event) for event in await events(node)]
        assert ("PAUSE_STREAM", ACTIVITY) in found
        assert ("CREATE_STREAM", "s") in found

    run(main())


@pytest.mark.parametrize("policy", ["none", "leader", "all"])
def test_every_ack_policy(policy: str) -> None:
    async def main() -> None:
        settings = ActivitySettings(enabled=True, ack_policy=policy)
        node = await Node(MemoryDisk(), MemoryNats(), activity=settings).start()
        await until(lambda: node.broker.cluster.metadata.stream(ACTIVITY) is not None)
        await node.create("s")
        await asyncio.sleep(1)
        assert [told(event)[1] for event in await events(node)] == [ACTIVITY, "s"]

    run(main())


def test_the_next_controller_goes_on() -> None:
    async def main() -> None:
        members = await three(MemoryNats(), activity=ENABLED)
        await until(lambda: all(m.broker.cluster.metadata.stream(ACTIVITY) for m in members.values()))
        for round in range(3):
            some = next(member for member in members.values() if member.process is not None)
            for name in ("x", "y", "z"):
                await change(some, "CreateStream", api.CreateStreamRequest(name=f"{name}{round}", subject=name))
            controller = next(member for member in members.values() if is_controller(member))
            controller.kill(random.Random(round), power=False)
            await until(lambda: any(is_controller(member) for member in members.values()))
            await controller.start()
            await until(lambda: all(not unpublished(member) for member in members.values()))
        leader = leader_of(members, ACTIVITY)
        found = [api.ActivityStreamEvent.FromString(value) for value in await leader.read(ACTIVITY)]
        firsts = list(dict.fromkeys(event.id for event in found))
        assert firsts == sorted(firsts)
        names = list(dict.fromkeys(told(event)[1] for event in found))
        assert names == [ACTIVITY, *(f"{name}{round}" for round in range(3) for name in ("x", "y", "z"))]

    run(main())


@pytest.mark.parametrize(("least", "expected"), [(0, 1), (3, 3)])
def test_where_a_seed_founds_the_cluster_the_own_streams_have_the_replicas_of_their_creation(
    least: int, expected: int
) -> None:
    """They get no more when brokers join: `clustering.min.replication.factor` makes their creation wait for these."""

    async def main() -> None:
        nats = MemoryNats()
        settings: dict[str, Any] = {"activity": ENABLED, "cursors": CursorSettings(1)}
        first = await Member("a", nats, seed=True, min_replication_factor=least, **settings).start()
        await asyncio.sleep(5)
        metadata = first.broker.cluster.metadata
        assert all((metadata.stream(name) is None) == (least > 1) for name in (ACTIVITY, CURSORS))
        for name in "bc":
            await Member(name, nats, min_replication_factor=least, **settings).start()
        await until(lambda: all(first.broker.cluster.metadata.stream(name) for name in (ACTIVITY, CURSORS)))
        await until(lambda: len(first.broker.cluster.raft.membership.voters) == 3)
        await asyncio.sleep(10)
        for name in (ACTIVITY, CURSORS):
            stream = first.broker.cluster.metadata.stream(name)
            assert stream is not None
            assert [len(item.replicas) for item in stream] == [expected]

    run(main())
