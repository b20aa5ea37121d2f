"""What the controller does for administrators: drain, undrain, remove, elect; and the periodic work that follows.

Each request does the next step and may be repeated: progress is stored only in the metadata and the membership, so a
new controller goes on where the last one stopped. `core.metadata.plans` decides what is allowed.

Periodic work, with every heartbeat: leaderships of a draining broker go to replicas that can lead by now (one came back
into sync, or none was alive when a leader died); a draining controller transfers its role; the last step of a removal
is made if an earlier controller did not; and partitions that are not fully replicated are logged.
"""

import asyncio
import logging
from functools import partial

from bascule.core.metadata import plans
from bascule.core.metadata.administration import name_of
from bascule.core.metadata.commands import At, DrainBroker, ElectLeader, UndrainBroker
from bascule.core.metadata.plans import Members
from bascule.core.metadata.state import Metadata
from bascule.errors import BasculeError, InvalidArgument
from bascule.node.config.broker import StreamDefaults
from bascule.node.controller.brokeradmin import BrokerAdmin
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.controller.proposals import Proposals
from bascule.node.runtime.jobs import Jobs
from bascule.wire.pb import internal_pb2 as pb

logger = logging.getLogger(__name__)

POLL_S = 0.05
REPORT_EVERY_S = 5.0
"""Between two log lines about partitions that are not fully replicated."""

Seen = tuple[int, tuple[str, ...]]
"""The last command, and the absent brokers: periodic work is due when either has changed."""
NOTHING: Seen = (-1, ())


class Administration:
    def __init__(
        self,
        own: str,
        proposals: Proposals,
        live: LiveBrokers,
        brokers: BrokerAdmin,
        defaults: StreamDefaults,
        jobs: Jobs,
    ) -> None:
        self._own = own
        self._proposals = proposals
        self._raft = proposals.raft
        self._live = live
        self._brokers = brokers
        self._defaults = defaults
        self._moving = jobs.tasks("the moving of what draining brokers lead", 1)
        self._looked_at: Seen = NOTHING
        self._reported_for: Seen = NOTHING
        self._report_after = 0.0
        self._reported = (0, 0, 0)

    @property
    def _metadata(self) -> Metadata:
        return self._proposals.metadata

    @property
    def members(self) -> Members:
        """As the controller sees them."""
        membership, stays = self._raft.membership, self._live.stays
        alive = tuple(each for each in membership.everyone if stays(each))
        return Members(membership.voters, membership.learners, alive)

    async def execute(self, request: pb.PropagatedRequest) -> int:
        await self._raft.current()
        op, metadata = request.adminOp, self._metadata
        match request.op:
            case pb.DRAIN_BROKER:
                plans.drain(metadata, self.members, op.broker)
                if op.broker in metadata.brokers.draining and op.broker not in plans.due(metadata, self.members.absent):
                    return metadata.index
                logger.warning("broker %s drains: its leaderships go to other replicas in sync", op.broker)
                return await self._proposals.propose(lambda: plans.drain(self._metadata, self.members, op.broker))
            case pb.UNDRAIN_BROKER:
                plans.known(self.members, op.broker)
                if op.broker not in metadata.brokers.draining:
                    return metadata.index
                logger.info("drain of broker %s cancelled: it may lead again", op.broker)
                return await self._proposals.propose(lambda: UndrainBroker(op.broker))
            case pb.REMOVE_BROKER:
                return await self._remove(op.broker, op.force)
            case pb.ELECT_LEADER if len(op.replicas) == 1:
                chosen = op.replicas[0]
                at = At(chosen.stream, chosen.partition, chosen.replica)
                return await (self._elect(at, op) if op.force else self._may_elect(at))
            case pb.ELECT_LEADER:
                raise InvalidArgument(f"an election names one replica, not {len(op.replicas)}")
            case other:
                raise AssertionError(f"operation {other} is not one of administrators")

    async def _be_sure_of(self, *brokers: str) -> None:
        """Wait until these brokers count as alive or dead: a new controller counts all as alive for a session."""
        while self._live.active and any(map(self._live.undecided, brokers)):
            await asyncio.sleep(POLL_S)

    # --- removing --------------------------------------------------------------------------------------------

    async def _remove(self, broker: str, force: bool) -> int:
        """The next step of: replicas on other brokers, out of every replica list, out of the membership."""
        await self._be_sure_of(broker)
        members, membership = self.members, self._raft.membership
        server = (broker, membership.incarnation_of(broker))
        if broker not in members.everyone and any(name == broker for name, _ in self._metadata.brokers.removed):
            return self._metadata.index
        if server not in self._metadata.brokers.removed:
            plans.may_remove(self._metadata, members, broker)
            if broker == self._own:
                self._let_another_be_controller()
                return self._metadata.index
            if not await self._drop(server, force):
                return self._metadata.index
        self._dismiss(broker)
        return self._metadata.index

    def _dismiss(self, broker: str) -> None:
        """The last step: it holds no replicas any more, and leaves the membership."""
        if broker == self._own:
            self._let_another_be_controller()
            return
        try:
            self._raft.propose_membership(self._raft.membership.without(broker))
            self._live.forget(broker)
        except BasculeError as error:
            logger.debug("broker %s is still a member: %s", broker, error)

    async def _drop(self, server: tuple[str, str], force: bool) -> bool:
        """False while other brokers still copy its records."""
        broker = server[0]
        if not force and broker not in self.members.alive:
            # No broker can copy from it: refuse if it has the only copy, before anything is changed.
            awaited = plans.awaited(self._metadata, broker, await self._waiting())
            plans.refuse_losses(broker, [*plans.removal_losses(self._metadata, broker), *awaited])
        if broker not in self._metadata.brokers.removing:
            logger.warning("broker %s is being removed: its replicas move to other brokers", broker)
            await self._proposals.propose(lambda: plans.begin_removal(self._metadata, self.members, broker))
        if plans.removal_waits(self._metadata, self.members, broker):
            return False
        losses = plans.removal_losses(self._metadata, broker)
        if not force:
            plans.refuse_losses(broker, losses)
        for loss in losses:
            logger.warning("broker %s is removed by force: %s", broker, loss)
        await self._proposals.propose(lambda: plans.removal(self._metadata, self.members, *server, losses))
        logger.warning("broker %s is removed", broker)
        return True

    async def _waiting(self) -> plans.Waiting:
        """The partitions without a leader yet, as the brokers that are to lead them say."""
        asked = await asyncio.gather(*map(self._brokers.waiting, self.members.alive))
        return {key: missing for each in asked for key, missing in each.items()}

    # --- electing --------------------------------------------------------------------------------------------

    async def _may_elect(self, at: At) -> int:
        """Returns when it is certain that no replica in sync is alive, and that is committed: until then leadership
        might still move to one."""
        item = self._metadata.partition(at.stream, at.partition)
        if item is None:
            return self._metadata.index
        await self._be_sure_of(*item.replicas)
        waits = bool(item.leader) and (at.stream, at.partition) in await self._brokers.waiting(item.leader)
        plans.electable(item, at.stream, self.members.alive, at.replica, waits)
        return self._metadata.index

    async def _elect(self, at: At, op: pb.AdminOp) -> int:
        await self._may_elect(at)
        index = await self._proposals.propose(lambda: ElectLeader(at, tuple(op.inSync), tuple(op.eligible)))
        logger.warning(
            "unclean election: %s leads %s from epoch %d on although it may lack committed messages; an administrator "
            "accepted that these are lost",
            at.replica,
            name_of(at.stream, at.partition),
            index,
        )
        return index

    # --- periodic work ---------------------------------------------------------------------------------------

    def upkeep(self) -> None:
        metadata, members = self._metadata, self.members
        if self._own in metadata.brokers.draining:
            self._let_another_be_controller()
        for broker in members.everyone:
            if (broker, self._raft.membership.incarnation_of(broker)) in metadata.brokers.removed:
                self._dismiss(broker)  # an earlier controller died before this last step
        seen = (metadata.index, members.absent)
        now = asyncio.get_running_loop().time()
        if seen != self._reported_for and now >= self._report_after:
            self._reported_for, self._report_after = seen, now + REPORT_EVERY_S
            self._report()
        if seen != self._looked_at and not self._moving.full:
            self._looked_at = seen
            if due := plans.due(metadata, members.absent):
                self._moving.start(self._move_leaderships(due))

    async def _move_leaderships(self, brokers: list[str]) -> None:
        for broker in brokers:
            command = DrainBroker(broker, self.members.absent)
            try:
                await self._proposals.propose(partial(_same, command))
            except BasculeError as error:
                logger.info("leaderships of draining broker %s are not moved yet: %s", broker, error)
                self._looked_at = NOTHING

    def _let_another_be_controller(self) -> None:
        own, draining = self._own, self._metadata.brokers.draining
        members = self.members
        raft = self._raft.raft
        fit = [
            each
            for each in members.voters
            if each != own and each in members.alive and each not in draining and raft.caught_up(each)
        ]
        if fit and not raft.transferee:
            logger.info("this broker drains: %s is to be the controller", fit[0])
            self._raft.transfer(fit[0])

    def _report(self) -> None:
        """Log how many partitions are not fully replicated, when that has changed."""
        health = plans.health(self._metadata, self.members.alive, self._defaults.min_isr_of)
        counts = (len(health.under_replicated), len(health.offline), len(health.below_min_isr))
        if counts == self._reported:
            return
        self._reported = counts
        if any(counts):
            logger.warning(
                "partitions under-replicated: %d, without a live leader: %d, below min ISR: %d; "
                "`bascule cluster status` names them",
                *counts,
            )
        else:
            logger.info("every partition has all its replicas alive and in sync")

    # --- removed brokers -------------------------------------------------------------------------------------

    def tell_removed(self, broker: str) -> bool:
        removed = [server for server in self._metadata.brokers.removed if server[0] == broker]
        for server in removed:
            self._brokers.tell_removed(*server)
        return bool(removed)

    def removed(self, broker: str, incarnation: str) -> bool:
        return (broker, incarnation) in self._metadata.brokers.removed

    def refusal(self, broker: str, incarnation: str) -> str:
        brokers = self._metadata.brokers
        if self.removed(broker, incarnation):
            return f"{broker} was removed from this cluster: empty its data folder to have it join as a new member"
        if broker in brokers.removing and incarnation != self._raft.membership.incarnation_of(broker):
            return f"{broker} is being removed: finish that with `bascule cluster remove {broker}` first"
        return ""


def _same(command: DrainBroker) -> DrainBroker:
    return command
