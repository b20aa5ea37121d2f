"""How one replica gets whole again, and how it knows that it may lead.

Damage is healed from the other replicas, the leader first: by the reader that met it, which waits for that, and again
from time to time until it is healed. While a follower lacks something it does not promise it. A start does not read
what was sealed long ago, so each life begins with a slow pass over everything, which is repeated once a day.

A replica that begins a life has a log that nobody vouches for: what a crash, a torn file or a lost disk left of it. It
is vouched for once it has caught up with a leader. One that is to lead before that first asks the others how far they
have come, and gives way to one with more: by epoch, then by end, as in Raft, so that what was committed is on the log
that wins if it is on any. It waits a while for those in sync with it, and then leads with what it has.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from bascule.errors import LogError, PeerError
from bascule.log.reader import Healing
from bascule.log.refill import refill
from bascule.log.segment import Segment
from bascule.wire.repair import Standing

if TYPE_CHECKING:
    from bascule.node.replica import Replica

logger = logging.getLogger(__name__)

AGAIN_S = 2.0
"""Between two attempts to heal the same damage."""
PAUSE_S = 0.05
"""What a reader waits that comes again in between: it must not turn in circles."""
PATIENCE_S = 5.0
"""How long a replica that nobody vouches for waits for the others in sync before it leads."""
SHORT_PATIENCE_S = 1.0
"""And for those that are not: they may have more all the same, if this one lost it."""
POLL_S = 0.1
SCRUB_READ_BYTES = 1024 * 1024
SCRUB_BYTES_A_SECOND = 64 * 1024 * 1024
SCRUB_EVERY_S = 24 * 3600.0


class Repair:
    def __init__(self, replica: "Replica") -> None:
        self._replica = replica
        self._log = replica.log
        self._logs = replica.environment.peer_logs
        self._one_at_a_time = asyncio.Lock()
        self._tried: dict[Segment, tuple[float, Healing]] = {}
        self._mending = False
        self._said = ""
        """Why it is not healed: said once, not at every attempt."""

    @property
    def _others(self) -> list[str]:
        partition, own = self._replica.partition, self._replica.environment.broker_id
        return sorted((each for each in partition.replicas if each != own), key=lambda each: each != partition.leader)

    # --- damage ----------------------------------------------------------------------------------------------

    async def on_damage(self, segment: Segment, wait: bool) -> Healing:
        """For readers that stand before it. Those that do not wait are told what is known, and called when that is
        more."""
        if not self._others:
            return Healing.LOST
        self.mend()
        if not wait and not segment.retired:
            return self._tried.get(segment, (0.0, Healing.UNKNOWN))[1]
        return await self._heal(segment)

    def mend(self) -> None:
        """Heal what is known to be damaged, in the background, until it is."""
        if self._log.damaged and self._others and not self._mending:
            self._mending = True
            self._replica.spawn(self._mend())

    async def _mend(self) -> None:
        try:
            while self._log.damaged:
                for segment in list(self._log.damaged):
                    await self._heal(segment)
                if self._log.damaged:
                    await asyncio.sleep(AGAIN_S)
        finally:
            self._mending = False

    async def _heal(self, segment: Segment) -> Healing:
        async with self._one_at_a_time:
            if segment.retired:
                return Healing.HEALED
            now = asyncio.get_running_loop().time()
            at, healing = self._tried.get(segment, (-AGAIN_S, Healing.UNKNOWN))
            if now - at < AGAIN_S:
                await asyncio.sleep(PAUSE_S)
                return healing
            healing = await self._ask_around(segment)
            self._tried = {each: tried for each, tried in self._tried.items() if not each.retired}
            if healing is not Healing.HEALED:
                self._tried[segment] = (now, healing)
            elif self._replica.following is not None:
                self._replica.following.healed()
            if healing is not Healing.UNKNOWN and self._replica.leading is not None:
                self._replica.environment.feeds.has_news(self._replica)
            return healing

    async def _ask_around(self, segment: Segment) -> Healing:
        outcome = Healing.LOST
        reasons = []
        for broker in self._others:

            def fetch(start: int, end: int, broker: str = broker) -> Awaitable[bytes]:
                return self._logs.fetch(broker, self._replica.key, start, end)

            try:
                if await refill(self._log, segment, fetch):
                    return Healing.HEALED
                reasons.append(f"{broker} does not have what is missing")
            except PeerError as error:
                outcome = Healing.UNKNOWN
                reasons.append(str(error))
            except LogError as error:
                logger.error("%s: %s", self._replica.name, error)
                return Healing.UNKNOWN
        said, self._said = self._said, "; ".join(reasons)
        if self._said != said:
            logger.error("%s is damaged and not healed yet: %s", self._replica.name, self._said)
        return outcome

    async def scrub(self) -> None:
        """Read everything once, at a measured pace: damage that nobody would have met before it is too late is met now,
        while the others have what it took."""
        log = self._log
        reader, end = log.reader(log.start, uncommitted=True), log.end
        reader.crosses = True
        while records := await reader.read(SCRUB_READ_BYTES, end):
            await asyncio.sleep(len(records) / SCRUB_BYTES_A_SECOND)

    # --- who may lead ----------------------------------------------------------------------------------------

    async def ahead(self) -> str | None:
        """The replica that has more than this one, if one has. Damage is healed first, if that can be done now."""
        for segment in list(self._log.damaged):
            await self._heal(segment)
        loop = asyncio.get_running_loop()
        began = loop.time()
        own, waited_for = self._replica.environment.broker_id, dict.fromkeys(self._replica.partition.isr)
        told: dict[str, Standing] = {}
        while True:
            missing = [broker for broker in self._others if broker not in told]
            for broker, standing in zip(missing, await asyncio.gather(*map(self._standing, missing)), strict=True):
                if standing is not None:
                    told[broker] = standing
            absent = [broker for broker in waited_for if broker != own and broker not in told]
            silent = any(broker not in told for broker in self._others)
            patience_s = PATIENCE_S if absent else SHORT_PATIENCE_S if silent else 0.0
            if loop.time() - began >= patience_s:
                break
            await asyncio.sleep(POLL_S)
        if absent:
            logger.error(
                "%s: leading without having heard of %s: what only they have is not shown",
                self._replica.name,
                ", ".join(absent),
            )
        best = max(told, key=lambda broker: told[broker], default=None)
        mine = Standing(self._log.last_epoch, self._log.promised_end)
        return best if best is not None and told[best] > mine else None

    async def _standing(self, broker: str) -> Standing | None:
        try:
            return await self._logs.standing(broker, self._replica.key)
        except PeerError as error:
            logger.debug("%s: %s", self._replica.name, error)
            return None
