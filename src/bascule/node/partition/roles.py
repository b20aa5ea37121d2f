"""The role of one replica on this broker: how the replica takes it and gives it up.

The metadata names a leader; the replica there leads and the others follow. Each role is a driver of a machine of
`core.partition`. A log that was not verified since this boot is compared with the other replicas before it leads. While
a log is truncated its replica has no other role; the role that the metadata gives by then begins afterwards.
`core.partition.roles` has the legal moves.

A failed assertion is a bug, and the state in memory is not trusted after it. It ends the role on this broker, and
nothing is retried until the broker restarts: the partition takes no writes here and says why, its leader takes this
replica out of the ISR, and where this broker is the leader it asks the controller for another one. Other partitions
are not affected.
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
"""Between two attempts to hand leadership over to another replica."""
STEP_DOWN_FIRST_S = 1.0
STEP_DOWN_MAX_S = 30.0
"""Between two requests for another leader of a partition that has failed here."""


class RoleHolder(LeadingReplica, FollowingReplica, Protocol):
    """The replica, as its role sees it."""

    @property
    def replicated(self) -> bool:
        """Other brokers have replicas too."""

    @property
    def has_expired(self) -> bool:
        """Its log ends before the partition begins, and it may begin there: it does not count as complete."""

    @property
    def ends_before_start(self) -> bool:
        """Its log ends before the partition begins, whether it counts as complete or not."""

    async def begin_at_start(self) -> None: ...

    def stopped_leading(self) -> None:
        """This broker leads it no more, or under another epoch. Not called when the replica ends."""

    @property
    def begins_anew(self) -> bool:
        """Its log is to have no record before it has a role."""

    async def begin_anew(self) -> None: ...

    def spawn(self, work: Coroutine[object, object, None], to_its_end: bool = False) -> asyncio.Task[None]:
        """Work that ends with the replica, or that the end of the replica waits for."""


class Roles:
    def __init__(self, environment: Environment, broker: PartitionBroker, replica: RoleHolder, repair: Repair) -> None:
        self.role = Role.NONE
        self.leading: Leading | None = None
        self.following: Following | None = None
        """Set also while the log is truncated: the follower goes on afterwards."""
        self.established = asyncio.Event()
        """Set when everything is committed that this leader had when it became leader."""
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

    # --- changes of the metadata -------------------------------------------------------------------------------

    def take(self, same_epoch: bool) -> None:
        """Take the role that the metadata gives; in the `same_epoch` as before the role stays as it is."""
        if self.role is Role.ENDED:
            return
        if self.role is Role.FAILED:
            self._stand_aside()
            return
        self._assigned = True
        if same_epoch and self.leading is not None:
            self.leading.changed()
        elif same_epoch and self.following is not None:
            self.following.changed()
        elif not (same_epoch and self.role is Role.COMING_TO_LEAD):
            self.resign()
            self._assigned = True
            self._begin()

    def resign(self) -> None:
        """Give up the role: nothing is stored, acked or fetched under it any more."""
        led = self.leading is not None
        self._resign()
        if led:
            self._replica.stopped_leading()

    def _resign(self) -> None:
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
        """Give up the role for good. A truncation under way is completed: the log is closed after it, which its readers
        are told."""
        self._resign()
        if self.role is not Role.ENDED:
            self._move(Role.ENDED)

    def _begin(self) -> None:
        stream, partition = self._replica.stream, self._replica.partition
        if self.role is Role.TRUNCATING:
            return  # the role begins after the truncation
        if self._replica.begins_anew:
            self.begin_truncation(self._begin_with(self._replica.begin_anew()))
            return
        if self._replica.has_expired:
            self.begin_truncation(self._begin_with(self._replica.begin_at_start()))
            return
        self._repair.start()
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

    def reopened(self) -> None:
        """The log takes writes again. It has lost what was not promised, so it may end before the partition begins."""
        if self.role is Role.FOLLOWING and self._replica.has_expired:
            self.take(same_epoch=False)
        elif (role := self.leading or self.following) is not None:
            role.reopened()

    # --- leading -----------------------------------------------------------------------------------------------

    @property
    def _may_lead(self) -> bool:
        """Whether this replica may lead without comparing its log. After a crash it compares even a log whose end looks
        complete; a clean shutdown after that one does not change it."""
        verification = self._replica.verification
        return verification.verified or (verification.sure and self._environment.after_clean_shutdown)

    def _lead(self) -> None:
        if self._replica.ends_before_start:
            # Nobody has more. The offsets below the start are not given to other records: nobody would be served them.
            self.begin_truncation(self._begin_with(self._replica.begin_at_start()))
            return
        self._replica.verification.confirm()
        self.leading = leading = Leading(self._environment, self._broker, self._replica, self.established)
        self._move(Role.LEADING)
        leading.start()
        if self._replica.log.failed is not None:
            leading.log_failed()

    async def _come_to_lead(self) -> None:
        """Lead after comparing logs, or hand leadership over to a replica with more. Until then the partition has no
        leader, so this retries after every error."""
        replica = self._replica
        while True:
            try:
                if (other := await self._repair.ahead()) is None:
                    break
                logger.warning(
                    "%s: %s has more records than this broker; leadership is handed over to it", replica.name, other
                )
                if await self._broker.give_way(replica, other, replica.verification.certain):
                    return
            except AssertionError:
                raise
            except Exception:
                logger.exception("%s: comparing its log with other replicas failed, and is retried", replica.name)
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
        """`work` is completed, also if the role changes meanwhile."""
        self._move(Role.TRUNCATING)
        self._replica.spawn(self._truncate(work), to_its_end=True)

    async def _truncate(self, work: Coroutine[object, object, None]) -> None:
        await work
        if self.role is not Role.TRUNCATING:
            return
        if self.following is not None and not self._replica.has_expired:
            self._move(Role.FOLLOWING)
            self.following.truncated()
            return
        if self.following is not None:  # what is left of its log ends before the partition begins
            following, self.following = self.following, None
            following.stop()
        self._move(Role.NONE)
        if self._assigned:
            self._begin()
            self._broker.writable_changed(self._replica.stream.name, self._replica.partition.id)

    async def _begin_with(self, removal: Coroutine[object, object, None]) -> None:
        """With no records; if they cannot be removed the role begins by trying again."""
        try:
            await removal
        except (LogError, OSError) as error:
            logger.error("%s cannot be removed, and has no role until it is: %s", self._replica.name, error)
            await asyncio.sleep(TRUNCATE_AGAIN_S)

    async def _truncate_torn(self, end: int) -> None:
        replica = self._replica
        logger.warning(
            "%s: a power loss tore a hole at offset %d into records that were not promised yet, and no replica in sync "
            "has the missing ones: the %d offsets from the hole on are truncated, into quarantine/",
            replica.name,
            end,
            replica.log.end - end,
        )
        try:
            await replica.truncate(end)
        except (LogError, OSError, ValueError) as error:
            logger.error("%s cannot be truncated, and has no leader until it is: %s", replica.name, error)
            await asyncio.sleep(TRUNCATE_AGAIN_S)

    # --- a failed assertion ------------------------------------------------------------------------------------

    def assertion_failed(self, error: AssertionError) -> None:
        was, name = self.role, self._replica.name
        consequence = "it is not retried: restart this broker, and report this"
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
        """If another broker leads, report this replica to it as failing; if this broker is the leader, ask the
        controller for another one."""
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
                logger.warning(
                    "%s: an assertion failed here, and it has no new leader yet: %s", self._replica.name, error
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, STEP_DOWN_MAX_S)
        self._stepping_down = False
