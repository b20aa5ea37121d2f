"""Commands of the metadata, proposed to Raft by the controller."""

import asyncio
from collections.abc import Callable

from bascule.core.metadata.codec import encoding
from bascule.core.metadata.commands import Command, operation_of, with_alive
from bascule.core.metadata.state import Metadata, Repeated
from bascule.errors import BasculeError
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.membership.metadata import MetadataStore, in_slices
from bascule.node.membership.raft import RaftDriver


class Proposals:
    def __init__(self, raft: RaftDriver, store: MetadataStore, live: LiveBrokers) -> None:
        self.raft = raft
        self.store = store
        self._live = live
        self._proposing = asyncio.Lock()

    @property
    def metadata(self) -> Metadata:
        return self.store.metadata

    async def propose(self, command: Callable[[], Command], only: str = "") -> int:
        """Check, commit and apply a command; one at a time, so that each sees the effect of the one before. Returns the
        index of the command that made the change: an earlier one if the operation was made before. Only here a command
        gets the list of live brokers, or `only` the one that may lead."""
        async with self._proposing:
            try:
                proposed = command()
            except BasculeError:
                await self.raft.current()  # refuse only by the newest committed state, as in `_check`
                proposed = command()
            return await self.commit(with_alive(proposed, (only,) if only else self._live.staying()))

    async def submit(self, command: Command) -> None:
        """A command that is the same whatever the one before it did."""
        await self.propose(lambda: command)

    async def commit(self, command: Command) -> int:
        """For commands that depend on no earlier one: they do not wait for each other, and a thousand share a few
        syncs."""
        if made := self.metadata.operations.made(operation_of(command)):
            return made
        data = await in_slices(encoding(command))
        await self._check(command)
        index = await self.raft.propose(data)
        for change in self.store.outcome(index):
            if isinstance(change, Repeated):
                return change.index
        return index

    async def _check(self, command: Command) -> None:
        """Refuse a command only by the newest committed state: a deposed leader may have an older one."""
        try:
            self.metadata.check(command)
        except BasculeError:
            await self.raft.current()
            self.metadata.check(command)
