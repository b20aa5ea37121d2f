"""A power loss that keeps later records of a write nobody promised, and loses earlier ones: no offset stays without a
record for it, and nothing that was promised is ever truncated."""

import asyncio

import pytest

from bascule.errors import PeerError, PeerLacks
from bascule.log.tail import Tail
from bascule.node.partition.peerlogs import PeerLogs
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, open_bench, start_ends, stop_ends
from bascule.testing.loop import run
from bascule.testing.records import encode, record_starts
from tests.harness.members import REPLICATION, Member, isr, leader_of, until
from tests.harness.replicas import COUNT, EXPECTED, loaded, log_bytes, logs
from tests.harness.stops import stop

LOST, RETAINED = b"lost", b"kept"


async def torn(
    members: dict[str, Member], whole: tuple[str, ...] = (), lost: bytes = LOST, leader: Member | None = None
) -> str:
    """The power of all is lost while the leader writes two records, of which the second one is on its disk; the members
    of `whole` have both. The leader's name."""
    leader = leader or leader_of(members, "s")
    replica = leader.broker.replicas.find("s", 0)
    assert replica is not None
    log = replica.log
    written = encode([lost, RETAINED], COUNT, log.last_timestamp + 1, replica.partition.leader_epoch, "s")[0]
    first = record_starts(written)[1]
    await asyncio.sleep(1)
    for member in members.values():
        member.kill()
        member.disk.crash()
    for name in (leader.name, *whole):
        disk, path = members[name].disk, logs(members[name])[-1]
        retained = written if name in whole else bytes(first) + written[first:]
        disk.put(path, disk.content(path) + retained)
    return leader.name


async def start(members: dict[str, Member], *names: str) -> None:
    await asyncio.gather(*(members[name].start() for name in names))


def test_what_no_replica_has_is_truncated_with_what_follows_it() -> None:
    async def main() -> None:
        members = await loaded()
        name = await torn(members)
        await start(members, *members)
        await until(lambda: len(isr(members)) == 3)
        assert (await members["a"].publish("s", b"more", timeout_s=20)).offset == COUNT
        await until(lambda: len({log_bytes(member) for member in members.values()}) == 1)
        for member in members.values():
            assert await member.read("s", replica=True) == [*EXPECTED, b"more"]
        aside = [path for path in members[name].disk.paths() if path.startswith("quarantine/")]
        assert any(RETAINED in members[name].disk.content(path) for path in aside)

    run(main())


def test_what_another_replica_has_is_healed_and_nothing_is_truncated() -> None:
    async def main() -> None:
        members = await loaded()
        leader = leader_of(members, "s").name
        other = next(name for name in members if name != leader)
        await torn(members, whole=(other,))
        await start(members, *members)
        await until(lambda: len(isr(members)) == 3)
        assert (await members["a"].publish("s", b"more", timeout_s=20)).offset == COUNT + 2
        await until(lambda: len({log_bytes(member) for member in members.values()}) == 1)
        for member in members.values():
            assert await member.read("s", replica=True) == [*EXPECTED, LOST, RETAINED, b"more"]

    run(main())


@pytest.mark.parametrize("min_isr", [1, 2])
def test_nothing_is_truncated_while_one_that_may_have_it_is_away(min_isr: int) -> None:
    async def main() -> None:
        members = await loaded(min_isr=min_isr)
        leader = leader_of(members, "s").name
        away, other = (name for name in members if name != leader)
        await torn(members, whole=(away,))
        await start(members, leader, other)
        await asyncio.sleep(15)
        await start(members, away)
        await until(lambda: len(isr(members)) == 3, 60)
        await until(lambda: len({log_bytes(member) for member in members.values()}) == 1, 60)
        for member in members.values():
            assert await member.read("s", replica=True) == [*EXPECTED, LOST, RETAINED]

    run(main())


@pytest.mark.parametrize("shows", [True, False])
def test_the_only_one_in_sync_truncates_a_hole_that_lacks_sectors(shows: bool) -> None:
    """It was alone at the power loss: nothing that it had not synced was committed. If the hole may be damage as well,
    what follows it is kept."""
    lost = b"lost" * 500 if shows else LOST

    async def main() -> None:
        members = await loaded()
        leader = leader_of(members, "s")
        others = [member for member in members.values() if member is not leader]
        for member in others:
            member.buses[REPLICATION].disconnect()
        await until(lambda: isr(members) == (leader.name,), 60)
        await torn(members, (), lost, leader)
        await start(members, *members)
        await until(lambda: len(isr(members)) == 3, 60)
        await until(lambda: len({log_bytes(member) for member in members.values()}) == 1, 60)
        left = [] if shows else [RETAINED]
        for member in members.values():
            assert await member.read("s", replica=True) == [*EXPECTED, *left]
        offset = COUNT + (0 if shows else 2)
        assert (await members["a"].publish("s", b"more", timeout_s=20)).offset == offset

    run(main())


@pytest.mark.parametrize("whole", [True, False])
def test_a_torn_hole_in_what_was_not_promised_is_no_damage(whole: bool) -> None:
    """Both of two replicas have one, and the disk of the third is lost: they have everything committed, and one leads.
    What the third had, if its disk is not lost, is kept, for it has the most."""

    async def main() -> None:
        members = await loaded(min_isr=2)
        leader = leader_of(members, "s")
        third = next(name for name in members if name != leader.name)
        lost = b"lost" * 500
        await torn(members, (third,) if whole else (), lost, leader)
        holed = [name for name in members if name != third]
        path = logs(leader)[-1]
        for name in holed:
            members[name].disk.put(path, leader.disk.content(path))
        if not whole:
            members[third].disk = MemoryDisk()
        await start(members, *members)
        await until(lambda: len(isr(members)) == 3, 60)
        await until(lambda: len({log_bytes(member) for member in members.values()}) == 1, 60)
        await asyncio.sleep(1)
        assert await members[holed[0]].read("s", replica=True) == [*EXPECTED, *([lost, RETAINED] if whole else [])]
        for name in holed:
            assert not members[name].broker.replicas.find("s", 0).log.damaged  # type: ignore[union-attr]

    run(main())


@pytest.mark.parametrize(
    ("answers", "cut"),
    [
        ((b"", b""), True),
        ((b"", b"record"), False),
        ((b"", PeerError("not heard")), False),
        ((PeerLacks("damaged there too"), b""), False),
    ],
)
def test_a_log_is_truncated_at_a_hole_if_no_replica_has_what_is_missing(
    answers: tuple[bytes | Exception, bytes | Exception], cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        members = await loaded()
        replica = leader_of(members, "s").broker.replicas.find("s", 0)
        assert replica is not None
        log = replica.log
        others = [name for name in members if name != replica.environment.settings.broker_id]
        said = dict(zip(others, answers, strict=True))

        async def fetch(_: PeerLogs, broker: str, *question: object) -> bytes:
            told = said[broker]
            if isinstance(told, Exception):
                raise told
            return told

        monkeypatch.setattr(PeerLogs, "fetch", fetch)
        log.record.torn_from, log.segments.damaged = log.end, {log.segments[-1]: None}
        assert await replica.repair.torn_from() == (log.end if cut else None)
        log.segments.damaged = {}
        assert await replica.repair.torn_from() is None

    run(main())


@pytest.mark.parametrize("clean", [True, False])
def test_promised_records_behind_damage_stay_though_no_replica_has_what_is_missing(clean: bool) -> None:
    """The same picture on every disk; but it is on record that all was promised."""

    async def main() -> None:
        members = await loaded(segment_max_bytes=1_000_000)
        await asyncio.sleep(1)
        for member in members.values():
            if clean:
                await stop(member)
            else:
                member.kill()
        for member in members.values():
            (path,) = logs(member)
            member.disk.flip(path, record_starts(member.disk.content(path))[-2] + 20, 1)
        await start(members, *members)
        await until(lambda: len(isr(members)) == 3, 60)
        assert (await members["a"].publish("s", b"more", timeout_s=20)).offset == COUNT
        for member in members.values():
            assert await member.read("s", replica=True) == [*EXPECTED[:-2], EXPECTED[-1], b"more"]

    run(main())


async def with_a_hole(disk: MemoryDisk) -> int:
    """A replica that has promised five records, and lost the first of two more that it was writing. Gives the hole."""
    ends = await start_ends(disk)
    bench = await open_bench(disk, replicated=True, ends=ends)
    await bench.store([b"%d" % number for number in range(5)])
    await asyncio.sleep(1)
    disk.crash()
    (path,) = (path for path in disk.paths() if path.startswith(FOLDER) and path.endswith(".log"))
    written = encode([LOST, RETAINED], 5, 1000)[0]
    first = record_starts(written)[1]
    disk.put(path, disk.content(path) + bytes(first) + written[first:])
    return 5


async def again(disk: MemoryDisk) -> Bench:
    ends = await start_ends(disk)
    bench = await open_bench(disk, replicated=True, ends=ends)
    await asyncio.sleep(1)
    return bench


def test_a_hole_stays_one_however_later_boots_end() -> None:
    """What is behind it does not go on record as promised, by a crash or a clean stop, until it is given up."""

    async def scenario() -> None:
        disk = MemoryDisk()
        hole = await with_a_hole(disk)
        for _ in range(3):
            bench = await again(disk)
            assert (bench.log.end, bench.log.tail, bench.log.record.torn_from) == (hole + 2, Tail.LIKELY, hole)
            assert bench.log.record.promised == hole
            disk.crash()
        ends = await start_ends(disk)
        bench = await open_bench(disk, replicated=True, ends=ends)
        await stop_ends(ends, bench)
        bench = await again(disk)
        assert bench.log.record.torn_from == hole
        bench.log.record.hole_closed()
        await asyncio.sleep(1)
        assert bench.log.record.promised == hole + 2
        disk.crash()
        assert (await again(disk)).log.record.torn_from is None

    run(scenario())


def test_a_truncation_at_a_hole_removes_the_hole() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        hole = await with_a_hole(disk)
        bench = await again(disk)
        assert bench.log.damaged
        await bench.log.truncate(hole)
        assert (bench.log.end, bench.log.record.torn_from) == (hole, None)
        assert not bench.log.damaged
        await bench.store([b"next"])
        assert [offset for offset, _ in await bench.read_all()] == list(range(hole + 1))
        disk.crash()
        bench = await again(disk)
        assert not bench.log.damaged
        assert (bench.log.end, bench.log.tail) == (hole + 1, Tail.LIKELY)

    run(scenario())


@pytest.mark.parametrize("clean", [True, False])
def test_damage_below_what_was_promised_is_no_torn_hole(clean: bool) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        ends = await start_ends(disk)
        bench = await open_bench(disk, replicated=True, ends=ends)
        await bench.store([b"%d" % number for number in range(5)])
        await asyncio.sleep(1)
        if clean:
            await stop_ends(ends, bench)
        disk.crash()
        path = bench.log.segments[0].path
        disk.flip(path, record_starts(disk.content(path))[3] + 20, 1)
        bench = await again(disk)
        assert bench.log.damaged
        assert (bench.log.record.torn_from, bench.log.record.promised) == (None, 5)

    run(scenario())


def test_where_what_was_promised_is_not_known_a_hole_is_damage() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        await with_a_hole(disk)
        await disk.remove("promised-ends")
        bench = await again(disk)
        assert bench.log.damaged
        assert bench.log.record.torn_from is None

    run(scenario())
