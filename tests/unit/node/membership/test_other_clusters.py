"""Two clusters in one namespace, in memory: a seed that lost its disk has founded the second one, and a broker that was
to join the first has joined it. Which brokers end, what they say, and which go on."""

import asyncio
import logging

import pytest

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.founders import clusters_of, controllers_of, started, voters_of
from tests.harness.members import Member, five, until


async def a_second_cluster(joiners: str, made: bool = False) -> dict[str, Member]:
    """The others of five are down, a has founded a cluster without its disk, and `joiners` are in that one. A
    client has `made` a stream there."""
    nats = MemoryNats()
    members = await five(nats)
    await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=5))
    await members["a"].publish("s", b"of the first")
    for member in members.values():
        member.kill()
    members["a"].wipe()
    second = await members["a"].start()
    for name in joiners:
        members[name] = await Member(name, nats).start()
    if made:
        assert (await second.call("CreateStream", api.CreateStreamRequest(name="t", subject="t")))[0] is Status.OK
    return members


async def emptied(members: dict[str, Member], name: str) -> None:
    """An operator does what its last words say."""
    assert f"broker {name}" not in members[name].fatal, "it speaks of the others' broker"
    assert "empty its data folder and restart it: it joins" in members[name].fatal
    members[name].kill()
    members[name].wipe()
    await members[name].start()


def test_a_mistaken_cluster_that_holds_nothing_ends_with_the_broker_that_joined_it() -> None:
    async def main() -> None:
        members = await a_second_cluster("x")
        assert len(clusters_of(members)) == 1
        await started(members, "bcde")
        await until(lambda: bool(members["a"].fatal), 10.0)
        assert "it lost its disk and founded this one by mistake" in members["a"].fatal
        assert "So do with x, which joined this one" in members["a"].fatal
        assert not members["x"].fatal, "its controller was there a moment ago"
        await emptied(members, "a")
        await until(lambda: bool(members["x"].fatal), 10.0)
        assert "which has no streams and of which the only voter, a, sends no heartbeats" in members["x"].fatal
        await emptied(members, "x")
        await until(lambda: len(members["b"].broker.cluster.servers) == 6)
        await until(lambda: voters_of(members["b"]) == ("a", "b", "c", "d", "e"))
        assert len(clusters_of(members)) == 1
        assert not any(members[name].fatal for name in "bcde")
        assert await members["b"].read("s", replica=True) == [b"of the first"]

    run(main())


@pytest.mark.parametrize(("joiners", "made"), [("x", True), ("xy", False)], ids=["a-stream", "three-votes"])
def test_a_cluster_that_may_be_somebodys_goes_on_and_both_say_what_to_do(
    joiners: str, made: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        members = await a_second_cluster(joiners, made)
        await asyncio.sleep(8.0)
        await started(members, "bcde")
        await asyncio.sleep(20.0)
        assert [name for name, member in members.items() if member.fatal] == []
        assert len(clusters_of(members)) == 2
        assert len(controllers_of(members)) == 2
        assert f"of a, {', '.join(joiners)}. If one of the two was founded by mistake" in caplog.text
        assert "empty the data folders of its brokers and restart them: they join the other one" in caplog.text

    with caplog.at_level(logging.ERROR):
        run(main())


def test_a_broker_whose_only_voter_is_away_waits_while_there_is_no_other_cluster() -> None:
    async def main() -> None:
        members = await a_second_cluster("x")
        members["a"].kill()
        await asyncio.sleep(30.0)
        assert not members["x"].fatal
        await members["a"].start()
        await until(lambda: controllers_of(members) == ["a"])
        assert members["x"].broker.cluster.servers == ("a", "x")

    run(main())


def test_a_small_cluster_that_meets_a_smaller_one_goes_on() -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = {name: Member(name, nats, seed=name == "a") for name in "ax"}
        await started(members, "a")
        await started(members, "x")
        for member in members.values():
            member.kill()
        members["z"] = await Member("z", nats, seed=True).start()
        await started(members, "ax")
        await until(lambda: bool(members["z"].fatal), 10.0)
        await asyncio.sleep(10.0)
        assert not members["a"].fatal + members["x"].fatal

    run(main())
