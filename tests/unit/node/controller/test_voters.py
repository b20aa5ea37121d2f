"""Which brokers of a cluster vote: they are learners first, and become voters so that their number stays odd."""

import asyncio
import errno

import pytest

from bascule.errors import Status
from bascule.node.controller.voters import STEADY_S
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import answer
from tests.harness.founders import controllers_of, started, voters_of
from tests.harness.members import Member, five, leader_of, three, until


def test_a_stray_broker_gets_no_vote_and_is_not_missed() -> None:
    async def main() -> None:
        nats = MemoryNats()
        first = await Member("a", nats, seed=True).start()
        stray = await Member("stray", nats).start()
        await asyncio.sleep(20.0)
        assert voters_of(first) == ("a",)
        stray.kill()
        assert (await first.call("CreateStream", api.CreateStreamRequest(name="s", subject="s")))[0] is Status.OK
        first.kill()
        await first.start()
        assert (await first.call("CreateStream", api.CreateStreamRequest(name="t", subject="t")))[0] is Status.OK

    run(main())


def test_one_voter_becomes_three_when_two_were_there_for_a_while() -> None:
    async def main() -> None:
        nats = MemoryNats()
        first = await Member("a", nats, seed=True).start()
        seen: list[int] = []
        others = [Member(name, nats) for name in "bcd"]
        await others[0].start()
        await asyncio.sleep(10.0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for other in others[1:]:
            await other.start()
        while loop.time() - began < 30.0:
            if not seen or seen[-1] != len(voters_of(first)):
                seen.append(len(voters_of(first)))
                assert loop.time() - began >= STEADY_S or seen == [1]
            await asyncio.sleep(0.01)
        assert seen == [1, 3], "two voters, or four, where an odd number could be had"
        fifth = await Member("e", nats).start()
        await until(lambda: len(voters_of(first)) == 5)
        await until(lambda: len(voters_of(fifth)) == 5)

    run(main())


def test_no_more_voters_than_the_configuration_allows() -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = {name: Member(name, nats, peers=tuple("abcde"), max_quorum=3) for name in "abcde"}
        await started(members)
        await asyncio.sleep(15.0)
        assert len(voters_of(members["a"])) == 3

    run(main())


def test_a_wiped_voter_regains_its_vote_and_three_never_become_one() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        seen: dict[tuple[str, ...], None] = {}
        members["c"].kill()
        members["c"].wipe()
        coming = asyncio.ensure_future(members["c"].start())
        deadline = asyncio.get_running_loop().time() + 20.0
        while asyncio.get_running_loop().time() < deadline:
            seen[voters_of(members["a"])] = None
            await asyncio.sleep(0.05)
        await coming
        assert voters_of(members["a"]) == ("a", "b", "c")
        assert min(map(len, seen)) == 2

    run(main())


def test_a_wiped_voter_with_replicas_has_its_vote_again_as_soon_as_it_has_caught_up() -> None:
    """Until then the other two need each other: if one of them lost its disk as well there was no majority any more."""

    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        members["c"].kill()
        members["c"].wipe()
        await members["c"].start()
        deadline = asyncio.get_running_loop().time() + STEADY_S - 2.0
        while voters_of(members["a"]) != ("a", "b", "c"):
            assert asyncio.get_running_loop().time() < deadline, "it waits as if it merely appeared"
            await asyncio.sleep(0.05)

    run(main())


def test_a_voter_that_stops_and_holds_nothing_gives_its_vote_back_where_an_odd_number_remains() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s"))
        idle = next(name for name in "bc" if name != leader_of(members, "s").name)
        process = members[idle].process
        assert process is not None
        await process.start(members[idle].broker.hand_over(5.0))
        members[idle].kill()
        await asyncio.sleep(5.0)
        other = next(name for name in members if name != idle)
        assert len(voters_of(members[other])) == 3, "two voters need each other, three do not need the third"

    run(main())


@pytest.mark.parametrize("who", ["another", "the controller", "one that holds a replica"])
def test_a_voter_that_stops_gives_its_vote_back_where_there_is_an_even_number(who: str) -> None:
    """Of four voters three are needed: of three, without the one that may never come back, two."""

    async def main() -> None:
        members = await five(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s"))
        holder = leader_of(members, "s").name
        removed = next(name for name in members if name != holder)
        for method in ("DrainBroker", "RemoveBroker"):
            request = getattr(admin, f"{method}Request")(broker=removed)
            assert (await answer(members[holder], method, request)).done
        members.pop(removed).kill()
        await asyncio.sleep(10)
        assert len(voters_of(members[holder])) == 4, "nobody stops yet"
        await answer(members[holder], "DrainBroker", admin.DrainBrokerRequest(broker=holder))
        (controller,) = controllers_of(members)
        assert controller != holder, "it drains"
        idle = next(name for name in members if name not in (controller, holder))
        stops = {"another": idle, "the controller": controller, "one that holds a replica": holder}[who]
        process = members[stops].process
        assert process is not None
        await process.start(members[stops].broker.hand_over(5.0))
        members[stops].kill()
        await asyncio.sleep(5)
        stays = next(each for name, each in members.items() if name != stops)
        if stops == holder:
            assert len(voters_of(stays)) == 4, "it will come back with what it has"
            return
        assert voters_of(stays) == tuple(name for name in members if name != stops)
        assert stays.broker.cluster.raft.membership.learners == (stops,)
        await members[stops].start()
        await asyncio.sleep(10)
        assert len(voters_of(stays)) == 3, "alone it would make their number even"

    run(main())


def test_a_learner_that_has_not_caught_up_stays_one() -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = {name: await Member(name, nats, seed=name == "a").start() for name in "abc"}
        first, behind = members["a"], members["c"]
        assert voters_of(first) == ("a",)
        behind.disk.injected_error = lambda path: errno.ENOSPC if path.startswith("raft/") else None
        await first.call("CreateStream", api.CreateStreamRequest(name="s", subject="s"))
        for alive in (True, False):  # after as long as a replica may lag it counts as dead
            await asyncio.sleep(2 * STEADY_S)
            assert ("c" in [peer.id for peer in first.broker.cluster.peers.alive()]) is alive
            assert voters_of(first) == ("a",), "two of three would be needed from now on, and one stores nothing"
        behind.disk.heal()
        await until(lambda: voters_of(first) == ("a", "b", "c"), 10)

    run(main())
