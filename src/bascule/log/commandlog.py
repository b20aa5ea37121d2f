"""The metadata's command log: every command durable before it is applied, with snapshots to keep it short.

Theory of operation: commands are entries in files named by their first index, `<index, 20 digits>.commands`;
a snapshot is a checkpoint `<index>.snapshot` of the state after that command. A snapshot ends the present
file of commands, and removes the files and snapshots that the snapshot *before* it covers: if the newest one
is damaged, the one before and the commands since give the same state. An entry is magic, length,
index, CRC (of index and command), command. Indexes have no gaps.

A bad entry at the very end, with nothing valid after it, is the rest of an append that was never confirmed: it is
copied aside and truncated, unless it is on record (`promised`, `cleanshutdown`) that it was confirmed. Any other bad
entry stops the start: the missing command may have created a stream, and a broker that forgets streams loses data. An
empty folder is a new log, whatever is on record.
"""

import logging
import re
import struct
from contextlib import suppress

from bascule import limits
from bascule.errors import CorruptError, LogError
from bascule.log.checkpoint import read_checkpoint, write_checkpoint
from bascule.log.filecopy import TEMPORARY_SUFFIX, commit_one, rewrite
from bascule.log.reread import agreed
from bascule.log.tail import CleanEnd
from bascule.ports import Disk, Promise, Write
from bascule.wire import kernels

_ENTRY = struct.Struct("<4sIQI")  # magic, length of the command, index, CRC
_MAGIC = b"BSCC"
_COMMANDS = re.compile(r"([0-9]{20})\.commands")
_SNAPSHOT = re.compile(r"([0-9]{20})\.snapshot")
_log = logging.getLogger("bascule.log")

Command = tuple[int, bytes]


class CommandLog:
    """One writer at a time: callers await each append before the next."""

    def __init__(
        self, disk: Disk, folder: str, remedy: str = "", reads_only: bool = False, judges: bool = True
    ) -> None:
        """`remedy` says what to do about a folder that cannot be read. One that `reads_only` changes nothing on the
        disk, and takes what is there although more was confirmed. One that does not `judge` does not know what was
        confirmed."""
        self._disk = disk
        self._folder = folder
        self._remedy = remedy or (
            f"streams may be missing, so the broker does not start on it: restore the folder {folder} from a copy, or "
            "move it away to start with no streams (their data stays on the disk)"
        )
        self._reads_only = reads_only
        self._rest_is = "was never confirmed" if judges else "is not whole"
        self._last = 0
        self._last_crc = 0
        self._confirmed = 0
        self._path: str | None = None  # of the file that grows; None = the next append makes one
        self._position = 0
        self._reserved = 0  # up to here the file can grow on a full disk
        self._failed: LogError | None = None

    @property
    def growing(self) -> str | None:
        """The file that the next command is added to; None if that makes one."""
        return self._path

    async def open(self, known: int = 0, known_crc: int = 0) -> tuple[int, bytes | None, list[Command]]:
        """The newest whole snapshot, its index (0 if none), and the commands after it. Raises CorruptError, also if
        the command `known` to be confirmed is not there, or is another one than that with `known_crc`."""
        names = await self._clean_names()
        snapshots = _numbers(_SNAPSHOT, names)
        self._confirmed = max(known if snapshots or _numbers(_COMMANDS, names) else 0, self._last)
        snapshot_index, snapshot = await self._newest_snapshot(snapshots)
        commands = await self._read_commands(_numbers(_COMMANDS, names), snapshot_index)
        self._last = commands[-1][0] if commands else snapshot_index
        if snapshots and self._last < snapshots[-1]:
            raise self._corrupt(self._snapshot_path(snapshots[-1]), "is damaged, and the commands it covers are gone")
        self._check_confirmed(self._folder, self._last)
        self._last_crc = _crc(*commands[-1]) if commands else 0
        if self._last == known and known_crc and self._last_crc and self._last_crc != known_crc:
            raise self._corrupt(self._folder, f"command {known} is not the one that was confirmed")
        if self._reads_only:
            return snapshot_index, snapshot, commands
        await self._make_durable()
        self._failed = None
        self._reserved = 0
        await self._begin_file()
        await self._reserve()
        return snapshot_index, snapshot, commands

    async def append(self, index: int, command: bytes, promise: Promise | None = None) -> None:
        """Durable when it returns, with the `promise` noted. Raises LogError, ever after, until the log is reopened."""
        if self._failed is not None:
            raise LogError(str(self._failed))
        if index != self._last + 1:
            raise ValueError(f"{self._folder}: command {index} cannot follow {self._last}")
        entry = _encode(index, command)
        crc = _crc(index, command)
        path = self._path or self._commands_path(index)
        write = Write(path, self._position, [entry], create=self._path is None, promise=promise)
        (error,) = await self._disk.commit([write], sync=True)
        if error is not None:
            self._failed = LogError(
                f"{path}: a metadata change could not be stored: {error.strerror or error}; nothing that was "
                "confirmed is lost; it is tried again until it can be; see to the disk"
            )
            raise self._failed from error
        if self._path is None:
            self._reserved = 0
        self._path, self._position, self._last = path, self._position + len(entry), index
        self._last_crc = crc
        await self._reserve()

    def clean_end(self) -> CleanEnd | None:
        """Where it ends; None if that is not known, or it has nothing."""
        if self._failed is not None or not self._last:
            return None
        return CleanEnd(self._last, 0, 0, self._position, self._last_crc)

    async def snapshot(self, index: int, state: bytes) -> None:
        """Store this state, which holds every command up to `index`; remove what the snapshot before covers."""
        if index != self._last:
            raise ValueError(f"{self._folder}: a snapshot of {index}, but the last command is {self._last}")
        await write_checkpoint(self._disk, self._snapshot_path(index), state)
        self._path, self._position = None, 0
        names = await self._disk.list(self._folder)
        older = [number for number in _numbers(_SNAPSHOT, names) if number < index]
        if older:
            await self._drop_covered(names, older[-1])
        await self._begin_file()
        await self._reserve()

    async def _begin_file(self) -> None:
        """For the commands after a snapshot, while there is room for them: the disk may be full when the next one
        comes. Never an error: if it cannot be made now that one makes it."""
        if self._path is not None or not self._last:
            return
        path = self._commands_path(self._last + 1)
        try:
            await commit_one(self._disk, Write(path, 0, [], create=True), sync=True)
            self._path, self._position, self._reserved = path, 0, 0
        except OSError as error:
            _log.debug("%s: no disk space is reserved for the next change of the metadata: %s", path, error)
            with suppress(OSError):
                await self._disk.remove(path)

    async def _reserve(self) -> None:
        """Disk space for the next commands: a broker on a full disk must be able to start and to elect leaders."""
        if self._path is not None and self._reserved - self._position < limits.METADATA_RESERVE_BYTES // 2:
            self._reserved = self._position + limits.METADATA_RESERVE_BYTES
            await self._disk.reserve(self._path, self._reserved)

    # --- inside -------------------------------------------------------------------------------------------

    def _commands_path(self, first_index: int) -> str:
        return f"{self._folder}/{first_index:020}.commands"

    def _snapshot_path(self, index: int) -> str:
        return f"{self._folder}/{index:020}.snapshot"

    async def _clean_names(self) -> list[str]:
        names = await self._disk.list(self._folder)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX) and not self._reads_only:
                await self._disk.remove(f"{self._folder}/{name}")
        return names

    async def _newest_snapshot(self, indexes: list[int]) -> tuple[int, bytes | None]:
        for index in reversed(indexes):
            state = await read_checkpoint(self._disk, self._snapshot_path(index))
            if state is not None:
                return index, state
            _log.error("%s: cannot be used; trying the snapshot before it", self._snapshot_path(index))
        return 0, None

    async def _read_commands(self, firsts: list[int], snapshot_index: int) -> list[Command]:
        commands: list[Command] = []
        expected = None
        self._path, self._position = None, 0
        while firsts and firsts[-1] > self._confirmed and not await self._disk.size(self._commands_path(firsts[-1])):
            if not self._reads_only:
                await self._disk.remove(self._commands_path(firsts[-1]))  # made for a command that has not come
            firsts = firsts[:-1]
        for first in firsts:
            path = self._commands_path(first)
            if not self._reads_only:
                await self._disk.evict(path)  # an append whose sync failed may be in memory only
            content = await self._content(path)
            entries, end = _decode(content)
            if first == firsts[-1] and not _entry_follows(content, end):  # before anything is truncated or removed
                self._check_confirmed(path, max(snapshot_index, entries[-1][0] if entries else first - 1))
            if end < len(content):
                await self._judge_rest(path, content, end, last=first == firsts[-1])
            if not entries:  # nothing in it was ever confirmed
                if not self._reads_only:
                    await self._disk.remove(path)
                continue
            expected = expected or first
            # A gap that the snapshot covers is left by a file whose end was damaged and truncated.
            if entries[0][0] != first or not expected <= first <= max(expected, snapshot_index + 1):
                raise self._corrupt(path, f"begins with command {entries[0][0]}, expected {expected}")
            expected = entries[-1][0] + 1
            commands += [entry for entry in entries if entry[0] > snapshot_index]
            self._path, self._position = path, end
        if commands and commands[0][0] != snapshot_index + 1:
            raise self._corrupt(self._folder, f"command {snapshot_index + 1} is missing, {commands[0][0]} is there")
        if expected is None or expected - 1 <= snapshot_index:  # a snapshot ends the file before it
            self._path, self._position = None, 0
        return commands

    async def _content(self, path: str) -> bytes:
        """A file with bytes that are no valid command is read again: the first read may have been wrong."""

        async def read(position: int, length: int, fresh: bool = False) -> bytes:
            return await self._disk.read(path, position, length, fresh)

        size = await self._disk.size(path) or 0
        content = await read(0, size)
        return content if _decode(content)[1] == size else await agreed(read, 0, size, content)

    async def _judge_rest(self, path: str, content: bytes, end: int, last: bool) -> None:
        """The bytes after the valid entries: the rest of an unconfirmed append is truncated, anything else is an
        error.
        """
        if not last or _entry_follows(content, end):
            raise self._corrupt(path, f"is damaged at position {end}, with commands after it")
        if self._reads_only:
            return
        rest = content[end:]
        if rest.strip(b"\0"):
            aside = await self._free_path(f"{path}.cut-at-{end}")
            await commit_one(self._disk, Write(aside, 0, [rest], create=True), sync=True)
            _log.warning("%s: %d bytes of a change that %s; moved to %s", path, len(rest), self._rest_is, aside)
        await self._disk.truncate(path, end)

    async def _free_path(self, stem: str) -> str:
        path, number = stem, 1
        while await self._disk.size(path) is not None:
            path, number = f"{stem}-{number}", number + 1
        return path

    async def _make_durable(self) -> None:
        """What a killed process wrote may be in the page cache only."""
        if self._path is None:
            return
        if self._failed is not None:  # a second sync of the same pages would say nothing
            await rewrite(self._disk, self._path, [(0, self._position)], durable=True)
        await commit_one(self._disk, Write(self._path, self._position, []), sync=True)
        folder = self._folder
        await self._disk.sync_folder(folder)
        while folder:
            folder = folder.rpartition("/")[0]
            await self._disk.sync_folder(folder)

    async def _drop_covered(self, names: list[str], covered: int) -> None:
        """`covered` is the index of the snapshot to keep beside the newest."""
        firsts = _numbers(_COMMANDS, names)
        for first, following in zip(firsts, [*firsts[1:], self._last + 1], strict=True):
            if following <= covered + 1:
                await self._disk.remove(self._commands_path(first))
        for index in _numbers(_SNAPSHOT, names):
            if index < covered:
                await self._disk.remove(self._snapshot_path(index))
        await self._disk.sync_folder(self._folder)

    def _check_confirmed(self, path: str, last: int) -> None:
        if last < self._confirmed and not self._reads_only:
            raise self._corrupt(
                path, f"ends with command {last}, but {self._confirmed} was confirmed: it is damaged or truncated"
            )

    def _corrupt(self, path: str, problem: str) -> CorruptError:
        return CorruptError(f"{path}: {problem}; {self._remedy}")


def _numbers(pattern: re.Pattern[str], names: list[str]) -> list[int]:
    return [int(match[1]) for match in map(pattern.fullmatch, names) if match]


def _encode(index: int, command: bytes) -> bytes:
    return _ENTRY.pack(_MAGIC, len(command), index, _crc(index, command)) + command


def _crc(index: int, command: bytes) -> int:
    return kernels.crc32c(command, kernels.crc32c(struct.pack("<Q", index)))


def _entry_at(content: bytes, position: int) -> tuple[Command, int] | None:
    """The valid entry that begins here, and where it ends."""
    start = position + _ENTRY.size
    if start > len(content):
        return None
    magic, length, index, crc = _ENTRY.unpack_from(content, position)
    command = content[start : start + length]
    if magic != _MAGIC or len(command) != length:
        return None
    if crc != _crc(index, command):
        return None
    return (index, command), start + length


def _decode(content: bytes) -> tuple[list[Command], int]:
    """The valid entries at the beginning, in unbroken order, and where they end."""
    entries: list[Command] = []
    position = 0
    while (found := _entry_at(content, position)) is not None:
        entry, end = found
        if entries and entry[0] != entries[-1][0] + 1:
            break
        entries.append(entry)
        position = end
    return entries, position


def _entry_follows(content: bytes, position: int) -> bool:
    """Whether a valid entry begins anywhere at or after `position`."""
    while (position := content.find(_MAGIC, position)) >= 0:
        if _entry_at(content, position) is not None:
            return True
        position += 1
    return False
