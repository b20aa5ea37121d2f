"""Pending acks that nobody waits for: those of gRPC calls that have ended, here or on another broker."""

import asyncio

from bascule.node.partition.environment import Environment


class AbandonedAcks:
    def __init__(self, environment: Environment) -> None:
        self._pending = environment.pending
        self._inboxes = environment.inboxes

    async def drop(self) -> None:
        """Tell the other brokers which calls have ended here, and drop the pending acks of all calls that have ended.
        To be called once a second."""
        self._pending.tick()
        self._inboxes.tell_gone()
        while self._pending.forget(self._inboxes.gone):
            await asyncio.sleep(0)
