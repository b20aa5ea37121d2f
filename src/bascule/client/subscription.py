"""One partition, read in batches, from a position to an end or for ever.

What arrives is decoded a network read at a time by one kernel call. Every Subscribe call begins with an
empty message, the handshake, which is dropped. Liftbridge ends a finished subscription with
ResourceExhausted and one of a few texts: here that is simply the end of the iteration. So is the answer that a range
holds nothing, which has other statuses. Unavailable means the broker went away: the subscription finds the new leader
and goes on after the last message it gave, for up to CLIENT_RESUBSCRIBE_S; a message is never given twice by one
subscription. A replica that cannot be reached is replaced by the leader. "new" and "latest" are turned into an offset
once, before the first call, so that coming back does not skip what was published meanwhile. A stream that was deleted
and made again meanwhile is another one, which is an error as the deletion is.

A subscription is its own iterator, and its state is in its attributes, not in a generator: whoever stops iterating, by
`break`, a timeout or an error, goes on with the next message by iterating again.

Records of a Bascule broker carry their own checksum, which is verified here; those of other servers have
none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType

from bascule import limits
from bascule.client.cluster import FETCH_PARTITION_METADATA, UNREACHABLE, Cluster
from bascule.client.failures import Deadline, Paused, from_status, passes_by_itself
from bascule.client.values import Message, StartAt, StopAt, partition_of
from bascule.client.watch import WatchedCall
from bascule.errors import (
    BasculeError,
    CorruptError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RpcError,
    Unavailable,
    UnknownOutcome,
)
from bascule.net.channel import Channel, ClientCall
from bascule.wire import kernels
from bascule.wire.pb import api_pb2 as pb

logger = logging.getLogger(__name__)

SUBSCRIBE = "/proto.API/Subscribe"

_ENDS = ("Stop offset reached", "End of readonly partition", "Stream is empty")
_LOG_DELETED = "commit log was deleted"
_LOG_CLOSED = "commit log was closed"
_LOG_IS_CLOSED = "Failed to create stream reader: segment has been closed"
_NOTHING_THERE = (
    "Stop offset is before start offset: ",
    "Stop offset is after start offset: ",
    "Failed to lookup offset for timestamp: timestamp is before the beginning of the log",
)
_NOTHING_TO_REVERSE = "Failed to create stream reader: segment not found"
_LARGEST_OFFSET = 10**15
"""A larger number is no offset: a million messages a second would take 30 years to get there."""

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
    try:
        found = int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
    except (ValueError, OverflowError):  # in local time it is before the year 1, or after 9999
        found = 1 << 63
    if not -1 << 63 <= found < 1 << 63:
        raise InvalidArgument(f"{moment.isoformat()} is no time of a message: these are from 1677 to 2262")
    return found


@dataclass(slots=True)
class GroupReader:
    """A member of a consumer group. The broker lets the one read a partition that knows the newest epoch."""

    group: str
    consumer: str
    epoch: int = 0
    """Raised as the group changes: a subscription that is opened again has the new one."""


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
    reader: GroupReader | None = None
    """Who reads, if it is a member of a group."""

    def check(self) -> None:
        """A position that cannot be meant is an error before anything is read."""
        for name, position in (("start", self.start), ("stop", self.stop)):
            if isinstance(position, bool) or not isinstance(position, int):
                continue
            if position < 0:
                raise InvalidArgument(f"{name}={position}: the first offset is 0")
            if position > _LARGEST_OFFSET:
                raise InvalidArgument(
                    f"{name}={position} is no offset, and looks like a time in nanoseconds: give a time as a datetime"
                )
        self.request(self.start)

    @property
    def empty(self) -> bool:
        """Two offsets with nothing between them."""
        return isinstance(self.start, int) and self.holds_nothing_from(self.start)

    def holds_nothing_from(self, position: StartAt) -> bool:
        if not isinstance(position, int) or not isinstance(self.stop, int):
            return False
        return position < self.stop if self.reverse else position > self.stop

    def request(self, start: StartAt, from_replica: bool = False) -> bytes:
        request = pb.SubscribeRequest(
            stream=self.stream,
            partition=self.partition,
            reverse=self.reverse,
            resume=self.resume_paused,
            readISRReplica=from_replica,
        )
        if self.reader is not None:
            consumer = pb.Consumer(
                groupId=self.reader.group, groupEpoch=self.reader.epoch, consumerId=self.reader.consumer
            )
            request.consumer.CopyFrom(consumer)
        if isinstance(start, str | bool) or not (isinstance(start, datetime) or hasattr(start, "__index__")):
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


class Awaiting(WatchedCall):
    """The call of a subscription, while that waits for messages."""

    patience_s = limits.CLIENT_QUIET_READER_S


class Subscription:
    """Iterate it for messages, or `batches()` for lists of them. `close` it to end early."""

    def __init__(self, cluster: Cluster, reading: Reading, on_lost: OnLost | None = None) -> None:
        self._call: ClientCall | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        reading.check()
        self._cluster = cluster
        self._reading = reading
        self._position: StartAt = reading.start
        self.creation: int | None = None
        """When its stream was made, once it is read."""
        self._rest = b""
        self._verify = not reading.reverse
        self._has_checksums = False
        self._ended = reading.empty
        self._buffered: Iterator[Message] = iter(())
        self._busy = False
        self._replica_fails = False
        self._on_lost = on_lost
        self._is_lost = False
        self._awaiting = Awaiting(reading.stream, reading.partition)

    def __repr__(self) -> str:
        state = "ended" if self._ended else f"at {self._position}"
        return f"<Subscription to {self._reading.stream}/{self._reading.partition}, {state}>"

    async def __aenter__(self) -> Subscription:
        await self.ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """No more messages; harmless when it has ended."""
        self._ended = True
        self._buffered = iter(())
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def __del__(self) -> None:
        call, loop = self._call, self._loop
        if call is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(call.cancel)

    @property
    def position(self) -> StartAt:
        """What comes next; once it is `ready`, "new" and "latest" are an offset."""
        return self._position

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Message:
        for message in self._buffered:
            return message
        batch = await self._fill()
        if not batch:
            raise StopAsyncIteration
        self._buffered = iter(batch)
        return next(self._buffered)

    def batches(self) -> Batches:
        """Lists of at most CLIENT_DECODE_BATCH messages, as they arrive."""
        return Batches(self)

    async def next_batch(self) -> list[Message]:
        """The next messages; none at the end."""
        return list(self._buffered) or await self._fill()

    async def _fill(self) -> list[Message]:
        with self._alone():
            while not self._ended:
                await self._open_if_needed()
                while (batch := await self._next()) is not None:
                    if batch:
                        self._advance(batch[-1].offset)
                        return batch
        return []

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._busy:
            raise RuntimeError("two tasks read from one subscription: give each of them one of its own")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    # --- the call -----------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """The broker has accepted the subscription: what is committed from now on will be seen."""
        with self._alone():
            await self._open_if_needed()

    async def _open_if_needed(self) -> None:
        if self._call is not None or self._ended:
            return
        if self._reading.holds_nothing_from(self._position):
            self._ended = True
            return
        deadline = Deadline(limits.CLIENT_RESUBSCRIBE_S)
        try:
            await self._cluster.persist(lambda: self._open(deadline), deadline, self._opens_again)
        except BasculeError as error:
            if not self._is_the_end(error):
                raise self._told(error) from None
            self._ended = True
            return
        if self._is_lost and not self._ended:
            self._is_lost = False
            logger.info("the subscription to %s goes on at %s", self._where, self._position)
            if self._on_lost is not None:
                self._on_lost(None)

    def _opens_again(self, error: BasculeError) -> bool:
        """Before the handshake FailedPrecondition means that another broker leads."""
        if passes_by_itself(error) or isinstance(error, FailedPrecondition):
            self._cluster.misled(self._reading.stream)
            return True
        return False

    async def _open(self, deadline: Deadline) -> None:
        if self._position == "new" or (self._position == "latest" and not self._reading.reverse):
            end = await self._committed_end(deadline)
            if end is not None:
                self._position = end if self._position == "new" else max(0, end - 1)
        channel, from_replica = await self._channel(deadline)
        call = channel.stream(SUBSCRIBE)
        try:
            await call.send(_framed(self._reading.request(self._position, from_replica)))
            call.half_close()
            first = b""
            while len(first) < len(_HANDSHAKE):
                more = await call.receive()
                if more is None:
                    raise ResourceExhausted(_ENDS[0])
                first += more
            await self._check_creation(deadline)
        except BaseException:
            self._replica_fails = from_replica
            call.cancel()
            raise
        self._replica_fails = False
        if self._ended:  # it was closed meanwhile
            call.cancel()
            return
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._awaiting.begin(call, self._cluster.broker_of(channel), not from_replica)
        self._awaiting.since = None  # until somebody asks for messages
        self._cluster.watch.add(self._awaiting)
        self._rest = first.removeprefix(_HANDSHAKE)

    async def _channel(self, deadline: Deadline) -> tuple[Channel, bool]:
        """Of the replica, if one is named and can be reached, else of the leader; and whether it is the replica's."""
        reading = self._reading
        if reading.replica and not self._replica_fails:
            try:
                soon = Deadline(min(deadline.remaining(), limits.CLIENT_CONNECT_TRY_S))
                return await self._cluster.replica(reading.stream, reading.partition, reading.replica, soon), True
            except UNREACHABLE:
                pass
            except NotFound:
                if not self._is_lost:
                    raise
        return await self._cluster.leader(reading.stream, reading.partition, deadline, reads=True), False

    async def _check_creation(self, deadline: Deadline) -> None:
        """NotFound if the stream was made after this began to read it."""
        stream = self._reading.stream
        if self.creation is not None:
            self._cluster.forget(stream)
        found = (await self._cluster.stream(stream, deadline)).creation_timestamp
        if self.creation is not None and found > self.creation:
            raise NotFound(
                f"stream {stream} was deleted and made again while it was read, up to {self._position}: begin anew"
            )
        self.creation = found if self.creation is None else self.creation

    async def _committed_end(self, deadline: Deadline) -> int | None:
        """None for a paused partition: it has no leader, so its end is not known."""
        stream, partition = self._reading.stream, self._reading.partition
        known = (await self._cluster.stream(stream, deadline)).partitions.get(partition)
        if known is not None and known.paused:
            return None
        request = pb.FetchPartitionMetadataRequest(stream=stream, partition=partition).SerializeToString()
        answer = await self._cluster.ask_leader(stream, partition, FETCH_PARTITION_METADATA, request, deadline)
        return partition_of(pb.FetchPartitionMetadataResponse.FromString(answer).metadata).high_watermark + 1

    def _told(self, error: BasculeError) -> BasculeError:
        """The server's texts are those that other clients know."""
        text = str(error)
        if isinstance(error, NotFound) and text == _LOG_DELETED:
            return NotFound(f"{self._where} was deleted while it was read, up to {self._position}")
        if (isinstance(error, FailedPrecondition) and text == _LOG_CLOSED) or (
            isinstance(error, Internal) and text == _LOG_IS_CLOSED
        ):
            return Paused(self._reading.stream, self._reading.partition)
        return error

    async def _next(self) -> list[Message] | None:
        """The next messages, perhaps none yet; None when this call has ended and another may follow."""
        batch = self._decode()
        if batch or self._call is None:
            return batch or None
        self._awaiting.since = self._cluster.connections.check_open().time()
        try:
            data = await self._call.receive()
        except RpcError as rpc:
            error = self._told(from_status(rpc))
            self._call, self._rest = None, b""
            if self._ended:
                return None  # somebody else has closed it
            self._cluster.connections.check_open()
            if isinstance(error, Unavailable):
                self._cluster.misled(self._reading.stream)
                self._is_lost = True
                logger.info("the subscription to %s is lost, and opened again: %s", self._where, error)
                if self._on_lost is not None:
                    self._on_lost(error)
                return None
            if not self._is_the_end(error):
                raise error from None
            data = None
        finally:
            self._awaiting.since = None
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
            position, records = kernels.decode_records(self._rest, 0, len(self._rest), limits.CLIENT_DECODE_BATCH, True)
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

    def _is_the_end(self, error: BasculeError) -> bool:
        """The Go server ends a reverse reading with Unknown and the text EOF."""
        text = str(error)
        if isinstance(error, ResourceExhausted):
            return text in _ENDS
        if isinstance(error, InvalidArgument | Internal) and text.startswith(_NOTHING_THERE):
            return True
        if not self._reading.reverse:
            return False
        return (isinstance(error, UnknownOutcome) and text == "EOF") or (
            isinstance(error, Internal) and text == _NOTHING_TO_REVERSE
        )

    @property
    def _where(self) -> str:
        return f"partition {self._reading.partition} of stream {self._reading.stream}"


def _framed(request: bytes) -> bytes:
    return b"\0" + len(request).to_bytes(4, "big") + request


class Batches:
    """The messages of a subscription in lists, as they arrive."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> AsyncIterator[list[Message]]:
        return self

    async def __anext__(self) -> list[Message]:
        batch = await self._subscription.next_batch()
        if not batch:
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        self._subscription.close()
