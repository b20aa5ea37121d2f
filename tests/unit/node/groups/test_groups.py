"""Consumer groups on one broker: every answer of the protocol, and members that go silent."""

import asyncio
import random
import time

import pytest

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node
from tests.harness.groups import assigned, create, described, fetch, join, leave, report
from tests.harness.members import until

TIMEOUT_S = 15.0


async def one() -> Node:
    node = await Node(MemoryDisk(), MemoryNats()).start()
    await create(node, "foo", 2)
    await create(node, "bar", 2)
    return node


def test_a_group_from_its_first_member_to_its_last() -> None:
    async def main() -> None:
        node = await one()
        first = await join(node, "c1", "foo", "bar")
        assert (first.coordinator, first.epoch) == ("me", 0)
        assert (first.consumerTimeout, first.coordinatorTimeout) == (15_000_000_000, 15_000_000_000)
        status, _, epoch, held = await fetch(node, "c1", 0)
        assert (status, held) == (Status.OK, {"bar": (0, 1), "foo": (0, 1)})
        assert epoch == (await described(node)).epoch > 0
        assert await assigned(node, "c1", epoch) == held, "0 is another name of the first epoch"
        second = await join(node, "c2", "foo")
        assert second.epoch > epoch
        assert await assigned(node, "c1", second.epoch) == {"bar": (0, 1)}
        assert await assigned(node, "c2", second.epoch) == {"foo": (0, 1)}
        assert (await fetch(node, "c1", 0))[1] == "client-provided group epoch differs from broker group epoch"
        assert await leave(node, "c2") == (Status.OK, "")
        found = await described(node)
        assert (found.coordinator, found.error) == ("me", api.ConsumerGroupMetadata.OK)
        assert found.epoch > second.epoch
        assert await assigned(node, "c1", found.epoch) == {"bar": (0, 1), "foo": (0, 1)}
        assert await leave(node, "c1") == (Status.OK, "")
        assert (await described(node)).error == api.ConsumerGroupMetadata.UNKNOWN_GROUP
        assert node.broker.cluster.metadata.groups == {}

    run(main())


INVALID, PRECONDITION, NOT_FOUND = Status.INVALID_ARGUMENT, Status.FAILED_PRECONDITION, Status.NOT_FOUND
NO_GROUP, NO_CONSUMER = (INVALID, "No groupId provided"), (INVALID, "No consumerId provided")
NOT_A_MEMBER = (PRECONDITION, "consumer is not a member of the consumer group")
J, L = api.JoinConsumerGroupRequest, api.LeaveConsumerGroupRequest
F, R = api.FetchConsumerGroupAssignmentsRequest, api.ReportConsumerGroupCoordinatorRequest
REFUSED = [
    ("JoinConsumerGroup", J(), NO_GROUP),
    ("JoinConsumerGroup", J(groupId="g"), NO_CONSUMER),
    ("JoinConsumerGroup", J(groupId="g", consumerId="d"), (INVALID, "No streams provided")),
    (
        "JoinConsumerGroup",
        J(groupId="new", consumerId="d", streams=["foo", "x"]),
        (PRECONDITION, "stream does not exist"),
    ),
    ("JoinConsumerGroup", J(groupId="g", consumerId="d", streams=["x"]), (PRECONDITION, "stream does not exist")),
    (
        "JoinConsumerGroup",
        J(groupId="g", consumerId="c", streams=["x"]),
        (PRECONDITION, "consumer is already a member of the consumer group"),
    ),
    ("LeaveConsumerGroup", L(), NO_GROUP),
    ("LeaveConsumerGroup", L(groupId="g"), NO_CONSUMER),
    ("LeaveConsumerGroup", L(groupId="x", consumerId="c"), (NOT_FOUND, "consumer group does not exist")),
    ("LeaveConsumerGroup", L(groupId="g", consumerId="x"), NOT_A_MEMBER),
    ("FetchConsumerGroupAssignments", F(), NO_GROUP),
    ("FetchConsumerGroupAssignments", F(groupId="g"), NO_CONSUMER),
    ("FetchConsumerGroupAssignments", F(groupId="x", consumerId="c"), (NOT_FOUND, "consumer group does not exist")),
    (
        "FetchConsumerGroupAssignments",
        F(groupId="g", consumerId="x", epoch=1),
        (PRECONDITION, "client-provided group epoch differs from broker group epoch"),
    ),
    (
        "FetchConsumerGroupAssignments",
        F(groupId="g", consumerId="c", epoch=(1 << 64) - 1),
        (PRECONDITION, "client-provided group epoch differs from broker group epoch"),
    ),
    ("FetchConsumerGroupAssignments", F(groupId="g", consumerId="x"), NOT_A_MEMBER),
    ("ReportConsumerGroupCoordinator", R(), NO_GROUP),
    ("ReportConsumerGroupCoordinator", R(groupId="g"), NO_CONSUMER),
    ("ReportConsumerGroupCoordinator", R(groupId="g", consumerId="c"), (INVALID, "No coordinator provided")),
    (
        "ReportConsumerGroupCoordinator",
        R(groupId="x", consumerId="c", coordinator="me"),
        (PRECONDITION, "No such consumer group x"),
    ),
    (
        "ReportConsumerGroupCoordinator",
        R(groupId="g", consumerId="x", coordinator="me"),
        (PRECONDITION, "Consumer x is not a member of consumer group g"),
    ),
    (
        "ReportConsumerGroupCoordinator",
        R(groupId="g", consumerId="c", coordinator="me"),
        (PRECONDITION, "No group coordinator candidates"),
    ),
    (
        "JoinConsumerGroup",
        J(groupId="g" * 201, consumerId="d", streams=["foo"]),
        (INVALID, "groupId and consumerId have at most 200 bytes each"),
    ),
]


@pytest.mark.parametrize(("method", "request_", "answer"), REFUSED)
def test_what_is_refused_and_how(method: str, request_: object, answer: tuple[Status, str]) -> None:
    async def main() -> None:
        node = await one()
        await join(node, "c", "foo")
        assert (await node.call(method, request_))[:2] == answer

    run(main())


def test_a_report_of_another_coordinator_or_epoch() -> None:
    async def main() -> None:
        node = await one()
        await join(node, "c1", "foo")
        epoch = (await join(node, "c2", "foo")).epoch
        for coordinator, named in (("you", epoch), ("me", epoch + 1), ("me", 0)):
            text = (
                f"Coordinator generation mismatch, current coordinator: me epoch: {epoch}, "
                f"got coordinator: {coordinator} epoch: {named}"
            )
            assert await report(node, "x", coordinator, named) == (PRECONDITION, text)
        assert await report(node, "c1", "me", epoch) == (Status.OK, "")
        assert await report(node, "c1", "me", epoch) == (Status.OK, ""), "the same consumer counts once"
        assert await report(node, "c2", "me", epoch) == (PRECONDITION, "No group coordinator candidates")

    run(main())


def test_a_deleted_stream_leaves_its_members_with_the_rest() -> None:
    async def main() -> None:
        node = await one()
        await join(node, "c1", "foo", "bar")
        before = (await join(node, "c2", "foo")).epoch
        await join(node, "other", "bar", group="h")
        other = (await described(node, "h")).epoch
        assert (await node.call("DeleteStream", api.DeleteStreamRequest(name="foo")))[0] is Status.OK
        epoch = (await described(node)).epoch
        assert epoch > before
        assert await assigned(node, "c1", epoch) == {"bar": (0, 1)}
        assert await assigned(node, "c2", epoch) == {}, "a member that reads nothing, until it leaves or expires"
        assert (await described(node, "h")).epoch == other, "a group that never read it"
        await create(node, "foo", 4)
        assert await assigned(node, "c2", epoch) == {}, "another stream of that name is not the one it subscribed to"

    run(main())


def test_a_member_that_fetches_nothing_for_the_timeout_is_gone() -> None:
    async def main() -> None:
        node = await one()
        await join(node, "silent", "foo")
        epoch = (await join(node, "c", "foo")).epoch
        for _ in range(3):
            await asyncio.sleep(TIMEOUT_S * 0.3)
            assert await assigned(node, "c", epoch) == {"foo": (1,)}
        await asyncio.sleep(TIMEOUT_S * 0.3)
        now = (await described(node)).epoch
        assert now > epoch
        assert await assigned(node, "c", now) == {"foo": (0, 1)}
        assert (await fetch(node, "silent", now))[:2] == NOT_A_MEMBER
        await until(lambda: not node.broker.cluster.metadata.groups, 2 * TIMEOUT_S)

    run(main())


def test_a_fetch_at_another_epoch_is_no_heartbeat() -> None:
    async def main() -> None:
        node = await one()
        await join(node, "late", "foo")
        epoch = (await join(node, "c", "foo")).epoch
        for _ in range(4):
            await asyncio.sleep(TIMEOUT_S * 0.3)
            await fetch(node, "late", 0)
            await fetch(node, "c", epoch)
        now = (await described(node)).epoch
        assert await assigned(node, "c", now) == {"foo": (0, 1)}

    run(main())


def test_a_group_and_its_epoch_survive_restarts_and_everybody_gets_the_whole_timeout_again() -> None:
    async def main() -> None:
        node = await one()
        await join(node, "c1", "foo")
        epoch = (await join(node, "c2", "foo", "bar")).epoch
        held = {name: await assigned(node, name, epoch) for name in ("c1", "c2")}
        for number in range(5):  # a snapshot by then
            await create(node, f"more{number}")
        known = node.broker.cluster.metadata.groups
        await asyncio.sleep(TIMEOUT_S * 0.7)
        node.power_off(random.Random(1))
        again = await Node(node.disk, node.nats, seed=2).start()
        assert again.broker.cluster.metadata.groups == known
        await asyncio.sleep(TIMEOUT_S * 0.7)
        assert {name: await assigned(again, name, epoch) for name in ("c1", "c2")} == held

    run(main())


def test_a_consumer_that_leaves_and_joins_again_has_the_whole_timeout() -> None:
    async def main() -> None:
        node = await one()
        await join(node, "other", "foo")
        epoch = (await join(node, "c", "foo")).epoch
        await asyncio.sleep(TIMEOUT_S * 0.8)
        await assigned(node, "other", epoch)
        await leave(node, "c")
        epoch = (await join(node, "c", "foo")).epoch
        await asyncio.sleep(TIMEOUT_S * 0.8)
        assert await assigned(node, "c", epoch) == {"foo": (1,)}

    run(main())


def test_a_member_that_joins_a_group_of_many_partitions_does_not_hold_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The longest callback of the whole broker, in CPU time, so that other programs do not count; and of three joins
    the shortest, since a collection of garbage may fall into one."""
    seconds: list[float] = []
    run_handle = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run_handle(handle)
        seconds.append(time.thread_time() - began)

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await create(node, "large", 10_000)
        await join(node, "c1", "large", timeout_s=60.0)
        monkeypatch.setattr(asyncio.Handle, "_run", timed)
        longest = []
        for consumer in ("c2", "c3", "c4"):
            seconds.clear()
            joined = await join(node, consumer, "large", timeout_s=60.0)
            await asyncio.sleep(0.5)
            longest.append(max(seconds))
        assert min(longest) < 0.02, longest
        assert len((await assigned(node, "c4", joined.epoch))["large"]) == 2500

    run(main())
