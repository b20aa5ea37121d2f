"""Three brokers in memory: the in-sync set shows who is in sync, nobody who is dead, unreachable or out of space holds
up the others, and what was committed is there however they stop and start."""

import asyncio
import errno
import itertools

import pytest

from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.members import CONTROL, REPLICATION, Member, followers, item_of, leader_of, three, until


async def a_cluster(min_isr: int = 2) -> dict[str, Member]:
    members = await three(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
    request.minIsr.value = min_isr
    await members["a"].call("CreateStream", request)
    for number in range(10):
        await members["a"].publish("s", b"%d" % number)
    return members


async def stored(member: Member, value: bytes, timeout_s: float) -> float:
    """How long it takes until a message is committed."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in itertools.count():
        try:
            await member.publish("s", b"%s %d" % (value, number), timeout_s=0.2)
            return loop.time() - began
        except AssertionError:
            assert loop.time() - began < timeout_s, "nothing is committed"
    raise AssertionError


def test_a_dead_broker_does_not_hold_up_commits_once_another_has_caught_up() -> None:
    async def main() -> None:
        members = await a_cluster()
        dies, lags = followers(members)
        leader = leader_of(members, "s")
        lags.buses[REPLICATION].disconnect()
        await until(lambda: sorted(item_of(members).isr) == sorted((leader.name, dies.name)))
        dies.kill()
        await until(lambda: item_of(members).isr == (leader.name,), 3.0)
        assert item_of(members).eligible == (dies.name,), "it has everything committed, the other one has not"
        lags.buses[REPLICATION].reconnect()
        assert await stored(leader, b"more", 3.0) < 3.0
        assert item_of(members).eligible == ()
        assert sorted(item_of(members).isr) == sorted((leader.name, lags.name))

    run(main())


def test_where_all_must_be_in_sync_a_dead_one_is_taken_out_and_comes_back() -> None:
    async def main() -> None:
        members = await a_cluster(3)
        victim = followers(members)[0]
        victim.kill()
        await until(lambda: victim.name not in item_of(members).isr, 3.0)
        assert item_of(members).eligible == (victim.name,)
        with pytest.raises(AssertionError):
            await members[item_of(members).leader].publish("s", b"not committed", timeout_s=1.0)
        await victim.start()
        await stored(members[item_of(members).leader], b"more", 5.0)
        assert (len(item_of(members).isr), item_of(members).eligible) == (3, ())

    run(main())


def item_waits(member: Member) -> tuple[str, ...]:
    replica = member.broker.replicas.find("s", 0)
    return () if replica is None else replica.repair.waits_for


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
def test_the_eligible_one_leads_when_the_last_in_sync_has_died(power: bool) -> None:
    async def main() -> None:
        members = await a_cluster()
        dies, lags = followers(members)
        leader = leader_of(members, "s")
        lags.buses[REPLICATION].disconnect()
        await until(lambda: lags.name not in item_of(members).isr)
        await leader.publish("s", b"on two of them")
        dies.kill(power=power)
        await until(lambda: item_of(members).eligible == (dies.name,))
        leader.kill()
        lags.buses[REPLICATION].reconnect()
        await dies.start()
        await until(lambda: leader_of(members, "s") is dies, 10.0)
        if power:  # what it promised last is on no record there: it may be missing, and only the other one can tell
            await until(lambda: item_waits(dies) == (leader.name,), 10.0)
            await leader.start()
        await stored(dies, b"after", 10.0)
        assert (await dies.read("s"))[:11] == [*(b"%d" % number for number in range(10)), b"on two of them"]

    run(main())


def test_an_eligible_one_that_comes_back_after_everybody_in_sync_is_gone_leads() -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = {name: Member(name, nats, seed=name == "a") for name in "abcde"}
        for member in members.values():
            await member.start()
        await until(lambda: all(len(each.broker.cluster.raft.membership.voters) == 5 for each in members.values()))
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=2)
        request.minIsr.value = 2
        await members["a"].call("CreateStream", request)
        await members["a"].publish("s", b"0")
        leader = leader_of(members, "s")
        eligible = members[next(name for name in item_of(members).replicas if name != leader.name)]
        for member in (eligible, leader):
            member.kill()
            await asyncio.sleep(4)
        assert (item_of(members).isr, item_of(members).eligible) == ((leader.name,), (eligible.name,))
        await eligible.start()
        await until(lambda: item_of(members).leader == eligible.name, 5.0)
        assert (item_of(members).isr, item_of(members).eligible) == ((eligible.name,), (leader.name,))

    run(main())


def test_a_follower_whose_disk_is_full_says_so_and_nobody_waits_for_it() -> None:
    async def main() -> None:
        members = await a_cluster()
        full, _ = followers(members)
        full.disk.injected_error = lambda path: errno.ENOSPC if path.startswith("streams/") else None
        leader = leader_of(members, "s")
        assert await stored(leader, b"more", 3.0) < 2.0
        await until(lambda: full.name not in item_of(members).isr, 1.0)
        full.disk.heal()
        await until(lambda: len(item_of(members).isr) == 3)

    run(main())


async def stop(member: Member) -> None:
    """As SIGTERM does."""
    assert member.process is not None
    broker = member.broker

    async def end() -> None:
        await broker.hand_over(5.0)
        await broker.stop()
        await broker.close()

    await member.process.start(end())
    member.process.kill()
    member.process = None
    for bus in member.buses:
        bus.disconnect()


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
@pytest.mark.parametrize("back", ["first two", "last two", "first and last"])
def test_after_a_clean_stop_of_all_two_are_enough_to_read_what_was_committed(order: tuple[str, ...], back: str) -> None:
    async def main() -> None:
        members = await a_cluster()
        for name in order:
            await stop(members[name])
            await asyncio.sleep(0.2)
        first, second = {
            "first two": order[:2],
            "last two": order[1:],
            "first and last": (order[0], order[2]),
        }[back]
        starting = asyncio.ensure_future(members[first].start())
        await asyncio.sleep(4.0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(starting, members[second].start())
        living = {name: members[name] for name in (first, second)}
        while True:
            try:
                assert await leader_of(living, "s").read("s") == [b"%d" % number for number in range(10)]
                break
            except (AssertionError, KeyError):
                await asyncio.sleep(0.02)
                assert loop.time() - began < 20
        assert loop.time() - began < 2.5  # two election timeouts, should the first vote be split, and the roles

    run(main())


def test_a_replica_that_replicates_and_sends_nothing_else_makes_no_storm() -> None:
    async def main() -> None:
        members = await a_cluster()
        mute = next(member for member in followers(members) if not member.broker.cluster.raft.is_leader)
        mute.buses[CONTROL].disconnect()
        await until(lambda: mute.name not in item_of(members).isr)
        leader = leader_of(members, "s")
        before = leader.broker.cluster.metadata.index
        for number in range(100):
            await leader.publish("s", b"more %d" % number)
            await asyncio.sleep(0.05)
        assert leader.broker.cluster.metadata.index - before < 20
        mute.buses[CONTROL].reconnect()
        await until(lambda: len(item_of(members).isr) == 3, 20)

    run(main())
