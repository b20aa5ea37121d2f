"""A partition this broker leads: joins the leader machine to the log, the NATS subscription, the acks and the replicas.

Everything here runs per batch, in the event loop's thread, in this order: NATS delivers a batch -> the machine
decides -> the log takes the records -> followers are fed -> (the group commit syncs them) -> the log promises -> the
machine sends acks and exposes the records to readers.

An assertion that fails here, in the machine or in what carries out its effects, ends this role.
"""

import asyncio
import logging
from typing import Protocol

from bascule.core.metadata.streams import RESERVED_STREAMS
from bascule.core.partition.epochs import EpochHistory
from bascule.core.partition.insync import InSync
from bascule.core.partition.leader import (
    Append,
    AskExpand,
    AskShrink,
    DropAcks,
    Effect,
    Event,
    Expose,
    Failed,
    Identity,
    IsrChanged,
    Leader,
    Producer,
    Refuse,
    Reopened,
    Replicate,
    SendAcks,
    SetBeingRemoved,
    SetReadonly,
    Tick,
    Written,
)
from bascule.core.partition.pendingacks import PendingAcks
from bascule.errors import AckError, BusUnavailable, LogError, Unavailable
from bascule.node.partition.environment import Environment
from bascule.node.partition.ports import PartitionBroker, PartitionReplica
from bascule.node.replication.reads import records_end
from bascule.node.runtime.countedlog import CountedLog
from bascule.ports import Subscription
from bascule.wire.kernels import ProducerTable, encode_acks
from bascule.wire.nats import NatsMessage, messages, pack
from bascule.wire.pendingacks import with_error
from bascule.wire.record import ack_prefix, origin
from bascule.wire.subjects import partition_subject

logger = logging.getLogger(__name__)

COUNTED_ONE_BY_ONE = 64
"""Messages of a batch at most that are looked at in Python to count what was not stored."""


class LeadingReplica(PartitionReplica, Protocol):
    @property
    def producers(self) -> ProducerTable:
        """What its log has of idempotent producers."""

    def received(self, now: int) -> None:
        """Messages arrived at this time."""

    def recall_received(self) -> None:
        """The log says when messages came before."""

    @property
    def only_replicates(self) -> bool:
        """Its partition is paused, and open for replication: it takes no messages."""


class Leading:
    def __init__(
        self,
        environment: Environment,
        broker: PartitionBroker,
        replica: LeadingReplica,
        established: asyncio.Event,
    ) -> None:
        """`established` is set when what the log had at the beginning of this role is committed."""
        self._replica = replica
        self._log = replica.log
        self._environment = environment
        self._broker = broker
        self._feeds = broker.feeds
        self._name = replica.name
        self._established = established
        self._subject = partition_subject(replica.stream.subject, replica.partition.id).encode()
        self._stream = replica.stream.name.encode()
        self._ack_prefix = ack_prefix(replica.stream.name, replica.stream.subject)
        self._subscription: Subscription | None = None
        self._closed = False
        self.unanswered: dict[asyncio.Future[bytes], None] = {}
        """Acks that somebody on this broker waits for, of its own messages and of bulk writes: they fail when this role
        ends."""
        self._machine = self._make_machine()
        self._known_epoch = replica.partition.epoch
        complete = len(replica.partition.isr) == len(replica.partition.replicas)
        self._logged_isr = replica.partition.isr if complete else ()
        self._lagging: set[str] = set()
        self._too_large = CountedLog(logger, environment.refused, "too_large")
        self._readonly = CountedLog(logger, environment.refused, "readonly")
        self._lease = environment.lease
        self._noted = -1
        self._ends: list[tuple[int, int]] = []
        """By number of a request to the controller, the log end when the first batch arrived after it."""

    def _make_machine(self) -> Leader:
        environment, stream, partition = self._environment, self._replica.stream, self._replica.partition
        defaults = environment.settings.defaults
        identity = Identity(
            origin=origin(stream.name, partition.id),
            subject=self._subject,
            epoch=partition.leader_epoch,
            max_message_bytes=defaults.max_message_bytes,
            optimistic_concurrency=defaults.optimistic_concurrency_of(stream.config),
            refused_prefix=b"" if stream.name in RESERVED_STREAMS else environment.cluster_prefix,
            max_lag_ns=defaults.max_lag_ns,
            flatbuffers=defaults.flatbuffers_draft_of(stream.config),
        )
        in_sync = InSync(
            environment.settings.broker_id,
            partition.replicas,
            partition.isr,
            defaults.min_isr_of(stream.config),
            self._log.visible_end,
            self._log.end,
            partition.eligible,
        )
        in_sync.start_watching(environment.active_clock.monotonic_ns())
        pending, log = PendingAcks(self._name, environment.pending), self._log
        machine = Leader(
            identity, in_sync, log.end, log.last_timestamp, pending, log.committed_end, self._replica.producers
        )
        machine.step(SetReadonly(partition.readonly))
        machine.step(SetBeingRemoved(self._broker.being_removed))
        return machine

    # --- start and stop ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Commit again what the log has, then subscribe. The caller flushes the bus, so that NATS has our SUB."""
        self._replica.recall_received()
        self._feeds.began(self._replica)
        self.promised(self._log.promised_end)
        self.listen()

    def listen(self) -> None:
        if self._subscription is None and not self._closed and not self._replica.only_replicates:
            group = self._replica.stream.group.encode()
            self._subscription = self._environment.ports.streams.subscribe(self._subject, self._on_batch, group)

    def stop_listening(self) -> None:
        if self._subscription is not None:
            self._subscription.unsubscribe()
            self._subscription = None

    def close(self) -> None:
        """End the role: no message is taken, and pending acks are dropped."""
        self._closed = True
        self.stop_listening()
        self._machine.pending.close()
        for ack in list(self.unanswered):
            if not ack.done():
                ack.set_exception(
                    Unavailable(f"{self._name} is not led by this broker any more; the message may be stored or not")
                )

    # --- state and events ------------------------------------------------------------------------------------

    @property
    def hw_end(self) -> int:
        return self._machine.in_sync.hw_end

    @property
    def below_min_isr(self) -> bool:
        return self._machine.in_sync.below_min_isr

    @property
    def established(self) -> bool:
        return self._machine.established

    @property
    def refuses(self) -> bool:
        """Its log failed, and followers may have what it lost: no writes until there is a new leader or a new epoch."""
        return self._machine.failed

    @property
    def readonly(self) -> bool:
        return self._machine.readonly

    @property
    def epoch(self) -> int:
        return self._machine.identity.epoch

    @property
    def epochs(self) -> EpochHistory:
        return self._replica.epochs

    @property
    def log_start(self) -> int:
        return self._log.segments.floor

    @property
    def end(self) -> int:
        return self._log.end

    @property
    def records_end(self) -> int:
        return records_end(self._log)

    def step(self, event: Event) -> None:
        try:
            self._execute(self._machine.step(event))
        except AssertionError as error:
            self._replica.assertion_failed(error)

    def promised(self, end: int) -> None:
        try:
            self._execute(self._machine.promised(end))
        except AssertionError as error:
            self._replica.assertion_failed(error)

    def feeds(self, broker: str) -> bool:
        return broker in self._machine.in_sync.followers

    def fetched(self, replica: str, end: int, promised_end: int, now: int) -> None:
        """A follower has everything below `end`, and promises everything below `promised_end`."""
        try:
            self._execute(self._machine.fetched(replica, end, promised_end, now))
        except AssertionError as error:
            self._replica.assertion_failed(error)

    def watch(self, now: int) -> None:
        """Ask the controller to take followers that lag out of the ISR, or, if it is our own disk that holds them up,
        for another leader. Called once a second; mostly nothing is due."""
        if self._machine.in_sync.hangs(self._log.end, now, self._environment.settings.defaults.max_lag_ns):
            self._broker.hand_on(self._replica)
        if self._machine.in_sync.due(now):
            try:
                self._execute(self._machine.step(Tick(now, self._feeds.last_reports(self._replica.key, self.epoch))))
            except AssertionError as error:
                self._replica.assertion_failed(error)

    def log_failed(self) -> None:
        self._feeds.append_failed(self._replica)
        self.step(Failed(self._log.promised_end))

    def reopened(self) -> None:
        if self._machine.failed:
            self.step(Reopened(self._log.end, self._log.last_timestamp))

    def changed(self) -> None:
        """The metadata of this partition changed, and we still lead."""
        partition = self._replica.partition
        self.step(SetReadonly(partition.readonly))
        self.step(SetBeingRemoved(self._broker.being_removed))
        if partition.epoch == self._known_epoch:
            return
        self._known_epoch = partition.epoch
        now = self._environment.active_clock.monotonic_ns()
        self.step(IsrChanged(partition.isr, partition.replicas, now, partition.eligible))

    # --- what the lag watch logs, for all partitions together ------------------------------------------------

    def changed_isr(self) -> str:
        """Who is in sync and who is eligible, if the ISR is another than at the last call, or at the beginning of this
        role not all replicas are in sync; else nothing."""
        partition = self._replica.partition
        if partition.isr == self._logged_isr:
            return ""
        self._logged_isr = partition.isr
        eligible = f", eligible to lead: {', '.join(partition.eligible)}" if partition.eligible else ""
        return f"{self._name} has {', '.join(partition.isr)} of {', '.join(partition.replicas)}{eligible}"

    def asked_out(self) -> str:
        """The replicas that the controller was asked, since the last call, to take out of the ISR."""
        if not self._lagging:
            return ""
        names, self._lagging = sorted(self._lagging), set()
        return f"{', '.join(names)} of {self._name}"

    # --- events to effects --------------------------------------------------------------------------------------

    def take_own(self, payload: bytes) -> None:
        """A message of this broker itself, as if NATS had delivered it now."""
        if self._closed:
            raise leads_no_more(self._name)
        self._on_batch(pack(NatsMessage(self._subject, b"", payload)), 1)

    def expected(self, producer: Producer) -> int:
        """The sequence that a producer of bulk writes goes on with."""
        return self._machine.expected(producer, self._environment.ports.clock.time_ns())

    def offset_of(self, producer: Producer, sequence: int) -> int:
        """Of a message of such a producer that is in the log; -1 if that is not known any more."""
        return self._machine.offset_of(producer, sequence)

    def write(self, batch: Written) -> None:
        """A batch of a bulk write is stored, whole, and acked later; InvalidArgument says why it is not. The caller has
        found that this partition takes writes."""
        if self._closed:
            raise leads_no_more(self._name)
        try:
            now = self._begin_append()
            duplicates = self._replica.producers.duplicates
            effects = self._machine.written(batch, now)
            if duplicates := self._replica.producers.duplicates - duplicates:
                self._environment.duplicates.add(number=duplicates)
            self._execute(effects)
        except AssertionError as error:
            self._replica.assertion_failed(error)

    def _on_batch(self, batch: bytes, count: int) -> None:
        try:
            self._take(batch, count)
        except AssertionError as error:
            self._replica.assertion_failed(error)

    def _begin_append(self) -> int:
        """Messages have come, now."""
        now = self._environment.ports.clock.time_ns()
        if not self._machine.readonly:
            self._replica.received(now)
        if self._noted != self._lease.asked:
            self._note_end()
        self._feeds.prepare()  # before the append: records leave for the followers before the group commit begins
        return now

    def _take(self, batch: bytes, count: int) -> None:
        now = self._begin_append()
        duplicates = self._replica.producers.duplicates
        effects = self._machine.arrived(batch, now, not self._lease.over())
        refused = count - sum([effect.taken for effect in effects if isinstance(effect, Append)])
        if duplicates := self._replica.producers.duplicates - duplicates:
            self._environment.duplicates.add(number=duplicates)
            refused -= duplicates
        if refused:
            self._count_refused(batch, count, refused)
        self._execute(effects)

    def _count_refused(self, batch: bytes, count: int, refused: int) -> None:
        """Log and count messages that are not stored: a publisher without an ack inbox receives no error. What the
        brokers say to each other was not published to this stream, though it may listen there: it is told apart one by
        one, so in such a stream nothing is counted of a large batch."""
        if self._hears_cluster:
            if count > COUNTED_ONE_BY_ONE:
                return
            prefix = self._machine.identity.refused_prefix
            own = sum([message.subject.startswith(prefix) for message in messages(batch)])
            count, refused = count - own, refused - own
            if not refused:
                return
        if self._machine.readonly:
            self._readonly.count(
                f"{self._name} is readonly: messages that arrive over NATS are dropped, {count} now", count
            )
            return
        too_large = 0
        if len(batch) > self._machine.identity.max_message_bytes:
            too_large = self._count_too_large(batch)
        if refused > too_large:
            reason = "log_failed" if self._machine.failed else "no_lease" if self._lease.over() else "not_acceptable"
            self._environment.refused.add(reason, refused - too_large)

    @property
    def _hears_cluster(self) -> bool:
        """Whether this partition listens to subjects of the cluster itself, such as one on `>`."""
        return bool(self._machine.identity.refused_prefix) and self._subject[:2] in (b">", b"*.")

    def _count_too_large(self, batch: bytes) -> int:
        """Decodes each message, which is rare: only if some were not stored, and the batch is larger than one message
        may be."""
        identity = self._machine.identity
        most, own = identity.max_message_bytes, identity.refused_prefix
        sizes = [
            len(message.payload)
            for message in messages(batch)
            if len(message.payload) > most and not (own and message.subject.startswith(own))
        ]
        if sizes:
            total = self._too_large.total + len(sizes)
            self._too_large.count(
                f"{self._name}: {len(sizes)} messages over the limit not stored, the largest has {max(sizes)} bytes, "
                f"the most is {most} (clustering.replication.max.bytes). Publishers without an ack inbox receive no "
                f"error; {total} since this broker leads the partition",
                len(sizes),
            )
        return len(sizes)

    def _note_end(self) -> None:
        self._noted = self._lease.asked
        self._ends = [each for each in self._ends if each[0] >= self._lease.answered]
        self._ends.append((self._noted, self._log.end))

    @property
    def taken_since_contact(self) -> int | None:
        """The offset from which on all records were stored after the last request that the controller answered."""
        return next((end for number, end in self._ends if number >= self._lease.answered and end < self._log.end), None)

    def _execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self._closed:
                return  # nothing is stored, acked or exposed under a role that has ended
            match effect:
                case Append(records, count, next_offset, last_timestamp):
                    self._append(records, count, next_offset, last_timestamp)
                case Replicate(records, first_offset, next_offset):
                    if next_offset == self._log.end:  # else the log refused the append
                        self._feeds.appended(self._replica, records, first_offset, next_offset)
                case SendAcks(pending):
                    self._send_acks(pending)
                case Refuse():
                    self._broker.refuse(self._replica, effect)
                case Expose(hw_end):
                    assert hw_end <= self._log.promised_end, "a leader exposes only what its own log has promised"
                    self._log.set_visible_end(hw_end)
                    self._feeds.advanced(self._replica)
                    if self._machine.established:
                        self._established.set()
                case DropAcks(partition, nbytes):
                    logger.error(
                        "%s: acks that wait for its in-sync set or its disk exceed the bound of %d bytes for this "
                        "broker; %d bytes of them are dropped. The messages stay stored, but their publishers receive "
                        "no ack. See why it commits nothing (bascule stream info)",
                        partition,
                        self._environment.pending.most,
                        nbytes,
                    )
                case AskShrink(replica):
                    self._lagging.add(replica)
                    self._broker.ask_isr(self._replica, effect)
                case AskExpand():
                    self._broker.ask_isr(self._replica, effect)

    def _append(self, records: bytes, count: int, next_offset: int, last_timestamp: int) -> None:
        end = self._log.end  # the first record may be past it, if offsets were exposed that this log lacks
        try:
            self._log.append(records, count, next_offset, last_timestamp)
        except LogError:
            assert self._machine.failed, "a log that refuses an append has reported its failure"
            assert self._machine.end == self._log.end, "a leader's end is the end of its log"
            return
        assert self._machine.end == self._log.end == next_offset, "a leader's end is the end of its log"
        self._replica.appended(records, end, next_offset)

    def _send_acks(self, pending: bytes) -> None:
        environment = self._environment
        bus = environment.ports.publishes
        if self._lease.over():
            if self._machine.in_sync.followers:
                # Another replica may lead by now. It receives the same messages, and a publisher takes the first
                # answer: so there is none from here. The API of this broker says why it takes no writes.
                return
            # Stored here, but the stream may have been deleted.
            pending = with_error(pending, AckError.UNKNOWN)
        commands, local = encode_acks(
            pending,
            self._ack_prefix,
            self._subject,
            environment.ports.clock.time_ns(),
            environment.inboxes.prefix,
            bus.max_payload,
        )
        if commands:
            try:
                bus.send(commands)
            except BusUnavailable as error:
                logger.warning(
                    "%s: acks of stored messages could not be sent, their publishers time out: %s", self._name, error
                )
        for token, frames, count in local:
            environment.inboxes.deliver(token, self._stream, frames, count)


def leads_no_more(partition: str) -> Unavailable:
    return Unavailable(f"{partition} is not led by this broker any more; nothing was stored")
