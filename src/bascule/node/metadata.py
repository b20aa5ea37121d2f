"""The cluster's metadata on this broker: what the committed commands made of it so far.

Raft hands over entries in order, the same on every broker; applying them is deterministic. What changed is passed on
to the broker, which opens, closes and turns its replicas accordingly, in the same order.
"""

import logging
from collections.abc import Callable

from bascule.core.metadata.commands import decode
from bascule.core.metadata.state import Change, Metadata, Rejected, Repeated, difference
from bascule.wire.raft_messages import Entry, EntryKind, Snapshot

logger = logging.getLogger(__name__)

KEPT_OUTCOMES = 4096
"""Of the newest commands: those who proposed them ask within the same turn of the event loop."""


class MetadataStore:
    def __init__(self, metadata: Metadata | None = None) -> None:
        self.metadata = metadata or Metadata()
        self.on_changes: Callable[[list[Change]], None] = lambda changes: None
        self._outcomes: dict[int, list[Change]] = {}

    def apply(self, snapshot: Snapshot | None, entries: list[Entry]) -> None:
        if snapshot is not None and snapshot.index > self.metadata.index:
            before, self.metadata = self.metadata, Metadata.restore(snapshot.data)
            self.metadata.index = snapshot.index
            self._tell(difference(before, self.metadata))
        for entry in entries:
            if entry.kind is EntryKind.COMMAND:
                changes = self.metadata.apply(entry.index, decode(entry.data))
                self._outcomes[entry.index] = changes
                self._tell(changes)
        while len(self._outcomes) > KEPT_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]

    def outcome(self, index: int) -> list[Change]:
        """What the command at this index did. Raises what its proposer is told if it did not fit."""
        changes = self._outcomes.pop(index, [])
        for change in changes:
            if isinstance(change, Rejected):
                raise change.error
        return changes

    def _tell(self, changes: list[Change]) -> None:
        real: list[Change] = [change for change in changes if not isinstance(change, Rejected | Repeated)]
        if real:
            self.on_changes(real)
