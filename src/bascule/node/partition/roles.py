"""The role of one replica on this broker: how it is taken, given up, and waited for.

The metadata names a leader; the replica there leads and the others follow. Each role is a driver of a machine of
`core.partition`. A log that is not verified against a leader since this broker started is compared with the others'
before it leads. While a log is truncated its replica has no other role; the one that the metadata gives by then begins
afterwards. `core.partition.roles` has the legal moves.

A failed assertion is a bug, and what is in memory is not believed after it. It ends the role on this broker, and
nothing is tried again until the broker starts: the partition takes no writes here and says why, its leader counts
without this replica, and where this broker is named leader it asks for another one. Other partitions go on.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Protocol

from bascule.core.partition.roles import MOVES, Role
from bascule.errors import BasculeError, LogError
from bascule.node.partition.environment import Environment
from bascule.node.partition.following import FailedFollower, Following, FollowingReplica
from bascule.node.partition.leading import Leading, LeadingReplica
from bascule.node.partition.ports import PartitionBroker
from bascule.node.partition.repair import Repair

logger = logging.getLogger(__name__)

TRUNCATE_AGAIN_S = 5.0
GIVE_WAY_S = 0.2
"""Between two tries to let another replica lead."""
STEP_DOWN_FIRST_S = 1.0
STEP_DOWN_MAX_S = 30.0
"""Between two requests for another leader of a partition that has failed here."""


class RoleHolder(LeadingReplica, FollowingReplica, Protocol):
    """The replica, as its role sees it."""

    @property
    def replicated(self) -> bool:
        """Other brokers have replicas too."""

    def spawn(self, work: Coroutine[object, object, None], to_its_end: bool = False) -> asyncio.Task[None]:
        """Work that ends with the replica, or that the end of the replica waits for."""


class Roles:
    def __init__(self, environment: Environment, broker: PartitionBroker, replica: RoleHolder, repair: Repair) -> None:
        self.role = Role.NONE
        self.leading: Leading | None = None
        self.following: Following | None = None
        """Also while its log is truncated: it goes on from there."""
        self.established = asyncio.Event()
        """Set when what this leader had when it became leader is committed."""
        self._environment = environment
        self._broker = broker
        self._replica = replica
        self._repair = repair
        self._assigned = False
        """The metadata gives this replica a role."""
        self._comparing: asyncio.Task[None] | None = None
        self.failure = ""
        """The assertion that failed, in the role FAILED."""
        self._stand_in: FailedFollower | None = None
        self._stepping_down = False

    def _move(self, role: Role) -> None:
        assert role in MOVES[self.role], f"{self._replica.name}: from {self.role.value} to {role.value}"
        assert (self.leading is not None) == (role is Role.LEADING), f"{self._replica.name}: leads while {role.value}"
        assert self.following is None or role in (Role.FOLLOWING, Role.TRUNCATING), (
            f"{self._replica.name}: follows while {role.value}"
        )
        self.role = role

    # --- what the metadata says --------------------------------------------------------------------------------

    def take(self, same_epoch: bool) -> None:
        """The role that the replica's partition gives; under the `same_epoch` as before it stays what it is."""
        if self.role is Role.ENDED:
            return
        if self.role is Role.FAILED:
            self._stand_aside()
            return
        self._assigned = True
        if same_epoch and self.leading is not None:
            self.leading.changed()
        elif not (same_epoch and (self.following is not None or self.role is Role.COMING_TO_LEAD)):
            self.resign()
            self._assigned = True
            self._begin()

    def resign(self) -> None:
        """No role any more: nothing is taken, acked or fetched under the old one."""
        self.established.clear()
        self._assigned = False
        comparing, self._comparing = self._comparing, None
        leading, self.leading = self.leading, None
        following, self.following = self.following, None
        stand_in, self._stand_in = self._stand_in, None
        if self.role in (Role.FOLLOWING, Role.COMING_TO_LEAD, Role.LEADING):
            self._move(Role.NONE)
        if comparing is not None:
            comparing.cancel()
        if leading is not None:
            leading.close()
        if following is not None:
            following.stop()
        if stand_in is not None:
            self._broker.fetchers.unfollow(stand_in)

    def end(self) -> None:
        """No role now, and none ever again. A truncation goes on: the log is closed when it is over."""
        self.resign()
        if self.role is not Role.ENDED:
            self._move(Role.ENDED)

    def _begin(self) -> None:
        stream, partition = self._replica.stream, self._replica.partition
        if self.role is Role.TRUNCATING:
            return  # it begins when that is over
        self._repair.mend()
        if not partition.leader:
            return
        if partition.leader != self._environment.settings.broker_id:
            self._follow()
        elif self._may_lead or partition.leader_epoch in (stream.creation_index, partition.unclean_epoch):
            # There is nothing to compare, or an administrator has decided.
            self._lead()
        else:
            self._move(Role.COMING_TO_LEAD)
            self._comparing = self._replica.spawn(self._come_to_lead())

    def _follow(self) -> None:
        self.following = Following(self._replica, self._broker.fetchers)
        self._move(Role.FOLLOWING)
        self.following.start()

    # --- leading -----------------------------------------------------------------------------------------------

    @property
    def _may_lead(self) -> bool:
        """At once. After a crash a log that is sure of its end still gives the others a while to be compared with."""
        verification = self._replica.verification
        return verification.verified or (verification.certain and self._environment.after_clean_shutdown)

    def _lead(self) -> None:
        self._replica.verification.confirm()
        self.leading = leading = Leading(self._environment, self._broker, self._replica, self.established.set)
        self._move(Role.LEADING)
        leading.start()
        if self._replica.log.failed is not None:
            leading.failed()

    async def _come_to_lead(self) -> None:
        """See first whether another replica has more. Nobody else leads meanwhile, so that this goes on whatever
        happens."""
        replica = self._replica
        while True:
            try:
                if (other := await self._repair.ahead()) is None:
                    break
                logger.warning("%s: %s has more than this broker, and is asked to lead", replica.name, other)
                if await self._broker.give_way(replica, other):
                    return
            except AssertionError:
                raise
            except Exception:
                logger.exception("%s: whether another replica has more is not known yet", replica.name)
            await asyncio.sleep(GIVE_WAY_S)
        torn_from = await self._repair.torn_from()
        self._comparing = None
        if torn_from is not None:
            self.begin_truncation(self._truncate_torn(torn_from))
            return
        self._lead()
        self._broker.writable_changed(replica.stream.name, replica.partition.id)

    # --- truncating --------------------------------------------------------------------------------------------

    def begin_truncation(self, work: Coroutine[object, object, None]) -> None:
        """`work` goes on to its end, whatever role comes meanwhile."""
        self._move(Role.TRUNCATING)
        self._replica.spawn(self._truncate(work), to_its_end=True)

    async def _truncate(self, work: Coroutine[object, object, None]) -> None:
        await work
        if self.role is not Role.TRUNCATING:
            return
        if self.following is not None:
            self._move(Role.FOLLOWING)
            self.following.truncated()
            return
        self._move(Role.NONE)
        if self._assigned:
            self._begin()
            self._broker.writable_changed(self._replica.stream.name, self._replica.partition.id)

    async def _truncate_torn(self, end: int) -> None:
        replica = self._replica
        logger.warning(
            "%s: a power loss tore a hole at offset %d into what was not promised yet, and no replica that is in sync "
            "has what is missing: cutting what is left behind it, %d offsets, aside",
            replica.name,
            end,
            replica.log.end - end,
        )
        try:
            await replica.truncate(end)
        except (LogError, OSError, ValueError) as error:
            logger.error("%s cannot be truncated, and leads when it is: %s", replica.name, error)
            await asyncio.sleep(TRUNCATE_AGAIN_S)

    # --- a failed assertion ------------------------------------------------------------------------------------

    def fail(self, error: AssertionError) -> None:
        was, name = self.role, self._replica.name
        consequence = "it is not retried: start this broker again, and report this"
        if was not in (Role.FAILED, Role.ENDED):
            self.failure = str(error)
            consequence = f"this broker has no role in it, and another replica may lead; {consequence}"
        self._environment.jobs.note_failure(f"an assertion of {name} ({was.value})", error, consequence)
        if was in (Role.FAILED, Role.ENDED):
            return
        try:
            self.resign()
        except AssertionError as another:
            self._environment.jobs.note_failure(f"an assertion of {name} ({was.value})", another, consequence)
        self._move(Role.FAILED)
        self._stand_aside()
        self._broker.writable_changed(self._replica.stream.name, self._replica.partition.id)

    def _stand_aside(self) -> None:
        """Where another broker leads it is told to count without this replica; where this one is named, it asks for
        another one."""
        if self._stand_in is not None:
            self._broker.fetchers.unfollow(self._stand_in)
            self._stand_in = None
        leader = self._replica.partition.leader
        if leader and leader != self._environment.settings.broker_id:
            self._stand_in = FailedFollower(self._replica)
            self._broker.fetchers.follow(self._stand_in)
        elif leader and not self._stepping_down:
            self._stepping_down = True
            self._replica.spawn(self._step_down())

    async def _step_down(self) -> None:
        pause_s = STEP_DOWN_FIRST_S
        while self._replica.partition.leader == self._environment.settings.broker_id and self._replica.replicated:
            try:
                await self._broker.step_down(self._replica)
            except BasculeError as error:
                logger.warning("%s has failed here, and has no other leader yet: %s", self._replica.name, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, STEP_DOWN_MAX_S)
        self._stepping_down = False
