"""Who may lead after a crash: the rules, and three brokers in memory of which one lost the end of its log."""

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.core.partition.candidate import (
    PATIENCE_S,
    SHORT_PATIENCE_S,
    Candidate,
    GiveWay,
    Lead,
    PeerLog,
    Wait,
    decide,
)
from bascule.node.partition.replica import Replica
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.testing.records import record_starts
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from bascule.wire.repair import LogEnd
from tests.harness.administration import answer, refused
from tests.harness.members import REPLICATION, Member, followers, item_of, leader_of, three, until
from tests.harness.replicas import leads, logs
from tests.harness.stops import stop

OWN = LogEnd(3, 10)


def a_candidate(
    lacks: bool = False,
    least: int = 2,
    complete: tuple[str, ...] = ("b",),
    likely: bool = False,
    sure: bool = False,
) -> Candidate:
    return Candidate(OWN, likely, sure, lacks, complete, ("b", "c"), least)


def said(end: int, certain: bool = False, epoch: int = 3) -> PeerLog:
    return PeerLog(LogEnd(epoch, end), certain)


def test_time_alone_makes_no_leader_where_two_must_be_in_sync() -> None:
    assert decide(a_candidate(), {"c": said(99)}, 1e9) == Wait(("b",)), "c is not in sync, and may lack what b has"
    assert decide(a_candidate(), {"b": said(10), "c": said(4)}, 0) == Lead(())
    assert decide(a_candidate(), {"b": said(11), "c": said(4)}, 0) == GiveWay("b")


def test_where_one_is_enough_it_waits_for_those_listed_too_and_alone_it_waits_a_while() -> None:
    assert decide(a_candidate(least=1), {"c": said(4)}, 1e9) == Wait(("b",))
    for lacks in (False, True):
        alone = a_candidate(lacks, least=1, complete=())
        assert decide(alone, {}, SHORT_PATIENCE_S / 2) == Wait(())
        assert decide(alone, {}, PATIENCE_S) == Lead(())


def test_a_log_that_is_sure_of_its_end_after_its_process_was_killed_gives_the_others_a_moment() -> None:
    sure = a_candidate(likely=True, sure=True)
    assert decide(sure, {}, SHORT_PATIENCE_S / 2) == Wait(())
    assert decide(sure, {}, SHORT_PATIENCE_S) == Lead(("b",))
    assert decide(sure, {"b": said(11), "c": said(4)}, 0) == GiveWay("b")


def test_a_log_that_is_sure_of_its_end_after_a_power_loss_needs_one_other_in_sync_and_waits_a_while_for_the_rest() -> (
    None
):
    likely = a_candidate(likely=True, complete=("b", "c"))
    assert decide(likely, {}, 1e9) == Wait(("b", "c")), "its last record may be missing, and one of them has it"
    assert decide(likely, {"c": said(4)}, PATIENCE_S - 0.1) == Wait(())
    assert decide(likely, {"c": said(4)}, PATIENCE_S) == Lead(("b",))
    assert decide(likely, {"b": said(11)}, PATIENCE_S) == GiveWay("b")


def test_a_log_that_is_sure_of_its_end_and_alone_in_sync_waits_a_moment_for_the_others() -> None:
    likely = a_candidate(likely=True, complete=())
    assert decide(likely, {}, SHORT_PATIENCE_S / 2) == Wait(())
    assert decide(likely, {}, SHORT_PATIENCE_S) == Lead(())


def test_one_that_is_certain_of_its_own_log_is_enough_if_it_is_in_sync() -> None:
    own = a_candidate(complete=("b", "c"))
    assert decide(own, {"b": said(10, certain=True)}, 0) == Lead(("c",))
    assert decide(own, {"b": said(12, certain=True)}, 0) == GiveWay("b")
    assert decide(a_candidate(), {"c": said(99, certain=True)}, 1e9) == Wait(("b",))


def test_one_known_to_lack_something_asks_every_replica() -> None:
    own = a_candidate(lacks=True, complete=())
    assert decide(own, {"b": said(1)}, 1e9) == Wait(("c",))
    assert decide(own, {"b": said(1), "c": said(2)}, 0) == Lead(())
    assert decide(own, {"b": said(1), "c": said(11)}, 0) == GiveWay("c")
    assert decide(a_candidate(lacks=True), {"b": said(10, certain=True)}, 0) == Lead(()), "it has everything committed"


def test_those_not_in_sync_are_given_a_moment() -> None:
    assert decide(a_candidate(), {"b": said(10)}, SHORT_PATIENCE_S / 2) == Wait(())
    assert decide(a_candidate(), {"b": said(10)}, SHORT_PATIENCE_S) == Lead(())


answered = st.dictionaries(st.sampled_from("bc"), st.builds(said, st.integers(0, 20), st.booleans(), st.integers(1, 5)))


@given(
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from([(), ("b",), ("c",), ("b", "c")]),
    st.booleans(),
    answered,
    st.floats(0, 10),
)
def test_nobody_leads_with_less_than_another_is_known_to_have(
    lacks: bool, least: int, complete: tuple[str, ...], likely: bool, told: dict[str, PeerLog], waited_s: float
) -> None:
    own = a_candidate(lacks and not likely, least, complete, likely)
    match decide(own, told, waited_s):
        case Lead(unheard):
            assert all(peer.log_end <= OWN for peer in told.values())
            assert set(unheard) == set(complete) - set(told)
            certain = any(told[each].certain for each in complete if each in told)
            one_heard = likely and set(unheard) < set(complete)
            assert not unheard or certain or (one_heard and waited_s >= PATIENCE_S)
        case GiveWay(to):
            assert told[to].log_end == max(peer.log_end for peer in told.values()) > OWN
        case Wait(missing):
            assert not missing or least > 1 or set(missing) <= set(complete)
            assert not set(missing) & set(told)


# --- three brokers ----------------------------------------------------------------------------------------------


def flip_the_last(disk: MemoryDisk, path: str) -> None:
    disk.flip(path, record_starts(disk.content(path))[-1] + 20, 1)


def cut_the_last_short(disk: MemoryDisk, path: str) -> None:
    disk.put(path, disk.content(path)[:-1])


def cut_the_last_off(disk: MemoryDisk, path: str) -> None:
    data = disk.content(path)
    disk.put(path, data[: record_starts(data)[-1]])


HARMS = {"flipped": flip_the_last, "torn": cut_the_last_short, "truncated": cut_the_last_off}


async def all_killed(
    harm: Callable[[MemoryDisk, str], None], on_record: bool = True, power: bool = True, min_isr: int = 2
) -> tuple[dict[str, Member], Member, Member]:
    """In sync are two, the third is behind; of the two the one that would lead has lost its last record. That this had
    been promised is `on_record` there, or was promised too late for that."""
    members = await three(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
    request.minIsr.value = min_isr
    await members["a"].call("CreateStream", request)
    for number in range(10):
        await members["a"].publish("s", b"%d" % number)
    behind = followers(members)[0]
    behind.buses[REPLICATION].disconnect()
    await until(lambda: behind.name not in item_of(members).isr)
    for number in range(10, 19):
        await leader_of(members, "s").publish("s", b"%d" % number)
    await asyncio.sleep(1)
    await leader_of(members, "s").publish("s", b"19")
    await asyncio.sleep(1 if on_record else 0)
    harmed = leader_of(members, "s")
    whole = next(member for member in members.values() if member not in (harmed, behind))
    for member in members.values():
        member.kill(random.Random(1), power)
    harm(harmed.disk, logs(harmed)[-1])
    return members, harmed, whole


@pytest.mark.parametrize(
    ("harm", "on_record", "power"),
    list(itertools.product(HARMS, (True, False), (True, False))),
)
@pytest.mark.parametrize(("away_s", "min_isr"), [(1, 2), (4, 2), (8, 2), (30, 2), (4, 1), (30, 1)])
def test_a_replica_that_lost_its_last_record_does_not_lead_before_the_one_that_has_it_is_back(
    harm: str, on_record: bool, power: bool, away_s: int, min_isr: int
) -> None:
    async def main() -> None:
        members, harmed, whole = await all_killed(HARMS[harm], on_record, power, min_isr)
        behind = next(member for member in members.values() if member not in (harmed, whole))
        await asyncio.gather(harmed.start(), behind.start())
        await asyncio.sleep(away_s)
        assert not leads(harmed)
        assert not leads(behind)
        await whole.start()
        await until(lambda: len(item_of(members).isr) == 3)
        assert await leader_of(members, "s").read("s") == [b"%d" % number for number in range(20)]

    run(main())


def test_a_clean_restart_of_a_replica_that_waits_does_not_make_it_a_leader() -> None:
    """The clean shutdown says where its log ends, and not whether it ended there before the power loss."""

    async def main() -> None:
        members, harmed, whole = await all_killed(HARMS["truncated"], on_record=False)
        behind = next(member for member in members.values() if member not in (harmed, whole))
        await asyncio.gather(harmed.start(), behind.start())
        await until(lambda: waits(harmed), 20)
        await stop(harmed)
        await harmed.start()
        await until(lambda: waits(harmed), 20)
        assert not leads(harmed)
        assert not leads(behind)
        await whole.start()
        await until(lambda: len(item_of(members).isr) == 3)
        assert await leader_of(members, "s").read("s") == [b"%d" % number for number in range(20)]

    run(main())


@pytest.mark.parametrize("how", ["clean", "killed", "power"])
def test_with_a_min_isr_of_one_a_replica_that_waits_still_knows_for_whom_after_a_restart(how: str) -> None:
    """The other one has left the in-sync set meanwhile, because it is away, and is not eligible."""

    async def main() -> None:
        members, harmed, whole = await all_killed(HARMS["torn"], on_record=False, min_isr=1)
        behind = next(member for member in members.values() if member not in (harmed, whole))
        await asyncio.gather(harmed.start(), behind.start())
        await until(lambda: item_of(members).isr == (harmed.name,), 20)
        for _ in range(2):
            if how == "clean":
                await stop(harmed)
            else:
                harmed.kill(random.Random(1), power=how == "power")
            await harmed.start()
            await until(lambda: waits(harmed), 20)
            await asyncio.sleep(15)
            assert not leads(harmed)
            assert not leads(behind)
        await whole.start()
        await until(lambda: len(item_of(members).isr) == 3)
        assert await leader_of(members, "s").read("s") == [b"%d" % number for number in range(20)]
        assert not any(member.broker.environment.awaited.of(replica_of(member).key) for member in members.values())

    run(main())


def replica_of(member: Member) -> Replica:
    replica = member.broker.replicas.find("s", 0)
    assert replica is not None
    return replica


def flip_the_last_but_one(disk: MemoryDisk, path: str) -> None:
    disk.flip(path, record_starts(disk.content(path))[-2] + 20, 1)


def test_a_replica_whose_damaged_record_was_truncated_does_not_lead_before_the_one_that_has_it_is_back() -> None:
    """Nothing stands behind the damage any more: the log looks as if it had never been longer."""

    async def main() -> None:
        members, harmed, whole = await all_killed(flip_the_last_but_one, power=False)
        behind = next(member for member in members.values() if member not in (harmed, whole))
        await asyncio.gather(harmed.start(), behind.start())
        await until(lambda: harmed.broker.replicas.find("s", 0) is not None)
        replica = harmed.broker.replicas.find("s", 0)
        assert replica is not None
        assert replica.log.damaged
        replica.log.segments.visible_end = 0  # as of a follower that was not told of the high watermark
        await replica.truncate(19)
        assert (replica.log.end, list(replica.log.damaged)) == (18, [])
        assert not replica.certain
        await asyncio.sleep(30)
        assert not leads(harmed)
        await whole.start()
        await until(lambda: len(item_of(members).isr) == 3)
        assert await leader_of(members, "s").read("s") == [b"%d" % number for number in range(20)]

    run(main())


def test_a_replica_that_waits_says_for_whom_and_leads_when_that_one_has_lost_its_disk(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        members, harmed, whole = await all_killed(HARMS["torn"], on_record=False)
        behind = next(member for member in members.values() if member not in (harmed, whole))
        await asyncio.gather(harmed.start(), behind.start())
        await asyncio.sleep(10)
        assert not leads(harmed)
        assert f"{whole.name}, which may have them, does not answer" in caplog.text
        assert f"bascule cluster elect s 0 --replica {harmed.name} --accept-loss" in caplog.text
        whole.disk, whole.seed = MemoryDisk(), False
        await whole.start()
        await until(lambda: len(item_of(members).isr) == 3)
        assert leads(harmed), "nobody else has what it has"
        assert (await harmed.read("s"))[:19] == [b"%d" % number for number in range(19)]

    run(main())


def test_an_administrator_lets_the_one_that_waits_lead_and_sees_before_for_whom_it_waits() -> None:
    async def main() -> None:
        members, harmed, whole = await all_killed(HARMS["torn"], on_record=False)
        behind = next(member for member in members.values() if member not in (harmed, whole))
        await asyncio.gather(harmed.start(), behind.start())
        await until(lambda: waits(harmed), 20)
        status = await answer(behind, "ClusterStatus", admin.ClusterStatusRequest())
        (offline,) = status.offline
        assert f"leader {harmed.name} may lack something that {whole.name} has" in offline.reason
        assert f"bascule cluster elect s 0 --replica {harmed.name} --accept-loss" in offline.reason
        described = (await answer(behind, "DescribeStream", admin.DescribeStreamRequest(stream="s"))).partitions[0]
        assert (list(described.waitsFor), described.online, described.belowMinIsr) == ([whole.name], False, True)
        assert [each.broker for each in described.replicas if each.inSync] == [harmed.name]
        proposal = await answer(behind, "ElectLeader", admin.ElectLeaderRequest(stream="s"))
        assert (proposal.done, proposal.leader) == (False, harmed.name)
        assert f"of these {whole.name} is down" in proposal.statement
        request = admin.ElectLeaderRequest(
            stream="s",
            replica=harmed.name,
            acceptLoss=True,
            inSync=proposal.inSync,
            eligible=proposal.eligible,
        )
        assert (await answer(behind, "ElectLeader", request)).done
        assert leads(harmed)
        await until(lambda: sorted(item_of(members).isr) == sorted((harmed.name, behind.name)))
        assert await harmed.read("s") == [b"%d" % number for number in range(19)]

    run(main())


def test_with_a_min_isr_of_one_an_administrator_lets_the_one_that_waits_lead() -> None:
    async def main() -> None:
        members, harmed, whole = await all_killed(HARMS["torn"], on_record=False, min_isr=1)
        behind = next(member for member in members.values() if member not in (harmed, whole))
        await asyncio.gather(harmed.start(), behind.start())
        await until(lambda: waits(harmed), 20)
        await asyncio.sleep(10)
        assert item_of(members).isr == (harmed.name,)
        (offline,) = (await answer(behind, "ClusterStatus", admin.ClusterStatusRequest())).offline
        assert f"leader {harmed.name} may lack something that {whole.name} has" in offline.reason
        assert not leads(harmed)
        proposal = await answer(behind, "ElectLeader", admin.ElectLeaderRequest(stream="s", replica=harmed.name))
        request = admin.ElectLeaderRequest(
            stream="s", replica=harmed.name, acceptLoss=True, inSync=proposal.inSync, eligible=proposal.eligible
        )
        assert (await answer(behind, "ElectLeader", request)).done
        assert leads(harmed)

    run(main())


def test_a_replica_that_was_alone_in_sync_before_all_lost_power_leads_without_the_others() -> None:
    """Also if its snapshot of the metadata is older than that: what happened since is no news."""

    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        number = 0
        while not all(member.broker.cluster.raft.raft.log.snapshot.index for member in members.values()):
            number += 1
            name = f"another-{number}"
            await members["a"].call("CreateStream", api.CreateStreamRequest(name=name, subject=name))
        leader, (other, behind) = leader_of(members, "s"), followers(members)
        for member in (other, behind):
            member.buses[REPLICATION].disconnect()
        await until(lambda: item_of(members).isr == (leader.name,))
        await leader.publish("s", b"alone", timeout_s=30)
        for member in members.values():
            member.kill(random.Random(1))
        path = logs(leader)[-1]
        leader.disk.put(path, leader.disk.content(path) + b"\0\0\0\1 the rest of a write")
        behind.disk.vanish("promised-ends")  # so its log is certain of nothing
        await asyncio.gather(leader.start(), behind.start())
        await until(lambda: leads(leader), 10)
        assert await leader.read("s") == [b"alone"]

    run(main())


def test_a_broker_that_was_removed_is_not_waited_for() -> None:
    """By force only: it may have the last good copy, though the one that waits counts as in sync."""

    async def main() -> None:
        members, harmed, whole = await all_killed(HARMS["torn"], on_record=False)
        behind = next(member for member in members.values() if member not in (harmed, whole))
        await asyncio.gather(harmed.start(), behind.start())
        await until(lambda: waits(harmed), 20)
        await asyncio.sleep(10)
        assert not leads(harmed)
        request = admin.RemoveBrokerRequest(broker=whole.name)
        text = await refused(behind, "RemoveBroker", request)
        assert f"{whole.name} has the last good copy of s/0 (what {harmed.name}, which is to lead it, lacks" in text
        assert f"`bascule cluster remove {whole.name} --force`" in text
        assert not leads(harmed)
        request.force = True
        response = await answer(behind, "RemoveBroker", request)
        assert [(ref.stream, ref.partition) for ref in response.lost] == [("s", 0)]
        await until(lambda: leads(harmed), 5)
        await until(lambda: sorted(item_of(members).isr) == sorted((harmed.name, behind.name)))
        assert await harmed.read("s") == [b"%d" % number for number in range(19)]

    run(main())


def waits(member: Member) -> bool:
    replica = member.broker.replicas.find("s", 0)
    return replica is not None and bool(replica.repair.waits_for)
