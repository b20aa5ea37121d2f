"""A follower's log that is being truncated belongs to no other role until that is over."""

import asyncio

import pytest

from bascule.core.partition.roles import MOVES, Role
from bascule.node.partition import epochs as stored_epochs
from bascule.node.partition.following import TRUNCATE_AGAIN_S
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.types import Epoch
from tests.harness.administration import create, publish
from tests.harness.members import leader_of, three, until


def test_a_role_that_comes_during_a_truncation_begins_when_that_is_over() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, partitions=1)
        for number in range(5):
            await publish(members["a"], b"%d" % number)
        leader = leader_of(members, "s")
        follower = next(member for member in members.values() if member is not leader)
        stream = follower.broker.cluster.metadata.streams["s"]
        replica = follower.broker.replicas._open[stream.creation_index, 0]
        may_end, ended = asyncio.Event(), asyncio.Event()

        async def cut() -> None:
            await may_end.wait()
            ended.set()

        replica.begin_truncation(cut())
        item = replica.partition
        for leader_epoch, name in ((1000, follower.name), (1001, leader.name), (1002, follower.name)):
            replica.take_role(stream, item._replace(leader=name, leader_epoch=Epoch(leader_epoch)))
            await asyncio.sleep(1)
            assert (replica.leading, replica.following, ended.is_set()) == (None, None, False)
        may_end.set()
        await until(lambda: replica.leading is not None)
        assert ended.is_set()

    run(main())


def test_what_expires_while_a_log_cannot_be_truncated_stays() -> None:
    """Its leader has lost its disk since all of it expired, and knows no epoch of it; this broker learns of the start
    only after that."""

    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, partitions=1)
        for number in range(3):
            await publish(members["a"], b"%d" % number)
        leader = leader_of(members, "s")
        follower = next(member for member in members.values() if member is not leader)
        stream = follower.broker.cluster.metadata.streams["s"]
        replica = follower.broker.replicas._open[stream.creation_index, 0]
        following = replica.following
        assert following is not None
        await until(lambda: replica.log.visible_end == 3)
        truncating = asyncio.get_running_loop().create_task(following._truncate(1))
        await asyncio.sleep(2 * TRUNCATE_AGAIN_S)
        assert not truncating.done(), "consumers saw what it is to truncate"
        replica.log.raise_start(3)
        async with asyncio.timeout(2 * TRUNCATE_AGAIN_S):
            await truncating
        assert replica.log.end == 3

    run(main())


def test_a_log_is_closed_when_its_truncation_is_over() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, partitions=1)
        await publish(members["a"], b"x")
        leader = leader_of(members, "s")
        follower = next(member for member in members.values() if member is not leader)
        stream = follower.broker.cluster.metadata.streams["s"]
        replica = follower.broker.replicas._open[stream.creation_index, 0]
        steps: list[str] = []

        async def cut() -> None:
            await asyncio.sleep(1)
            steps.append("cut")

        replica.begin_truncation(cut())
        await replica.close()
        steps.append("closed")
        assert steps == ["cut", "closed"]
        assert (replica.leading, replica.following) == (None, None)

    run(main())


@pytest.mark.parametrize("why", ["its stream is deleted", "it is no replica any more"])
def test_no_role_begins_after_a_truncation_if_none_is_given_by_then(why: str) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, partitions=1)
        leader = leader_of(members, "s")
        follower = next(member for member in members.values() if member is not leader)
        stream = follower.broker.cluster.metadata.streams["s"]
        replica = follower.broker.replicas._open[stream.creation_index, 0]
        over = asyncio.Event()

        async def truncate() -> None:
            await asyncio.sleep(1)
            over.set()

        replica.begin_truncation(truncate())
        replica.on_stream_deleted() if why == "its stream is deleted" else replica.resign()
        await over.wait()
        await asyncio.sleep(1)
        assert (replica.leading, replica.following) == (None, None)
        assert replica.roles.role is (Role.ENDED if why == "its stream is deleted" else Role.NONE)

    run(main())


@pytest.mark.parametrize("role", list(Role))
def test_a_move_that_is_not_in_the_table_is_a_failed_assertion(role: Role) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, partitions=1)
        stream = members["a"].broker.cluster.metadata.streams["s"]
        roles = members["a"].broker.replicas._open[stream.creation_index, 0].roles
        roles.resign()
        for other in Role:
            roles.role = role
            if other not in MOVES[role]:
                with pytest.raises(AssertionError, match=f"from {role.value} to {other.value}"):
                    roles._move(other)

    run(main())


def test_epochs_are_not_stored_while_a_log_is_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor twice at a time: they share a temporary file."""

    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, partitions=1)
        await publish(members["a"], b"x")
        stream = members["a"].broker.cluster.metadata.streams["s"]
        replica = members["a"].broker.replicas._open[stream.creation_index, 0]
        under_way: list[str] = []
        most = 0

        async def slow(*_: object, **__: object) -> None:
            nonlocal most
            under_way.append("x")
            most = max(most, len(under_way))
            await asyncio.sleep(1)
            under_way.pop()

        monkeypatch.setattr(stored_epochs, "save", slow)
        monkeypatch.setattr(stored_epochs, "forget", slow)
        monkeypatch.setattr(replica.log, "truncate", slow)
        saves = [replica._derived._store(replica._epochs) for _ in range(2)]
        await asyncio.gather(saves[0], replica.truncate(0), saves[1])
        assert most == 1

    run(main())
