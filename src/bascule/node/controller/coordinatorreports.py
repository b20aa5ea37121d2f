"""Members of consumer groups that do not reach their coordinator, counted by the controller: when more than half of a
group say so within a while (`groups.coordinator.timeout`), another broker coordinates it.

Reports are of one epoch and one term of the controller: another one begins to count anew.
"""

import logging
from typing import NamedTuple

from bascule.core.groups.group import Group
from bascule.core.metadata.commands import ChangeCoordinator
from bascule.errors import FailedPrecondition
from bascule.limits import MAX_GROUPS
from bascule.node.controller.proposals import Proposals
from bascule.ports import Clock
from bascule.wire.pb import internal_pb2 as pb

logger = logging.getLogger(__name__)


class Reports(NamedTuple):
    """Of one group at one epoch."""

    epoch: int
    at: dict[str, int]
    """When each consumer reported last, by a clock that only goes forward."""


class CoordinatorReports:
    def __init__(self, proposals: Proposals, clock: Clock, timeout_ns: int) -> None:
        self._proposals = proposals
        self._clock = clock
        self._timeout_ns = timeout_ns
        self._reports: dict[str, Reports] = {}

    def begin(self) -> None:
        """This broker is the controller from now on."""
        self._reports = {}

    async def take(self, report: pb.ReportConsumerGroupCoordinatorOp) -> int:
        """The index of the command that replaced the coordinator, or of the last command if it stays."""
        await self._proposals.raft.current()
        group = self._check(report)
        if not self._is_majority(group, report.consumerId):
            return self._proposals.metadata.index
        epoch = group.epoch
        index = await self._proposals.propose(lambda: ChangeCoordinator(group.id, epoch))
        self._reports.pop(group.id, None)
        logger.warning("the members of consumer group %s do not reach broker %s: another one coordinates it from epoch "
                       "%d on", group.id, group.coordinator, index)  # fmt: skip
        return index

    def _check(self, report: pb.ReportConsumerGroupCoordinatorOp) -> Group:
        group = self._proposals.metadata.groups.get(report.groupId)
        if group is None:
            raise FailedPrecondition(f"No such consumer group {report.groupId}")
        if report.coordinator != group.coordinator or not group.is_at(report.epoch):
            raise FailedPrecondition(
                f"Coordinator generation mismatch, current coordinator: {group.coordinator} epoch: {group.epoch}, "
                f"got coordinator: {report.coordinator} epoch: {report.epoch}"
            )
        if report.consumerId not in group.members:
            raise FailedPrecondition(f"Consumer {report.consumerId} is not a member of consumer group {report.groupId}")
        return group

    def _is_majority(self, group: Group, consumer: str) -> bool:
        now = self._clock.monotonic_ns()
        known = self._reports.pop(group.id, None)
        at = known.at if known is not None and known.epoch == group.epoch else {}
        recent = {name: when for name, when in at.items() if now - when <= self._timeout_ns}
        recent[consumer] = now
        self._reports[group.id] = Reports(group.epoch, recent)
        while len(self._reports) > MAX_GROUPS:
            del self._reports[next(iter(self._reports))]
        return 2 * len(recent) > len(group.members)
