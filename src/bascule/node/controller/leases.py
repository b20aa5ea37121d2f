"""The leases of the brokers, as the controller sees them: when it is certain that no broker acts any more on what was
decided before.

A stream is deleted, a partition paused or set read-only: after that nothing is stored there. All replicas are asked
whether they know, not the leaders alone: a broker that was replaced, and does not know it yet, takes itself for the
leader still. A broker that does not answer may be partitioned from the cluster: it goes on until its lease is over
(`lease`), which began no later than its last question arrived here, or, if it has asked none since this broker is
controller, no later than that began. So a broker that has been dead for long is not waited for. The controller itself
always knows in the end, and needs no lease where it is alone: it is waited for in any case.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from bascule.limits import RAFT_MAX_SERVERS
from bascule.node.membership.controllerclient import POLL_S
from bascule.node.membership.lease import LEASE_WAIT_S, NS
from bascule.ports import Clock


class Leases:
    def __init__(self, own: str, clock: Clock) -> None:
        """`clock` is the plain one: leases of others run while our event loop is blocked."""
        self._own = own
        self._began_at = 0
        self._clock = clock
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

    async def until_known(self, brokers: Iterable[str], knows: Callable[[str], Awaitable[bool]]) -> None:
        """A command is committed and applied here. Returns when each of these brokers `knows` of it, or has no lease
        any more. With its next lease a broker gets everything that was committed before, this command included."""
        until = {broker: self._lease_end(broker) for broker in brokers}
        while waiting := [each for each in until if each == self._own or until[each] > self._clock.monotonic_ns()]:
            answers = await asyncio.gather(*map(knows, waiting))
            for broker, answer in zip(waiting, answers, strict=True):
                if answer:
                    del until[broker]
            if until:
                await asyncio.sleep(POLL_S)

    async def until_all_over(self) -> None:
        """The same where an earlier controller decided it, and nobody here knows who led: every lease of its time."""
        while self._clock.monotonic_ns() < self._lease_end(""):
            await asyncio.sleep(POLL_S)

    def _lease_end(self, broker: str) -> int:
        return max(self._asked_at.get(broker, 0), self._began_at) + int(LEASE_WAIT_S * NS)
