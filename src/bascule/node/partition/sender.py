"""One message to a partition, and its ack: for clients, and for the cluster's own streams, without a gRPC call.

A publish goes through NATS, because other streams may listen on the subject, and because the partition is led by some
broker. Its ack comes to an inbox of this broker (`inboxes`). A partition that is paused is resumed first.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from bascule.core.metadata.commands import PartitionName
from bascule.errors import (
    BasculeError,
    BusUnavailable,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    NotSent,
    Unavailable,
    UnknownOutcome,
)
from bascule.limits import MAX_CORRELATION_ID_BYTES, RESUMPTIONS, RESUMPTIONS_AT_ONCE
from bascule.node.partition.environment import Environment
from bascule.node.partition.leading import Leading
from bascule.node.partition.routes import NEEDS_ACK_POLICY, PAUSED, READONLY, REFUSES_WRITES, Route
from bascule.wire.envelope import MsgType
from bascule.wire.envelope import encode as encode_envelope
from bascule.wire.pb import api_pb2 as api
from bascule.wire.producers import BATCH_REFUSALS, INVALID_PRODUCER, REFUSALS, REMADE_STREAM
from bascule.wire.pure.producers import is_about, is_about_another

RESUME_TIMEOUT_S = 5.0
"""How long a message waits for its partition to be resumed."""

Code = api.PublishAsyncError.Code
COULD_NOT_STORE = "its leader could not store it; see its log"
"""Why the outcome of a message is unknown, if this broker knows no reason."""

_ACK_FAILURES: dict[int, tuple[type[BasculeError], str]] = {
    api.Ack.INCORRECT_OFFSET: (UnknownOutcome, "incorrect expected offset"),
    api.Ack.TOO_LARGE: (InvalidArgument, "message exceeds max replication size"),
    api.Ack.ENCRYPTION: (Internal, "encryption failed on partition"),
    **{error: (FailedPrecondition, text) for error, text in REFUSALS.items()},
    **{error: (InvalidArgument, REFUSALS[error]) for error in BATCH_REFUSALS},
}
"""Classes, not instances: an exception that is raised twice holds the frames of both in memory."""

RefusalReason = Callable[[str, int], str | None]
"""Why a partition of this broker takes no writes, asked by stream and partition."""
Resume = Callable[[str, tuple[int, ...], float | None], Awaitable[None]]
"""Resumes paused partitions of a stream, within so many seconds."""


class RefusedError(Exception):
    """One publish that is refused, with its answers for Publish and for PublishAsync."""

    def __init__(self, code: api.PublishAsyncError.Code, error: BasculeError) -> None:
        super().__init__(str(error))
        self.code = code
        self._kind = type(error)

    @property
    def error(self) -> BasculeError:
        """Made anew: whoever raises it while this is handled would make the two refer to each other."""
        return self._kind(str(self))


class MessageSender:
    def __init__(self, environment: Environment, refusal: RefusalReason, resume: Resume) -> None:
        self._resume_stream = resume
        self._routes = environment.routes
        self._refusal = refusal
        self._bus = environment.ports.publishes
        self._inboxes = environment.inboxes
        self._resumptions = environment.jobs.tasks(
            "the resumption of partitions that messages wait for", RESUMPTIONS, answered=True
        )
        self._resuming: dict[PartitionName, asyncio.Task[None]] = {}
        """Each partition is resumed once, however many messages wait for it."""
        self._resume_slots = asyncio.Semaphore(RESUMPTIONS_AT_ONCE)

    async def publish(
        self, request: api.PublishRequest, timeout_s: float, kind: MsgType = MsgType.PUBLISH
    ) -> api.Ack | None:
        """In process: returns when it is acked as the request asks, at once if it asks for no ack. Raises what went
        wrong; the message may be stored then, unless it is NotSent or was refused. The value of a BATCH has several."""
        try:
            async with asyncio.timeout(timeout_s):
                subject, suffix = await self.resumed_route_of(request, timeout_s)
                message = message_of(request, subject)
                if request.ackPolicy == api.NONE:
                    self.send(subject, message, kind)
                    return None
                ack = await self.answered(suffix, message, lambda: self.send(subject, message, kind))
        except RefusedError as refused:
            raise refused.error from None
        except TimeoutError:
            raise DeadlineExceeded(f"no ack within {timeout_s:g} s") from None
        self.check_stored(request, ack)
        return ack

    async def store(self, leading: Leading, request: api.PublishRequest) -> None:
        """The same on the leader of the partition: stored without NATS, so that it is never stored later than a message
        that is sent after it. Returns when it is acked; raises Unavailable when this broker leads no longer, since no
        ack comes then."""
        try:
            subject, suffix = self.route_of(request)
        except RefusedError as refused:
            raise refused.error from None
        message = message_of(request, subject)

        def payload() -> bytes:
            return encode_envelope(MsgType.PUBLISH, message.SerializeToString())

        ack = await self.answered(suffix, message, lambda: leading.take_own(payload()), leading.unanswered)
        self.check_stored(request, ack)

    # --- acks ------------------------------------------------------------------------------------------------

    async def answered(
        self,
        suffix: bytes,
        message: api.Message,
        send: Callable[[], None],
        waiting: dict[asyncio.Future[bytes], None] | None = None,
    ) -> api.Ack:
        """The first ack that answers a message; `send` sends it, with the inbox that it names by then. While it is in
        `waiting` somebody else may fail it."""
        arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_frames(frames: bytes, count: int) -> None:
            if not arrived.done():
                arrived.set_result(frames)

        inbox = self._inboxes.open(on_frames, unary=True)
        try:
            message.ackInbox = (inbox + suffix).decode()
            if waiting is not None:
                waiting[arrived] = None
            send()
            frames = await arrived
            return api.Ack.FromString(frames[5 : 5 + int.from_bytes(frames[1:5], "big")])
        finally:
            if waiting is not None:
                waiting.pop(arrived, None)
            got_one = arrived.done() and not arrived.cancelled() and arrived.exception() is None
            self._inboxes.close(inbox, unanswered=not got_one)

    def check_stored(self, request: api.PublishRequest, ack: api.Ack) -> None:
        """Raises what a publisher is told if the ack is an error. The outcome is unknown then: a leader that could not
        store a message has sent it to its followers, and one of these may lead next and commit it."""
        if not ack.ackError:
            return
        failure, text = _ACK_FAILURES.get(ack.ackError, (UnknownOutcome, ""))
        if text:
            raise failure(text)
        reason = self._refusal(request.stream, request.partition) or COULD_NOT_STORE
        raise UnknownOutcome(
            f"unknown error: the message may be stored in partition {request.partition} or not, read before you send "
            f"it again: {reason}"
        )

    def send(self, subject: bytes, message: api.Message, kind: MsgType = MsgType.PUBLISH) -> None:
        """Raises NotSent if it is certain that NATS does not get it."""
        payload = encode_envelope(kind, message.SerializeToString())
        if len(payload) > self._bus.max_payload:
            raise NotSent("failed to publish to NATS: nats: maximum payload exceeded")
        try:
            # A stream's own subject may hold wildcards; NATS takes it literally, and it was checked at CreateStream.
            self._bus.send(b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload))
        except BusUnavailable as error:
            raise NotSent(f"failed to publish to NATS: {error}") from error

    # --- routes ----------------------------------------------------------------------------------------------

    async def resumed_route_of(self, request: api.PublishRequest, timeout_s: float | None) -> tuple[bytes, bytes]:
        """The subject and the suffix of the ack inbox. A partition that is paused is resumed first, and takes the
        message then."""
        subject, suffix = self.route_of(request)
        if self.is_paused(request):
            try:
                await self._resume_stream(request.stream, (request.partition,), timeout_s)
            except BasculeError as error:
                raise RefusedError(Code.INTERNAL, not_resumed(error)) from error
        return subject, suffix

    def is_paused(self, request: api.PublishRequest) -> bool:
        route = self._route(request)
        return route is not None and bool(route[1] & PAUSED)

    def resume(self, names: Iterable[PartitionName]) -> dict[asyncio.Task[None], list[PartitionName]]:
        """Work that resumes these partitions, those of a stream together, within RESUME_TIMEOUT_S, or raises why not.
        Whoever waits for a partition that is being resumed waits for the same work. There is none for partitions of a
        stream that are one too many."""
        work: dict[asyncio.Task[None], list[PartitionName]] = {}
        others: dict[str, list[PartitionName]] = {}
        for name in names:
            if (under_way := self._resuming.get(name)) is not None:
                work.setdefault(under_way, []).append(name)
            else:
                others.setdefault(name[0], []).append(name)
        for stream, its in others.items():
            if not self._resumptions.full:
                work[self._start_resuming(stream, its)] = its
        return work

    def _start_resuming(self, stream: str, names: list[PartitionName]) -> asyncio.Task[None]:
        def ended(_: asyncio.Task[None]) -> None:
            for name in names:
                del self._resuming[name]

        task = self._resumptions.start(self._resume(stream, tuple(number for _, number in names)))
        self._resuming.update(dict.fromkeys(names, task))
        task.add_done_callback(ended)
        return task

    async def _resume(self, stream: str, partitions: tuple[int, ...]) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + RESUME_TIMEOUT_S
        try:
            async with asyncio.timeout_at(until_s):
                await self._resume_slots.acquire()
        except TimeoutError:
            raise too_many_resumed() from None
        try:
            await self._resume_stream(stream, partitions, until_s - loop.time())
        except BasculeError as error:
            raise not_resumed(error) from error
        finally:
            self._resume_slots.release()

    def has_route(self, stream: str) -> bool:
        """Whether this broker knows by now where messages to this stream go."""
        return stream.encode() in self._routes.table

    def _route(self, request: api.PublishRequest) -> Route | None:
        routes = self._routes.table.get(request.stream.encode())
        return routes[request.partition] if routes and 0 <= request.partition < len(routes) else None

    def route_of(self, request: api.PublishRequest) -> tuple[bytes, bytes]:
        """The subject and the suffix of the ack inbox, of a paused partition, too, after checks in the protocol's
        order. What the kernel publishes does not pass here: it has a route without a flag, which says the same."""
        if not self.has_route(request.stream):
            raise RefusedError(Code.NOT_FOUND, NotFound(f"no such stream: {request.stream}"))
        route = self._route(request)
        if route is None:
            raise RefusedError(Code.NOT_FOUND, NotFound(f"no such partition: {request.partition}"))
        subject, flags, suffix, creation = route
        if flags & READONLY:
            raise RefusedError(Code.READONLY, is_readonly(request.partition))
        if flags & NEEDS_ACK_POLICY and request.ackPolicy not in (api.LEADER, api.ALL):
            text = "stream with concurrency control must have AckPolicy set"
            raise RefusedError(Code.BAD_REQUEST, InvalidArgument(text))
        if flags & REFUSES_WRITES:
            reason = self._refusal(request.stream, request.partition)
            raise RefusedError(Code.INTERNAL, takes_no_writes(request.partition, reason))
        if (long := long_correlation_id(request.correlationId)) is not None:
            raise RefusedError(Code.BAD_REQUEST, long)
        if request.producer and not is_about(request.producer, creation, request.partition):
            # The leader would ignore such numbers, and store the message each time that it is sent.
            remade = is_about_another(request.producer, creation, request.partition)
            raise RefusedError(Code.BAD_REQUEST, InvalidArgument(REMADE_STREAM if remade else INVALID_PRODUCER))
        return subject, suffix


def is_readonly(partition: int) -> FailedPrecondition:
    return FailedPrecondition(f"readonly partition: {partition}")


def takes_no_writes(partition: int, reason: str | None) -> Internal:
    return Internal(f"partition {partition} takes no writes: {reason}")


def long_correlation_id(correlation_id: str) -> InvalidArgument | None:
    """None if it is not too long."""
    if len(correlation_id.encode()) <= MAX_CORRELATION_ID_BYTES:
        return None
    return InvalidArgument(f"correlationId is too long: it takes at most {MAX_CORRELATION_ID_BYTES} bytes as UTF-8")


def not_resumed(error: BasculeError) -> BasculeError:
    return type(error)(f"failed to resume stream: {error}")


def too_many_resumed() -> BasculeError:
    return not_resumed(Unavailable("too many others are being resumed; send the message again"))


def message_of(request: api.PublishRequest, subject: bytes) -> api.Message:
    return api.Message(
        offset=request.expectedOffset,
        key=request.key,
        value=request.value,
        stream=request.stream,
        subject=subject.decode(),
        headers=request.headers,
        ackInbox=request.ackInbox,
        correlationId=request.correlationId,
        ackPolicy=request.ackPolicy,
        producer=request.producer,
    )
