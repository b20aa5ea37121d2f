"""Consumer groups as administrators see them, on brokers in memory."""

from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from tests.harness.administration import answer, refused
from tests.harness.groups import create, join, leave
from tests.harness.members import Member, three


async def cluster() -> dict[str, Member]:
    members = await three(MemoryNats())
    await create(members["a"], "foo", 2, 3)
    await create(members["a"], "bar", 2, 3)
    return members


async def listed(at: Member) -> list[admin.GroupListing]:
    return list((await answer(at, "ListGroups", admin.ListGroupsRequest())).groups)


async def described(at: Member, group: str = "g") -> admin.DescribeGroupResponse:
    response: admin.DescribeGroupResponse = await answer(at, "DescribeGroup", admin.DescribeGroupRequest(group=group))
    return response


def test_groups_are_listed_and_described_by_any_broker_as_they_are_now() -> None:
    async def main() -> None:
        members = await cluster()
        assert await listed(members["b"]) == []
        first = await join(members["a"], "c1", "foo", "bar")
        second = await join(members["b"], "c2", "foo")
        await join(members["c"], "c9", "bar", group="another")
        for member in members.values():  # also those that had not applied it when they were asked
            another, group = await listed(member)
            assert (another.group, another.members, another.partitions) == ("another", 1, 2)
            assert (group.group, group.members, group.partitions) == ("g", 2, 4)
            assert (group.coordinator, group.epoch) == (first.coordinator, second.epoch)
            found = await described(member)
            assert (found.group, found.coordinator, found.epoch) == ("g", first.coordinator, second.epoch)
            c1, c2 = found.members
            assert (c1.consumer, list(c1.streams), c2.consumer, list(c2.streams)) == (
                "c1",
                ["bar", "foo"],
                "c2",
                ["foo"],
            )
            assert [(each.stream, list(each.partitions)) for each in c1.assignments] == [("bar", [0, 1])]
            assert [(each.stream, list(each.partitions)) for each in c2.assignments] == [("foo", [0, 1])]
        await leave(members["a"], "c2")
        (only,) = (await described(members["b"])).members
        assert [(each.stream, list(each.partitions)) for each in only.assignments] == [("bar", [0, 1]), ("foo", [0, 1])]
        await leave(members["b"], "c1")
        assert [each.group for each in await listed(members["c"])] == ["another"]

    run(main())


def test_a_group_without_members_is_not_there() -> None:
    async def main() -> None:
        members = await cluster()
        nobody = admin.DescribeGroupRequest(group="nobody")
        assert await refused(members["a"], "DescribeGroup", nobody) == "consumer group does not exist"
        assert await refused(members["a"], "DescribeGroup", admin.DescribeGroupRequest()) == "no group is named"

    run(main())
