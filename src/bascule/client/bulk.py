"""Ranges of a partition as the bytes of its log, in large pieces: for programs that read much. Bascule only.

A range is read to its end or to the high watermark, whichever comes first. When a broker goes away, the reader finds
the new leader and goes on after the last piece it gave, for up to CLIENT_RESUBSCRIBE_S; no piece is given twice. A
replica that cannot be reached is replaced by the leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from bascule import limits
from bascule.client.cluster import UNREACHABLE, Cluster
from bascule.client.failures import Deadline, from_status, passes_by_itself
from bascule.client.values import Message
from bascule.client.watch import WatchedCall
from bascule.errors import BasculeError, CorruptError, FailedPrecondition, NotFound, RpcError, Unavailable
from bascule.net.channel import Channel, ClientCall
from bascule.wire import kernels
from bascule.wire.grpc import PREFIX_BYTES, frame
from bascule.wire.pb import log_pb2 as pb

logger = logging.getLogger(__name__)

READ = "/bascule.v1.Log/Read"
_NOT_LEADER = "Server not partition leader"


@dataclass(frozen=True, slots=True)
class LogRange:
    """Records from offset `start` to `end`, exclusive, as they are on the broker's disk. Offsets in between that no
    record has are not in the log."""

    start: int
    end: int
    records: bytes
    count: int
    log_start: int
    """Of the partition: everything below was removed."""
    compacted_end: int
    """Of the partition: below it offsets may be missing."""
    high_watermark_end: int
    creation: int
    """Another number for a stream of the same name that was made again."""
    damaged: tuple[range, ...] = ()
    """Offsets of which the broker says that their records are damaged. Below the compacted end, compaction may have
    removed some of them before."""

    def missing(self) -> list[range]:
        """Offsets without a record that compaction did not remove: the broker does not serve what is damaged. Where
        compaction has been only the broker knows which; elsewhere they are counted."""
        first = max(self.start, self.compacted_end)
        if first >= self.end or self.count == self.end - self.start:
            return list(self.damaged)
        found = [range(each.start, min(each.stop, first)) for each in self.damaged if each.start < first]
        expected = first
        for offset in (*memoryview(self._offsets()).cast("q"), self.end):
            if offset > expected:
                found.append(range(expected, offset))
            expected = max(expected, offset + 1)
        return _joined(found)

    def _offsets(self) -> bytes:
        *_, (offsets, *_) = kernels.record_columns(self.records, 0, len(self.records), 0, 0)
        return offsets

    def messages(self) -> list[Message]:
        """Decoded."""
        _, records = kernels.decode_records(self.records, 0, len(self.records), self.count, True)
        return [Message(*record)._replace(key=record[1] or None) for record in records]


def _joined(ranges: list[range]) -> list[range]:
    """Neighbours as one."""
    found: list[range] = []
    for each in ranges:
        if found and found[-1].stop == each.start:
            each = range(found.pop().start, each.stop)
        found.append(each)
    return found


@dataclass(frozen=True, slots=True)
class LogBounds:
    """What a partition holds now, as its leader knows it: offsets from `start` to `end`, which is exclusive, and the
    high watermark."""

    start: int
    end: int
    creation: int
    compacted_end: int


_FAR = 1 << 62  # above every offset: a range there has no records, and its answer says where the partition ends


async def log_bounds(cluster: Cluster, stream: str, partition: int, deadline: Deadline) -> LogBounds:
    request = pb.ReadRequest(stream=stream, partition=partition, start=_FAR, end=_FAR)
    answer = pb.ReadResponse.FromString(
        await cluster.ask_leader(stream, partition, READ, request.SerializeToString(), deadline, not_leader)
    )
    return LogBounds(answer.logStart, answer.highWatermarkEnd, answer.creation, answer.compactedEnd)


class BulkRead:
    """Iterate it for `LogRange`s; it ends with the range."""

    def __init__(
        self,
        cluster: Cluster,
        stream: str,
        partition: int,
        start: int,
        end: int | None,
        creation: int = 0,
        replica: str = "",
        max_bytes: int = 0,
    ) -> None:
        self._cluster = cluster
        self._request = pb.ReadRequest(
            stream=stream,
            partition=partition,
            start=start,
            end=end or 0,
            creation=creation,
            maxBytes=max_bytes,
        )
        self._empty = end is not None and end <= start
        self._replica = replica
        self._replica_fails = False
        self._began = False
        self._where = f"partition {partition} of stream {stream}"
        self._watched = WatchedCall(stream, partition)

    def __repr__(self) -> str:
        return f"<BulkRead of {self._where}, from offset {self._request.start}>"

    async def __aiter__(self) -> AsyncIterator[LogRange]:
        async with aclosing(self.ranges()) as ranges:
            async for each in ranges:
                yield each

    async def ranges(self) -> AsyncGenerator[LogRange, None]:
        call: ClientCall | None = None
        try:
            while not self._empty:
                call, frames = await self._open()
                try:
                    async with aclosing(frames) as messages:
                        async for message in messages:
                            given = self._range(message)
                            self._go_on_after(given)
                            yield given
                    return
                except RpcError as rpc:
                    error = self._cluster.connections.told(from_status(rpc))
                    if not isinstance(error, Unavailable):
                        raise error from None
                    self._cluster.misled(self._request.stream)
                    logger.info("the bulk read of %s goes on at %d: %s", self._where, self._request.start, error)
        finally:
            self._cluster.watch.remove(self._watched)
            if call is not None:
                call.cancel()

    def _go_on_after(self, given: LogRange) -> None:
        """A range that goes on after a lost connection has the end that it had: of the same stream, and not as far as
        the high watermark is by then."""
        request = self._request
        request.start, request.creation = given.end, given.creation
        request.end = request.end or max(given.high_watermark_end, given.end)

    async def _open(self) -> tuple[ClientCall, AsyncGenerator[bytes, None]]:
        """A call that was accepted: its first message has arrived."""
        deadline = Deadline(limits.CLIENT_RESUBSCRIBE_S)

        async def attempt() -> tuple[ClientCall, AsyncGenerator[bytes, None]]:
            channel, from_replica = await self._channel(deadline)
            self._request.fromReplica = from_replica
            call = channel.stream(READ)
            self._watched.begin(call, self._cluster.broker_of(channel), not from_replica)
            self._cluster.watch.add(self._watched)
            try:
                await call.send(frame(self._request.SerializeToString()))
                call.half_close()
                first = await self._received(call)
            except BaseException:
                self._replica_fails = from_replica
                call.cancel()
                raise
            self._began, self._replica_fails = True, False
            return call, messages_of(lambda: self._received(call), first)

        return await self._cluster.persist(attempt, deadline, self._opens_again)

    async def _channel(self, deadline: Deadline) -> tuple[Channel, bool]:
        """Of the replica, if one is named and can be reached, else of the leader; and whether it is the replica's."""
        stream, partition = self._request.stream, self._request.partition
        if self._replica and not self._replica_fails:
            try:
                soon = Deadline(min(deadline.remaining(), limits.CLIENT_CONNECT_TRY_S))
                return await self._cluster.replica(stream, partition, self._replica, soon), True
            except UNREACHABLE as error:
                logger.info("%s is read from its leader: %s", self._where, error)
            except NotFound:
                if not self._began:
                    raise
        return await self._cluster.leader(stream, partition, deadline, reads=True), False

    async def _received(self, call: ClientCall) -> bytes | None:
        self._watched.since = asyncio.get_running_loop().time()
        try:
            return await call.receive()
        finally:
            self._watched.since = None

    def _opens_again(self, error: BasculeError) -> bool:
        if not_leader(error):
            self._cluster.misled(self._request.stream)
            return True
        return False

    def _range(self, message: bytes) -> LogRange:
        try:
            found = pb.ReadResponse.FromString(message)
        except DecodeError as error:
            raise CorruptError(f"{self._where} sent bytes that are no range of a log: {error}") from error
        records = found.records
        good, count, first, following, *_ = kernels.scan_records(records, 0, len(records), 0)
        inside = not count or (found.start <= first and following <= found.end)
        if good != len(records) or count != found.count or not inside:
            raise CorruptError(
                f"{self._where} sent records that are not what its log holds: the bytes were damaged on the way or on "
                "the broker's disk. Read them from another replica, and look into the broker's log"
            )
        return LogRange(
            found.start,
            found.end,
            records,
            count,
            found.logStart,
            found.compactedEnd,
            found.highWatermarkEnd,
            found.creation,
            tuple(range(max(each.start, found.start), min(each.end, found.end)) for each in found.damaged),
        )


def not_leader(error: BasculeError) -> bool:
    """Whether another broker leads, or none for now: it is asked again."""
    return passes_by_itself(error) or (isinstance(error, FailedPrecondition) and str(error) == _NOT_LEADER)


async def messages_of(
    receive: Callable[[], Awaitable[bytes | None]], data: bytes | None
) -> AsyncGenerator[bytes, None]:
    """Whole messages out of the bytes as they arrive. Pieces are joined once for each message."""
    pieces: list[bytes] = []
    have = 0
    while data is not None:
        pieces.append(data)
        have += len(data)
        wanted = _wanted(pieces, have)
        while wanted is not None and have >= wanted:
            joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            yield joined[PREFIX_BYTES:wanted]
            pieces, have = [joined[wanted:]], have - wanted
            wanted = _wanted(pieces, have)
        data = await receive()
    if have:
        raise CorruptError("a broker ended a call in the middle of a message")


def _wanted(pieces: list[bytes], have: int) -> int | None:
    """The length of the first message with its prefix; None if not even the prefix is there."""
    if have < PREFIX_BYTES:
        return None
    if len(pieces[0]) < PREFIX_BYTES:
        pieces[:] = [b"".join(pieces)]
    return PREFIX_BYTES + int.from_bytes(pieces[0][1:PREFIX_BYTES], "big")
