"""The cluster's metadata on this broker: what the committed commands made of it so far.

Raft hands over entries in order, the same on every broker; applying them is deterministic. What changed is passed on
to the broker, which opens, closes and turns its replicas accordingly, in the same order.
"""

import logging
from collections.abc import Callable

from bascule.core.metadata.commands import decode
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
from bascule.limits import COMMAND_WEIGHT
from bascule.wire.raft_messages import Entry, EntryKind, Snapshot

logger = logging.getLogger(__name__)

KEPT_OUTCOMES = 4096
"""Of the newest commands: those who proposed them ask within the same turn of the event loop."""


class MetadataStore:
    def __init__(self, metadata: Metadata | None = None) -> None:
        self.metadata = metadata or Metadata()
        self.on_changes: Callable[[list[Change]], None] = lambda changes: None
        self._outcomes: dict[int, list[Change]] = {}

    def apply(self, snapshot: Snapshot | None, entries: list[Entry]) -> int:
        """How many partitions were changed, whatever a command costs by itself counted in: what is to be done next may
        have to wait for a turn of the event loop."""
        weight = 0
        if snapshot is not None and snapshot.index > self.metadata.index:
            before, self.metadata = self.metadata, Metadata.restore(snapshot.data)
            self.metadata.index = snapshot.index
            weight += self._tell(difference(before, self.metadata))
        for entry in entries:
            if entry.kind is EntryKind.COMMAND:
                changes = self.metadata.apply(entry.index, decode(entry.data))
                self._outcomes[entry.index] = changes
                weight += COMMAND_WEIGHT + self._tell(changes)
        while len(self._outcomes) > KEPT_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]
        return weight

    def outcome(self, index: int) -> list[Change]:
        """What the command at this index did. Raises what its proposer is told if it did not fit."""
        changes = self._outcomes.pop(index, [])
        for change in changes:
            if isinstance(change, Rejected):
                raise change.error
        return changes

    def _tell(self, changes: list[Change]) -> int:
        """How many partitions they are about."""
        real: list[Change] = [change for change in changes if not isinstance(change, Rejected | Repeated)]
        if real:
            self.on_changes(real)
        return sum(map(_size, real))


def _size(change: Change) -> int:
    match change:
        case PartitionsChanged(_, partitions):
            return len(partitions)
        case StreamCreated(stream) | StreamDeleted(stream):
            return len(stream.partitions)
        case _:
            return 0
