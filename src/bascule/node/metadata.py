"""The metadata of this broker: commands made durable, then applied, one at a time.

With one broker the command log is local. A proposal is checked, written and synced, and only then applied, so that
what a client was told survives a crash. Commands carry all they need: applied again at start they give the same state.
"""

import logging

from bascule.core.metadata.commands import Command, decode, encode
from bascule.core.metadata.state import Change, Metadata, Rejected
from bascule.errors import Internal
from bascule.log.commandlog import CommandLog
from bascule.ports import Disk

logger = logging.getLogger(__name__)


class MetadataStore:
    def __init__(self, log: CommandLog, metadata: Metadata, snapshot_threshold: int) -> None:
        self.metadata = metadata
        self._log = log
        self._snapshot_threshold = snapshot_threshold
        self._since_snapshot = 0

    @classmethod
    async def open(cls, disk: Disk, snapshot_threshold: int) -> "MetadataStore":
        log = CommandLog(disk, "metadata")
        index, snapshot, commands = await log.open()
        metadata = Metadata() if snapshot is None else Metadata.restore(snapshot)
        for index, command in commands:
            metadata.apply(index, decode(command))
        store = cls(log, metadata, snapshot_threshold)
        store._since_snapshot = len(commands)
        return store

    async def propose(self, command: Command) -> list[Change]:
        """Durable and applied when this returns; raises what the client is told if the command does not fit. The caller
        proposes one at a time."""
        self.metadata.check(command)
        index = self.metadata.index + 1
        try:
            await self._log.append(index, encode(command))
        except OSError as error:
            raise Internal(f"the change could not be written to the metadata log: {error}") from error
        changes = self.metadata.apply(index, command)
        await self._maybe_snapshot()
        for change in changes:
            if isinstance(change, Rejected):
                raise change.error
        return changes

    async def _maybe_snapshot(self) -> None:
        self._since_snapshot += 1
        if self._since_snapshot < self._snapshot_threshold:
            return
        try:
            await self._log.snapshot(self.metadata.index, self.metadata.snapshot())
            self._since_snapshot = 0
        except OSError as error:
            logger.warning("no metadata snapshot this time, the command log is kept whole: %s", error)
