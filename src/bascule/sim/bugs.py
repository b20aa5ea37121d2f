"""Bugs to plant: a simulator that does not find these within a few seeds is itself broken.

Each changes the shipping code in place while it is planted; nothing outside this file knows of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

from bascule.core.replication import feed
from bascule.log.commitlog import CommitLog
from bascule.log.raftlog import RaftStorage
from bascule.log.scan import Scan
from bascule.log.sync import SyncScheduler
from bascule.node.partition.replica import Replica
from bascule.ports import Write
from bascule.testing.disk import MemoryDisk
from bascule.wire.raft_messages import Entry, HardState, Snapshot


@contextmanager
def _replaced(owner: type | ModuleType, name: str, value: Any) -> Iterator[None]:
    original = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def ack_before_sync() -> Iterator[None]:
    """The group commit writes, promises, and leaves the syncing to the system."""

    async def commit(self: SyncScheduler, writes: list[Write], sync: bool) -> list[OSError | None]:
        return await self._disk.commit(writes, sync=False)

    with _replaced(SyncScheduler, "_commit", commit):
        yield


@contextmanager
def expose_before_sync() -> Iterator[None]:
    """The high watermark that clients get covers records that are only in memory."""
    with _replaced(Replica, "hw_end", property(lambda self: self.log.end)):
        yield


@contextmanager
def reuse_offset_after_damage() -> Iterator[None]:
    """Recovery takes every bad record for a torn tail, truncates there, and uses the offsets again."""
    with _replaced(Scan, "torn_at", property(lambda self: self.bad[0][0] if self.bad else None)):
        yield


@contextmanager
def forget_folder_sync() -> Iterator[None]:
    """A new segment's bytes are synced, and its name in the folder is not."""
    with _replaced(MemoryDisk, "_sync_parents", lambda self, write: None):
        yield


@contextmanager
def ack_lost_write() -> Iterator[None]:
    """A write that failed is promised like any other."""
    original = CommitLog.finish

    def finish(self: CommitLog, errors: list[OSError | None]) -> None:
        original(self, [None] * len(errors))

    with _replaced(CommitLog, "finish", finish):
        yield


@contextmanager
def no_truncate() -> Iterator[None]:
    """A leader takes every follower's log for a prefix of its own."""
    with _replaced(feed, "divergence", lambda position, epochs, log_end: None):
        yield


@contextmanager
def vote_not_persisted() -> Iterator[None]:
    """A voter that restarts knows the term, and not whom it voted for."""
    original = RaftStorage.save

    async def save(
        self: RaftStorage, hard_state: HardState | None, entries: list[Entry], snapshot: Snapshot | None = None
    ) -> None:
        forgetful = replace(hard_state, vote="") if hard_state is not None else None
        await original(self, forgetful, entries, snapshot)

    with _replaced(RaftStorage, "save", save):
        yield


BUGS = {
    "no-truncate": no_truncate,
    "vote-not-persisted": vote_not_persisted,
    "ack-before-sync": ack_before_sync,
    "expose-before-sync": expose_before_sync,
    "reuse-offset-after-damage": reuse_offset_after_damage,
    "forget-folder-sync": forget_folder_sync,
    "ack-lost-write": ack_lost_write,
}
