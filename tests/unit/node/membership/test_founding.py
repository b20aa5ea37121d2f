"""How a cluster is founded and joined, with brokers in memory on a virtual clock: who waits, for whom, and who never
founds a second one."""

import asyncio
import logging
import random

import pytest

from bascule.errors import StartError, Status
from bascule.node.calls.subjects import Subjects
from bascule.node.membership.bootstrap import Announcement, ServerId, choose, is_promised
from bascule.node.membership.raft import RaftDriver
from bascule.node.process.identity import load_or_create
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from bascule.wire.raft_messages import Membership
from bascule.wire.subjects import RESERVED_IDS
from tests.harness.broker import SeededRandom
from tests.harness.founders import clusters_of, controllers_of, published, started, voters_of
from tests.harness.members import Member, isr, leader_of, three, until


@pytest.mark.parametrize("word", RESERVED_IDS)
def test_a_token_of_internal_subjects_is_no_id(word: str) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        with pytest.raises(StartError, match="is not a valid broker id"):
            await load_or_create(disk, SeededRandom(1), word)
        assert await load_or_create(disk, SeededRandom(1), "a") == "a", "nothing was stored"

    run(main())


def test_a_wiped_broker_waits_for_its_cluster_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Alone it is refused by nobody: there is no majority that could let it in for far longer than ten tries take."""

    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await members["a"].publish("s", b"kept")
        victim = next(member for member in members.values() if member is not leader_of(members, "s"))
        for member in members.values():
            member.kill()
        victim.disk = MemoryDisk()
        victim.seed = False
        coming = asyncio.ensure_future(victim.start())
        await asyncio.sleep(40.0)
        assert not coming.done() or coming.exception() is None, "it gave up"
        assert "no controller answers in namespace ns" in caplog.text
        assert "raft-bootstrap-seed" not in caplog.text
        for member in members.values():
            if member is not victim:
                await member.start()
        await coming
        await until(lambda: len(victim.broker.cluster.raft.membership.everyone) == 3)
        await until(lambda: victim.broker.cluster.metadata.stream("s") is not None)

    with caplog.at_level(logging.WARNING):
        run(main())


def test_a_wiped_broker_waits_until_its_last_boot_is_dead() -> None:
    """Started the moment it was wiped, it is still alive for the others."""

    async def main() -> None:
        members = await three(MemoryNats())
        victim = members["c"]
        victim.kill()
        victim.disk = MemoryDisk()
        await victim.start()
        await until(lambda: "c" in members["a"].broker.cluster.raft.membership.voters)

    run(main())


def test_the_id_of_a_live_broker_is_refused_for_good() -> None:
    async def main() -> None:
        nats = MemoryNats()
        await three(nats)
        double = Member("b", nats)
        double.boots = 10  # other chances
        with pytest.raises(StartError, match="a broker named b is in the cluster and alive"):
            await double.start()

    run(main())


# --- a list of peers -------------------------------------------------------------------------------------------------


def peers_of(nats: MemoryNats, names: str = "abc") -> dict[str, Member]:
    return {name: Member(name, nats, peers=tuple(names)) for name in names}


@pytest.mark.parametrize("names", ["abc", "abcde"])
def test_peers_that_start_at_once_found_one_cluster_and_all_vote(names: str) -> None:
    async def main() -> None:
        members = peers_of(MemoryNats(), names)
        began = asyncio.get_running_loop().time()
        await started(members)
        await until(lambda: all(voters_of(member) == tuple(names) for member in members.values()))
        assert asyncio.get_running_loop().time() - began < 5.0, "those the list names need not wait"
        assert len(clusters_of(members)) == 1
        incarnations = members["a"].broker.cluster.raft.membership.incarnations
        assert len({incarnation for _, incarnation in incarnations}) == len(names), "every one has drawn its own"

    run(main())


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_peers_that_start_one_after_the_other_wait_for_a_majority(order: str) -> None:
    async def main() -> None:
        members = peers_of(MemoryNats())
        coming: list[asyncio.Future[Member]] = []
        for name in order:
            assert not controllers_of(members) or len(coming) > 1, "one of three founded a cluster alone"
            coming.append(asyncio.ensure_future(members[name].start()))
            await asyncio.sleep(5.0)
        await asyncio.gather(*coming)
        await until(lambda: all(voters_of(member) == ("a", "b", "c") for member in members.values()))
        assert len(clusters_of(members)) == 1

    run(main())


def test_a_peer_that_never_starts_is_not_needed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        members = peers_of(MemoryNats())
        coming = asyncio.ensure_future(members["c"].start())
        await asyncio.sleep(15.0)
        assert "more than half of the peers a, b, c must be up, and these do not answer: a, b; start" in caplog.text
        await asyncio.gather(coming, members["b"].start())
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=2)
        assert (await members["c"].call("CreateStream", request))[0] is Status.OK

    with caplog.at_level(logging.WARNING):
        run(main())


def test_a_list_of_one_founds_at_once() -> None:
    async def main() -> None:
        alone = await Member("a", MemoryNats(), peers=("a",)).start()
        assert voters_of(alone) == ("a",)

    run(main())


def test_a_wiped_peer_neither_votes_nor_founds() -> None:
    """Acked by a and b while c was away; power loss of all; b comes back without its disk, first, then c. The two must
    not decide anything: only a has what was acked."""

    async def main() -> None:
        nats = MemoryNats()
        members = peers_of(nats)
        await started(members)
        await until(lambda: all(voters_of(member) == ("a", "b", "c") for member in members.values()))
        before = clusters_of(members)
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
        request.minIsr.value = 2
        await members["a"].call("CreateStream", request)
        members["c"].kill()
        for number in range(10):
            await published(members["a"], b"%d" % number)
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="later", subject="later"))
        members["a"].kill()
        members["b"].kill()
        members["b"].wipe()
        coming = asyncio.ensure_future(members["b"].start())
        await asyncio.sleep(2.0)
        await members["c"].start()
        await asyncio.sleep(20.0)
        assert controllers_of({"c": members["c"]}) == [], "c and an empty disk decided"
        assert not coming.done()
        await members["a"].start()
        await coming
        await until(lambda: all(voters_of(member) == ("a", "b", "c") for member in members.values()))
        assert clusters_of(members) == before
        await until(lambda: members["b"].broker.cluster.metadata.stream("later") is not None)
        await until(lambda: len(isr(members)) == 3)
        got = await leader_of(members, "s").read("s")  # one that was not acked may be there twice
        assert list(dict.fromkeys(got)) == [b"%d" % number for number in range(10)]

    run(main())


def test_all_peers_wiped_found_a_new_cluster() -> None:
    async def main() -> None:
        members = peers_of(MemoryNats())
        await started(members)
        before = clusters_of(members)
        for member in members.values():
            member.kill()
            member.wipe()
        await started(members)
        assert len(clusters_of(members) | before) == 2

    run(main())


@pytest.mark.parametrize("remedy", ["a comes back empty", "b is emptied"])
def test_a_promise_outlives_a_restart_and_is_not_given_twice(remedy: str, caplog: pytest.LogCaptureFixture) -> None:
    """b lets a found the cluster; a dies before it does, for good. b and c are a majority and must not found one: a may
    have. What ends this is said."""

    async def main() -> None:
        nats = MemoryNats()
        members = peers_of(nats)
        storage: list[bytes] = []
        found = RaftDriver.found

        async def never(driver: RaftDriver, membership: Membership) -> None:
            storage.append(b"")
            await asyncio.Event().wait()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(RaftDriver, "found", never)
            coming = [asyncio.ensure_future(members[name].start()) for name in "ab"]
            await until(lambda: bool(storage))
            members["a"].kill()
            members["b"].kill()
            for task in coming:
                task.cancel()
        assert RaftDriver.found is found
        coming = [asyncio.ensure_future(members[name].start()) for name in "bc"]
        await asyncio.sleep(20.0)
        assert not any(task.done() for task in coming), "founded although a may have"
        if remedy == "b is emptied":
            assert "a, which this broker promised to let found it, does not answer: start it" in caplog.text
            assert "lost for good and you know that there is no cluster, empty the data folders" in caplog.text
            members["b"].kill()
            members["b"].wipe()
            await asyncio.gather(members["b"].start(), coming[1])
            assert len(clusters_of(members)) == 1
            await members["b"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s"))
        members["a"].wipe()
        await asyncio.gather(members["a"].start(), *(coming if remedy != "b is emptied" else ()))
        await until(lambda: all(voters_of(member) == ("a", "b", "c") for member in members.values()))
        assert len(clusters_of(members)) == 1

    with caplog.at_level(logging.INFO):
        run(main())


# --- a seed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late_s", [0.0, 0.2, 0.6, 1.5, 6.0])
def test_a_wiped_seed_is_never_the_voter_it_was(late_s: float) -> None:
    """All are killed, the seed's disk is lost, it comes back first with its flags, the others a little later. Nothing
    of theirs is truncated, whatever it has founded meanwhile."""

    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        before = clusters_of(members)
        await members["b"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await members["b"].call("CreateStream", api.CreateStreamRequest(name="single", subject="single", partitions=3))
        for number in range(20):
            await published(members["b"], b"%d" % number)
        for member in members.values():
            member.kill()
        members["a"].wipe()
        coming = asyncio.ensure_future(members["a"].start())
        await asyncio.sleep(late_s)
        await started(members, "bc")
        await until(lambda: bool(controllers_of({name: members[name] for name in "bc"})))
        await asyncio.sleep(5.0)
        founded = bool(members["a"].fatal)
        assert founded == (late_s > 0.5), "it asks who is there before it founds"
        if founded:
            assert "of another cluster" in members["a"].fatal
            assert "empty its data folder and restart it" in members["a"].fatal
            members["a"].kill()
            members["a"].wipe()
            coming = asyncio.ensure_future(members["a"].start())
        await coming
        await until(lambda: all(voters_of(member) == ("a", "b", "c") for member in members.values()))
        assert clusters_of(members) == before
        assert await leader_of(members, "s").read("s") == [b"%d" % number for number in range(20)]
        single = members["b"].broker.cluster.metadata.stream("single")
        assert single is not None
        lost = [item for item in single if item.replicas == ("a",)]
        assert lost, "nothing was on the lost disk alone: the test shows nothing"
        assert all(not item.leader for item in lost), "an empty log leads although nobody has agreed to it"

    run(main())


def test_two_clusters_that_meet_under_the_same_ids_never_mix() -> None:
    """a lost its disk and founded another cluster, and wrote to a stream of the same name; a restart under the old
    members changes nothing on either side."""

    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        for number in range(5):
            await published(members["a"], b"old %d" % number)
        for member in members.values():
            member.kill()
        members["a"].wipe()
        await members["a"].start()
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s"))
        for number in range(9):
            await published(members["a"], b"new %d" % number)
        await started(members, "bc")
        old = {name: members[name] for name in "bc"}
        await until(lambda: bool(controllers_of(old)))
        await asyncio.sleep(5.0)
        assert len(clusters_of(members)) == 2
        assert members["a"].fatal
        assert await members["a"].read("s") == [b"new %d" % number for number in range(9)]
        await until(lambda: leader_of(old, "s").name != "a")
        assert await leader_of(old, "s").read("s") == [b"old %d" % number for number in range(5)]

    run(main())


# --- who waits, and who does not -------------------------------------------------------------------------------------


def test_a_broker_without_a_majority_answers_nothing_out_of_date() -> None:
    """c comes back alone and does not know of a stream that exists: it says for whom it waits, not that there is
    none."""

    async def main() -> None:
        members = await three(MemoryNats())
        members["c"].kill()
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=2))
        for name in "ab":
            members[name].kill()
        await members["c"].start()
        for method, request in (
            ("FetchMetadata", api.FetchMetadataRequest(streams=["s"])),
            ("Publish", api.PublishRequest(stream="s", value=b"v")),
            ("Subscribe", api.SubscribeRequest(stream="s")),
            ("FetchPartitionMetadata", api.FetchPartitionMetadataRequest(stream="s")),
        ):
            status, text, _ = await members["c"].call(method, request)
            assert status is Status.UNAVAILABLE, (method, text)
            assert "waiting for the cluster for" in text
            assert "2 of the voters a, b, c are needed, and these send no heartbeats: a, b; start more of them" in text
        await members["a"].start()
        await until(lambda: members["c"].broker.cluster.metadata.stream("s") is not None)
        await until(lambda: not members["c"].broker.cluster.waits)
        assert (await members["c"].call("FetchMetadata", api.FetchMetadataRequest(streams=["s"])))[0] is Status.OK

    run(main())


def test_brokers_that_stop_together_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await published(members["a"], b"v")
        loop = asyncio.get_running_loop()
        began = loop.time()
        processes = [member.process for member in members.values()]
        assert all(processes)
        await asyncio.gather(
            *(
                process.start(each.broker.hand_over(10.0))
                for process, each in zip(processes, members.values(), strict=True)
                if process
            )
        )
        assert loop.time() - began < 1.0

    run(main())


# --- the rules by themselves -----------------------------------------------------------------------------------------


def test_whom_a_peer_promises() -> None:
    a, b, c = ("a", "1"), ("b", "1"), ("c", "1")
    listed = ("a", "b", "c")

    def heard(*words: Announcement) -> dict[str, Announcement]:
        return {word.server_id[0]: word for word in words}

    fresh = Announcement(b)
    assert choose(fresh, {}, listed) is None, "no majority is there"
    assert choose(fresh, heard(Announcement(c)), listed) == b, "the smallest that may found"
    assert choose(fresh, heard(Announcement(a), Announcement(c)), listed) == a
    assert choose(fresh, heard(Announcement(a, promise=c), Announcement(c)), listed) == b, (
        "a lets another found, and cannot itself"
    )
    mine = Announcement(b, promise=b)
    assert choose(mine, heard(Announcement(c, promise=b)), listed) is None
    assert choose(mine, heard(Announcement(a)), listed) == a, "it withdraws"
    bound = Announcement(b, promise=a, withdrawn=True)
    assert choose(bound, heard(Announcement(c)), listed) is None, "a is away, and may have founded"
    assert choose(bound, heard(Announcement(a, promise=a), Announcement(c)), listed) is None
    assert choose(bound, heard(Announcement(("a", "2"))), listed) is None, (
        "a lost its disk, and c may be in its cluster"
    )
    assert choose(bound, heard(Announcement(("a", "2")), Announcement(c)), listed) == ("a", "2"), (
        "all are there, and in no cluster"
    )
    withdrew = Announcement(c, promise=a, withdrawn=True)
    assert choose(Announcement(b, promise=c, withdrawn=True), heard(withdrew, Announcement(a)), listed) == a
    assert choose(Announcement(b, promise=c, withdrawn=True), heard(withdrew), listed) is None, (
        "nobody is left who may found"
    )


@pytest.mark.parametrize("seed", range(30))
def test_of_many_peers_that_receive_each_others_messages_late_one_founds(seed: int) -> None:
    """Promises, messages that come late or never, and restarts by chance: never two founders, and one at last."""
    chance = random.Random(seed)
    listed = tuple("abcde"[: chance.choice((2, 3, 4, 5))])
    server_ids = {name: (name, "1") for name in listed}
    promises: dict[str, tuple[ServerId | None, bool]] = dict.fromkeys(listed, (None, False))
    heard: dict[str, dict[str, Announcement]] = {name: {} for name in listed}
    founders: dict[ServerId, None] = {}

    def word(name: str) -> Announcement:
        promise, withdrawn = promises[name]
        return Announcement(server_ids[name], False, promise, withdrawn)

    for turn in range(600):
        name = chance.choice(listed)
        if server_ids[name] in founders:
            continue
        for other in listed:
            if other != name and server_ids[other] not in founders and (turn > 400 or chance.random() < 0.4):
                heard[name][other] = word(other)
        if turn <= 400 and chance.random() < 0.05:
            heard[name] = {}  # a restart: what it promised stays
        own = word(name)
        if is_promised(own, heard[name], listed):
            founders[own.server_id] = None
        elif chosen := choose(own, heard[name], listed):
            promises[name] = (chosen, own.withdrawn or chosen != own.server_id)
    assert len(founders) == 1, founders


def test_what_members_say_carries_the_id_of_their_cluster() -> None:
    subjects = Subjects("ns", "x")
    assert subjects.within("replicate.a") == b"ns.x.replicate.a"
    assert subjects.shared("raft.metadata.join") == b"ns.raft.metadata.join"
    with pytest.raises(AssertionError):
        subjects.enter("y")
    with pytest.raises(AssertionError):
        Subjects("ns").within("replicate.a")
