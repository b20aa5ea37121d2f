"""What a Raft server must not forget: its hard state, its log and its last snapshot, durable before a save returns.

Theory of operation: this is a command log (see `commandlog`) whose commands are *saves*. A save is what one Ready asks
to persist, in one record: the hard state, a snapshot from the leader, entries that take the place of everything stored
from their first index on. One record has one CRC, so a save is there whole or not at all. A torn one at the end was
never confirmed and is truncated, unless it is on record that it was: the number of confirmed saves is (`promised`), and
a clean shutdown leaves the exact number. Replaying the saves gives the state.

Compaction, and the arrival of a snapshot, write the whole present state as a checkpoint (temporary file, sync, rename,
folder sync) and begin a new file; the checkpoint before it and the saves since stay, so that one damaged checkpoint
loses nothing.

Damage that is not a torn tail raises CorruptError: a server that forgot a vote or an entry it confirmed must not
go on as itself. It may come back in a new incarnation, with an empty folder.

Known to be imperfect: a snapshot from the leader is written twice, as a save and in the checkpoint. A last save that
was confirmed right before a crash, too late to be on record, and was damaged while the broker was down looks like one
that was not.
"""

import logging

from bascule.errors import CorruptError, LogError, PeerError
from bascule.log.commandlog import CommandLog
from bascule.log.endrecord import EndRecord
from bascule.log.tail import CleanEnd
from bascule.ports import Disk
from bascule.wire.raft import decode_stored, encode_stored
from bascule.wire.raft_messages import Entry, HardState, Membership, Snapshot

_log = logging.getLogger("bascule.log")


class RaftStorage:
    """One writer at a time: callers await each call before the next."""

    def __init__(self, disk: Disk, folder: str, record: EndRecord | None = None, reads_only: bool = False) -> None:
        """One that `reads_only` can be opened, and changes nothing on the disk, also if confirmed saves are missing."""
        self.committed_end = 0
        self._folder = folder
        self._record = record or EndRecord(None, folder)
        self._remedy = (
            "votes or entries that this server confirmed may be missing, so it does not start on it: restore the "
            f"folder {folder} from a copy made since it was last written, or, if the other servers are a majority, "
            "move it away and start again: the server comes back as a new one and gets everything from the others"
        )
        self._records = CommandLog(disk, folder, self._remedy, reads_only, judges=record is not None)
        self._saves = 0
        self._checkpointed = 0  # the saves that the last checkpoint holds
        self._hard_state = HardState()
        self._snapshot = Snapshot(0, 0, Membership())
        self._entries: list[Entry] = []  # all after the snapshot
        self._lost = ""

    @property
    def paths(self) -> list[str]:
        """The paths that must exist: the folder, and the file that grows, if there is one."""
        growing = self._records.growing
        return [self._folder] if growing is None else [self._folder, growing]

    def lose(self, reason: str) -> None:
        """The next start would not find a save of now: saves are refused until `found`."""
        self._lost = reason

    def found(self) -> None:
        self._lost = ""

    def _check_lost(self) -> None:
        if self._lost:
            raise LogError(self._lost)

    async def open(self) -> tuple[HardState, Snapshot, list[Entry], bool]:
        """Hard state, last snapshot, every entry after it; and whether nothing was ever saved. Raises CorruptError."""
        self._check_lost()
        self._hard_state, self._snapshot, self._entries = HardState(), Snapshot(0, 0, Membership()), []
        known = self._record.known()
        self._saves, checkpoint, saves = await self._records.open(
            known.promised, known.clean.last_crc if known.clean is not None else 0
        )
        self._checkpointed = self._saves
        if checkpoint is not None:
            self._replay(self._saves, checkpoint)
        for number, data in saves:
            self._replay(number, data)
            self._saves = number
        if not self._saves:
            self._record.reset()
        self._record.taken_by(self)
        return self._hard_state, self._snapshot, list(self._entries), self._saves == 0

    async def save(self, hard_state: HardState | None, entries: list[Entry], snapshot: Snapshot | None = None) -> None:
        """Durable when it returns, all of it or nothing. A founder's first save is the membership it founds, as a
        snapshot of index 0. Raises LogError, ever after, until the storage is opened again."""
        if hard_state is None and not entries and snapshot is None:
            return
        self._check_lost()
        self._check(entries, snapshot)
        await self._append(hard_state, snapshot, entries)
        if snapshot is not None and snapshot.index:
            try:
                await self._checkpoint(self._snapshot, self._entries)
            except OSError as error:
                _log.warning("%s: the leader's snapshot is stored, but not compacted: %s", self._folder, error)

    async def compact(self, snapshot: Snapshot) -> None:
        """This state of the server itself takes the place of the entries it covers. An older one than there is, because
        the leader's came in between, changes nothing. Raises OSError: nothing is lost, it may be tried again later."""
        self._check_lost()
        if snapshot.index <= self._snapshot.index:
            return
        if snapshot.index > self._end:
            raise ValueError(f"{self._folder}: a snapshot of {snapshot.index}, but the log ends at {self._end}")
        if self._saves == self._checkpointed:
            await self._append(self._hard_state, None, [])  # a checkpoint is named after the saves it holds
        rest = self._entries[snapshot.index - self._snapshot.index :]
        await self._checkpoint(snapshot, rest)
        self._snapshot, self._entries = snapshot, rest

    @property
    def end(self) -> int:
        return self._saves

    @property
    def promised_end(self) -> int:
        return self._saves

    def clean_end(self) -> CleanEnd | None:
        return self._records.clean_end()

    # --- inside -------------------------------------------------------------------------------------------------

    @property
    def _end(self) -> int:
        return self._snapshot.index + len(self._entries)

    async def _append(self, hard_state: HardState | None, snapshot: Snapshot | None, entries: list[Entry]) -> None:
        promise = self._record.promise(self._saves + 1)
        await self._records.append(self._saves + 1, encode_stored(hard_state, snapshot, entries), promise)
        self._saves += 1
        self._record.changed()
        self._take(hard_state, snapshot, entries)

    async def _checkpoint(self, snapshot: Snapshot, entries: list[Entry]) -> None:
        await self._records.snapshot(self._saves, encode_stored(self._hard_state, snapshot, entries))
        self._checkpointed = self._saves

    def _check(self, entries: list[Entry], snapshot: Snapshot | None) -> None:
        """Otherwise a gap would be found at the next start only."""
        base, end = (snapshot.index, snapshot.index) if snapshot else (self._snapshot.index, self._end)
        if entries and not base < entries[0].index <= end + 1:
            raise ValueError(f"{self._folder}: entry {entries[0].index} cannot follow {base} to {end}")
        if any(entry.index != entries[0].index + number for number, entry in enumerate(entries)):
            raise ValueError(f"{self._folder}: a gap in the entries from {entries[0].index} on")

    def _take(self, hard_state: HardState | None, snapshot: Snapshot | None, entries: list[Entry]) -> None:
        if hard_state is not None:
            self._hard_state = hard_state
        if snapshot is not None:
            self._snapshot, self._entries = snapshot, []
        if entries:
            del self._entries[entries[0].index - self._snapshot.index - 1 :]
            self._entries += entries

    def _replay(self, number: int, data: bytes) -> None:
        try:
            hard_state, snapshot, entries = decode_stored(data)
            self._check(entries, snapshot)
        except (PeerError, ValueError) as error:
            raise CorruptError(f"{self._folder}: save {number} cannot be read: {error}; {self._remedy}") from error
        self._take(hard_state, snapshot, entries)
