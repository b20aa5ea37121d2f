"""Checks of the disks, which neither clients nor brokers can make: whether exposed records are really stored.

Whenever a broker exposes more of a log to readers, this checks that broker's disk, and if it leads the partition, the
disks of the whole ISR:

- I15: every record below the high watermark is durable on every member of the in-sync set (relaxed: written).
- I8: at each offset all of them have the same record, now and not only at the end.
- I12: a record of a compacted stream that one of them lacks has a key, of which a later one was exposed; the newest
  one of each key is on all of them, unless that is a tombstone: then none of them that lacks it has an older record of
  the key. A replica that catches up may lack both until it has come so far.

The ISR is the one of the newest metadata on any broker with the leader's epoch: a leader that does not know a change
yet must commit with the larger ISR. What the leader itself has carried out counts as such: metadata may be a leader
epoch ahead of the roles, everywhere but on a broker that has not heard of an earlier change either.

Bytes that this run destroyed are excused: single records that were flipped or truncated, until they are there again;
and everything that was on a lost disk, as long as the ISR has not changed since: a replica that is added later must
have everything.

Files are read from where the last read ended, because they grow at their ends; every other change makes a new version
of a file, which is read from its beginning.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from bascule.core.metadata.streams import Partition
from bascule.log.commitlog import CommitLog
from bascule.node.partition.replica import Replica, stream_folder
from bascule.sim.checkers import Checker
from bascule.sim.cluster import Cluster
from bascule.sim.history import TOMBSTONE
from bascule.sim.host import Host
from bascule.sim.keys import Keys
from bascule.sim.trace import Part
from bascule.testing.disk import StoredFile
from bascule.testing.records import split
from bascule.wire.kernels import decode_records, scan_records
from bascule.wire.record import Record

UNDER_WAY_S = 1.0
"""Messages that a broker sent before its disk was lost may arrive for so long."""
_EPOCH_AND_CRC_BYTES = 12


@dataclass(slots=True)
class _Seen:
    """How much of a file was read, and which records it has."""

    file: StoredFile
    version: int
    size: int = 0
    good_size: int = 0
    """The end of the records that follow each other without damage."""
    offsets: list[int] = field(default_factory=list)
    repeats: bool = False
    """It has records that another file has too: small segments are being merged."""


class _Key(NamedTuple):
    key: bytes
    tombstone: bool


class Copy:
    """The records of one partition on one disk: of each offset the epoch and the checksum."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.keys: dict[int, _Key] = {}
        self.verified_end = 0
        """The end of the records that were compared with the exposed ones."""
        self.checked_end = 0
        """The end below which no deleted key was found."""
        self.disk: object = None
        self._seen: dict[str, _Seen] = {}

    def refresh(self, files: dict[str, StoredFile], durable: bool) -> None:
        changed = [
            path
            for path, seen in self._seen.items()
            if files.get(path) is not seen.file or seen.file.version != seen.version
        ]
        if changed:
            self._forget(changed)
        for path, file in files.items():
            if not path.endswith(".log"):
                continue
            seen = self._seen.get(path)
            if seen is None:
                seen = self._seen[path] = _Seen(file, file.version)
            data = file.durable if durable else file.data
            if len(data) > seen.size:
                self._read(seen, bytes(data))

    @property
    def damaged(self) -> bool:
        """Of a record that is there twice, while segments are merged, the one that stays may be the one that is not
        whole."""
        return any(seen.good_size < seen.size for seen in self._seen.values())

    def forget_all(self) -> None:
        self.records, self._seen, self.verified_end, self.checked_end = {}, {}, 0, 0
        self.keys = {}

    def _forget(self, paths: list[str]) -> None:
        """And the files that had some of their records: they are read again."""
        repeats = [path for path, seen in self._seen.items() if seen.repeats and path not in paths]
        for path in [*paths, *repeats]:
            for offset in self._seen.pop(path).offsets:
                self.records.pop(offset, None)
        self.verified_end = self.checked_end = 0

    def _read(self, seen: _Seen, data: bytes) -> None:
        position = seen.good_size
        while position < len(data):
            good = scan_records(data, position, len(data), 0)[0]
            if good > position:
                if position == seen.good_size:
                    seen.good_size = good
                self._take(seen, data, position, good)
                position = good
            else:
                position += 1  # damage: whole records may follow
        seen.size = len(data)

    def _take(self, seen: _Seen, data: bytes, start: int, end: int) -> None:
        decoded = decode_records(data, start, end, 1 << 30)[1]
        for entry, record in zip(decoded, split(data[start:end]), strict=True):
            made = Record._make(entry)
            offset = made.offset
            self.keys[offset] = _Key(made.key, not made.value and TOMBSTONE in made.headers)
            if offset in self.records:
                seen.repeats = True
            else:
                seen.offsets.append(offset)
            self.records[offset] = record[-_EPOCH_AND_CRC_BYTES:]


class Omniscience:
    def __init__(self, cluster: Cluster, checker: Checker, relaxed: bool) -> None:
        self._cluster = cluster
        self._checker = checker
        self._durable = not relaxed
        self._copies: dict[tuple[str, str], Copy] = {}
        """By broker and folder."""
        self._exposed: dict[str, dict[int, bytes]] = {}
        """By folder and offset, the record that was exposed."""
        self._exposed_end: dict[str, int] = {}
        self._keys: dict[str, Keys] = {}
        """By folder, the keys of the records that were exposed."""
        self._deleted: dict[str, int] = {}
        """By stream name: streams created up to this index are being deleted, by one broker before the other."""
        self._destroyed: dict[tuple[str, str], dict[int, None]] = {}
        self._vanished: dict[tuple[str, str], None] = {}
        """By broker and folder: files were removed, and the broker may not have noticed it yet."""
        self._lost: dict[str, tuple[float, dict[str, tuple[int, int]]]] = {}
        """By broker, when its disk was lost; by folder the partition epoch then, and the end of its log. The cluster
        does not know of the loss yet, and a leader may commit, or expose again, what was there."""

    # --- what this run destroys ---------------------------------------------------------------------------------

    def destroyed(self, host: Host, folder: str, offset: int) -> None:
        """The run destroyed this record, in whichever file of the folder it is."""
        self._destroyed.setdefault((host.name, folder), {})[offset] = None

    def vanished(self, host: Host, folder: str, offsets: list[int]) -> None:
        """The run removed files with these records under a running broker. Until it notices, what it stores is lost
        too."""
        self._vanished[host.name, folder] = None
        for offset in offsets:
            self.destroyed(host, folder, offset)

    def was_exposed(self, folder: str, offset: int) -> bool:
        return offset in self._exposed.get(folder, {})

    def incomplete(self) -> list[str]:
        """The replicas of which files were removed, and which do not have all that was exposed on their disks again."""
        for name, folder in list(self._vanished):
            host = self._cluster.hosts.get(name)
            if host is None or not self._lacks(host, folder):
                del self._vanished[name, folder]
        return [f"{folder} of {name}, whose files were removed, is not complete" for name, folder in self._vanished]

    def _lacks(self, host: Host, folder: str) -> bool:
        partitions = list(self._views(folder))
        if not any(host.name in partition.replicas for partition in partitions):
            return False  # deleted, or moved to another broker
        records, start = self._copy(host, folder).records, self.start_of(folder)
        return any(
            offset >= start and offset not in records and not self._superseded(folder, offset)
            for offset in self._exposed.get(folder, {})
        )

    def power_goes(self, host: Host) -> None:
        """Of records that are not synced yet some sectors may survive and others not: an earlier record may be torn
        and a later one whole. Neither of them was promised, but under relaxed sync."""
        for folder in host.disk.folders():
            if not folder.startswith("streams/") or not folder.rpartition("/")[2].isdigit():
                continue  # of no partition, or of one that is being deleted
            durable, written = Copy(), Copy()
            durable.refresh(host.disk.stored(folder, True), True)
            written.refresh(host.disk.stored(folder, False), False)
            for offset in written.records:
                if offset not in durable.records:
                    self.destroyed(host, folder, offset)
                    if not self._durable:
                        self._checker.known(self._part(folder)).torn[offset] = None

    def others_have(self, host: Host, folder: str, offset: int) -> bool:
        """Whether another broker in the ISR, by the newest metadata, has this record on its disk: repair fetches it
        from there."""
        views = list(self._views(folder)) or list(self._views(folder, last=True))  # all may be down
        newest = max(views, key=lambda view: view.epoch, default=None)
        names = [name for name in newest.isr if name != host.name] if newest is not None else []
        others = [other for name in names if (other := self._cluster.hosts.get(name)) is not None]
        return any(offset in self._copy(other, folder).records for other in others)

    def lost(self, host: Host, now_s: float) -> None:
        """Its disk was lost, or everything on it that was not synced."""
        log_end = {folder: (self._epoch(folder), self._held_end(host, folder)) for folder in self._folders()}
        self._lost[host.name] = (now_s, log_end)

    def _held_end(self, host: Host, folder: str) -> int:
        """The end of its log. It may have reported it: a leader that does not know of the loss yet commits with
        that."""
        stored = max(self._copy(host, folder).records, default=-1) + 1
        return max(stored, self._exposed_end.get(folder, 0))

    def _folders(self) -> list[str]:
        """The folders of all partitions that running brokers know."""
        known = {
            f"{stream_folder(stream)}/{item.id}": None
            for host in self._cluster.hosts.values()
            if host.node is not None
            for stream in host.node.cluster.metadata.streams.values()
            for item in stream
        }
        return [*known, *(folder for _, folder in self._copies if folder not in known)]

    def deletes(self, stream: str) -> None:
        """A client deletes the stream: from now on its records may be removed."""
        made = [
            found.creation_index
            for host in self._cluster.hosts.values()
            if host.node is not None and (found := host.node.cluster.metadata.stream(stream)) is not None
        ]
        self._deleted[stream] = max(made, default=self._deleted.get(stream, 0))

    def start_of(self, folder: str) -> int:
        """Records below have expired, by the newest metadata: they may be on a disk or not."""
        return max((partition.start for partition in self._views(folder)), default=0)

    def _epoch(self, folder: str) -> int:
        return max((partition.epoch for partition in self._views(folder)), default=0)

    # --- what is exposed ----------------------------------------------------------------------------------------

    def exposes(self, log: CommitLog, hw_end: int, now_s: float) -> None:
        host = next((host for host in self._cluster.hosts.values() if host.disk is log.segments.disk), None)
        if host is None or host.node is None:
            return
        name, number = _stream_of(log.folder)
        stream = host.node.cluster.metadata.stream(name)
        replica = None if stream is None else host.node.replicas.get((stream.creation_index, number))
        if replica is None or replica.log is not log or replica.stream.creation_index <= self._deleted.get(name, 0):
            return  # it is being deleted
        if replica.leading is not None or not log.damaged:  # a follower promises no records it knows to be damaged
            self._compare(host, log, hw_end, replica.partition, now_s)
        if replica.leading is not None:
            self._check_members(host, replica, hw_end, now_s)

    def _check_members(self, leader: Host, replica: Replica, hw_end: int, now_s: float) -> None:
        assert replica.leading is not None
        epoch, folder = replica.leading.epoch, replica.log.folder
        views = (view for view in self._views(folder) if view.leader_epoch == epoch)
        partition = max((replica.partition, *views), key=lambda view: view.epoch)
        least = replica.stream.config.min_isr or 1
        if len(replica.partition.isr) < least and hw_end > self._exposed_end.get(folder, 0):
            self._violate(
                "I15", f"exposed with {len(replica.partition.isr)} in sync, and {least} must be", folder, hw_end
            )
        self._exposed_end[folder] = max(hw_end, self._exposed_end.get(folder, 0))
        for name, (_, held) in self._lost.items():
            if name not in partition.isr:
                held.pop(folder, None)  # if it is added to the ISR again it must have everything
        for name in partition.isr:
            member = self._cluster.hosts.get(name)
            if member is not None and member is not leader and not _knows_it_is_gone(member, folder):
                self._compare(member, replica.log, hw_end, partition, now_s)

    def _views(self, folder: str, last: bool = False) -> Iterator[Partition]:
        """The partition as each running broker knows it; or as each that is down knew it `last`."""
        name, number = _stream_of(folder)
        index = int(folder.split("/")[1].rpartition("@")[2])
        for host in self._cluster.hosts.values():
            metadata = host.node.cluster.metadata if host.node is not None else host.last_metadata if last else None
            stream = metadata.stream(name) if metadata is not None else None
            partition = stream.partition(number) if stream is not None and stream.creation_index == index else None
            if partition is not None:
                yield partition

    def _compare(self, host: Host, log: CommitLog, hw_end: int, partition: Partition, now_s: float) -> None:
        """Whether this broker has everything below `hw_end` on its disk, as the log that is exposed has it."""
        folder = log.folder
        copy = self._copy(host, folder)
        exposed, destroyed = self._exposed.setdefault(folder, {}), self._destroyed.get((host.name, folder), {})
        for offset in range(max(copy.verified_end, self.start_of(folder)), hw_end):
            found = copy.records.get(offset)
            if found is None:
                if self._superseded(folder, offset):
                    self._note_gone(folder, offset, partition)
                    continue
                if not self._excused(host, folder, offset, partition, now_s):
                    text = f"exposed up to {hw_end} although {host.name}, in sync, does not have it on its disk"
                    self._violate("I15", text, folder, offset)
                    return
                continue
            self._keys_of(folder).add(offset, *copy.keys[offset])
            expected = exposed.setdefault(offset, found)
            if found != expected:
                self._violate("I8", f"{host.name} has another record than was exposed", folder, offset)
                return
            if offset in destroyed and not copy.damaged:
                del destroyed[offset]
        self._check_deleted(host, folder, copy, hw_end, partition, now_s)
        if not self._destroyed.get((host.name, folder)):
            copy.verified_end = max(copy.verified_end, hw_end)

    def _check_deleted(
        self, host: Host, folder: str, copy: Copy, hw_end: int, partition: Partition, now_s: float
    ) -> None:
        """Whoever is fed from this disk, or reads from it, must not get a key that was deleted."""
        if copy.checked_end >= hw_end or self._part(folder) not in self._checker.compacted:
            return
        start = self.start_of(folder)
        there = {offset: None for offset in copy.records if start <= offset < hw_end}
        for offset, tombstone in self._keys_of(folder).returned(there, hw_end):
            if tombstone >= start and not self._excused(host, folder, tombstone, partition, now_s):
                text = f"{host.name} has it on its disk, and not {tombstone}, which deletes its key"
                self._violate("I12", text, folder, offset)
                return
        copy.checked_end = hw_end

    def _note_gone(self, folder: str, offset: int, partition: Partition) -> None:
        keys = self._keys_of(folder)
        if len(partition.replicas) > 1 and offset in keys.tombstones and not keys.superseded(offset):
            keys.gone[offset] = None

    def _copy(self, host: Host, folder: str) -> Copy:
        """What is on its disk now."""
        copy = self._copies.setdefault((host.name, folder), Copy())
        if copy.disk is not host.disk:
            copy.forget_all()
            copy.disk = host.disk
        copy.refresh(host.disk.stored(folder, self._durable), self._durable)
        return copy

    def _excused(self, host: Host, folder: str, offset: int, partition: Partition, now_s: float) -> bool:
        if (host.name, folder) in self._vanished:
            self.destroyed(host, folder, offset)
        if offset in self._destroyed.get((host.name, folder), {}):
            return True
        if offset in self._checker.known(self._part(folder)).damaged:
            return True  # it was the only copy in sync, and may be gone everywhere
        if self._is_a_gap(folder, offset):
            return True
        at_s, held = self._lost.get(host.name, (0.0, {}))
        epoch, held_end = held.get(folder, (-1, 0))
        return folder in held and (partition.epoch <= epoch or offset < held_end or now_s - at_s < UNDER_WAY_S)

    def _superseded(self, folder: str, offset: int) -> bool:
        """Compaction may have removed it: a later record of its key was exposed. One that was removed before this run
        saw it is not known at all."""
        streams = [
            each.node.cluster.metadata.stream(_stream_of(folder)[0])
            for each in self._cluster.hosts.values()
            if each.node is not None
        ]
        if not any(stream is not None and stream.config.compact_enabled for stream in streams):
            return False
        if offset not in self._exposed.get(folder, {}):
            return True
        return self._keys_of(folder).may_lack(offset)

    def _keys_of(self, folder: str) -> Keys:
        """Clients know those of their own streams."""
        part = self._part(folder)
        keys = self._keys.get(folder)
        if keys is None:
            keys = self._keys[folder] = self._checker.compacted.get(part, Keys())
        return keys

    def _is_a_gap(self, folder: str, offset: int) -> bool:
        """A power loss tore a write under relaxed sync, and the only replica in sync went on after this offset: it was
        never exposed or acked, and is on no disk."""
        known = self._checker.known(self._part(folder))
        named = offset in self._exposed.get(folder, {}) or offset in known.names
        return (
            offset in known.torn
            and not named
            and not any(offset in self._copy(each, folder).records for each in self._cluster.hosts.values())
        )

    def _violate(self, invariant: str, text: str, folder: str, offset: int) -> None:
        self._checker.violate(invariant, text, self._part(folder), offset)

    def _part(self, folder: str) -> Part:
        name, number = _stream_of(folder)
        stream = self._checker.history.streams.get(name)
        return Part(name, stream.incarnation if stream else 1, number)


def _knows_it_is_gone(host: Host, folder: str) -> bool:
    """It knows that the stream is deleted, and deletes its files; the leader may not know it yet."""
    if host.node is None:
        return False
    metadata, index = host.node.cluster.metadata, int(folder.split("/")[1].rpartition("@")[2])
    stream = metadata.stream(_stream_of(folder)[0])
    return metadata.index >= index and (stream is None or stream.creation_index != index)


def _stream_of(folder: str) -> tuple[str, int]:
    """Out of `streams/<name>@<index>/<partition>`."""
    _, stream, number = folder.split("/")
    return stream.rpartition("@")[0], int(number)


@contextmanager
def watching(omniscience: Omniscience, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Every log reports to it when it exposes more records."""
    original = CommitLog.set_visible_end

    def set_visible_end(log: CommitLog, hw_end: int) -> None:
        if hw_end > log.visible_end:
            omniscience.exposes(log, hw_end, loop.time())
        original(log, hw_end)

    CommitLog.set_visible_end = set_visible_end  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        CommitLog.set_visible_end = original  # type: ignore[method-assign]
