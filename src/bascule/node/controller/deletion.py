"""When a stream that was deleted is gone: its replicas know, or may not take anything for it any more.

All of them are asked, not the leaders alone: one that was replaced, and has not heard of that, takes itself for the
leader still. Who hears of the deletion stops at once, and says so if it is asked. One that does not answer may be cut
off: it goes on until its lease is over (`lease`), which began no later than its last question arrived here, or, if it
has asked none since this broker is controller, no later than that began. So a broker that has been dead for long is not
waited for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from bascule.limits import RAFT_MAX_SERVERS
from bascule.node.membership.controllerclient import POLL_S
from bascule.node.membership.lease import LEASE_WAIT_S, NS
from bascule.ports import Clock


class Deletion:
    def __init__(self, own: str, clock: Clock, knows: Callable[[str, int], Awaitable[bool]]) -> None:
        """`clock` is the plain one: leases of others run while our event loop stands still. `knows(broker,
        creation_index)`: whether that broker says that this stream is gone."""
        self._began_at = 0
        self._own = own
        self._clock = clock
        self._knows = knows
        self._asked_at: dict[str, int] = {}

    def begin(self) -> None:
        """This broker is the controller from now on."""
        self._began_at = self._clock.monotonic_ns()

    def heard(self, broker: str) -> None:
        """It asks what was decided: from now on it may take messages for as long as a lease."""
        self._asked_at.pop(broker, None)
        self._asked_at[broker] = self._clock.monotonic_ns()
        while len(self._asked_at) > RAFT_MAX_SERVERS:
            del self._asked_at[next(iter(self._asked_at))]

    async def forgotten(self, replicas: Iterable[str], creation_index: int) -> None:
        """The deletion is committed and applied here. Returns when none of the replicas takes anything for it: what
        they ask from now on tells them."""
        until = {replica: self._lease_end(replica) for replica in replicas if replica != self._own}
        while waiting := [replica for replica in until if until[replica] > self._clock.monotonic_ns()]:
            told = await asyncio.gather(*(self._knows(replica, creation_index) for replica in waiting))
            for replica, knows in zip(waiting, told, strict=True):
                if knows:
                    del until[replica]
            if until:
                await asyncio.sleep(POLL_S)

    async def forgotten_by_all(self) -> None:
        """The same where an earlier controller decided it, and nobody here knows who led: every lease of its time."""
        while self._clock.monotonic_ns() < self._lease_end(""):
            await asyncio.sleep(POLL_S)

    def _lease_end(self, broker: str) -> int:
        return max(self._asked_at.get(broker, 0), self._began_at) + int(LEASE_WAIT_S * NS)
