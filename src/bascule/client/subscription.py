"""One partition, read in batches, from a position to an end or for ever.

What arrives is decoded a network read at a time by one kernel call. Every Subscribe call begins with an
empty message, the handshake, which is dropped. Liftbridge ends a finished subscription with
ResourceExhausted: here that is simply the end of the iteration. Unavailable means the broker went away: the
subscription finds the new leader and goes on after the last message it gave, for up to
CLIENT_RESUBSCRIBE_S; a message is never given twice by one subscription. "new" is turned into an offset
once, before the first call, so that coming back does not skip what was published meanwhile.

Records of a Bascule broker carry their own checksum, which is verified here; those of other servers have
none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline, from_status, passes_by_itself
from bascule.client.values import Message, StartAt, StopAt, partition_of
from bascule.errors import (
    BasculeError,
    CorruptError,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    RpcError,
    Unavailable,
    UnknownOutcome,
)
from bascule.net.channel import ClientCall
from bascule.wire import kernels
from bascule.wire.pb import api_pb2 as pb

SUBSCRIBE = "/proto.API/Subscribe"
FETCH_PARTITION_METADATA = "/proto.API/FetchPartitionMetadata"

OnLost = Callable[[BasculeError | None], None]
"""Takes the reason when the connection of a subscription is lost, and None when the subscription goes on."""

_HANDSHAKE = bytes(5)
_TRAILER = b"\x82\x7d\x0c"

_STARTS = {
    "new": pb.StartPosition.NEW_ONLY,
    "earliest": pb.StartPosition.EARLIEST,
    "latest": pb.StartPosition.LATEST,
}


def nanoseconds(moment: datetime) -> int:
    """A datetime without a zone is local time, as everywhere in Python."""
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read, and how."""

    stream: str
    partition: int
    start: StartAt
    stop: StopAt
    reverse: bool
    resume_paused: bool
    replica: str = ""
    """The id of the broker to read from; empty for the leader."""

    def request(self, start: StartAt) -> bytes:
        request = pb.SubscribeRequest(
            stream=self.stream,
            partition=self.partition,
            reverse=self.reverse,
            resume=self.resume_paused,
            readISRReplica=bool(self.replica),
        )
        if isinstance(start, str):
            if start not in _STARTS:
                raise InvalidArgument(f"start {start!r}: use new, earliest, latest, an offset or a datetime")
            request.startPosition = _STARTS[start]
        elif isinstance(start, datetime):
            request.startPosition = pb.StartPosition.TIMESTAMP
            request.startTimestamp = nanoseconds(start)
        else:
            request.startPosition = pb.StartPosition.OFFSET
            request.startOffset = start
        if isinstance(self.stop, datetime):
            request.stopPosition = pb.StopPosition.STOP_TIMESTAMP
            request.stopTimestamp = nanoseconds(self.stop)
        elif isinstance(self.stop, int):
            request.stopPosition = pb.StopPosition.STOP_OFFSET
            request.stopOffset = self.stop
        elif self.stop is not None:
            if self.stop != "latest":
                raise InvalidArgument(f"stop {self.stop!r}: use latest, an offset, a datetime or None")
            request.stopPosition = pb.StopPosition.STOP_LATEST
        return request.SerializeToString()


class Subscription:
    """Iterate it for messages, or `batches()` for lists of them. `close` it to end early."""

    def __init__(self, cluster: Cluster, reading: Reading, on_lost: OnLost | None = None) -> None:
        reading.request(reading.start)  # a bad position is an error now, not at the first message
        self._cluster = cluster
        self._reading = reading
        self._position: StartAt = reading.start
        self._call: ClientCall | None = None
        self._rest = b""
        self._verify = not reading.reverse
        self._has_checksums = False
        self._ended = False
        self._on_lost = on_lost
        self._is_lost = False

    async def __aenter__(self) -> Subscription:
        await self.ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._ended = True
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def __aiter__(self) -> AsyncIterator[Message]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for message in batch:
                    yield message

    async def batches(self) -> AsyncGenerator[list[Message], None]:
        """Lists of at most CLIENT_DECODE_BATCH messages, as they arrive."""
        try:
            while not self._ended:
                await self.ready()
                while (batch := await self._next()) is not None:
                    if batch:
                        self._advance(batch[-1].offset)
                        yield batch
        finally:
            self.close()

    # --- the call -----------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """The broker has accepted the subscription: what is committed from now on will be seen."""
        if self._call is not None or self._ended:
            return
        deadline = Deadline(limits.CLIENT_RESUBSCRIBE_S)
        try:
            await self._cluster.persist(lambda: self._open(deadline), deadline, self._opens_again)
        except BasculeError as error:
            if not _is_the_end(error, self._reading.reverse):
                raise
            self._ended = True

    def _opens_again(self, error: BasculeError) -> bool:
        """Before the handshake FailedPrecondition means that another broker leads."""
        if passes_by_itself(error) or isinstance(error, FailedPrecondition):
            self._cluster.forget(self._reading.stream)
            return True
        return False

    async def _open(self, deadline: Deadline) -> None:
        if self._position == "new":
            self._position = await self._first_new(deadline)
        reading = self._reading
        if reading.replica:
            channel = await self._cluster.replica(reading.stream, reading.partition, reading.replica, deadline)
        else:
            channel = await self._cluster.leader(reading.stream, reading.partition, deadline)
        call = channel.stream(SUBSCRIBE)
        try:
            await call.send(_framed(reading.request(self._position)))
            call.half_close()
            first = b""
            while len(first) < len(_HANDSHAKE):
                more = await call.receive()
                if more is None:
                    raise ResourceExhausted("the subscription ended at once")
                first += more
        except BaseException:
            call.cancel()
            raise
        self._call = call
        self._rest = first.removeprefix(_HANDSHAKE)
        if self._is_lost and self._on_lost is not None:
            self._on_lost(None)
        self._is_lost = False

    async def _first_new(self, deadline: Deadline) -> StartAt:
        stream, partition = self._reading.stream, self._reading.partition
        known = (await self._cluster.stream(stream, deadline)).partitions.get(partition)
        if known is not None and known.paused:
            return "new"  # a paused partition has no leader, so its end is not known
        request = pb.FetchPartitionMetadataRequest(stream=stream, partition=partition).SerializeToString()
        answer = await self._cluster.ask_leader(stream, partition, FETCH_PARTITION_METADATA, request, deadline)
        return partition_of(pb.FetchPartitionMetadataResponse.FromString(answer).metadata).high_watermark + 1

    async def _next(self) -> list[Message] | None:
        """The next messages, perhaps none yet; None when this call has ended and another may follow."""
        batch = self._decode()
        if batch or self._call is None:
            return batch or None
        try:
            data = await self._call.receive()
        except RpcError as rpc:
            error = from_status(rpc)
            self._call, self._rest = None, b""
            if isinstance(error, Unavailable):
                self._cluster.forget(self._reading.stream)
                self._is_lost = True
                if self._on_lost is not None:
                    self._on_lost(error)
                return None
            if not _is_the_end(error, self._reading.reverse):
                raise error from None
            data = None
        if data is None:
            self._ended = True
            return None
        self._rest += data
        return []

    # --- the bytes ----------------------------------------------------------------------------------------

    def _decode(self) -> list[Message]:
        if not self._rest:
            return []
        if self._verify:
            self._check(self._rest)
        try:
            position, records = kernels.decode_records(self._rest, 0, len(self._rest), limits.CLIENT_DECODE_BATCH)
        except ValueError as error:
            raise CorruptError(f"{self._where} sent bytes that are no messages: {error}") from error
        self._rest = self._rest[position:]
        make = tuple.__new__  # `Message._make` without its check of the length, which the kernel guarantees
        return [
            make(Message, record) if record[1] else make(Message, (record[0], None, *record[2:])) for record in records
        ]

    def _check(self, data: bytes) -> None:
        """The first record shows whether the server writes checksums; after it all must have one, or none."""
        position, count, *_, status = kernels.scan_records(data, 0, len(data), 0)
        self._has_checksums = self._has_checksums or count > 0
        if status != 2:
            return
        length = int.from_bytes(data[position + 1 : position + 5], "big")
        end = position + 5 + length
        if end > len(data) and length <= limits.MAX_RECORD_BYTES:
            return
        is_ours = data.startswith(_TRAILER, end - limits.RECORD_TRAILER_BYTES)
        if self._has_checksums or is_ours or length > limits.MAX_RECORD_BYTES:
            raise CorruptError(
                f"{self._where} sent a record whose checksum does not match: the bytes were damaged on the way or on "
                "the broker's disk. Read it from another replica, and look into the broker's log"
            )
        self._verify = False

    def _advance(self, offset: int) -> None:
        if not self._reading.reverse:
            self._position = offset + 1
        elif offset == 0:
            self._ended = True  # there is nothing before it to read
        else:
            self._position = offset - 1

    @property
    def _where(self) -> str:
        return f"partition {self._reading.partition} of stream {self._reading.stream}"


def _framed(request: bytes) -> bytes:
    return b"\0" + len(request).to_bytes(4, "big") + request


def _is_the_end(error: BasculeError, reverse: bool) -> bool:
    """The Go server ends a reverse reading with Unknown and the text EOF."""
    if isinstance(error, ResourceExhausted):
        return True
    return reverse and isinstance(error, UnknownOutcome) and str(error) == "EOF"
