"""Subscribe: byte ranges of the log, straight to the client.

Start and stop offsets are determined once, at the start; after that a subscription is a loop: read whole records below
the high watermark, send them, wait. The bytes sent are those on disk: no message is decoded or built here.
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
from bascule.node.api.leadership import Resume, confirm_leads, resume_here
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.peers import SESSION_S
from bascule.node.partition.manager import ReplicaManager
from bascule.node.partition.replica import Replica
from bascule.node.partition.replicas import Replicas
from bascule.ports import Call
from bascule.wire.pb import api_pb2 as api

HANDSHAKE = bytes(5)
"""An empty framed Message: "you are subscribed". Clients drop it."""


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets a subscription covers: from `start`, and never any at or past `stop_end` (None: for ever)."""

    start: int
    stop_end: int | None


async def subscribe(
    replicas: Replicas,
    cluster: Cluster,
    manager: ReplicaManager,
    resume: Resume,
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
    if replica.leading is not None and not await _may_start(cluster, replica, request):
        raise FailedPrecondition("Server not partition leader")
    with replica.subscribed(), replica.group_members.join(request.consumer) as replaced:
        if request.reverse:
            await _serve_reverse(replica, replicas.start(replica), request, call, replaced)
        else:
            await _serve(replica, replicas.start(replica), request, call, replaced)


async def _resume_or_refuse(
    replicas: Replicas, manager: ReplicaManager, resume: Resume, request: api.SubscribeRequest, call: Call
) -> None:
    """Returns if the partition is resumed, or another broker is to say what is to be said."""
    if not replicas.is_assigned_here(request.stream, request.partition, request.readISRReplica):
        raise FailedPrecondition("Server not partition leader")
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


async def _may_start(cluster: Cluster, replica: Replica, request: api.SubscribeRequest) -> bool:
    """If the request depends on the newest offset or on the time, an old leader must not answer: it would end too
    early, or begin too early for a client that has seen more."""
    start = request.startOffset if request.startPosition == api.OFFSET else 0
    timeless = request.startPosition in (api.OFFSET, api.EARLIEST) and not request.reverse and start <= replica.log.end
    if timeless and request.stopPosition in (api.STOP_ON_CANCEL, api.STOP_OFFSET):
        return True
    if not await confirm_leads(cluster, replica):
        return False
    if request.reverse:  # it starts at the newest committed record; forwards the reader waits for the newest one
        await replica.established(SESSION_S)
    return True


async def _serve(
    replica: Replica, oldest: int, request: api.SubscribeRequest, call: Call, replaced: "asyncio.Future[None]"
) -> None:
    span = await _span(replica, oldest, request)
    reader = replica.log.reader(span.start)
    replaced.add_done_callback(lambda _: replica.log.waiters.wake())
    await call.send(HANDSHAKE)
    while not replaced.done():
        records = None if replica.paused else await reader.read(SUBSCRIBER_READ_BYTES, span.stop_end)
        if records:
            await call.send(records)
        elif span.stop_end is not None and reader.next_offset >= span.stop_end:
            raise ResourceExhausted("Stop offset reached")
        elif replica.partition.readonly and reader.next_offset >= replica.log.end:
            raise ResourceExhausted("End of readonly partition")
        else:
            await _more(replica, reader)


async def _serve_reverse(
    replica: Replica, oldest: int, request: api.SubscribeRequest, call: Call, replaced: "asyncio.Future[None]"
) -> None:
    """From the newest to the oldest; a stop position is then the oldest message requested."""
    log = replica.log
    if log.visible_end <= oldest:
        raise Internal("Failed to create stream reader: segment not found")
    start = min(await _start(log, request), log.visible_end - 1)
    stop = await _stop(log, request)
    if stop is not None and stop > start:
        raise InvalidArgument(f"Stop offset is after start offset: {stop} > {start}")
    reader = log.reverse_reader(start, oldest=max(oldest, 0 if stop is None else stop))
    await call.send(HANDSHAKE)
    while not replaced.done():
        if replica.paused:
            raise FailedPrecondition("commit log was closed")
        records = await reader.read(SUBSCRIBER_READ_BYTES)
        if not records:
            raise ResourceExhausted("Stop offset reached")
        await call.send(records)


async def _more(replica: Replica, reader: Reader) -> None:
    """Returns when there may be more to read; raises if the log is deleted or closed."""
    match await reader.wait():
        case "deleted":
            raise NotFound("commit log was deleted")
        case "closed" if replica.paused:
            raise FailedPrecondition("commit log was closed")
        case "closed":
            raise Unavailable("commit log was closed")


async def _span(replica: Replica, oldest: int, request: api.SubscribeRequest) -> Span:
    log = replica.log
    start = await _start(log, request)
    stop = await _stop(log, request)
    if request.stopPosition == api.STOP_ON_CANCEL and replica.partition.readonly:
        stop = log.end - 1
    if stop is None:
        return Span(_reachable(log, oldest, start), None)
    if stop < start:
        raise InvalidArgument(f"Stop offset is before start offset: {stop} < {start}")
    return Span(_reachable(log, oldest, start), stop + 1)


def _reachable(log: CommitLog, oldest: int, start: int) -> int:
    """Below the oldest record: the oldest. Past the end: the log end. In between exactly the requested offset,
    committed or not: a client that resumes after a failover must not receive messages that it already has."""
    return max(oldest, min(start, log.end))


async def _start(log: CommitLog, request: api.SubscribeRequest) -> int:
    match request.startPosition:
        case api.NEW_ONLY:
            return log.end
        case api.OFFSET:
            return max(0, request.startOffset)
        case api.EARLIEST:
            return log.start
        case api.LATEST:
            return max(0, log.end - 1)
        case api.TIMESTAMP:
            return await log.offset_at_or_after(request.startTimestamp)
        case unknown:
            raise InvalidArgument(f"Unknown StartPosition {unknown}")


async def _stop(log: CommitLog, request: api.SubscribeRequest) -> int | None:
    """The last offset requested, None for no end."""
    match request.stopPosition:
        case api.STOP_ON_CANCEL:
            return None
        case api.STOP_OFFSET:
            return None if request.stopOffset == -1 else request.stopOffset
        case api.STOP_LATEST:
            if log.end <= log.start:
                raise ResourceExhausted("Stream is empty")
            return log.end - 1
        case api.STOP_TIMESTAMP:
            stop = await log.offset_at_or_before(request.stopTimestamp)
            if stop is None:
                raise Internal("Failed to lookup offset for timestamp: timestamp is before the beginning of the log")
            return stop
        case unknown:
            raise InvalidArgument(f"Unknown StopPosition {unknown}")
