"""How one replica gets whole again, and how it knows that it may lead.

Damage is healed from the other replicas, the leader first: by the reader that met it, which waits for that, and again
from time to time until it is healed. While a follower lacks something it does not promise it. A start does not read
what was sealed long ago, so each life begins with a slow pass over everything, which is repeated once a day.

A replica that begins a life has a log that nobody vouches for: what a crash, a torn file or a lost disk left of it. It
is vouched for once it has caught up with a leader. One that is to lead before that, and is not sure of the end of its
log, first asks the others how far they have come, and gives way to one with more. `core.partition.candidate` decides
when enough of them have been heard.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Protocol

from bascule.core.metadata.administration import elect_command
from bascule.core.partition.candidate import PATIENCE_S, Account, Candidate, GiveWay, Lead, Wait, decide
from bascule.errors import LogError, PeerError, PeerLacks
from bascule.log.healing import Healing
from bascule.log.refill import refill
from bascule.log.segment import Segment
from bascule.log.tail import Tail
from bascule.node.partition.environment import Environment
from bascule.node.partition.ports import PartitionBroker, PartitionReplica
from bascule.node.partition.verification import Verification
from bascule.wire.repair import LogEnd

logger = logging.getLogger(__name__)

AGAIN_S = 2.0
"""Between two attempts to heal the same damage."""
LACKING_TRIES = 3
"""So often in a row a replica has to be damaged at the same place before it counts as one that does not have it: a disk
may read wrongly once, and two that are damaged in different places heal each other piece by piece."""
PAUSE_S = 0.05
"""What a reader waits that comes again in between: it must not turn in circles."""
POLL_S = 0.1
POLL_LATER_S = 1.0
"""Between two questions for who has to be heard before this one leads: soon, and when that takes long."""
BELIEVED_S = 5.0
"""What a replica said about its log is asked again after this long."""
SCRUB_READ_BYTES = 1024 * 1024
SCRUB_BYTES_A_SECOND = 64 * 1024 * 1024
SCRUB_EVERY_S = 24 * 3600.0


class Follower(Protocol):
    """A following role, told of damage in its log."""

    def damaged(self) -> None: ...

    def healed(self) -> None: ...


class RepairedReplica(PartitionReplica, Protocol):
    @property
    def verification(self) -> Verification: ...

    @property
    def has_failed(self) -> bool:
        """An assertion failed: it has no role on this broker any more."""

    @property
    def following(self) -> Follower | None: ...

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Work that ends with the replica."""


class Repair:
    def __init__(self, environment: Environment, broker: PartitionBroker, replica: RepairedReplica) -> None:
        self._own = environment.settings.broker_id
        self._defaults = environment.settings.defaults
        self._feeds = broker.feeds
        self._replica = replica
        self._log = replica.log
        self._logs = broker.peer_logs
        self._one_at_a_time = asyncio.Lock()
        self._tried: dict[Segment, tuple[float, Healing]] = {}
        self._lacked: dict[Segment, int] = {}
        """How often in a row all the others answered, and one of them was damaged there too."""
        self._mending = False
        self._said = ""
        """Why it is not healed: said once, not at every attempt."""
        self.waits_for: tuple[str, ...] = ()
        """Brokers that have to be heard before this one leads, though it is named leader."""

    @property
    def _others(self) -> list[str]:
        partition, own = self._replica.partition, self._own
        return sorted((each for each in partition.replicas if each != own), key=lambda each: each != partition.leader)

    # --- damage ----------------------------------------------------------------------------------------------

    @property
    def unhealed(self) -> list[Segment]:
        """Damaged segments that another replica may have whole. What none has is given up: nobody can wait for it."""
        unknown = (0.0, Healing.UNKNOWN)
        return [each for each in self._log.damaged if self._tried.get(each, unknown)[1] is not Healing.LOST]

    async def on_damage(self, segment: Segment, wait: bool) -> Healing:
        """For readers that stand before it. Those that do not wait are told what is known, and called when that is
        more."""
        if not self._others:
            return Healing.LOST
        if self._replica.has_failed:
            return Healing.UNKNOWN  # no repair is begun on a replica whose state is not believed
        self.mend()
        if not wait and not segment.retired:
            return self._tried.get(segment, (0.0, Healing.UNKNOWN))[1]
        try:
            return await self._heal(segment)
        except AssertionError as error:
            self._replica.fail(error)
            return Healing.UNKNOWN

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
            if self._replica.following is not None:
                self._replica.following.damaged()
            healing = await self._ask_around(segment)
            self._tried = {each: tried for each, tried in self._tried.items() if not each.retired}
            self._lacked = {each: count for each, count in self._lacked.items() if not each.retired}
            if healing is not Healing.HEALED:
                self._tried[segment] = (now, healing)
            elif not self._log.damaged:
                self._log.record.hole_closed()
            if healing is not Healing.UNKNOWN and self._replica.following is not None:
                self._replica.following.healed()
            if healing is not Healing.UNKNOWN and self._replica.leading is not None:
                self._feeds.has_news(self._replica)
            return healing

    async def _ask_around(self, segment: Segment) -> Healing:
        outcome, lacking = Healing.LOST, False
        reasons = []
        for broker in self._others:

            def fetch(start: int, end: int, broker: str = broker) -> Awaitable[bytes]:
                return self._logs.fetch(broker, self._replica.key, start, end)

            try:
                if await refill(self._log, segment, fetch):
                    return Healing.HEALED
                reasons.append(f"{broker} does not have what is missing")
            except PeerLacks as error:
                lacking = True
                reasons.append(str(error))
            except PeerError as error:
                outcome = Healing.UNKNOWN
                reasons.append(str(error))
            except LogError as error:
                logger.error("%s: %s", self._replica.name, error)
                return Healing.UNKNOWN
        said, self._said = self._said, "; ".join(reasons)
        if self._said != said:
            logger.error("%s is damaged and not healed yet: %s", self._replica.name, self._said)
        tries = self._lacked[segment] = self._lacked.get(segment, 0) + 1 if outcome is Healing.LOST else 0
        return Healing.UNKNOWN if lacking and tries < LACKING_TRIES else outcome

    async def scrub(self) -> None:
        """Read everything once, at a measured pace: damage that nobody would have met before it is too late is met now,
        while the others have what it took."""
        log = self._log
        reader, end = log.reader(log.start, uncommitted=True), log.end
        reader.crosses = True
        while records := await reader.read(SCRUB_READ_BYTES, end):
            await asyncio.sleep(len(records) / SCRUB_BYTES_A_SECOND)

    async def torn_from(self) -> int | None:
        """Where this log is to be cut before it leads: at a hole that a power loss may have torn into a write that was
        not promised, if all that are in sync or eligible say that they lack what is missing. Then nothing behind the
        hole was committed, for who has a record has all before it. None if one of them does not say so, or there is
        none: what is behind the hole stays."""
        start, complete = self._log.record.torn_from, self._candidate.complete
        if start is None or not self._log.damaged or start < self._log.visible_end or not complete:
            return None
        for broker in complete:
            try:
                if await self._logs.fetch(broker, self._replica.key, start, start + 1):
                    return None
            except (PeerError, PeerLacks) as error:
                logger.debug("%s: not cut at offset %d: %s", self._replica.name, start, error)
                return None
        return start

    # --- who may lead ----------------------------------------------------------------------------------------

    async def ahead(self) -> str | None:
        """The replica that has more than this one, if one has; returns when this is known well enough to lead. Damage
        is healed first, if that can be done now."""
        for segment in list(self._log.damaged):
            await self._heal(segment)
        loop = asyncio.get_running_loop()
        began = loop.time()
        told: dict[str, tuple[float, Account]] = {}
        try:
            while True:
                now = loop.time()
                told = {broker: (at, each) for broker, (at, each) in told.items() if now - at < BELIEVED_S}
                unknown = [broker for broker in self._others if broker not in told]
                for broker, account in zip(unknown, await asyncio.gather(*map(self._ask, unknown)), strict=True):
                    if account is not None:
                        told[broker] = (loop.time(), account)
                accounts = {broker: account for broker, (_, account) in told.items()}
                decision = decide(self._candidate, accounts, loop.time() - began)
                match decision:
                    case GiveWay(to):
                        return to
                    case Lead(unheard):
                        self._say_unheard(unheard)
                        return None
                    case Wait(missing):
                        self._say_waits(missing)
                await asyncio.sleep(POLL_S if loop.time() - began < PATIENCE_S else POLL_LATER_S)
        finally:
            self.waits_for = ()

    @property
    def _candidate(self) -> Candidate:
        """As the metadata has it now: who was removed, or lost its disk, is in no set, and not waited for."""
        replica, own = self._replica, self._own
        tail = replica.verification.tail
        return Candidate(
            LogEnd(self._log.last_epoch, self._log.promised_end),
            tail in (Tail.SURE, Tail.LIKELY),
            tail is Tail.SURE,
            tail is Tail.SHORT,
            tuple(each for each in replica.partition.complete if each != own),
            tuple(self._others),
            self._defaults.min_isr_of(replica.stream.config),
        )

    def _say_unheard(self, unheard: tuple[str, ...]) -> None:
        accounted = ", ".join(unheard)
        if accounted:
            logger.log(
                logging.ERROR if self._candidate.least == 1 else logging.INFO,
                "%s: leading without having heard of %s: what only they have is not shown",
                self._replica.name,
                accounted,
            )

    def _say_waits(self, missing: tuple[str, ...]) -> None:
        """Once for each change: it may take as long as a broker is away."""
        if missing and missing != self.waits_for:
            replica = self._replica
            logger.error(
                "%s is not led: the end of this broker's log may be missing, and %s, which may have it, has not been "
                "heard; start that one, or give up what only it has with `%s`",
                replica.name,
                ", ".join(missing),
                elect_command(replica.stream.name, replica.partition.id, self._own),
            )
        self.waits_for = missing

    async def _ask(self, broker: str) -> Account | None:
        try:
            return await self._logs.account(broker, self._replica.key)
        except PeerError as error:
            logger.debug("%s: %s", self._replica.name, error)
            return None
