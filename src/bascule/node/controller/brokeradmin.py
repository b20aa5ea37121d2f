"""Messages that one broker sends to another for an administrator: a request for the log ends of its replicas, a request
to stop, and the notice that it was removed. They use the subject `raft.metadata.admin.<broker>` of the cluster.
"""

import asyncio
import itertools
import logging
from collections.abc import Iterable

from bascule.core.metadata.streams import Partition, Stream
from bascule.errors import BasculeError, FailedPrecondition, PeerError, Status, by_status
from bascule.limits import ADMIN_NAMED_PARTITIONS
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import ORDER, POSITIONS
from bascule.node.config.broker import BrokerSettings
from bascule.node.membership.metadata import MetadataStore
from bascule.node.membership.raft import RaftDriver
from bascule.node.partition.cleaner import expired_end
from bascule.node.partition.replica import Replica
from bascule.node.partition.replicas import Replicas
from bascule.node.partition.summary import LogSummary
from bascule.node.runtime.ports import Process
from bascule.ports import Clock
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.subjects import usable_subject

logger = logging.getLogger(__name__)

ASK_S = 1.0
STOP_SOON_S = 0.1
"""Between the answer that it will stop and the stop: the answer has to be sent first."""


class BrokerAdmin:
    def __init__(
        self,
        own: str,
        incarnation: str,
        calls: Calls,
        raft: RaftDriver,
        store: MetadataStore,
        replicas: Replicas,
        settings: BrokerSettings,
        clock: Clock,
        process: Process,
    ) -> None:
        self._own = own
        self._incarnation = incarnation
        self._calls = calls
        self._subject = calls.subjects.administration
        self._raft = raft
        self._store = store
        self._replicas = replicas
        self._mode = settings.sync
        self._defaults = settings.defaults
        self._clock = clock
        self._process = process

    def listen(self) -> None:
        self._calls.subscribe(self._subject(self._own), self._on_batch)

    # --- asking ----------------------------------------------------------------------------------------------

    async def positions(
        self, broker: str, stream: str, partitions: Iterable[int], expired: bool = False
    ) -> pb.PositionsResponse | None:
        """The log ends of that broker's replicas of a stream, and where what has `expired` ends; None if it does not
        answer."""
        request = pb.PositionsRequest(stream=stream, partitions=partitions, expired=expired)
        if broker == self._own:
            return self._positions(request)
        return await self._calls.ask_once(self._subject(broker), POSITIONS, request, ASK_S)

    async def stop(self, broker: str) -> None:
        """Returns when the broker has answered that it will stop; raises its reason if it will not."""
        if broker == self._own:
            self._stop()
            return
        request = pb.PropagatedRequest(op=pb.STOP_BROKER)
        request.adminOp.broker = broker
        response = await self._calls.ask(self._subject(broker), ORDER, request, ASK_S)
        if response.HasField("error"):
            raise by_status(Status(response.error.code), response.error.msg)

    def tell_removed(self, broker: str, incarnation: str) -> None:
        request = pb.PropagatedRequest(op=pb.WAS_REMOVED)
        request.adminOp.broker, request.adminOp.incarnation = broker, incarnation
        self._calls.tell(self._subject(broker), ORDER.question, request)  # sent again after its next heartbeat

    # --- answering -------------------------------------------------------------------------------------------

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in self._calls.received(batch, POSITIONS.question, ORDER.question):
            with message as payload:
                if message.kind is POSITIONS.question:
                    question = POSITIONS.question.decode(payload)
                    self._calls.tell(message.reply, POSITIONS.answer, self._positions(question))
                else:
                    self._on_order(ORDER.question.decode(payload), message.reply)

    def _on_order(self, request: pb.PropagatedRequest, reply: bytes) -> None:
        if request.op == pb.WAS_REMOVED:
            self._was_removed(request.adminOp)
            return
        if request.op != pb.STOP_BROKER or not usable_subject(reply):
            raise PeerError(f"operation {request.op} is unknown, or has no valid reply subject")
        response = pb.PropagatedResponse(op=request.op)
        try:
            self._stop()
        except BasculeError as error:
            response.error.code, response.error.msg = error.status, str(error)
        self._calls.tell(reply, ORDER.answer, response)

    async def waiting(self, broker: str) -> dict[tuple[str, int], tuple[str, ...]]:
        """The partitions of which that broker is the leader but does not lead yet, each with the brokers that have to
        answer first."""
        answer = await self.positions(broker, "", ())
        positions = answer.positions if answer is not None else ()
        return {(each.stream, each.partition): tuple(each.waitsFor) for each in positions if each.waitsFor}

    def _positions(self, request: pb.PositionsRequest) -> pb.PositionsResponse:
        response = pb.PositionsResponse(sync=str(self._mode))
        if request.stream:
            self._add_positions(request, response)
        else:
            waiting = (replica for replica in self._replicas.values() if replica.repair.waits_for)
            asked = itertools.islice(waiting, ADMIN_NAMED_PARTITIONS)
            response.positions.extend(_position(each.stream, each.partition, each.summary, each) for each in asked)
        return response

    def _add_positions(self, request: pb.PositionsRequest, response: pb.PositionsResponse) -> None:
        stream = self._store.metadata.stream(request.stream)
        for number in request.partitions if stream is not None else ():
            assert stream is not None, "its partitions are asked for"
            item, summary = stream.partition(number), self._replicas.summary(stream, number)
            if item is None or summary is None:
                continue
            replica = self._replicas.find(request.stream, number)
            position = _position(stream, item, summary, replica)
            if replica is not None and position.leads and request.expired:
                position.expiredEnd = expired_end(replica, self._defaults, self._clock.time_ns(), rolled=True)
            response.positions.append(position)

    def _stop(self) -> None:
        own = self._own
        if own not in self._store.metadata.brokers.draining:
            raise FailedPrecondition(f"{own} is not draining: drain it first, then stop it")
        on_stop = self._process.on_stop
        if on_stop is None:
            raise FailedPrecondition(f"{own} cannot be stopped from here: stop its process")
        logger.warning("stopping: an administrator drained this broker and asked it to stop")
        asyncio.get_running_loop().call_later(STOP_SOON_S, on_stop)

    def _was_removed(self, op: pb.AdminOp) -> None:
        """Ignored while this broker has a Raft leader, for then it is a member: a false message must not end a broker.
        The notice is repeated until the broker ends."""
        own = (self._own, self._incarnation)
        if (op.broker, op.incarnation) == own and not self._raft.raft.leader:
            self._process.on_fatal(
                f"broker {own[0]} was removed from the cluster by an administrator: its replicas are on other brokers. "
                "To have it back as a new member, empty its data folder and start it without --raft-bootstrap-seed"
            )


def _position(stream: Stream, item: Partition, known: LogSummary, replica: Replica | None) -> pb.PartitionPosition:
    """Without `replica` the partition is paused, and this is how its log was closed. One that ends before the partition
    begins serves nothing below that all the same."""
    leading = None if replica is None else replica.leading
    return pb.PartitionPosition(
        stream=stream.name,
        partition=item.id,
        end=known.end,
        hwEnd=known.hw_end,
        lastEpoch=known.last_epoch,
        leads=leading is not None,
        leaderEpoch=0 if leading is None else leading.epoch,
        established=leading is not None and leading.established,
        readonly=leading is not None and leading.readonly,
        waitsFor=() if replica is None else replica.repair.waits_for,
        start=known.start if known.end >= item.start else item.start,
        bytes=known.bytes_from(0),
        segments=len(known.bases),
        firstTimestamp=known.first_timestamp,
        lastTimestamp=known.last_timestamp,
        heldBytes=[known.bytes_from(hold.offset) for hold in item.holds],
    )
