"""What a Raft server saved is there after every crash, whole saves only; what cannot be trusted stops the start."""

import asyncio
import logging
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.errors import CorruptError, LogError
from bascule.log.raftlog import RaftStorage
from bascule.testing.disk import MemoryDisk
from bascule.wire.raft import encode_membership
from bascule.wire.raft_messages import Entry, EntryKind, HardState, Membership, Snapshot

FOLDER = "raft"
FOUNDED = Membership(("a", "b", "c"))
Stored = tuple[HardState, Snapshot, list[Entry], bool]


def entries(first: int, last: int, term: int) -> list[Entry]:
    return [Entry(index, term, data=b"command %d of %d" % (index, term)) for index in range(first, last + 1)]


async def opened(disk: MemoryDisk) -> tuple[RaftStorage, Stored]:
    storage = RaftStorage(disk, FOLDER)
    return storage, await storage.open()


@dataclass
class Model:
    """A server's storage as plain values."""

    hard_state: HardState = field(default_factory=HardState)
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(0, 0, Membership()))
    entries: list[Entry] = field(default_factory=list)
    fresh: bool = True

    @property
    def end(self) -> int:
        return self.snapshot.index + len(self.entries)

    def stored(self) -> Stored:
        return self.hard_state, self.snapshot, self.entries, self.fresh

    def save(self, hard_state: HardState | None, new: list[Entry], snapshot: Snapshot | None) -> "Model":
        base = snapshot or self.snapshot
        retained = [] if snapshot else self.entries
        if new:
            retained = [entry for entry in retained if entry.index < new[0].index] + new
        return Model(hard_state or self.hard_state, base, retained, fresh=False)

    def compact(self, snapshot: Snapshot) -> "Model":
        retained = [entry for entry in self.entries if entry.index > snapshot.index]
        return Model(self.hard_state, snapshot, retained, fresh=False)


class History:
    """One random step after the other, on the storage and on the model. `before` is the state the last one found."""

    def __init__(self, disk: MemoryDisk, storage: RaftStorage, seed: int) -> None:
        self.disk, self.storage = disk, storage
        self.chance = random.Random(seed)
        self.model = self.before = Model()
        self.term = 1

    async def step(self) -> None:
        self.before, chance, model = self.model, self.chance, self.model
        kind = chance.choice(("append", "append", "append", "replace", "vote", "install", "compact"))
        if kind == "compact" and model.entries:
            at = chance.choice(model.entries)
            snapshot = Snapshot(at.index, at.term, FOUNDED, b"state %d" % at.index)
            self.model = model.compact(snapshot)
            await self.storage.compact(snapshot)
            return
        hard_state, new, installed = None, entries(model.end + 1, model.end + chance.randint(1, 4), self.term), None
        if kind != "append":
            self.term += 1
            hard_state = HardState(self.term, chance.choice(("", "a", "b")), model.snapshot.index, "incarnation")
        if kind == "vote":
            new = []
        elif kind == "replace" and model.entries:
            first = chance.choice(model.entries).index
            new = entries(first, first + chance.randint(0, 3), self.term)
        elif kind == "install":
            index = model.end + chance.randint(1, 9)
            installed = Snapshot(index, self.term, FOUNDED, bytes(chance.randint(0, 300)))
            new = entries(index + 1, index + chance.randint(0, 2), self.term)
        self.model = model.save(hard_state, new, installed)
        await self.storage.save(hard_state, new, installed)

    async def reopen(self) -> None:
        self.storage, stored = await opened(self.disk)
        if stored == self.before.stored():
            self.model = self.before
        assert stored == self.model.stored()


def test_a_new_storage_is_fresh_and_a_founded_one_is_not() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        storage, stored = await opened(disk)
        assert stored == (HardState(), Snapshot(0, 0, Membership()), [], True)
        assert disk.paths() == []
        await storage.save(None, [])
        assert disk.paths() == [], "nothing to save, nothing written"
        await storage.save(HardState(), [], Snapshot(0, 0, FOUNDED))
        disk.crash()
        _, stored = await opened(disk)
        assert stored == (HardState(), Snapshot(0, 0, FOUNDED), [], False)

    asyncio.run(scenario())


def test_entries_replace_the_conflicting_suffix() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        storage, _ = await opened(disk)
        await storage.save(HardState(1, "a"), entries(1, 9, 1))
        await storage.save(HardState(2, "b", 3), entries(4, 5, 2))
        disk.crash()
        _, stored = await opened(disk)
        assert stored == (
            HardState(2, "b", 3),
            Snapshot(0, 0, Membership()),
            entries(1, 3, 1) + entries(4, 5, 2),
            False,
        )

    asyncio.run(scenario())


def test_a_leaders_snapshot_replaces_everything_in_one_save() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        storage, _ = await opened(disk)
        await storage.save(HardState(1), entries(1, 9, 1))
        snapshot = Snapshot(20, 2, FOUNDED.with_learner("d", "x1"), b"state")
        member = Entry(21, 3, EntryKind.MEMBERSHIP, encode_membership(FOUNDED))
        await storage.save(HardState(3, "", 20), [member], snapshot)
        disk.crash()
        _, stored = await opened(disk)
        assert stored == (HardState(3, "", 20), snapshot, [member], False)

    asyncio.run(scenario())


def test_compaction_keeps_the_entries_after_it_and_bounds_the_files() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        storage, _ = await opened(disk)
        for first in range(1, 500, 5):
            await storage.save(HardState(1, "", first), entries(first, first + 4, 1))
            await storage.compact(Snapshot(first + 2, 1, FOUNDED, b"state"))
            await storage.compact(Snapshot(first + 3, 1, FOUNDED, b"state"))
        disk.crash()
        storage, stored = await opened(disk)
        assert stored == (HardState(1, "", 496), Snapshot(499, 1, FOUNDED, b"state"), entries(500, 500, 1), False)
        assert len(disk.paths()) < 8
        await storage.compact(Snapshot(3, 1, FOUNDED))
        assert (await opened(disk))[1] == stored, "an older one than there is changes nothing"

    asyncio.run(scenario())


def test_gaps_are_refused_before_they_are_written() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        storage, _ = await opened(disk)
        await storage.save(HardState(1), entries(1, 3, 1))
        await storage.compact(Snapshot(2, 1, FOUNDED))
        for bad in (entries(5, 5, 1), entries(2, 4, 1), entries(4, 4, 1) + entries(6, 6, 1)):
            with pytest.raises(ValueError, match="raft: "):
                await storage.save(None, bad)
        with pytest.raises(ValueError, match="the log ends at 3"):
            await storage.compact(Snapshot(4, 1, FOUNDED))
        assert (await opened(disk))[1][2] == entries(3, 3, 1)

    asyncio.run(scenario())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), plan=st.lists(st.sampled_from(["step", "step", "step", "restart", "crash"])))
def test_a_storage_is_its_saves_whatever_the_restarts_and_power_losses_between(seed: int, plan: list[str]) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        storage, _ = await opened(disk)
        history = History(disk, storage, seed)
        for what in plan:
            if what == "step":
                await history.step()
                history.before = history.model
            elif what == "crash":
                disk.crash(random.Random(seed))
                await history.reopen()
            else:
                await history.reopen()
        disk.crash()
        await history.reopen()

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_a_power_loss_at_any_step_keeps_every_confirmed_save_and_no_part_of_another(seed: int) -> None:
    async def scenario(failing: int) -> bool:
        disk = MemoryDisk()
        storage, _ = await opened(disk)
        history = History(disk, storage, seed)
        disk.fail_at(disk.steps + failing)
        failed = False
        for _ in range(14):
            try:
                await history.step()
            except (LogError, OSError):
                failed = True
                break
            history.before = history.model
        disk.heal()
        disk.crash(random.Random(failing))
        await history.reopen()
        for _ in range(3):
            await history.step()
            history.before = history.model
        disk.crash()
        await history.reopen()
        return failed

    logging.getLogger("bascule.log").setLevel(logging.CRITICAL)
    try:
        failures = [asyncio.run(scenario(step)) for step in range(1, 90)]
    finally:
        logging.getLogger("bascule.log").setLevel(logging.NOTSET)
    assert 30 < sum(failures) < len(failures)


def test_after_a_failed_save_the_same_storage_goes_on_when_it_is_opened_again() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        storage, _ = await opened(disk)
        await storage.save(HardState(1, "a"), entries(1, 2, 1))
        disk.fail_at(disk.steps + 2)
        for _ in range(2):
            with pytest.raises(LogError, match="could not be stored"):
                await storage.save(HardState(2, "b"), [])
        hard_state, *_ = await storage.open()
        assert hard_state in (HardState(1, "a"), HardState(2, "b"))
        disk.crash()
        assert (await opened(disk))[1][0] == hard_state, "what it was told is what is durable"

    asyncio.run(scenario())


async def saved_twice(second: list[Entry]) -> tuple[MemoryDisk, str, int]:
    """With the path of the file, and where the first save ends in it."""
    disk = MemoryDisk()
    storage, _ = await opened(disk)
    await storage.save(HardState(1, "a"), entries(1, 2, 1))
    (path,) = disk.paths()
    first = len(disk.content(path))
    await storage.save(HardState(2, "b"), second)
    return disk, path, first


def test_a_save_torn_at_any_byte_never_happened() -> None:
    async def scenario() -> None:
        disk, path, whole = await saved_twice(entries(2, 4, 2))
        content = disk.content(path)
        for length in range(whole, len(content)):
            torn = MemoryDisk()
            torn.put(path, content[:length])
            again, stored = await opened(torn)
            assert stored == (HardState(1, "a"), Snapshot(0, 0, Membership()), entries(1, 2, 1), False)
            await again.save(HardState(3), [])
            assert (await opened(torn))[1][0] == HardState(3)

    asyncio.run(scenario())


def test_damage_in_the_middle_stops_the_start_and_says_what_to_do() -> None:
    async def scenario() -> None:
        disk, path, whole = await saved_twice(entries(3, 4, 2))
        for at in range(whole):
            content = bytearray(disk.content(path))
            content[at] ^= 1 << at % 8
            damaged = MemoryDisk()
            damaged.put(path, bytes(content))
            with pytest.raises(CorruptError, match=r"move it away and start again: the server comes back as a new one"):
                await opened(damaged)

    asyncio.run(scenario())


def test_a_damaged_checkpoint_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        storage, _ = await opened(disk)
        for first, install in ((1, False), (11, False), (21, True), (31, False)):
            snapshot = Snapshot(first + 20, 1, FOUNDED, b"installed") if install else None
            start = snapshot.index + 1 if snapshot else first
            await storage.save(HardState(first), entries(start, start + 9, first), snapshot)
            if not install and first < 31:
                await storage.compact(Snapshot(first + 5, first, FOUNDED, b"state %d" % first))
            if first == 21:
                break
        expected = (await opened(disk))[1]
        newest = [path for path in disk.paths() if path.endswith(".snapshot")][-1]
        disk.put(newest, disk.content(newest)[:-1])
        assert (await opened(disk))[1] == expected

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "trying the snapshot before it" in caplog.text


def test_a_record_that_is_no_save_stops_the_start() -> None:
    async def scenario() -> None:
        for record in (b"", b"\1", b"\2" + bytes(30), b"\1\0\0" + bytes(20) + b"too long"):
            disk = MemoryDisk()
            storage, _ = await opened(disk)
            await storage._records.append(1, record)
            with pytest.raises(CorruptError, match="save 1 cannot be read"):
                await opened(disk)

    asyncio.run(scenario())
