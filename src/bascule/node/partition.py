"""One partition on this broker: joins the leader machine to its log, its NATS subscription and its ack inboxes.

Everything here runs per batch, in the event loop's thread, in this order: NATS delivers a batch -> the machine decides
-> the log takes the records -> (the group commit syncs them) -> the log promises -> the machine pays acks and exposes
the records to readers.
"""

import asyncio
import logging

from bascule.core.metadata.streams import Partition, Stream
from bascule.core.partition.insync import InSync
from bascule.core.partition.leader import (
    Append,
    Arrived,
    DropAcks,
    Effect,
    Expose,
    Failed,
    Identity,
    Leader,
    Promised,
    Reopened,
    SendAcks,
    SetReadonly,
)
from bascule.errors import BusUnavailable, LogError
from bascule.log.commitlog import CommitLog
from bascule.node.environment import RESERVED_STREAMS, Environment
from bascule.node.groups import GroupMembers
from bascule.ports import Subscription
from bascule.wire.kernels import encode_acks
from bascule.wire.record import ack_prefix, origin
from bascule.wire.subjects import partition_subject, quote_name

logger = logging.getLogger(__name__)

REOPEN_FIRST_S = 1.0
REOPEN_MAX_S = 30.0


def stream_folder(stream: Stream) -> str:
    return f"streams/{quote_name(stream.name)}@{stream.creation_index}"


class PartitionDriver:
    """Leads one partition of one stream."""

    def __init__(self, environment: Environment, stream: Stream, partition: Partition, log: CommitLog) -> None:
        self.stream = stream
        self.partition = partition
        self.log = log
        self.group_members = GroupMembers()
        self.first_received = 0
        self.latest_received = 0
        self._environment = environment
        self._subject = partition_subject(stream.subject, partition.id).encode()
        self._ack_prefix = ack_prefix(stream.name, stream.subject)
        self._subscription: Subscription | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._name = f"{stream.name}/{partition.id}"
        self._leader = self._make_leader()

    @classmethod
    async def open(cls, environment: Environment, stream: Stream, partition: Partition) -> "PartitionDriver":
        driver: PartitionDriver | None = None

        def on_promised(end: int) -> None:
            if driver is not None:
                driver._on_promised(end)

        def on_failed(error: LogError) -> None:
            if driver is not None:
                driver._on_failed(error)

        log = await CommitLog.open(
            environment.disk,
            environment.scheduler,
            f"{stream_folder(stream)}/{partition.id}",
            environment.defaults.log_config(stream.config),
            environment.clock,
            on_promised,
            on_failed,
        )
        driver = cls(environment, stream, partition, log)
        return driver

    def _make_leader(self) -> Leader:
        environment, stream, partition = self._environment, self.stream, self.partition
        identity = Identity(
            origin=origin(stream.name, partition.id),
            subject=self._subject,
            epoch=partition.leader_epoch,
            max_message_bytes=environment.defaults.max_message_bytes,
            optimistic_concurrency=environment.defaults.optimistic_concurrency_of(stream.config),
            refused_prefix=b"" if stream.name in RESERVED_STREAMS else environment.cluster_prefix,
        )
        min_isr = environment.defaults.min_isr_of(stream.config)
        in_sync = InSync(environment.broker_id, partition.replicas, partition.isr, min_isr, hw_end=0)
        leader = Leader(identity, in_sync, self.log.end, self.log.last_timestamp)
        leader.step(SetReadonly(partition.readonly))
        return leader

    # --- life -------------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Recommit what the log kept, then take messages. The caller flushes the bus to know NATS agreed."""
        if self._leader.in_sync.below_min_isr:
            logger.error("%s is below its minimal in-sync set: nothing is committed until it has grown", self._name)
        self._on_promised(self.log.promised_end)
        self._subscription = self._environment.streams_bus.subscribe(
            self._subject, self._on_batch, self.stream.group.encode()
        )

    def stop_listening(self) -> None:
        if self._subscription is not None:
            self._subscription.unsubscribe()
            self._subscription = None

    def change(self, stream: Stream, partition: Partition) -> None:
        """The metadata changed around us; the leader stays."""
        self.stream, self.partition = stream, partition
        self._leader.step(SetReadonly(partition.readonly))

    async def close(self) -> None:
        self._end()
        await self.log.close()

    async def delete(self) -> None:
        self._end()
        await self.log.delete()

    def _end(self) -> None:
        self.stop_listening()
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None

    # --- what others ask ------------------------------------------------------------------------------------------

    @property
    def hw_end(self) -> int:
        return self._leader.in_sync.hw_end

    @property
    def refusal(self) -> str | None:
        """Why this partition takes no writes right now."""
        return str(self.log.failed) if self.log.failed else None

    # --- events to effects ----------------------------------------------------------------------------------------

    def _on_batch(self, batch: bytes, count: int) -> None:
        now = self._environment.clock.time_ns()
        if self._leader.readonly:
            logger.warning("%s is readonly: dropped %d messages that came by NATS", self._name, count)
        else:
            self.first_received = self.first_received or now
            self.latest_received = now
        self._execute(self._leader.step(Arrived(batch, now)))

    def _on_promised(self, end: int) -> None:
        self._execute(self._leader.step(Promised(end)))

    def _execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Append(records, count, next_offset, last_timestamp):
                    try:
                        self.log.append(records, count, next_offset, last_timestamp)
                    except LogError as error:
                        self._on_failed(error)
                case SendAcks(owed):
                    self._send_acks(owed)
                case Expose(hw_end):
                    self.log.set_visible_end(hw_end)
                case DropAcks(nbytes):
                    logger.error("%s: too many acks wait; %d bytes of them will never be sent", self._name, nbytes)

    def _send_acks(self, owed: bytes) -> None:
        environment = self._environment
        bus = environment.publishes_bus
        commands, local = encode_acks(
            owed,
            self._ack_prefix,
            self._subject,
            environment.clock.time_ns(),
            environment.inboxes.prefix,
            bus.max_payload,
        )
        if commands:
            try:
                bus.send(commands)
            except BusUnavailable as error:
                logger.warning("%s: acks of stored messages could not be sent: %s", self._name, error)
        for token, frames, count in local:
            environment.inboxes.deliver(token, frames, count)

    # --- a log that cannot be written -------------------------------------------------------------------------------

    def _on_failed(self, error: LogError) -> None:
        if self._leader.failed:
            return
        logger.error("%s takes no writes: %s", self._name, error)
        self._execute(self._leader.step(Failed(self.log.promised_end)))
        self._environment.on_writable(self.stream.name, self.partition.id)
        if self._reopening is None:
            self._reopening = asyncio.get_running_loop().create_task(self._reopen())

    async def _reopen(self) -> None:
        delay_s = REOPEN_FIRST_S
        while True:
            await asyncio.sleep(delay_s)
            try:
                await self.log.reopen()
                break
            except (LogError, OSError) as error:
                logger.debug("%s still takes no writes: %s", self._name, error)
            delay_s = min(REOPEN_MAX_S, delay_s * 2)
        self._reopening = None
        self._execute(self._leader.step(Reopened(self.log.end, self.log.last_timestamp)))
        self._environment.on_writable(self.stream.name, self.partition.id)
        logger.warning("%s takes writes again, from offset %d on", self._name, self.log.end)
