"""`bascule.v1.Log/Write`: batches of messages that the leader of a partition stores without the way through NATS.

A call is one `_Session`. Its batches are stored in order, each whole, with one ack. Its acks come as those of
PublishAsync do, to an inbox of this broker, one for each batch: the leader's machine does not tell them apart, so that
the same rules hold (synced, committed, a lease, a leader that is replaced). The first batch that is not stored ends the
call, so that what a call stores has no gaps.

NATS delivers a message to everybody who listens on its subject, and this way goes past them. So a partition is refused
whose messages others take as well: another stream with an overlapping subject, or a load-balance group. That is checked
when the call begins, and for streams that are created later before each batch; by what this broker knows.

Bounds: batches of a call that are not acked, in bytes and in number; and what waits for the disk, over the whole
broker. Above them the call is not read, and the client's window closes.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from bascule.core.metadata.streams import Stream
from bascule.core.partition.leader import Producer, Written
from bascule.errors import (
    BasculeError,
    Cancelled,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
    UnknownOutcome,
)
from bascule.limits import (
    BULK_WRITE_MESSAGES,
    BULK_WRITE_UNACKED,
    BULK_WRITE_UNACKED_BYTES,
    BULK_WRITES,
    OVERLAP_SLICE,
    SUBSCRIBER_BUFFER_BYTES,
)
from bascule.node.api.gate import Gate, about_stream
from bascule.node.api.leadership import Resume, resume_here
from bascule.node.api.places import Place, Places
from bascule.node.partition.environment import Environment
from bascule.node.partition.leading import Leading, leads_no_more
from bascule.node.partition.manager import ReplicaManager
from bascule.node.partition.replica import Replica
from bascule.node.partition.replicas import Replicas
from bascule.node.partition.routes import suffix_of
from bascule.node.partition.sender import COULD_NOT_STORE, is_readonly, not_resumed, takes_no_writes
from bascule.ports import Call
from bascule.wire.grpc import frame
from bascule.wire.kernels import split_messages
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as pb
from bascule.wire.subjects import partition_subject

MAX_SEQUENCE = (1 << 63) - 1


class BulkWrites:
    def __init__(
        self, gate: Gate, environment: Environment, replicas: Replicas, manager: ReplicaManager, resume: Resume
    ) -> None:
        self._gate = gate
        self._environment = environment
        self._replicas = replicas
        self._manager = manager
        self._resume = resume
        self._places = Places("bulk write", "try again later, or publish")

    async def write(self, call: Call) -> None:
        request = await _next_request(call)
        if request is None or request.WhichOneof("request") != "open":
            raise InvalidArgument("the first request of a Write opens it: it says which partition the batches are for")
        opening = request.open
        self._gate.admit("Write", about_stream(opening.stream), request, call)
        with self._places.take(BULK_WRITES) as place:
            replica, leading = await self._leader(opening, call)
            others = OtherListeners(self._replicas, replica)
            if not opening.bypassOthers:
                await others.check_all()
            session = _Session(self._environment, self._replicas, replica, leading, opening, others, call, place)
            await session.run()

    async def _leader(self, opening: pb.WriteOpen, call: Call) -> tuple[Replica, Leading]:
        stream, partition, replicas = opening.stream, opening.partition, self._replicas
        if not replicas.exists(stream, partition):
            raise NotFound("No such partition")
        if replicas.is_paused(stream, partition) and replicas.is_assigned_here(stream, partition, as_follower=False):
            try:
                await resume_here(self._manager, self._resume, stream, partition, call.time_remaining())
            except BasculeError as error:
                raise not_resumed(error) from error
        replica = replicas.find(stream, partition)
        if replica is None or (leading := replica.leading) is None:
            raise FailedPrecondition("Server not partition leader")
        if opening.creation and opening.creation != replica.stream.creation_index:
            raise FailedPrecondition(
                f"Stream {stream} was deleted and made again: its number is {replica.stream.creation_index}, "
                f"and {opening.creation} was asked for"
            )
        return replica, leading


class OtherListeners:
    """Who would miss messages that do not go through NATS."""

    def __init__(self, replicas: Replicas, replica: Replica) -> None:
        self._replicas = replicas
        self._stream = replica.stream
        self._subject = partition_subject(replica.stream.subject, replica.partition.id)
        self._checked = self._stream.creation_index
        """Streams with a higher creation index are not checked yet."""
        self._index = -1

    async def check_all(self) -> None:
        """In slices. Raises FailedPrecondition."""
        if self._stream.group:
            raise FailedPrecondition(
                f"stream {self._stream.name} has the group {self._stream.group}: each message goes to one member, "
                "and a bulk write does not go through NATS. Publish them, or set bypassOthers: the others miss them"
            )
        streams = list(self._replicas.streams())
        for number, stream in enumerate(streams, 1):
            self._check(stream)
            if number % OVERLAP_SLICE == 0:
                await asyncio.sleep(0)
        self._checked = max(stream.creation_index for stream in (*streams, self._stream))
        self.check_new()

    def check_new(self) -> None:
        """Streams that were created since. Raises FailedPrecondition."""
        if self._replicas.metadata_index == self._index:
            return
        self._index = self._replicas.metadata_index
        new = [stream for stream in self._replicas.streams() if stream.creation_index > self._checked]
        for stream in new:
            self._check(stream)
        self._checked = max((stream.creation_index for stream in new), default=self._checked)

    def _check(self, stream: Stream) -> None:
        if stream.creation_index != self._stream.creation_index and stream.listens_on(self._subject):
            raise FailedPrecondition(
                f"stream {stream.name} takes messages of {self._subject}, too; a bulk write does not go through NATS. "
                f"Publish them, or set bypassOthers: {stream.name} misses them"
            )


class _Unacked(NamedTuple):
    """A batch that is in the log."""

    messages: int
    nbytes: int
    duplicates: int = 0
    """How many of its messages were there before."""
    offsets: tuple[int, int] = (0, 0)
    """Of the first and the last one, if all were there before and it is known still where."""


class _Session:
    """One call, from its opening on."""

    def __init__(
        self,
        environment: Environment,
        replicas: Replicas,
        replica: Replica,
        leading: Leading,
        opening: pb.WriteOpen,
        others: OtherListeners,
        call: Call,
        place: Place,
    ) -> None:
        self._environment = environment
        self._replicas = replicas
        self._replica = replica
        self._leading = leading
        self._opening = opening
        self._others = others
        self._call = call
        self._place = place
        self._number = 0
        """Of the last batch, from 1 on."""
        self._unacked: dict[int, _Unacked] = {}
        self._unacked_bytes = 0
        self._changed = asyncio.Event()
        self._over: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """Done when the call is over; it has the error that ends it."""
        self._inbox = b""
        producer = opening.producer
        self._producer = Producer(producer.id, producer.epoch) if opening.HasField("producer") else None

    async def run(self) -> None:
        inboxes, leading = self._environment.inboxes, self._leading
        opened = pb.WriteResponse()
        if self._producer is not None:
            opened = pb.WriteResponse(numbered=True, nextSequence=leading.expected(self._producer))
        self._inbox = inboxes.open(self._on_acks, unary=False)
        leading.unanswered[self._over] = None
        reading = asyncio.get_running_loop().create_task(self._read())
        reading.add_done_callback(self._reading_ended)
        try:
            self._respond(opened)
            await self._over
        except Unavailable:
            self._check_exists()
            raise
        finally:
            reading.cancel()
            leading.unanswered.pop(self._over, None)
            if not self._over.cancelled() and self._over.done():
                self._over.exception()  # the client may be gone by now
            inboxes.close(self._inbox, unanswered=bool(self._unacked))

    def _check_exists(self) -> None:
        if self._replicas.partition(self._replica) is None:
            raise NotFound(
                f"No such partition: stream {self._opening.stream} was deleted; batches without an ack are not stored, "
                "or were deleted with it"
            ) from None

    # --- batches ---------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            self._number += 1
            while (request := await self._place.waiting(_next_request(self._call))) is not None:
                await self._room()
                self._store(request)
                self._number += 1
            await self._until(lambda: not self._unacked)
            self._end(None)
        except Cancelled as error:
            self._end(error)
        except BasculeError as error:
            await self._refuse(error)

    def _reading_ended(self, reading: "asyncio.Task[None]") -> None:
        error = None if reading.cancelled() else reading.exception()
        if error is not None and not self._over.done():
            self._over.set_exception(error)

    async def _room(self) -> None:
        """Returns when one more batch may be stored."""
        call = self._call
        if call.queued_bytes > SUBSCRIBER_BUFFER_BYTES:
            await self._place.waiting(call.drained())
        await self._until(
            lambda: self._unacked_bytes <= BULK_WRITE_UNACKED_BYTES and len(self._unacked) < BULK_WRITE_UNACKED
        )
        await self._environment.scheduler.room()  # the last wait before the append

    def _store(self, request: pb.WriteRequest) -> None:
        if request.WhichOneof("request") != "batch":
            raise InvalidArgument("every request of a Write after the first one is a batch")
        batch = request.batch
        if not 0 < batch.count <= BULK_WRITE_MESSAGES:
            raise InvalidArgument(f"a batch has 1 to {BULK_WRITE_MESSAGES} messages, and this one says {batch.count}")
        if batch.producer and not batch.atomic:
            raise InvalidArgument("a batch of a producer is atomic: else a part of it may be stored, and be sent again")
        too_high = batch.sequence + batch.count > MAX_SEQUENCE
        if self._producer is not None and (batch.atomic or batch.producer or too_high):
            raise InvalidArgument(f"a batch with numbers is not atomic, and its numbers are below {MAX_SEQUENCE}")
        self._check_takes_writes()
        to_all = self._opening.ackPolicy != pb.WriteOpen.LEADER
        inbox = self._inbox + suffix_of(self._replica.stream)
        messages = batch.messages
        self._unacked[self._number] = self._known_of(batch)
        self._place.acks_due = True
        self._unacked_bytes += len(messages)
        try:
            self._leading.write(
                Written(
                    messages,
                    batch.count,
                    inbox,
                    b"%d" % self._number,
                    to_all,
                    batch.atomic,
                    batch.producer,
                    self._producer,
                    batch.sequence,
                )
            )
        except BasculeError:
            self._forget(self._number)
            raise

    def _known_of(self, batch: pb.WriteBatch) -> _Unacked:
        """With what the log has of it before it is stored."""
        producer, leading, first = self._producer, self._leading, batch.sequence
        if producer is None:
            return _Unacked(batch.count, len(batch.messages))
        duplicates = min(max(leading.expected(producer) - first, 0), batch.count)
        if duplicates:
            self._environment.duplicates.add(number=duplicates)
        if duplicates < batch.count:
            return _Unacked(batch.count, len(batch.messages), duplicates)
        offsets = [leading.offset_of(producer, each) for each in (first, first + batch.count - 1)]
        return _Unacked(batch.count, len(batch.messages), duplicates, (max(offsets[0], 0), max(offsets[1], 0)))

    def _check_takes_writes(self) -> None:
        replica, partition = self._replica, self._replicas.partition(self._replica)
        if partition is None or self._over.done():
            raise leads_no_more(replica.name)
        if partition.readonly or self._leading.readonly:
            raise is_readonly(partition.id)
        if (reason := replica.refusal) is not None:
            raise takes_no_writes(partition.id, reason)
        if not self._opening.bypassOthers:
            self._others.check_new()

    async def _refuse(self, error: BasculeError) -> None:
        """The batch is not stored; what was stored before it gets its acks first."""
        self._environment.refused.add(error.status.name.lower())
        await self._until(lambda: not self._unacked)
        if not self._over.done():
            self._respond(_failed(self._number, error, may_be_stored=False))
            self._end(error)

    # --- acks ------------------------------------------------------------------------------------------------

    def _on_acks(self, frames: bytes, count: int) -> None:
        if self._over.done():
            return
        for _, message in split_messages(frames, 0, len(frames), len(frames))[1]:
            response = api.PublishResponse.FromString(message)
            number = int(response.correlationId)
            batch = self._forget(number)
            if batch is None:
                continue
            if response.HasField("asyncError"):
                reason = self._replica.refusal or COULD_NOT_STORE
                error = UnknownOutcome(
                    f"unknown error: the batch may be stored or not, read before you send it: {reason}"
                )
                self._respond(_failed(number, error, may_be_stored=True))
                self._end(error)
                return
            last, new = response.ack.offset, batch.messages - batch.duplicates
            self._respond(
                pb.WriteResponse(
                    batch=number,
                    firstOffset=last - new + 1 if new else batch.offsets[0],
                    lastOffset=last if new else batch.offsets[1],
                    duplicates=batch.duplicates,
                )
            )
        self._changed.set()

    def _forget(self, number: int) -> _Unacked | None:
        batch = self._unacked.pop(number, None)
        if batch is not None:
            self._unacked_bytes -= batch.nbytes
            self._place.at_work()
            self._place.acks_due = bool(self._unacked)
        return batch

    def _respond(self, response: pb.WriteResponse) -> None:
        response.creation = self._replica.stream.creation_index
        if not self._call.ended:
            self._call.write(frame(response.SerializeToString()))

    def _end(self, error: BasculeError | None) -> None:
        if self._over.done():
            return
        if error is None:
            self._over.set_result(b"")
        else:
            self._over.set_exception(error)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()


async def _next_request(call: Call) -> pb.WriteRequest | None:
    data = await call.receive()
    if data is None:
        return None
    try:
        return pb.WriteRequest.FromString(data)
    except DecodeError as error:
        raise Internal(f"grpc: error unmarshalling request: {error}") from error


def _failed(number: int, error: BasculeError, *, may_be_stored: bool) -> pb.WriteResponse:
    failure = pb.WriteError(code=int(error.status), message=str(error), mayBeStored=may_be_stored)
    return pb.WriteResponse(batch=number, error=failure)
