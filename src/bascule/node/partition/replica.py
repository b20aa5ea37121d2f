"""One partition on this broker: its log, and the role the metadata gives it there: leading, following, or neither.

A role is taken when the metadata names a leader and given up when it names another; the log stays. Reads, failures
and reopening are the same in every role and live here.
"""

import asyncio
import logging
from collections.abc import Coroutine

from bascule.core.metadata.streams import Key, Partition, Stream
from bascule.core.partition.epochs import EpochHistory
from bascule.errors import BasculeError, LogError, Unavailable
from bascule.log.commitlog import CommitLog
from bascule.log.reader import Healing
from bascule.log.segment import Segment
from bascule.log.tail import Tail
from bascule.node.membership.lease import CUT_OFF, LEASE_S, NS
from bascule.node.partition import epochs as stored_epochs
from bascule.node.partition.environment import Environment
from bascule.node.partition.following import Following
from bascule.node.partition.groups import GroupMembers
from bascule.node.partition.leading import Leading
from bascule.node.partition.ports import PartitionBroker
from bascule.node.partition.repair import Repair
from bascule.wire.subjects import quote_name

logger = logging.getLogger(__name__)

REOPEN_FIRST_S = 1.0
REOPEN_MAX_S = 30.0
CUT_AGAIN_S = 5.0
GIVE_WAY_S = 0.2
"""Between two tries to let another replica lead."""


def stream_folder(stream: Stream) -> str:
    return f"streams/{quote_name(stream.name)}@{stream.creation_index}"


class Replica:
    def __init__(
        self,
        environment: Environment,
        broker: PartitionBroker,
        stream: Stream,
        partition: Partition,
        log: CommitLog,
    ) -> None:
        self.environment = environment
        self._broker = broker
        self.stream = stream
        self.partition = partition
        self.log = log
        self.name = f"{stream.name}/{partition.id}"
        self.key: Key = (stream.creation_index, partition.id)
        self.group_members = GroupMembers()
        self.first_received = 0
        self.latest_received = 0
        self.leading: Leading | None = None
        self.following: Following | None = None
        self._vouched_for = len(partition.replicas) == 1
        self.tail = log.tail
        """What this start knows about the end of the log."""
        self._coming_to_lead: asyncio.Task[None] | None = None
        self.repair = Repair(environment, broker, self)
        self.epochs = EpochHistory()
        self._saved_epoch = 0
        self._settled = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._reopening = False
        self._kept_from: int | None = None
        self._failed: Leading | None = None
        """Who led when the log failed last."""
        self._cutting: asyncio.Task[None] | None = None
        self._ended = False
        self._storing_epochs = asyncio.Lock()

    @classmethod
    async def open(
        cls, environment: Environment, broker: PartitionBroker, stream: Stream, partition: Partition
    ) -> "Replica":
        replica: Replica | None = None
        repair: Repair | None = None

        def on_promised(end: int) -> None:
            if replica is not None:
                replica._on_promised(end)

        def on_failed(error: LogError) -> None:
            if replica is not None:
                replica.on_failed(error)

        async def on_damage(segment: Segment, wait: bool) -> Healing:
            # Whoever reads it here before it is open does not wait for the others.
            return Healing.LOST if repair is None else await repair.on_damage(segment, wait)

        log = await CommitLog.open(
            environment.disk,
            environment.scheduler,
            f"{stream_folder(stream)}/{partition.id}",
            environment.defaults.log_config(stream.config),
            environment.clock,
            on_promised,
            on_failed,
            replicated=len(partition.replicas) > 1,
            ends=environment.ends,
            on_damage=on_damage,
        )
        replica = cls(environment, broker, stream, partition, log)
        replica.epochs = await stored_epochs.load(environment.disk, log)
        replica._saved_epoch = replica.epochs.last_epoch
        replica.tail = log.tail  # the epochs may have shown that it is short
        repair = replica.repair
        return replica

    # --- roles ---------------------------------------------------------------------------------------------

    def take_role(self, stream: Stream, partition: Partition) -> None:
        """The metadata says who leads. The caller flushes the streams bus to know NATS took our subscription."""
        same_term = partition.leader_epoch == self.partition.leader_epoch
        self.stream, self.partition = stream, partition
        if self.leading is not None and same_term:
            self.leading.changed()
            return
        if (self.following is not None or self._coming_to_lead is not None) and same_term:
            return
        self.resign()
        self._begin_role()

    def _begin_role(self) -> None:
        stream, partition = self.stream, self.partition
        if self._cutting is not None:
            return  # when the cut is over: half cut, a log is nobody's to go on from
        self.repair.mend()
        if not partition.leader:
            return
        if partition.leader != self.environment.broker_id:
            self.following = Following(self, self._broker.fetchers)
            self.following.start()
        elif self._may_lead or partition.leader_epoch in (stream.creation_index, partition.unclean_epoch):
            # There is nothing to compare, or an administrator has decided.
            self._lead()
        else:
            self._coming_to_lead = self.spawn(self._come_to_lead())

    def doubt(self) -> None:
        """Nothing is known about the end of its log, whatever that looks like; also after a clean shutdown, if nobody
        vouches for it before."""
        self.tail = Tail.UNSURE
        self.log.record.doubt()

    @property
    def certain(self) -> bool:
        """It has everything it promised: it has shown so in this life, or its log ends as it was left."""
        return self.vouched_for or (self.tail in (Tail.SURE, Tail.LIKELY) and not self.log.damaged)

    @property
    def _may_lead(self) -> bool:
        """At once. After a crash a log that is sure of its end still gives the others a while to be compared with."""
        return self.vouched_for or (self.certain and self.environment.after_clean_shutdown)

    def _lead(self) -> None:
        self.vouched_for = True
        self.leading = Leading(self.environment, self._broker, self, self._settled.set)
        self.leading.start()
        if self.log.failed is not None:
            self.leading.failed()

    async def _come_to_lead(self) -> None:
        """Nobody vouches for this log: see first whether another one has more. Nobody else leads meanwhile, so that
        this goes on whatever happens."""
        while True:
            try:
                if (other := await self.repair.ahead()) is None:
                    break
                logger.warning("%s: %s has more than this broker, and is asked to lead", self.name, other)
                if await self._broker.give_way(self, other):
                    return
            except Exception:
                logger.exception("%s: whether another replica has more is not known yet", self.name)
            await asyncio.sleep(GIVE_WAY_S)
        torn_from = await self.repair.torn_from()
        self._coming_to_lead = None
        if torn_from is not None:
            self.begin_cut(self._cut_torn(torn_from))
            return
        self._lead()
        self._broker.writable_changed(self.stream.name, self.partition.id)

    async def _cut_torn(self, end: int) -> None:
        """Its role begins again when this is over."""
        logger.warning(
            "%s: a power loss tore a hole at offset %d into what was not promised yet, and no replica that is in sync "
            "has what is missing: cutting what is left behind it, %d offsets, aside",
            self.name,
            end,
            self.log.end - end,
        )
        try:
            await self.cut(end)
        except (LogError, OSError, ValueError) as error:
            logger.error("%s cannot be cut, and leads when it is: %s", self.name, error)
            await asyncio.sleep(CUT_AGAIN_S)

    def resign(self) -> None:
        """No role any more: nothing is taken, acked or fetched under the old one."""
        self._settled.clear()
        if self._coming_to_lead is not None:
            self._coming_to_lead.cancel()
            self._coming_to_lead = None
        if self.leading is not None:
            self.leading.close()
            self.leading = None
        if self.following is not None:
            self.following.stop()
            self.following = None

    async def close(self) -> None:
        await self._end()
        await self.log.close()

    def let_go(self) -> None:
        """Its stream is gone: from this moment on nothing is taken or acked for it, whatever the disk does. What was
        taken while the cluster was not heard is not erased with the rest."""
        if self.leading is not None and self.environment.lease.overdue:
            self._kept_from = self.leading.taken_since_contact
        self.resign()

    async def keep_last(self) -> None:
        """The same for what an earlier life took, who knows when it had heard of the cluster last: at most a lease
        before its last record."""
        log = self.log
        if log.end > log.start:
            self._kept_from = await log.offset_at_or_after(log.last_timestamp - int(LEASE_S * NS))

    async def delete(self) -> None:
        """Raises OSError and LogError: its files stay, and it has ended all the same."""
        await self._end()
        try:
            await self._set_kept_aside()
            await self.log.delete()
        finally:
            self.log.waiters.end("deleted")

    async def _set_kept_aside(self) -> None:
        kept_from = self._kept_from
        if kept_from is not None and kept_from < self.log.end:
            logger.warning(
                "%s is deleted; offsets %d to %d, which may have come after that while this broker did not hear of "
                "the cluster, are set aside in quarantine/",
                self.name,
                kept_from,
                self.log.end - 1,
            )
            await self.log.truncate(kept_from, shown_too=True)

    async def _end(self) -> None:
        self._ended = True
        self.resign()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # one that replaces a file does so before it ends
        if self._cutting is not None:
            await asyncio.gather(self._cutting, return_exceptions=True)

    # --- what others ask -------------------------------------------------------------------------------------

    @property
    def hw_end(self) -> int:
        """As this broker knows it."""
        role = self.leading or self.following
        return max(self.log.visible_end, role.hw_end if role else 0)

    @property
    def vouched_for(self) -> bool:
        """This life has shown that the log lacks nothing that was promised."""
        return self._vouched_for

    @vouched_for.setter
    def vouched_for(self, vouched: bool) -> None:
        self._vouched_for = vouched
        if vouched:
            self.log.record.hole_closed()
            self.log.record.vouch()

    @property
    def unhealed(self) -> list[Segment]:
        return self.repair.unhealed

    def follows(self, role: Following) -> bool:
        return self.following is role

    @property
    def certain_end(self) -> int:
        """Everything below is committed for good: no leader may ask us to cut there. Nothing is, if a leader who was
        not in sync has been elected since our last record."""
        return 0 if self._given_up else self.log.visible_end

    @property
    def _given_up(self) -> bool:
        return self.partition.unclean_epoch > self.epochs.last_epoch

    @property
    def refusal(self) -> str | None:
        """Why this partition takes no writes right now."""
        if self.log.failed is not None:
            return str(self.log.failed)
        if self.leading is not None and self.leading.refuses:
            return f"{self.name} waits for another leader, for its log failed and followers may have what it lost"
        return CUT_OFF if self.environment.lease.over() else None

    async def settled(self, timeout_s: float) -> None:
        """Returns when this leader may show its high watermark: everything it had when it became leader is committed.
        Unavailable if that takes longer: a smaller one than clients have seen would be worse than none."""
        if self.leading is None or self.leading.settled:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()
        except TimeoutError:
            others = ", ".join(each for each in self.partition.replicas if each not in self.partition.isr)
            raise Unavailable(
                f"{self.name} has a new leader, and too few replicas are in sync to tell its high watermark; "
                f"in sync now: {', '.join(self.partition.isr)}"
                + (f". Start {others}, or wait until more have caught up" if others else "; try again")
            ) from None

    def received(self, now: int) -> None:
        self.first_received = self.first_received or now
        self.latest_received = now

    @property
    def _others_in_sync(self) -> bool:
        """Somebody else has everything that was promised here."""
        return any(each != self.environment.broker_id for each in self.partition.isr)

    @property
    def _replicated(self) -> bool:
        return len(self.partition.replicas) > 1

    # --- the log ---------------------------------------------------------------------------------------------

    def _on_promised(self, end: int) -> None:
        role = self.leading or self.following
        if role is not None:
            role.promised(end)
        if self.epochs.last_epoch != self._saved_epoch:
            epoch, _ = self.epochs.run_at(end - 1, end)
            if epoch != self._saved_epoch:
                self._saved_epoch = epoch
                self.spawn(self._save_epochs())

    async def _save_epochs(self) -> None:
        try:
            async with self._storing_epochs:
                await stored_epochs.save(self.environment.disk, self.log, self.epochs)
        except OSError as error:
            logger.warning(
                "%s: its epochs are not stored (%s); the next start reads them from the log", self.name, error
            )

    def begin_cut(self, work: Coroutine[object, object, None]) -> None:
        """It goes on to its end, whatever role comes meanwhile; that begins then."""
        self._cutting = asyncio.get_running_loop().create_task(work)
        self._cutting.add_done_callback(self._cut_ended)

    def _cut_ended(self, task: asyncio.Task[None]) -> None:
        self._cutting = None
        if not (self._ended or task.cancelled() or self.leading or self.following or self._coming_to_lead):
            self._begin_role()
            self._broker.writable_changed(self.stream.name, self.partition.id)

    async def cut(self, end: int) -> None:
        async with self._storing_epochs:  # those on their way there are not what they will be
            await stored_epochs.forget(self.environment.disk, self.log.folder)
            wanted = min(end, self.log.end)
            await self.log.truncate(end, shown_too=self._given_up)
            if self.log.end < wanted:  # damage went too, and with it what may have been promised
                self._vouched_for = False
                self.doubt()
            self.epochs.cut(self.log.end)
            self._saved_epoch = 0

    def on_failed(self, error: LogError) -> None:
        """The log cannot be written: tell the role, and try to open it again from time to time. It may fail again
        before that has come to its end, under another role."""
        logger.error("%s takes no writes: %s", self.name, error)
        self.epochs.cut(self.log.end)
        role = self.leading or self.following
        if role is not None:
            role.failed()
        self._failed = self.leading or self._failed
        self._broker.writable_changed(self.stream.name, self.partition.id)
        if not self._reopening and not self._ended:
            self._reopening = True
            self.spawn(self._reopen())

    async def _reopen(self) -> None:
        """Followers may have what the log lost, under the epoch of who led then: it must not write under that one
        again, and somebody else may lead meanwhile."""
        await self._step_down()
        delay_s = REOPEN_FIRST_S
        while True:
            await asyncio.sleep(delay_s)
            try:
                await self.log.reopen(heals=self._others_in_sync)
                delay_s = REOPEN_FIRST_S
                if await self._step_down() and self.log.failed is None:
                    break
            except (LogError, OSError) as error:
                logger.debug("%s still takes no writes: %s", self.name, error)
                delay_s = min(REOPEN_MAX_S, delay_s * 2)
        self._reopening = False
        self._failed = None
        if self.log.damaged:  # files were taken away
            self.vouched_for = self.vouched_for and not self._replicated
            self.repair.mend()
        role = self.leading or self.following
        if role is not None:
            role.reopened()
        self._broker.writable_changed(self.stream.name, self.partition.id)
        logger.warning("%s takes writes again, from offset %d on", self.name, self.log.end)

    async def _step_down(self) -> bool:
        """True if whoever led when the log failed does not lead any more, or nobody follows it."""
        if self._failed is None or self.leading is not self._failed or not self._replicated:
            return True
        try:
            await self._broker.step_down(self)
        except BasculeError as error:
            logger.warning("%s: no other leader for a log that failed yet: %s", self.name, error)
        return False

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Work that ends with this replica."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task
