"""Members of consumer groups that are gone: the coordinator of a group asks for those to leave that have not fetched
their assignments for `groups.consumer.timeout`.

When each member was heard last is known to the coordinator alone, and to nobody after it: whoever becomes coordinator,
or starts again, gives every member the whole timeout. It is measured on the active clock: a broker that stood still
has not heard anybody either.
"""

import asyncio
import logging
from typing import NamedTuple

from bascule.core.groups.group import Group
from bascule.errors import BasculeError
from bascule.limits import EXPIRIES_AT_ONCE, GROUPS_SLICE
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.membership.metadata import MetadataStore
from bascule.node.runtime.jobs import Jobs
from bascule.ports import Clock

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
SOONEST_LOOK_S = 0.02
LOOKS = 4
"""How often members are looked at within the time after which a silent one is gone."""


class Heard(NamedTuple):
    joined: int
    """Of the member: one that left and joined again is another one."""
    at: int


class Watched(NamedTuple):
    """A group that this broker coordinates."""

    coordinator_epoch: int
    members: dict[str, Heard]


class MemberExpiry:
    def __init__(
        self, own: str, store: MetadataStore, client: ControllerClient, clock: Clock, timeout_ns: int, jobs: Jobs
    ) -> None:
        self._own = own
        self._store = store
        self._client = client
        self._clock = clock
        self._timeout_ns = timeout_ns
        self._watched: dict[str, Watched] = {}
        self._leaving: dict[str, None] = {}
        """Groups whose members are being removed."""
        self._tasks = jobs.tasks("the removal of silent members of a consumer group", EXPIRIES_AT_ONCE)

    def heard(self, group: Group, consumer: str) -> None:
        """A member has asked this broker, the coordinator of its group, for its assignments: its time begins anew."""
        members = self._watch(group).members
        members[consumer] = Heard(group.members[consumer].joined, self._clock.monotonic_ns())

    async def run(self) -> None:
        pause_s = min(max(self._timeout_ns / 1e9 / LOOKS, SOONEST_LOOK_S), LOOK_EVERY_S)
        while True:
            await self._look()
            await asyncio.sleep(pause_s)

    async def _look(self) -> None:
        looked_at = 0
        groups = self._store.metadata.groups
        for name in list(self._watched):
            if name not in groups or groups[name].coordinator != self._own:
                del self._watched[name]
        for group in list(groups.values()):
            looked_at += 1
            if group.coordinator == self._own:
                looked_at += len(group.members)
                if self._silent(group) and group.id not in self._leaving and not self._tasks.full:
                    self._leaving[group.id] = None
                    self._tasks.start(self._remove(group.id))
            if looked_at >= GROUPS_SLICE:
                looked_at = 0
                await asyncio.sleep(0)

    def _watch(self, group: Group) -> Watched:
        known = self._watched.get(group.id)
        if known is None or known.coordinator_epoch != group.coordinator_epoch:
            known = self._watched[group.id] = Watched(group.coordinator_epoch, {})
        return known

    def _silent(self, group: Group) -> list[str]:
        """Members that were not heard for too long. The time of one that is new here begins now."""
        members, now = self._watch(group).members, self._clock.monotonic_ns()
        for name in [name for name in members if name not in group.members]:
            del members[name]
        silent = []
        for name, member in group.members.items():
            heard = members.get(name)
            if heard is None or heard.joined != member.joined:
                members[name] = Heard(member.joined, now)
            elif now - heard.at > self._timeout_ns:
                silent.append(name)
        return silent

    async def _remove(self, name: str) -> None:
        """One after the other: each is asked for at the epoch that the last one made."""
        try:
            while (group := self._store.metadata.groups.get(name)) is not None and group.coordinator == self._own:
                silent = self._silent(group)
                if not silent:
                    return
                await self._client.expire_member(name, silent[0], group.epoch)
                logger.info("consumer %s of group %s is gone: it has not fetched its assignments for %.1f s", silent[0],
                            name, self._timeout_ns / 1e9)  # fmt: skip
        except BasculeError as error:
            logger.info("a silent member of consumer group %s is not removed yet: %s", name, error)
        finally:
            del self._leaving[name]
