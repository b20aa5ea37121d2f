"""How a replica repairs damage, and how it finds out whether it may lead.

Damage is repaired from the other replicas, the leader first. The reader that meets it waits for that; if it fails, it
is retried from time to time. A follower does not promise records that it lacks. A start does not read segments that
were sealed long ago, so each boot begins with a slow scrub of all records, which is repeated once a day.

After a start a log is not verified: a crash, a torn file or a lost disk may have taken records. It is verified once it
has caught up with a leader. A replica that is to lead before that, and whose log may lack records, first asks the other
replicas for their log ends, and hands leadership over to one with more. `core.partition.candidate` decides when enough
of them have answered.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Protocol

from bascule.core.metadata.administration import elect_command
from bascule.core.partition import candidate
from bascule.core.partition.candidate import Candidate, GiveWay, Lead, PeerLog, Wait, decide
from bascule.errors import LogError, PeerError, PeerLacks, PeerNotCleared
from bascule.log.healing import Healing
from bascule.log.refill import refill
from bascule.log.segment import Segment
from bascule.log.tail import Tail
from bascule.node.partition.cleared import ClearedLog
from bascule.node.partition.environment import Environment
from bascule.node.partition.ports import PartitionBroker, PartitionReplica
from bascule.node.partition.verification import Verification
from bascule.wire.repair import LogEnd

logger = logging.getLogger(__name__)

AGAIN_S = 2.0
"""Between two attempts to heal the same damage."""
LACKING_TRIES = 3
"""A replica counts as lacking a record after it was damaged at the same place this often in a row: a disk may read
wrongly once, and two replicas that are damaged in different places repair each other piece by piece."""
PAUSE_S = 0.05
"""A reader that comes back before the next attempt waits this long: it must not spin."""
POLL_S = 0.1
POLL_LATER_S = 1.0
"""Between two requests to replicas that have to answer before this one leads: at first, and later."""
BELIEVED_S = 5.0
"""A replica is asked for its log end again after this long."""
SCRUB_READ_BYTES = 1024 * 1024
SCRUB_BYTES_A_SECOND = 64 * 1024 * 1024
SCRUB_EVERY_S = 24 * 3600.0


class Follower(Protocol):
    """A following role, informed of damage in its log."""

    def damaged(self) -> None: ...

    def healed(self) -> None: ...


class RepairedReplica(PartitionReplica, Protocol):
    @property
    def verification(self) -> Verification: ...

    @property
    def cleared(self) -> ClearedLog:
        """How far its log is cleared of what tombstones delete."""

    @property
    def has_failed(self) -> bool:
        """An assertion failed: it has no role on this broker any more."""

    @property
    def following(self) -> Follower | None: ...

    def healed(self) -> None:
        """Records that were damaged were put back."""

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
        """How often in a row all other replicas answered, and one of them was damaged there too."""
        self._running = False
        self._said = ""
        """Why the damage is not repaired: logged once, not at every attempt."""
        self.left: dict[str, None] = {}
        """Replicas that left the in-sync set when this one was named leader and did not lead yet. With a min ISR of 1
        none of these is eligible, and they have everything that was committed."""
        self._no_more: dict[str, PeerLog] = {}
        """The last answers of replicas that had no more than this one. They get no more, and are not waited for when
        they are away: nobody leads before this replica does, or another one is named leader."""
        self.waits_for: tuple[str, ...] = ()
        """Brokers that have to answer before this one leads, though the metadata names it leader."""

    @property
    def _others(self) -> list[str]:
        partition, own = self._replica.partition, self._own
        return sorted((each for each in partition.replicas if each != own), key=lambda each: each != partition.leader)

    # --- damage ----------------------------------------------------------------------------------------------

    @property
    def unhealed(self) -> list[Segment]:
        """Damaged segments that another replica may have undamaged. What no replica has is lost, and not counted."""
        unknown = (0.0, Healing.UNKNOWN)
        return [each for each in self._log.damaged if self._tried.get(each, unknown)[1] is not Healing.LOST]

    async def on_damage(self, segment: Segment, wait: bool) -> Healing:
        """A reader has met damage. If it does not `wait` it gets the outcome of the last attempt, and is called again
        after the next one."""
        if not self._others:
            return Healing.LOST
        if self._replica.has_failed:
            return Healing.UNKNOWN  # the state of a failed replica is not trusted: no repair
        self.start()
        if not wait and not segment.retired:
            return self._tried.get(segment, (0.0, Healing.UNKNOWN))[1]
        try:
            return await self._heal(segment)
        except AssertionError as error:
            self._replica.assertion_failed(error)
            return Healing.UNKNOWN

    def start(self) -> None:
        """Repair known damage in the background, and retry until none is left."""
        if self._log.damaged and self._others and not self._running:
            self._running = True
            self._replica.spawn(self._repair_all())

    async def _repair_all(self) -> None:
        try:
            while self._log.damaged:
                for segment in list(self._log.damaged):
                    await self._heal(segment)
                if self._log.damaged:
                    await asyncio.sleep(AGAIN_S)
        finally:
            self._running = False

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
            else:
                self._replica.healed()
                if not self._log.damaged:
                    self._log.record.hole_closed()
            if healing is not Healing.UNKNOWN and self._replica.following is not None:
                self._replica.following.healed()
            if healing is not Healing.UNKNOWN and self._replica.leading is not None:
                self._feeds.advanced(self._replica)
            return healing

    async def _ask_around(self, segment: Segment, again: bool = False) -> Healing:
        outcome, lacking, uncleared = Healing.LOST, False, False
        reasons = []
        for broker in self._others:

            def fetch(start: int, end: int, broker: str = broker) -> Awaitable[bytes]:
                needed = self._replica.cleared.needed
                if needed is not None and start >= needed.end:
                    needed = None  # no tombstone that counts deletes anything there
                return self._logs.fetch(broker, self._replica.key, start, end, needed)

            try:
                if await refill(self._log, segment, fetch):
                    return Healing.HEALED
                reasons.append(f"{broker} does not have what is missing")
            except PeerLacks as error:
                lacking = True
                reasons.append(str(error))
            except PeerError as error:
                outcome = Healing.UNKNOWN
                uncleared = uncleared or isinstance(error, PeerNotCleared)
                reasons.append(str(error))
            except LogError as error:
                logger.error("%s: %s", self._replica.name, error)
                return Healing.UNKNOWN
        if uncleared and not again and await self._lower_cleared():
            return await self._ask_around(segment, again=True)
        said, self._said = self._said, "; ".join(reasons)
        if self._said != said:
            logger.error("%s is damaged and not repaired yet; this is retried: %s", self._replica.name, self._said)
        tries = self._lacked[segment] = self._lacked.get(segment, 0) + 1 if outcome is Healing.LOST else 0
        return Healing.UNKNOWN if lacking and tries < LACKING_TRIES else outcome

    async def _lower_cleared(self) -> bool:
        """So that others may be asked that are cleared less, as this log may be then."""
        try:
            return await self._replica.cleared.lower()
        except OSError as error:
            logger.error("%s: how far it is cleared cannot be stored: %s", self._replica.name, error)
            return False

    async def scrub(self, bytes_a_second: int = SCRUB_BYTES_A_SECOND) -> None:
        """Read all records once, at a limited rate: damage is found while other replicas still have the records."""
        log = self._log
        reader, end = log.reader(log.start, uncommitted=True), log.end
        reader.crosses = True
        while records := await reader.read(SCRUB_READ_BYTES, end):
            await asyncio.sleep(len(records) / bytes_a_second)

    async def torn_from(self) -> int | None:
        """Where this log is to be truncated before it leads: at a hole that a power loss may have torn into a write
        that was not promised, if all other replicas in sync or eligible answer that they lack the missing records. Then
        nothing after the hole was committed, for a replica that has a record has all before it. None if one of them
        does not answer so, or there is none: then the records after the hole stay."""
        start, complete = self._log.record.torn_from, self._candidate.complete
        if start is None or not self._log.damaged or start < self._log.visible_end or not complete:
            return None
        for broker in complete:
            try:
                if await self._logs.fetch(broker, self._replica.key, start, start + 1):
                    return None
            except (PeerError, PeerLacks) as error:
                logger.debug("%s: not truncated at offset %d: %s", self._replica.name, start, error)
                return None
        return start

    # --- who may lead ----------------------------------------------------------------------------------------

    def not_to_lead(self) -> None:
        """Another one is named leader, or this log is verified: it need not wait for anybody who left before, and the
        others may get more than it has."""
        self.left, self._no_more = {}, {}

    async def ahead(self) -> str | None:
        """The replica that has more than this one, or None if this one may lead. Returns when enough replicas have
        answered. Damage is repaired first, if another replica can be reached."""
        for segment in list(self._log.damaged):
            await self._heal(segment)
        loop = asyncio.get_running_loop()
        began = loop.time()
        answers: dict[str, tuple[float, PeerLog]] = {}
        epoch = self._replica.partition.epoch
        try:
            while True:
                now = loop.time()
                answers = {broker: (at, each) for broker, (at, each) in answers.items() if now - at < BELIEVED_S}
                unknown = [broker for broker in self._others if broker not in answers]
                for broker, peer in zip(unknown, await asyncio.gather(*map(self._ask, unknown)), strict=True):
                    if peer is not None:
                        answers[broker] = (loop.time(), peer)
                        self._note(broker, peer)
                if epoch != self._replica.partition.epoch:
                    epoch, answers = self._replica.partition.epoch, {}  # one may have lost its disk meanwhile
                    continue
                own = self._candidate
                answered = {broker: peer for broker, peer in self._no_more.items() if peer.log_end <= own.log_end}
                answered.update({broker: peer for broker, (_, peer) in answers.items()})
                decision = decide(own, answered, loop.time() - began)
                match decision:
                    case GiveWay(to):
                        return to
                    case Lead(unheard):
                        self._say_unheard(unheard)
                        return None
                    case Wait(missing):
                        self._say_waits(missing)
                await asyncio.sleep(POLL_S if loop.time() - began < candidate.PATIENCE_S else POLL_LATER_S)
        finally:
            self.waits_for = ()

    def _note(self, broker: str, peer: PeerLog) -> None:
        self._no_more.pop(broker, None)
        if peer.log_end <= self._candidate.log_end:
            self._no_more[broker] = peer

    @property
    def _candidate(self) -> Candidate:
        """As the metadata has it now: a broker that was removed, or lost its disk, is in no set, and not waited for."""
        replica = self._replica
        tail = replica.verification.tail
        return Candidate(
            LogEnd(self._log.last_epoch, self._log.promised_end),
            tail in (Tail.SURE, Tail.LIKELY),
            tail is Tail.SURE,
            tail is Tail.SHORT,
            self._complete,
            tuple(each for each in self._others if self._logs.is_member(each)),
            self._defaults.min_isr_of(replica.stream.config),
        )

    @property
    def _complete(self) -> tuple[str, ...]:
        partition = self._replica.partition
        left = [each for each in self.left if each in partition.replicas and self._logs.is_member(each)]
        return tuple(each for each in dict.fromkeys([*partition.complete, *left]) if each != self._own)

    def _say_unheard(self, unheard: tuple[str, ...]) -> None:
        accounted = ", ".join(unheard)
        if accounted:
            logger.log(
                logging.ERROR if self._candidate.least == 1 else logging.INFO,
                "%s: leading without an answer from %s: records that only they have are truncated when they follow",
                self._replica.name,
                accounted,
            )

    def _say_waits(self, missing: tuple[str, ...]) -> None:
        """Log once for each change: it may take as long as a broker is down."""
        if missing and missing != self.waits_for:
            replica = self._replica
            logger.error(
                "%s has no leader: this broker's log may lack its last records, and %s, which may have them, does not "
                "answer; start that broker, or give up what only it has with `%s`",
                replica.name,
                ", ".join(missing),
                elect_command(replica.stream.name, replica.partition.id, self._own),
            )
        self.waits_for = missing

    async def _ask(self, broker: str) -> PeerLog | None:
        try:
            return await self._logs.describe(broker, self._replica.key)
        except PeerError as error:
            logger.debug("%s: %s", self._replica.name, error)
            return None
