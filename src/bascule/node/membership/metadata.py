"""The cluster's metadata on this broker: the state after the committed commands so far.

Raft hands over entries in order, the same on every broker; applying them is deterministic. The changes are passed on
to the broker, which opens and closes its replicas and changes their roles, in the same order.
"""

import asyncio
import logging
from collections.abc import Generator
from typing import Protocol, TypeVar

from bascule.core.metadata.codec import decode, decoding
from bascule.core.metadata.state import (
    Change,
    Metadata,
    PartitionsChanged,
    Rejected,
    Repeated,
    StreamCreated,
    StreamDeleted,
    difference,
)
from bascule.core.metadata.streams import Stream
from bascule.limits import CODEC_SLICED_BYTES, COMMAND_WEIGHT
from bascule.wire.raft_messages import Entry, EntryKind, Snapshot

logger = logging.getLogger(__name__)

REMEMBERED_OUTCOMES = 4096
"""Outcomes of the newest commands: their proposers read them within the same turn of the event loop."""


T = TypeVar("T")


async def in_slices(work: Generator[None, None, T]) -> T:
    """The result of work that is done in slices, with a turn of the event loop after each."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)


class MetadataCache:
    """The metadata as this broker knows it now (as Kafka's MetadataCache): a snapshot of the leader replaces it."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata


class Changes(Protocol):
    def enqueue(self, changes: list[Change]) -> None:
        """What one command changed; called in the order of the commands."""


class MetadataStore:
    def __init__(self, cache: MetadataCache, changes: Changes, known_index: int = 0) -> None:
        """Entries up to `known_index` were on the disk when this broker started."""
        self._cache = cache
        self._known_index = known_index
        self._at_start: dict[str, Stream] | None = None
        self._changes = changes
        self._outcomes: dict[int, list[Change]] = {}
        self._counted_at: tuple[Metadata, int, str] | None = None
        self._counts = (0, 0)

    @property
    def metadata(self) -> Metadata:
        return self._cache.metadata

    async def restore(self, snapshot: Snapshot) -> int:
        """Returns how many partitions changed: after many the caller yields to the event loop."""
        if snapshot.index <= self.metadata.index:
            return 0
        self._note_start(snapshot.index)
        restored = await in_slices(Metadata.restoring(snapshot.data))
        before, self._cache.metadata = self.metadata, restored
        return self._tell(difference(before, self.metadata))

    async def apply(self, entry: Entry) -> int:
        """Returns the same, plus the cost of the command itself."""
        self._note_start(entry.index)
        if entry.kind is not EntryKind.COMMAND:
            return 0
        large = len(entry.data) >= CODEC_SLICED_BYTES
        command = await in_slices(decoding(entry.data)) if large else decode(entry.data)
        changes = await in_slices(self.metadata.applying(entry.index, command))
        self._outcomes[entry.index] = changes
        while len(self._outcomes) > REMEMBERED_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]
        return COMMAND_WEIGHT + self._tell(changes)

    def _note_start(self, index: int) -> None:
        if index > self._known_index and self._at_start is None:
            self._at_start = dict(self.metadata.streams)

    def at_start(self, name: str, creation_index: int) -> Stream | None:
        """That stream as it was when the last boot of this broker ended, as far as the broker knew it then."""
        stream = (self._at_start or {}).get(name)
        return stream if stream is not None and stream.creation_index == creation_index else None

    def outcome(self, index: int) -> list[Change]:
        """What the command at this index changed. Raises the error for its proposer if it was rejected."""
        changes = self._outcomes.pop(index, [])
        for change in changes:
            if isinstance(change, Rejected):
                raise change.error
        return changes

    def counts(self, broker: str) -> tuple[int, int]:
        """How many partitions that broker holds, and leads. Every heartbeat has it, so it is cached per change."""
        at = (self.metadata, self.metadata.index, broker)
        if self._counted_at != at:
            held = [
                item
                for stream in self.metadata.streams.values()
                for item in stream
                if not item.paused and broker in item.replicas
            ]
            self._counted_at = at
            self._counts = (len(held), sum(item.leader == broker for item in held))
        return self._counts

    def _tell(self, changes: list[Change]) -> int:
        """Returns how many partitions they concern."""
        real: list[Change] = [change for change in changes if not isinstance(change, Rejected | Repeated)]
        if real:
            self._changes.enqueue(real)
        return sum(map(_size, real))


def _size(change: Change) -> int:
    match change:
        case PartitionsChanged(_, partitions):
            return len(partitions)
        case StreamCreated(stream) | StreamDeleted(stream):
            return len(stream.partitions)
        case _:
            return 0
