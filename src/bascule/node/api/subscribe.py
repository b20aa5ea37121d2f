"""Subscribe: byte ranges of the log, straight to the client.

The start, and the stop that a client asks for, are determined once, at the start; after that a subscription is a loop:
read whole records below the high watermark, send them, wait. The bytes sent are those on disk: no message is decoded or
built here.

Clients take it for final that a subscription has come to its end. So the end is never that of a log which may lack what
is committed: the leader tells it (`partitionend`). Where no stop is asked for it is told when everything has been sent,
for a partition that was read-only at the start may have been writable since. A subscription goes on when its broker
leads no more, unless it waits for an offset that was not committed by then: another leader may have another message
there, or none.
"""

import asyncio
from dataclasses import dataclass

from bascule.errors import (
    BasculeError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from bascule.limits import SUBSCRIBER_READ_BYTES
from bascule.log.commitlog import CommitLog
from bascule.log.reader import Reader
from bascule.node.api.leadership import Resume, resume_here
from bascule.node.api.partitionend import LeaderEnd, PartitionEnds
from bascule.node.api.unread import UnreadRecords
from bascule.node.membership.peers import SESSION_S
from bascule.node.partition.groups import Ended
from bascule.node.partition.leading import Leading
from bascule.node.partition.manager import ReplicaManager
from bascule.node.partition.replica import Replica
from bascule.node.partition.replicas import Replicas
from bascule.ports import Call
from bascule.wire.pb import api_pb2 as api

HANDSHAKE = bytes(5)
"""An empty framed Message: "you are subscribed". Clients drop it."""
END_AGAIN_S = 1.0
"""How often a subscription that may be over asks whether it is."""
STOPPED = "Stop offset reached"
OVER = "End of readonly partition"


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets a subscription covers: from `start`, and never any at or past `stop_end` (None: for ever)."""

    start: int
    stop_end: int | None
    names_start: bool
    """The client has named the offset; else it was the newest one, or one by its time."""
    names_stop: bool
    at_end: str
    """What the client is told at the end of a partition that is read-only."""

    def stands(self, position: int, hw_end: int) -> bool:
        """Whether it means the same with another leader, which may have other messages above the high watermark. With
        an offset that the client has named it is as the client says."""
        starts = self.names_start or position <= hw_end
        return starts and (self.names_stop or self.stop_end is None or self.stop_end <= hw_end)


async def subscribe(
    replicas: Replicas,
    ends: PartitionEnds,
    manager: ReplicaManager,
    resume: Resume,
    unread: UnreadRecords,
    request: api.SubscribeRequest,
    call: Call,
) -> None:
    if request.consumer.groupId and not request.consumer.consumerId:
        raise InvalidArgument("Consumer id cannot be empty when group id is provided")
    if not replicas.exists(request.stream, request.partition):
        raise NotFound("No such partition")
    if replicas.is_paused(request.stream, request.partition):
        await _resume_or_refuse(replicas, manager, resume, request, call)
    replica = replicas.find(request.stream, request.partition)
    if replica is None or (replica.leading is None and not request.readISRReplica):
        raise FailedPrecondition("Server not partition leader")
    if replica.leading is None and request.consumer.groupId:
        raise InvalidArgument("Consumer groups not compatible with ReadISRReplica")
    _check_positions(request)
    newest = await _newest(ends, replica, request)
    led = replica.leading
    if replica.leading is None and request.consumer.groupId:  # no more: members are told only when a leadership ends
        raise FailedPrecondition("Server not partition leader")
    with replica.subscribed(), replica.group_members.join(request.consumer) as ended:
        if request.reverse:
            await _serve_reverse(replica, replicas.start(replica), unread, request, call, ended)
        else:
            span = await _span(replica, newest, replicas.start(replica), request)
            await _serve(replica, led, span, ends, unread, call, ended)
        if (error := ended.result()) is not None:
            raise error


async def _resume_or_refuse(
    replicas: Replicas, manager: ReplicaManager, resume: Resume, request: api.SubscribeRequest, call: Call
) -> None:
    """Returns if the partition is resumed, or another broker is to say what is to be said."""
    if not replicas.is_assigned_here(request.stream, request.partition, request.readISRReplica):
        raise FailedPrecondition("Server not partition leader")
    _check_positions(request)
    if request.resume:
        try:
            await resume_here(manager, resume, request.stream, request.partition, call.time_remaining())
        except BasculeError as error:
            raise Internal(f"Failed to resume stream: {error}") from error
        return
    start = max(0, request.startOffset) if request.startPosition == api.OFFSET else 0
    if request.startPosition == api.NEW_ONLY or start >= manager.paused_end(request.stream, request.partition):
        await call.send(HANDSHAKE)
        raise FailedPrecondition("commit log was closed")
    raise Internal("Failed to create stream reader: segment has been closed")


def _check_positions(request: api.SubscribeRequest) -> None:
    """Before anything is done for the request: it resumes no partition, and takes none over from another member."""
    if request.startPosition not in api.StartPosition.values():
        raise InvalidArgument(f"Unknown StartPosition {request.startPosition}")
    if request.stopPosition not in api.StopPosition.values():
        raise InvalidArgument(f"Unknown StopPosition {request.stopPosition}")


async def _newest(ends: PartitionEnds, replica: Replica, request: api.SubscribeRequest) -> LeaderEnd:
    """Where the partition ends, for what depends on the newest offset or on the time: an old leader, and a replica that
    lags, would end too early, or begin too early for a client that has seen more."""
    if not _depends_on_the_end(replica, request):
        return LeaderEnd(replica.log.end, replica.log.visible_end, established=False, readonly=False)
    if replica.leading is None:
        found = await ends.caught_up(replica)
        # A newest message that is asked for is committed: its leader may lose a later one, unnoticed here.
        to_the_last = request.stopPosition == api.STOP_ON_CANCEL and found.is_last
        return found._replace(end=found.end if to_the_last else found.hw_end)
    confirmed = await ends.of(replica)
    if confirmed is None:
        raise FailedPrecondition("Server not partition leader")
    if request.reverse:  # it starts at the newest committed record; forwards the reader waits for the newest one
        await replica.established(SESSION_S)
    return confirmed


def _depends_on_the_end(replica: Replica, request: api.SubscribeRequest) -> bool:
    start = request.startOffset if request.startPosition == api.OFFSET else 0
    if request.reverse or request.startPosition not in (api.OFFSET, api.EARLIEST) or start > replica.log.end:
        return True
    if request.stopPosition == api.STOP_ON_CANCEL:
        return replica.partition.readonly
    return request.stopPosition != api.STOP_OFFSET


async def _serve(
    replica: Replica,
    led: Leading | None,
    span: Span,
    ends: PartitionEnds,
    unread: UnreadRecords,
    call: Call,
    ended: Ended,
) -> None:
    """`led`: the leadership in which its span was determined."""
    reader = replica.log.reader(span.start)
    ended.add_done_callback(lambda _: replica.log.waiters.wake())
    await call.send(HANDSHAKE)
    while not ended.done():
        if led is not None and replica.leading is not led:
            led = None
            if not replica.paused and not span.stands(reader.next_offset, replica.log.visible_end):
                raise Unavailable(f"the leader of {replica.name} has changed: subscribe to it again")
        if not replica.paused and await _sent_more(reader, span.stop_end, unread, call):
            continue
        if span.stop_end is not None and reader.next_offset >= span.stop_end:
            raise ResourceExhausted(STOPPED)
        if replica.partition.readonly and await _is_over(ends, replica, reader):
            raise ResourceExhausted(span.at_end)
        await _more(replica, reader)


async def _is_over(ends: PartitionEnds, replica: Replica, reader: Reader) -> bool:
    """Whether a read-only partition has nothing more, not even what is not committed yet."""
    if replica.paused or (replica.leading is not None and reader.next_offset < replica.log.end):
        return False
    found = await ends.of(replica)
    return found is not None and found.is_last and reader.next_offset >= found.end


async def _sent_more(reader: Reader, stop_end: int | None, unread: UnreadRecords, call: Call) -> bool:
    with await unread.share(SUBSCRIBER_READ_BYTES) as share:
        records = await reader.read(share.nbytes, stop_end)
        if records:
            share.has_read(records)
            await call.send(records)
    return bool(records)


async def _serve_reverse(
    replica: Replica,
    oldest: int,
    unread: UnreadRecords,
    request: api.SubscribeRequest,
    call: Call,
    ended: Ended,
) -> None:
    """From the newest to the oldest; a stop position is then the oldest message requested."""
    log = replica.log
    if log.visible_end <= oldest:
        raise Internal("Failed to create stream reader: segment not found")
    start = min(await _start(log, log.end, oldest, request), log.visible_end - 1)
    stop = await _stop(log, log.end, oldest, request)
    if stop is not None and stop > start:
        raise InvalidArgument(f"Stop offset is after start offset: {stop} > {start}")
    reader = log.reverse_reader(start, oldest=max(oldest, 0 if stop is None else stop))
    await call.send(HANDSHAKE)
    while not ended.done():
        if replica.paused:
            raise FailedPrecondition("commit log was closed")
        with await unread.share(SUBSCRIBER_READ_BYTES) as share:
            records = await reader.read(share.nbytes)
            if not records:
                raise ResourceExhausted(STOPPED)
            share.has_read(records)
            await call.send(records)


async def _more(replica: Replica, reader: Reader) -> None:
    """Returns when there may be more to read, or to ask; raises if the log is deleted or closed."""
    if replica.paused:  # nothing more is read, and its log is being closed, which a slow disk may hold up
        await replica.log.waiters.wait()
    try:
        async with asyncio.timeout(END_AGAIN_S if replica.partition.readonly else None):
            woken = await reader.wait()
    except TimeoutError:
        return
    match woken:
        case "deleted":
            raise NotFound("commit log was deleted")
        case "closed" if replica.paused:
            raise FailedPrecondition("commit log was closed")
        case "closed":
            raise Unavailable("commit log was closed")


async def _span(replica: Replica, newest: LeaderEnd, oldest: int, request: api.SubscribeRequest) -> Span:
    log, end = replica.log, newest.end
    start = await _start(log, end, oldest, request)
    stop = await _stop(log, end, oldest, request)
    # A read-only partition has a last message, but for an empty one: who reads up to there is told as with a stop.
    has_last = request.stopPosition == api.STOP_ON_CANCEL and newest.is_last and end > oldest
    last = end - 1 if has_last else stop
    if last is not None and last < start:
        raise InvalidArgument(f"Stop offset is before start offset: {last} < {start}")
    names_start = request.startPosition in (api.OFFSET, api.EARLIEST) and start <= end
    names_stop = request.stopPosition == api.STOP_OFFSET
    # Below the oldest record: the oldest. Past the end: the log end. In between exactly the requested offset, committed
    # or not: a client that resumes after a failover must not receive messages that it already has.
    first = max(oldest, min(start, end))
    if stop is not None:
        return Span(first, stop + 1, names_start, names_stop, OVER)
    return Span(first, None, names_start, names_stop, STOPPED if has_last else OVER)


async def _start(log: CommitLog, end: int, oldest: int, request: api.SubscribeRequest) -> int:
    """The log may have records below the `oldest`: they have expired, and are in a segment that stays."""
    match request.startPosition:
        case api.NEW_ONLY:
            return end
        case api.OFFSET:
            return max(0, request.startOffset)
        case api.EARLIEST:
            return log.start
        case api.LATEST:
            return max(0, end - 1)
        case _:
            assert request.startPosition == api.TIMESTAMP, "positions are checked first"
            return max(oldest, await log.offset_at_or_after(request.startTimestamp))


async def _stop(log: CommitLog, end: int, oldest: int, request: api.SubscribeRequest) -> int | None:
    """The last offset requested, None for no end."""
    match request.stopPosition:
        case api.STOP_ON_CANCEL:
            return None
        case api.STOP_OFFSET:
            return None if request.stopOffset == -1 else request.stopOffset
        case api.STOP_LATEST:
            if end <= oldest:
                raise ResourceExhausted("Stream is empty")
            return end - 1
        case _:
            assert request.stopPosition == api.STOP_TIMESTAMP, "positions are checked first"
            stop = await log.offset_at_or_before(request.stopTimestamp)
            if stop is None or stop < oldest:
                raise Internal("Failed to lookup offset for timestamp: timestamp is before the beginning of the log")
            return stop
