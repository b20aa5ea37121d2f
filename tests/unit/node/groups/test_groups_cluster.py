"""Consumer groups on three brokers: any of them is asked, one coordinates, and another one when that is gone."""

import asyncio

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import answer
from tests.harness.groups import assigned, create, described, fetch, join, leave, report
from tests.harness.members import Member, three, until

TIMEOUT_S = 15.0
WRONG_BROKER = (Status.FAILED_PRECONDITION, "broker is not the consumer group coordinator")
WRONG_EPOCH = (Status.FAILED_PRECONDITION, "client-provided group epoch differs from broker group epoch")


async def cluster() -> dict[str, Member]:
    members = await three(MemoryNats())
    await create(members["a"], "foo", 4, 3)
    await create(members["a"], "bar", 2, 3)
    return members


def living(members: dict[str, Member]) -> list[Member]:
    return [member for member in members.values() if member.process is not None]


def controller(members: dict[str, Member]) -> Member:
    return next(member for member in living(members) if member.broker.controller.active)


def others(members: dict[str, Member], but: str) -> list[Member]:
    return [member for member in living(members) if member.name != but]


def knows(member: Member, epoch: int) -> bool:
    return member.broker.cluster.metadata.groups["g"].epoch >= epoch


async def coordinated_elsewhere(members: dict[str, Member], before: str) -> api.ConsumerGroupMetadata:
    """Returns when all that live agree on another coordinator."""
    await until(
        lambda: all(
            member.broker.cluster.metadata.groups["g"].coordinator not in ("", before) for member in living(members)
        )
    )
    return await described(living(members)[0])


def test_a_group_by_way_of_any_broker() -> None:
    async def main() -> None:
        members = await cluster()
        first = await join(members["b"], "c1", "foo", "bar")
        coordinator = members[first.coordinator]
        assert first.epoch == 0
        assert await assigned(coordinator, "c1", 0) == {"bar": (0, 1), "foo": (0, 1, 2, 3)}, "at once"
        second = await join(members["c"], "c2", "foo")
        assert second.coordinator == first.coordinator
        one, two = [await assigned(coordinator, name, second.epoch) for name in ("c1", "c2")]
        assert one["bar"] == (0, 1)
        assert sorted([*one["foo"], *two["foo"]]) == [0, 1, 2, 3]
        assert len(two["foo"]) == 3
        for member in others(members, coordinator.name):
            assert (await fetch(member, "c1", second.epoch))[:2] == WRONG_BROKER
            assert (await fetch(member, "c1", 1))[:2] == WRONG_BROKER, "the coordinator is asked first"
        assert (await fetch(coordinator, "nobody", 1))[:2] == WRONG_EPOCH, "and the epoch before the membership"
        found = [await described(member) for member in members.values()]
        assert {(each.coordinator, each.epoch) for each in found} == {(coordinator.name, second.epoch)}
        assert await leave(members["a"], "c1") == (Status.OK, "")
        assert await leave(members["b"], "c2") == (Status.OK, "")
        await until(lambda: all(not member.broker.cluster.metadata.groups for member in members.values()))

    run(main())


def test_coordinators_are_spread_over_the_brokers() -> None:
    async def main() -> None:
        members = await cluster()
        chosen = [(await join(members["a"], "c", "foo", group=f"g{number}")).coordinator for number in range(6)]
        assert sorted(chosen) == ["a", "a", "b", "b", "c", "c"]

    run(main())


def test_a_coordinator_that_is_killed_is_replaced_though_nobody_reports_it() -> None:
    async def main() -> None:
        members = await cluster()
        await join(members["a"], "c1", "foo")
        joined = await join(members["a"], "c2", "foo")
        held = {name: await assigned(members[joined.coordinator], name, joined.epoch) for name in ("c1", "c2")}
        members[joined.coordinator].kill()
        found = await coordinated_elsewhere(members, joined.coordinator)
        assert found.epoch > joined.epoch
        new = members[found.coordinator]
        assert {name: await assigned(new, name, found.epoch) for name in ("c1", "c2")} == held, "nothing moves"
        assert (await fetch(new, "c1", joined.epoch))[:2] == WRONG_EPOCH
        await members[joined.coordinator].start()
        await until(lambda: knows(members[joined.coordinator], found.epoch))
        assert (await fetch(members[joined.coordinator], "c1", found.epoch))[:2] == WRONG_BROKER

    run(main())


def test_a_coordinator_that_stops_hands_its_groups_over() -> None:
    async def main() -> None:
        members = await cluster()
        joined = await join(members["a"], "c1", "foo")
        stopping = members[joined.coordinator]
        assert stopping.process is not None
        await stopping.process.start(stopping.broker.hand_over(5.0))
        found = await described(others(members, joined.coordinator)[0])
        assert found.coordinator not in ("", joined.coordinator)

    run(main())


def test_after_a_coordinator_change_every_member_has_the_whole_timeout() -> None:
    async def main() -> None:
        members = await cluster()
        await join(members["a"], "dead", "foo")
        joined = await join(members["a"], "c", "foo")
        await asyncio.sleep(TIMEOUT_S * 0.5)
        assert await assigned(members[joined.coordinator], "c", joined.epoch)
        members[joined.coordinator].kill()
        found = await coordinated_elsewhere(members, joined.coordinator)
        await asyncio.sleep(TIMEOUT_S * 0.8)
        assert await assigned(members[found.coordinator], "c", found.epoch) == {"foo": (2, 3)}
        await until(lambda: knows(members[found.coordinator], found.epoch + 1))
        now = await described(members[found.coordinator])
        assert await assigned(members[found.coordinator], "c", now.epoch) == {"foo": (0, 1, 2, 3)}

    run(main())


def test_a_coordinator_that_more_than_half_report_is_replaced() -> None:
    async def main() -> None:
        members = await cluster()
        for number in range(2):
            await join(members["a"], f"c{number}", "foo")
        joined = await join(members["a"], "c2", "foo")
        assert await report(members["b"], "c0", joined.coordinator, joined.epoch) == (Status.OK, "")
        assert await report(members["c"], "c0", joined.coordinator, joined.epoch) == (Status.OK, "")
        assert (await described(members["a"])).epoch == joined.epoch, "one of three, however often it reports"
        assert await report(members["c"], "c2", joined.coordinator, joined.epoch) == (Status.OK, "")
        found = await coordinated_elsewhere(members, joined.coordinator)
        assert found.epoch > joined.epoch
        for member in members.values():
            await until(lambda member=member: knows(member, found.epoch))
        status, text = await report(members["a"], "c1", joined.coordinator, joined.epoch)
        assert (status, text[:32]) == (Status.FAILED_PRECONDITION, "Coordinator generation mismatch,")

    run(main())


def test_reports_count_for_as_long_as_the_timeout() -> None:
    async def main() -> None:
        members = await cluster()
        await join(members["a"], "c1", "foo")
        joined = await join(members["a"], "c2", "foo")
        coordinator = members[joined.coordinator]

        async def both_live(seconds: float) -> None:
            for _ in range(4):
                await asyncio.sleep(seconds / 4)
                for name in ("c1", "c2"):
                    await assigned(coordinator, name, joined.epoch)

        assert await report(members["b"], "c1", joined.coordinator, joined.epoch) == (Status.OK, "")
        await both_live(TIMEOUT_S * 1.1)
        assert await report(members["b"], "c2", joined.coordinator, joined.epoch) == (Status.OK, "")
        assert (await described(members["a"])).coordinator == joined.coordinator, "the first report is too old"
        await both_live(TIMEOUT_S * 0.5)
        assert await report(members["b"], "c1", joined.coordinator, joined.epoch) == (Status.OK, "")
        await coordinated_elsewhere(members, joined.coordinator)

    run(main())


def test_groups_go_on_when_the_controller_is_killed() -> None:
    async def main() -> None:
        members = await cluster()
        joined = await join(members["a"], "c1", "foo")
        killed = controller(members)
        killed.kill()
        at = living(members)[0]
        second = await join(at, "c2", "foo", timeout_s=20.0)
        await coordinated_elsewhere(members, killed.name)
        found = await described(at)
        assert second.epoch <= found.epoch
        await until(lambda: knows(members[found.coordinator], found.epoch))
        numbers = [await assigned(members[found.coordinator], name, found.epoch) for name in ("c1", "c2")]
        assert sorted(number for held in numbers for number in held["foo"]) == [0, 1, 2, 3]
        assert joined.epoch == 0

    run(main())


def test_a_member_expires_though_the_controller_and_the_coordinator_were_killed() -> None:
    async def main() -> None:
        members = await cluster()
        joined = await join(members["a"], "dead", "foo")
        members[joined.coordinator].kill()
        await asyncio.sleep(5.0)
        await members[joined.coordinator].start()
        controller(members).kill()
        await until(lambda: all(not member.broker.cluster.metadata.groups for member in living(members)), 60.0)

    run(main())


def test_a_coordinator_that_is_cut_off_expires_nobody() -> None:
    """Its members go on with another one; what it asks for later comes too late."""

    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        await create(members["a"], "foo", 4, 3)
        joined = await join(members["a"], "c", "foo")
        cut_off = members[joined.coordinator]
        for bus in cut_off.buses:
            bus.disconnect()
        await asyncio.sleep(5.0)
        assert (await fetch(cut_off, "c", 0))[0] is Status.UNAVAILABLE, "it may not be the coordinator any more"
        members_left = {name: member for name, member in members.items() if member is not cut_off}
        found = await coordinated_elsewhere(members_left, joined.coordinator)
        for _ in range(6):
            await asyncio.sleep(TIMEOUT_S * 0.4)
            assert await assigned(members[found.coordinator], "c", found.epoch) == {"foo": (0, 1, 2, 3)}
        for bus in cut_off.buses:
            bus.reconnect()
        await until(lambda: knows(cut_off, found.epoch))
        assert await assigned(members[found.coordinator], "c", found.epoch) == {"foo": (0, 1, 2, 3)}

    run(main())


def test_a_removed_broker_coordinates_nothing() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members["a"], "foo", 4, 1)
        gone = (await join(members["a"], "c", "foo")).coordinator
        if gone == controller(members).name:
            gone = (await join(members["a"], "c", "foo", group="h")).coordinator
        group = "g" if members["a"].broker.cluster.metadata.groups["g"].coordinator == gone else "h"
        other = others(members, gone)[0]
        assert (await answer(other, "DrainBroker", admin.DrainBrokerRequest(broker=gone))).done
        assert (await described(other, group)).coordinator == gone, "a follower can coordinate"
        assert (await answer(other, "RemoveBroker", admin.RemoveBrokerRequest(broker=gone))).done
        await until(lambda: other.broker.cluster.metadata.groups[group].coordinator not in ("", gone))

    run(main())
