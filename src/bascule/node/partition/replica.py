"""One partition on this broker: its log, and what others may ask about it.

A replica takes a role when the metadata names a leader and gives it up when the metadata names another (`roles`). The
log stays, and with it what is the same in every role: what is derived from it (its epochs, its producers), its end, and
whether it is verified.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager

from bascule.core.metadata.streams import Key, Partition, Stream
from bascule.core.partition.epochs import EpochHistory
from bascule.core.partition.roles import Role
from bascule.errors import LogError, Unavailable
from bascule.log.commitlog import CommitLog
from bascule.log.compaction import Compacted, Order
from bascule.log.healing import Healing
from bascule.log.segment import Segment
from bascule.log.tail import Tail
from bascule.node.membership.lease import LEASE_S, NO_CONTACT, NS
from bascule.node.partition.cleared import ClearedLog
from bascule.node.partition.derived import DerivedStates
from bascule.node.partition.environment import Environment
from bascule.node.partition.epochs import StoredEpochs
from bascule.node.partition.following import Following
from bascule.node.partition.groups import GroupMembers
from bascule.node.partition.leading import Leading
from bascule.node.partition.ports import PartitionBroker
from bascule.node.partition.producers import StoredProducers
from bascule.node.partition.reopening import Reopening
from bascule.node.partition.repair import Repair
from bascule.node.partition.roles import Roles
from bascule.node.partition.summary import LogSummary
from bascule.node.partition.verification import Verification
from bascule.wire.kernels import ProducerTable
from bascule.wire.subjects import quote_name

logger = logging.getLogger(__name__)


def stream_folder(stream: Stream) -> str:
    return f"streams/{quote_name(stream.name)}@{stream.creation_index}"


class Replica:
    def __init__(self, environment: Environment, broker: PartitionBroker, stream: Stream, partition: Partition) -> None:
        self.environment = environment
        self._broker = broker
        self.stream = stream
        self.partition = partition
        self.log = CommitLog(
            environment.ports.disk,
            environment.scheduler,
            f"{stream_folder(stream)}/{partition.id}",
            environment.settings.defaults.log_config(stream.config),
            environment.ports.clock,
            owner=self,
            replicated=len(partition.replicas) > 1,
            ends=environment.ends,
            on_damage=self._on_damage,
            new=stream.creation_index > environment.known_index,
        )
        self.name = f"{stream.name}/{partition.id}"
        self.key: Key = (stream.creation_index, partition.id)
        self.group_members = GroupMembers()
        self.subscribers = 0
        """Subscriptions that read here now."""
        self.paused = False
        """The partition is paused, and this replica is over: when it is resumed there is another one."""
        self.only_replicates = partition.paused
        """It was opened while the partition was paused, and has not been resumed: it takes no messages, and nobody
        reads it."""
        self.first_received = 0
        self.latest_received = 0
        self.verification = Verification(self.log, len(partition.replicas) == 1, self._forget_awaited)
        self.cleared = ClearedLog(environment.settings.broker_id, broker, self)
        """How far its log is cleared of what tombstones delete."""
        self.repair = Repair(environment, broker, self)
        self.roles = Roles(environment, broker, self, self.repair)
        self.reopening = Reopening(broker, self, self.roles, self.repair)
        self._epochs = StoredEpochs(environment.ports.disk, self.log)
        self._producers = StoredProducers(
            environment.ports.disk, self.log, *self.key, self.spawn, environment.reading_again
        )
        self._derived = DerivedStates(self.name, self.spawn, (self._epochs, self._producers))
        self._is_open = False
        self._tasks: dict[asyncio.Task[None], bool] = {}
        """Work under way, and whether the end of this replica waits for it; other work is cancelled."""
        self._quarantine_from: int | None = None
        self._expiring = False
        self._listed: tuple[str, ...] | None = None
        """The replicas in sync or eligible when it last took a role."""
        self._said_start = 0
        """The partition's start when this log was last found to end before it, in sync."""

    async def open(self) -> None:
        """Read what is on the disk. Raises LogError or OSError: then there is no such replica here for now."""
        await self.log.open()
        await self._derived.load()
        await self.log.compaction.load()
        self.verification.tail = self.log.tail  # loading the epochs may have found that the log is short
        self._is_open = True

    # --- what is derived from its log ----------------------------------------------------------------------

    @property
    def epochs(self) -> EpochHistory:
        return self._epochs.history

    @property
    def producers(self) -> ProducerTable:
        return self._producers.table

    def appended(self, records: bytes, start: int, end: int) -> None:
        """Its log ended at `start`, has these records now, and ends at `end`."""
        self._derived.observe(records, start, end)

    def healed(self) -> None:
        """Records that were damaged were put back."""
        self._derived.healed()

    # --- roles ---------------------------------------------------------------------------------------------

    @property
    def leading(self) -> Leading | None:
        return self.roles.leading

    @property
    def following(self) -> Following | None:
        return self.roles.following

    def take_role(self, stream: Stream, partition: Partition) -> None:
        """Take the role that the metadata gives. The caller flushes the streams bus, so that NATS has our SUB."""
        same_epoch = partition.leader_epoch == self.partition.leader_epoch
        if stream.config != self.stream.config:
            self.log.appender.configure(self.environment.settings.defaults.log_config(stream.config))
        self._note_left(partition)
        self.stream, self.partition = stream, partition
        self.only_replicates = self.only_replicates and partition.paused
        if partition.readonly:
            self.log.waiters.wake()  # for readers at its end nothing comes any more
        try:
            self._raise_start()
            self.roles.take(same_epoch and not self.has_expired)
        except AssertionError as error:
            self.assertion_failed(error)

    def _note_left(self, partition: Partition) -> None:
        """Those that are in no set any more, though this replica, which is to lead, has not led without them. Of those
        that left before this start only those that the last boot had on record: it may have led since."""
        listed, self._listed = self._listed, partition.complete
        own, awaited = self.environment.settings.broker_id, self.environment.awaited
        if listed is None:
            before = self.environment.at_start(self.stream.name, self.stream.creation_index)
            listed = before.partitions[partition.id].complete if before is not None else ()
            listed = (*listed, *awaited.of(self.key))
        if self.verification.verified:
            self.repair.not_to_lead()
            self._forget_awaited()
            return
        if partition.leader != own:
            self.repair.not_to_lead()
        else:
            self.repair.left |= dict.fromkeys(each for each in listed if each not in partition.complete)
        known = dict.fromkeys((*partition.complete, *self.repair.left))
        awaited.note(self.key, [each for each in known if each != own])

    def _forget_awaited(self) -> None:
        self.environment.awaited.forget(self.key)

    # --- its start -----------------------------------------------------------------------------------------

    def _raise_start(self) -> None:
        """Records have expired, in all replicas: nobody is served them from now on, and their files go."""
        start = self.partition.start
        if self.log.segments.floor < start <= self.log.end:
            self.log.raise_start(start)
            self._derived.raise_start(start)
            if start == self.log.end:
                self.log.appender.roll()  # all of it has expired: the file goes too
            self.spawn(self._expire(), to_its_end=True)

    def expire_again(self) -> None:
        """Remove files that could not be removed when their records expired."""
        if self.log.expires and not self._expiring and self.roles.role is not Role.ENDED:
            self.spawn(self._expire(), to_its_end=True)

    async def _expire(self) -> None:
        self._expiring = True
        try:
            start = self.log.segments.floor
            if await self._derived.expiring(start):  # else it is tried again
                await self.log.expire(start)
        except (LogError, OSError) as error:
            logger.error(
                "%s: records below offset %d have expired, and their files are not removed; this is tried again: %s",
                self.name,
                self.log.segments.floor,
                error,
            )
        finally:
            self._expiring = False

    # --- compaction ----------------------------------------------------------------------------------------

    async def compact(self, order: Order) -> Compacted | None:
        """One pass over the log; None if that failed. Ends with this replica."""
        done: Compacted | None = None
        if self.roles.role in (Role.FAILED, Role.ENDED):
            return None  # nobody would wait for the end of it

        async def work() -> None:
            nonlocal done
            try:
                done = await self.log.compact(order)
            except LogError as error:
                logger.warning("%s: %s; it is tried again in the next round", self.name, error)

        await asyncio.wait([self.spawn(work())])
        return done

    # --- small segments ------------------------------------------------------------------------------------

    async def merge(self, base: int, end: int) -> int:
        """Merge the segments that have these offsets; how many, 0 if that is not possible. Ends with this replica."""
        merged = 0
        if self.roles.role in (Role.FAILED, Role.ENDED):
            return 0  # nobody would wait for the end of it

        async def work() -> None:
            nonlocal merged
            try:
                merged = await self.log.merge(base, end)
            except LogError as error:
                logger.warning("%s: %s; it is tried again in the next round of the cleaner", self.name, error)

        await asyncio.wait([self.spawn(work())])
        return merged

    @property
    def ends_before_start(self) -> bool:
        return self.log.end < self.partition.start

    @property
    def has_expired(self) -> bool:
        """Its log ends before the partition begins: it is to begin there. A replica that is in sync has everything
        that is committed, so its log cannot have expired, unless an administrator gave up what it lacks."""
        partition = self.partition
        if not self.ends_before_start:
            return False
        own = self.environment.settings.broker_id
        if own not in partition.complete or partition.leader_epoch == partition.unclean_epoch:
            return True
        if self._said_start != partition.start:
            self._said_start = partition.start
            logger.error(
                "%s: this log ends at offset %d, and the partition begins at %d, although this replica counts as in "
                "sync: its disk has lost records. Nothing is removed; the leader takes it out of the in-sync set",
                self.name,
                self.log.end,
                partition.start,
            )
            self.mark_suspect()
        return False

    async def begin_at_start(self) -> None:
        """Its records have all expired: they are removed, and the log begins where the partition does."""
        async with self._derived.changing():
            start = self.partition.start
            await self.log.begin_at(start)
            self._derived.truncate(0)
        logger.info("%s: its records had all expired; it begins at offset %d now", self.name, start)

    def resign(self) -> None:
        """Give up the role: nothing is stored, acked or fetched under it any more."""
        try:
            self.roles.resign()
        except AssertionError as error:
            self.assertion_failed(error)

    def stopped_leading(self) -> None:
        self.group_members.end(self.name)
        self.log.waiters.wake()  # readers that wait for what is not committed may wait in vain from now on

    @contextmanager
    def subscribed(self) -> Iterator[None]:
        self.subscribers += 1
        try:
            yield
        finally:
            self.subscribers -= 1

    @property
    def has_role(self) -> bool:
        return self.leading is not None or self.following is not None

    @property
    def has_failed(self) -> bool:
        return self.roles.role is Role.FAILED

    def assertion_failed(self, error: AssertionError) -> None:
        """An assertion failed: this replica has no role until the broker restarts."""
        self.roles.assertion_failed(error)

    async def close(self) -> None:
        await self._end()
        await self._derived.close()
        await self.log.close()

    async def pause(self) -> LogSummary:
        """Its log is closed, synced, and no file stays open. Readers are told that it is paused. What is told about it
        from now on."""
        self.paused = True
        self.recall_received()
        before = self.summary
        await self.close()
        if self.log.failed is None:
            self.log.record.released()
        await self.environment.ports.disk.forget(self.log.folder)
        committed_end = min(self.log.committed_end, self.log.end)  # also if it had no role since the broker started
        return self.summary._replace(hw_end=max(before.hw_end, committed_end), verified=before.verified)

    def on_stream_deleted(self) -> None:
        """From now on nothing is stored or acked for it, also if the disk fails. Messages that
        were stored after the last contact with the controller go to quarantine."""
        if self.leading is not None and self.environment.lease.overdue:
            self._quarantine_from = self.leading.taken_since_contact
        self.roles.end()

    async def quarantine_last(self) -> None:
        """When its stream is deleted, the last messages that an earlier boot stored go to quarantine, too. The last
        contact of that boot with the controller is not on record; it was at most a lease before its last record."""
        log = self.log
        if log.end > log.start:
            self._quarantine_from = await log.end_before(log.last_timestamp - int(LEASE_S * NS))

    async def delete(self) -> None:
        """Raises OSError and LogError: then its files stay, but the replica has ended."""
        await self._end()
        try:
            await self._quarantine_end()
            await self.log.delete()
        finally:
            self.log.waiters.end("deleted")

    async def _quarantine_end(self) -> None:
        quarantine_from = self._quarantine_from
        if quarantine_from is not None and quarantine_from < self.log.end:
            logger.warning(
                "%s is deleted; offsets %d to %d may have been stored after the deletion, while this broker had no "
                "contact with the controller: they are moved to quarantine/",
                self.name,
                quarantine_from,
                self.log.end - 1,
            )
            await self.log.truncate(quarantine_from, exposed_too=True)

    async def _end(self) -> None:
        self.roles.end()
        tasks = dict(self._tasks)
        for task, to_its_end in tasks.items():
            if not to_its_end:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # a task that replaces a file finishes that first

    # --- its state -------------------------------------------------------------------------------------------

    @property
    def hw_end(self) -> int:
        """The high watermark as this broker knows it."""
        role = self.leading or self.following
        return max(self.log.visible_end, role.hw_end if role else 0)

    @property
    def tail(self) -> Tail:
        """What this boot found at the end of the log."""
        return self.verification.tail

    @property
    def certain(self) -> bool:
        """The log has everything that it promised."""
        return self.verification.certain

    def mark_suspect(self) -> None:
        """Nothing is known about the end of its log."""
        self.verification.mark_suspect()

    @property
    def unhealed(self) -> list[Segment]:
        return self.repair.unhealed

    def follows(self, role: Following) -> bool:
        return self.following is role

    @property
    def certain_end(self) -> int:
        """Everything below is committed: no leader may ask us to truncate it. 0 after an unclean election since our
        last record: the new leader may lack any of it."""
        return 0 if self._given_up else self.log.visible_end

    @property
    def _given_up(self) -> bool:
        return self.partition.unclean_epoch > self.epochs.last_epoch

    @property
    def refusal(self) -> str | None:
        """Why this partition takes no writes now, although this broker is its leader."""
        if self.roles.role is Role.FAILED and self.partition.leader == self.environment.settings.broker_id:
            return (
                f"{self.name} takes no writes on {self.environment.settings.broker_id}: an assertion failed there "
                f"({self.roles.failure}); restart that broker"
            )
        if self.leading is None:
            return None
        if self.log.failed is not None:
            return str(self.log.failed)
        if self.leading.refuses:
            return f"{self.name} waits for a new leader: its log failed, and followers may have what it lost; try again"
        return NO_CONTACT if self.environment.lease.over() else None

    async def established(self, timeout_s: float) -> None:
        """Returns when this leader may report its high watermark: everything it had when it became leader is committed.
        Raises Unavailable if that takes longer: the high watermark must not be lower than clients have seen."""
        if self.leading is None or self.leading.established:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.roles.established.wait()
        except TimeoutError:
            others = ", ".join(each for each in self.partition.replicas if each not in self.partition.isr)
            raise Unavailable(
                f"{self.name} has a new leader, and too few replicas are in sync to know its high watermark; "
                f"in sync now: {', '.join(self.partition.isr)}"
                + (f". Start {others}, or wait until more have caught up" if others else "; try again")
            ) from None

    def received(self, now: int) -> None:
        self.first_received = self.first_received or now
        self.latest_received = now

    def recall_received(self) -> None:
        """When messages came before this replica led: the log knows it also of the first one that expired, and of the
        last."""
        segments = self.log.segments
        self.first_received = self.first_received or segments.stored.first_timestamp or segments.first_timestamp
        self.latest_received = max(self.latest_received, self.log.last_timestamp)

    @property
    def summary(self) -> LogSummary:
        segments = self.log.segments
        return LogSummary(
            hw_end=self.hw_end,
            end=self.log.end,
            last_epoch=self.epochs.last_epoch,
            start=segments.start,
            first_timestamp=segments.first_timestamp,
            last_timestamp=segments.last_record.last_timestamp,
            first_received=self.first_received,
            latest_received=self.latest_received,
            bases=tuple(each.base for each in segments),
            sizes=tuple(each.appended.size for each in segments),
            verified=self.verification.verified,
        )

    @property
    def others_in_sync(self) -> bool:
        """Another replica has everything that was promised here."""
        return any(each != self.environment.settings.broker_id for each in self.partition.isr)

    # --- the log ---------------------------------------------------------------------------------------------

    @property
    def replicated(self) -> bool:
        """Other brokers have replicas too."""
        return len(self.partition.replicas) > 1

    async def _on_damage(self, segment: Segment, wait: bool) -> Healing:
        # Reads while the log is being opened do not wait for other replicas.
        return await self.repair.on_damage(segment, wait) if self._is_open else Healing.LOST

    def on_promised(self, end: int) -> None:
        try:
            self._promised(end)
        except AssertionError as error:
            self.assertion_failed(error)

    def _promised(self, end: int) -> None:
        role = self.leading or self.following
        if role is not None:
            role.promised(end)
        self._derived.promised(end)

    def begin_truncation(self, work: Coroutine[object, object, None]) -> None:
        self.roles.begin_truncation(work)

    async def truncate(self, end: int) -> None:
        async with self._derived.changing():
            wanted = min(end, self.log.end)
            if self._given_up and wanted < self.log.end and self.log.segments.is_compacted_below(wanted):
                logger.warning(
                    "%s: its log is compacted, and the loss of its last records was accepted: it begins anew, and all "
                    "%d offsets from its start on go into quarantine/",
                    self.name,
                    self.log.end - self.log.start,
                )
                await self._begin_anew()
                return
            await self.log.truncate(end, exposed_too=self._given_up)
            if self.log.end < wanted:  # damaged records were removed too, and may have been promised
                self.verification.withdraw()
                self.verification.mark_suspect()
            self._derived.truncate(self.log.end)

    async def begin_anew(self) -> None:
        async with self._derived.changing():
            await self._begin_anew()

    async def _begin_anew(self) -> None:
        """The leader may have records which compaction removed here, as what is to be truncated supersedes them; or
        this log may have some whose tombstones are gone there. All of it is fetched again."""
        await self.log.begin_anew()
        self.verification.withdraw()
        self.verification.mark_suspect()
        self._derived.truncate(0)

    @property
    def begins_anew(self) -> bool:
        """Its log had begun to, and is not done."""
        return self.log.begins_anew

    def log_failed(self, error: LogError) -> None:
        """The log cannot be written: inform the role, and try to reopen the log from time to time."""
        try:
            self._tell_log_failed(error)
        except AssertionError as failed:
            self.assertion_failed(failed)

    def _tell_log_failed(self, error: LogError) -> None:
        logger.error("%s takes no writes: %s", self.name, error)
        self._derived.truncate(self.log.end)
        role = self.leading or self.following
        if role is not None:
            role.log_failed()
        self._broker.writable_changed(self.stream.name, self.partition.id)
        if self.roles.role not in (Role.FAILED, Role.ENDED):
            self.reopening.begin()

    def spawn(self, work: Coroutine[object, object, None], to_its_end: bool = False) -> asyncio.Task[None]:
        """Work that ends with this replica, or that the end of this replica waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = to_its_end
        task.add_done_callback(self._work_ended)
        return task

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, AssertionError):
            self.assertion_failed(error)
        elif error is not None:
            self.environment.jobs.note_failure(f"work for {self.name}", error, "it is not tried again")
