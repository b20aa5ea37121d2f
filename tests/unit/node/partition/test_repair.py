"""Three brokers in memory, and disks that lie: damaged replicas heal from the others, and never lead with less than
they promised while another has it."""

import asyncio
import random
from collections.abc import Callable

import pytest

from bascule.core.metadata.commands import PartitionName
from bascule.errors import CorruptError, PeerLacks
from bascule.log.healing import Healing
from bascule.log.sync import GROUP, SyncMode
from bascule.node.membership.cluster import Cluster
from bascule.node.partition.peerlogs import PeerLogs
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.testing.records import record_starts
from bascule.wire.kernels import scan_records, seek_record
from bascule.wire.pb import api_pb2 as api
from tests.harness.members import Member, followers, isr, leader_of, until
from tests.harness.replicas import EXPECTED, end, flip, leads, loaded, log_bytes, logs, whole_again
from tests.harness.segments import harm_anywhere


def flip_crc(disk: MemoryDisk, path: str, chance: random.Random) -> None:
    records = record_starts(disk.content(path))
    disk.flip(path, records[len(records) // 2] - 1, 0)


def flip_last(disk: MemoryDisk, path: str, chance: random.Random) -> None:
    disk.flip(path, record_starts(disk.content(path))[-1] + 20, 1)


def cut(shift: int) -> Callable[[MemoryDisk, str, random.Random], None]:
    def harm(disk: MemoryDisk, path: str, chance: random.Random) -> None:
        data = disk.content(path)
        disk.put(path, data[: chance.choice(record_starts(data)[1:]) + shift])

    return harm


HARMS = {
    "a length": flip(3),
    "a field": flip(6),
    "a value": flip(20),
    "a CRC": flip_crc,
    "the last record": flip_last,
    "cut between records": cut(0),
    "cut before the end of a record": cut(-1),
    "cut after the start of a record": cut(1),
}


@pytest.mark.parametrize("what", HARMS)
@pytest.mark.parametrize("which", [1, -1])
def test_a_replica_damaged_while_it_was_down_heals(what: str, which: int) -> None:
    async def main() -> None:
        members = await loaded()
        victim = next(member for member in members.values() if member is not leader_of(members, "s"))
        victim.kill()
        HARMS[what](victim.disk, logs(victim)[which], random.Random(which))
        await victim.start()
        await whole_again(members)

    run(main())


@pytest.mark.parametrize("what", HARMS)
@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("last", "bc")
def test_all_stop_and_the_damaged_one_comes_back_in_any_order(what: str, which: int, last: str) -> None:
    """Whoever leads afterwards, nothing that was acked is missing."""

    async def main() -> None:
        members = await loaded()
        for member in members.values():
            member.kill()
        victim = members["b"]
        HARMS[what](victim.disk, logs(victim)[which], random.Random(which))
        first = [member for name, member in members.items() if name != last]
        await asyncio.gather(*(member.start() for member in first))
        await asyncio.sleep(0.3)
        await members[last].start()
        await whole_again(members)

    run(main())


@pytest.mark.parametrize("lost", "abc")
def test_one_that_never_comes_back_does_not_take_the_partition_with_it(lost: str) -> None:
    async def main() -> None:
        members = await loaded()
        for member in members.values():
            member.kill()
        living = {name: member for name, member in members.items() if name != lost}
        await asyncio.gather(*(member.start() for member in living.values()))
        await until(lambda: isr(living) and lost not in isr(living))
        await until(lambda: leader_of(members, "s").name != lost)
        await until(lambda: leads(leader_of(living, "s")))
        assert await leader_of(living, "s").read("s") == EXPECTED
        await leader_of(living, "s").publish("s", b"more", timeout_s=10)

    run(main())


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_damage_met_by_a_reader_is_healed_before_it_reads_on(role: str) -> None:
    async def main() -> None:
        members = await loaded()
        victim = leader_of(members, "s") if role == "leader" else followers(members)[0]
        before = log_bytes(victim)
        for path in logs(victim):
            flip(20)(victim.disk, path, random.Random(1))
        assert await victim.read("s", replica=True) == EXPECTED
        assert log_bytes(victim) == before
        await victim.publish("s", b"more")
        await until(lambda: len(isr(members)) == 3)

    run(main())


async def rotten() -> dict[str, Member]:
    """The first follower is away, and every file of the leader has a flipped bit."""
    members = await loaded()
    followers(members)[0].kill()
    await until(lambda: len(isr(members)) == 2)
    leader = leader_of(members, "s")
    for path in logs(leader):
        flip(20)(leader.disk, path, random.Random(1))
    return members


def test_a_leader_never_feeds_a_gap() -> None:
    """A wiped replica refills from a leader whose disk has rotted, while the only other copy is away."""

    async def main() -> None:
        members = await rotten()
        wiped, away = followers(members)
        wiped.disk = MemoryDisk()
        wiped.seed = False
        await wiped.start()
        away.kill()
        await asyncio.sleep(4)
        data = log_bytes(wiped)
        _, count, _, end, _, _, _ = scan_records(data, 0, len(data), 0)
        assert count == end
        await away.start()
        await whole_again(members)

    run(main())


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_damaged_last_record_is_healed_too(role: str) -> None:
    async def main() -> None:
        members = await loaded()
        victim = leader_of(members, "s") if role == "leader" else followers(members)[0]
        flip_last(victim.disk, logs(victim)[-1], random.Random(1))
        assert await victim.read("s", replica=True) == EXPECTED
        await whole_again(members)

    run(main())


def test_a_leader_whose_disk_fails_never_gives_an_offset_to_two_records() -> None:
    """Its followers may have what it could not store."""

    async def main() -> None:
        members = await loaded()
        leader = leader_of(members, "s")
        leader.disk.sync_delay_s = 0.2
        leader.nats.publish(b"s", b"a plain message that is not stored")
        await asyncio.sleep(0.1)
        leader.disk.injected_error = lambda path: 5 if path.startswith("streams/") else None
        await asyncio.sleep(0.3)
        for member in members.values():
            member.disk.heal()
            member.disk.sync_delay_s = 0.0
        await asyncio.sleep(5)
        for number in range(20):
            await members["a"].publish("s", b"after %d" % number, timeout_s=20)
        await until(lambda: len(isr(members)) == 3, 60)
        assert len({log_bytes(member) for member in members.values()}) == 1

    run(main())


RELAXED = SyncMode("interval", 3_600_000_000_000)


@pytest.mark.parametrize("victim", "abc")
def test_under_relaxed_sync_one_power_loss_loses_nothing(victim: str) -> None:
    """Killed processes keep what they wrote; the one that lost its power must not lead with less."""

    async def main() -> None:
        members = await loaded(mode=RELAXED)
        members[victim].kill()
        members[victim].disk.crash(None)
        for member in members.values():
            if member.process is not None:
                end(member)
        await asyncio.gather(*(member.start() for member in members.values()))
        await whole_again(members)

    run(main())


@pytest.mark.parametrize(
    ("mode", "clean", "expected"),
    [
        (GROUP, False, False),
        (RELAXED, False, True),
        (RELAXED, True, False),
        (SyncMode("os"), True, True),
    ],
)
def test_a_start_suspects_what_the_last_run_may_have_lost(
    mode: SyncMode, clean: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    broker_started = Cluster.broker_started

    async def spy(self: Cluster, suspect: tuple[PartitionName, ...], all_suspect: bool = False) -> None:
        seen.append(all_suspect)
        await broker_started(self, suspect, all_suspect)

    async def main() -> None:
        members = await loaded(mode=mode)
        victim = members["b"]
        if clean:
            await victim.broker.stop()
            await victim.broker.close()
        victim.kill()
        monkeypatch.setattr(Cluster, "broker_started", spy)
        await victim.start()
        await whole_again(members)
        assert "clean-shutdown" not in victim.disk.paths()

    run(main())
    assert seen == [expected]


async def live_through(seed: int, mode: SyncMode) -> None:
    """Kills of one or of all, and between them damage of one replica at a time; whatever was acked stays."""
    chance = random.Random(seed)
    members = await loaded(chance.choice([1000, 3000, 1 << 20]), mode)
    acked = list(EXPECTED)
    for boot in range(4):
        victims = chance.choice([["a"], ["b"], ["c"], ["a", "b"], ["a", "b", "c"]])
        power = chance.choice(victims)
        for name in victims:
            if mode.relaxed and name != power:
                end(members[name])
            else:
                members[name].kill(chance)
        for _ in range(chance.randrange(3)):
            if logs(members[power]):
                harm_anywhere(members[power].disk, chance.choice(logs(members[power])), chance)
        chance.shuffle(victims)
        for name in victims:
            await asyncio.sleep(chance.choice([0, 0, 0.1, 0.5, 2, 7]))
            await members[name].start()
        for number in range(10):
            value = b"%d %d" % (boot, number)
            try:
                await members[chance.choice("abc")].publish("s", value, timeout_s=0.5)
                acked.append(value)
            except AssertionError:
                pass  # nobody knows
        await until(lambda: len(isr(members)) == 3, 60)
        await until(lambda: len({log_bytes(member) for member in members.values()}) == 1, 60)
        known = dict.fromkeys(acked)
        for member in members.values():
            got = await member.read("s", replica=True)
            assert [value for value in got if value in known] == acked, (seed, boot)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_to_one_replica_at_a_time_nothing_acked_is_lost(seed: int) -> None:
    run(live_through(seed, GROUP if seed % 2 else RELAXED))


@pytest.mark.parametrize("name", "abc")
def test_a_broker_that_lost_its_metadata_keeps_its_data(name: str) -> None:
    async def main() -> None:
        members = await loaded()
        victim = members[name]
        victim.kill()
        harmed = MemoryDisk()
        for path in victim.disk.paths():
            if not path.startswith("raft/"):
                harmed.put(path, victim.disk.content(path))
        victim.disk, victim.seed = harmed, False
        await asyncio.sleep(3)
        await victim.start()
        await whole_again(members)
        assert not [path for path in victim.disk.paths() if path.startswith("quarantine/")]

    run(main())


@pytest.mark.parametrize("name", "bc")
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.95])
def test_a_broker_whose_metadata_lost_its_end_is_refused_and_comes_back_without_it(name: str, share: float) -> None:
    async def main() -> None:
        members = await loaded()
        victim = members[name]
        await asyncio.sleep(0.5)
        victim.kill()
        (path,) = (path for path in victim.disk.paths() if path.endswith(".commands"))
        data = victim.disk.content(path)
        victim.disk.put(path, data[: int(len(data) * share)])
        with pytest.raises(CorruptError, match=r"confirmed.*move it away"):
            await victim.start()
        assert victim.disk.content(path) == data[: int(len(data) * share)]
        victim.kill()
        for path in [path for path in victim.disk.paths() if path.startswith("raft/")]:
            await victim.disk.remove(path)
        victim.seed = False
        await victim.start()
        await whole_again(members)
        assert not [path for path in victim.disk.paths() if path.startswith("quarantine/")]

    run(main())


def test_a_partition_whose_leader_cannot_read_it_keeps_no_other_one_from_being_in_sync() -> None:
    """What its leader cannot read is tried again every second: that is no reason to be silent about idle partitions."""

    async def main() -> None:
        members = await rotten()
        leader = leader_of(members, "s")
        wiped, away = followers(members)
        for path in [each for each in wiped.disk.paths() if each.startswith("streams/s@")]:
            await wiped.disk.remove(path)
        await wiped.start()
        away.kill()
        request = api.CreateStreamRequest(name="idle", subject="idle", partitions=4, replicationFactor=3)
        await leader.call("CreateStream", request)

        def in_sync() -> set[int]:
            stream = leader.broker.cluster.metadata.stream("idle")
            return set() if stream is None else {len(item.isr) for item in stream}

        await until(lambda: in_sync() == {2})
        shown: set[int] = set()
        for _ in range(400):
            await asyncio.sleep(0.1)
            shown |= in_sync()
        assert shown == {2}
        assert wiped.name not in isr(members)

    run(main())


def flip_records(member: Member, numbers: tuple[int, ...]) -> None:
    (path,) = logs(member)
    where = record_starts(member.disk.content(path))
    for number in numbers:
        member.disk.flip(path, where[number] + 20, 2)


HOLES = {
    "each pair shares one": ((10, 11), (11, 12), (10, 12)),
    "one after the other": ((10, 11, 12), (12, 13, 14), (14, 15, 16)),
    "every second and the rest": ((2, 4, 6, 8, 10, 12), (3, 5, 7, 9, 11, 13), (*range(5, 9), *range(20, 28))),
}


@pytest.mark.parametrize("holes", HOLES)
def test_replicas_with_different_holes_heal_each_other_piece_by_piece(holes: str) -> None:
    async def main() -> None:
        members = await loaded(segment_max_bytes=1_000_000)
        for member in members.values():
            member.kill()
        for member, numbers in zip(members.values(), HOLES[holes], strict=True):
            flip_records(member, numbers)
        await asyncio.gather(*(member.start() for member in members.values()))
        await whole_again(members)

    run(main())


def test_what_no_replica_has_any_more_holds_nothing_up() -> None:
    """It is a hole for all; what one of them has is not lost with it."""

    async def main() -> None:
        members = await loaded(segment_max_bytes=1_000_000)
        for member in members.values():
            member.kill()
        for member, numbers in zip(members.values(), ((9, 10), (10, 11), (10, 20)), strict=True):
            flip_records(member, numbers)
        await asyncio.gather(*(member.start() for member in members.values()))
        await until(lambda: len(isr(members)) == 3)
        await members["a"].publish("s", b"more", timeout_s=20)
        for member in members.values():
            assert await member.read("s", replica=True) == [*EXPECTED[:10], *EXPECTED[11:], b"more"]

    run(main())


def test_a_subscription_by_time_waits_for_damage_as_a_reader_does() -> None:
    """The record of that time is damaged at its leader, and another replica has it: it is neither skipped at the start
    nor left out at the stop."""

    async def main() -> None:
        members = await loaded(segment_max_bytes=1_000_000)
        leader = leader_of(members, "s")
        replica = leader.broker.replicas.find("s", 0)
        assert replica is not None
        content = leader.disk.content(logs(leader)[0])
        time = seek_record(content, 0, len(content), 0, 10)[2]
        flip_records(leader, (9, 10, 11))
        assert await replica.log.offset_at_or_after(time) == 10
        flip_records(leader, (9, 10, 11))
        assert await replica.log.offset_at_or_before(time) == 10
        assert await leader.read("s") == EXPECTED

    run(main())


def test_a_replica_that_is_damaged_too_is_asked_three_times_before_records_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Disks read wrongly now and then, and two that are damaged heal each other in turns."""

    async def main() -> None:
        members = await loaded(segment_max_bytes=1_000_000)
        leader = leader_of(members, "s")
        replica = leader.broker.replicas.find("s", 0)
        assert replica is not None
        flip_records(leader, (10,))

        async def fetch(*question: object) -> bytes:
            raise PeerLacks("damaged there too")

        healings = []
        with monkeypatch.context() as patch:
            patch.setattr(PeerLogs, "fetch", fetch)
            reading = asyncio.get_running_loop().create_task(leader.read("s"))  # it waits until that is known
            await until(lambda: bool(replica.log.damaged))
            (segment,) = replica.log.damaged
            for _ in range(4):
                healings.append(await replica.repair.on_damage(segment, wait=True))
                await asyncio.sleep(0.7)
            assert set(healings) == {Healing.UNKNOWN}
            await asyncio.sleep(6)
            assert await replica.repair.on_damage(segment, wait=True) is Healing.LOST
            assert await reading == [*EXPECTED[:10], *EXPECTED[11:]]
        await until(lambda: not replica.log.damaged)
        await whole_again(members)

    run(main())
