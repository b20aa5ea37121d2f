"""When a deletion is complete: every replica has applied it, or its lease has ended and it may take no messages.

All replicas are asked, not only the leaders: an old leader that has not learned of its replacement still acts as
leader. A broker that applies the deletion stops at once, and confirms that when asked. One that does not answer may be
partitioned from the cluster: it goes on until its lease ends (`lease`). The lease began no later than its last request
arrived here or, if it has sent none to this controller, no later than this controller's term. So a broker that has been
dead for long is not waited for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from bascule.limits import RAFT_MAX_SERVERS
from bascule.node.membership.controllerclient import POLL_S
from bascule.node.membership.lease import LEASE_WAIT_S, NS
from bascule.ports import Clock


class Deletion:
    def __init__(self, own: str, clock: Clock, knows: Callable[[str, int], Awaitable[bool]]) -> None:
        """`clock` is the plain one: leases of others run while our event loop is blocked. `knows(broker,
        creation_index)`: whether that broker answers that the stream is deleted."""
        self._began_at = 0
        self._own = own
        self._clock = clock
        self._knows = knows
        self._asked_at: dict[str, int] = {}

    def begin(self) -> None:
        """This broker is the controller from now on."""
        self._began_at = self._clock.monotonic_ns()

    def renewed(self, broker: str) -> None:
        """That broker sent a request to renew its lease: it may take messages for LEASE_S from now on."""
        self._asked_at.pop(broker, None)
        self._asked_at[broker] = self._clock.monotonic_ns()
        while len(self._asked_at) > RAFT_MAX_SERVERS:
            del self._asked_at[next(iter(self._asked_at))]

    async def forgotten(self, replicas: Iterable[str], creation_index: int) -> None:
        """The deletion is committed and applied here. Returns when none of the replicas takes messages for the stream:
        a lease that is renewed from now on includes the deletion."""
        until = {replica: self._lease_end(replica) for replica in replicas if replica != self._own}
        while waiting := [replica for replica in until if until[replica] > self._clock.monotonic_ns()]:
            answers = await asyncio.gather(*(self._knows(replica, creation_index) for replica in waiting))
            for replica, knows in zip(waiting, answers, strict=True):
                if knows:
                    del until[replica]
            if until:
                await asyncio.sleep(POLL_S)

    async def forgotten_by_all(self) -> None:
        """The same if an earlier controller made the deletion, and the replicas are not known any more: wait for every
        lease of that time."""
        while self._clock.monotonic_ns() < self._lease_end(""):
            await asyncio.sleep(POLL_S)

    def _lease_end(self, broker: str) -> int:
        return max(self._asked_at.get(broker, 0), self._began_at) + int(LEASE_WAIT_S * NS)
