"""One message to a partition, and its ack: for clients, and for the cluster's own streams, without a gRPC call.

A publish goes through NATS, because other streams may listen on the subject, and because the partition is led by some
broker. Its ack comes to an inbox of this broker (`inboxes`). A partition that is paused is resumed first.
"""

import asyncio
from collections.abc import Awaitable, Callable

from bascule.errors import (
    BasculeError,
    BusUnavailable,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    NotSent,
    UnknownOutcome,
)
from bascule.limits import MAX_CORRELATION_ID_BYTES
from bascule.node.partition.environment import Environment
from bascule.node.partition.leading import Leading
from bascule.node.partition.routes import NEEDS_ACK_POLICY, PAUSED, READONLY, REFUSES_WRITES, Route
from bascule.wire.envelope import MsgType
from bascule.wire.envelope import encode as encode_envelope
from bascule.wire.pb import api_pb2 as api

RESUME_TIMEOUT_S = 5.0
"""How long a message waits for its partition to be resumed."""

Code = api.PublishAsyncError.Code
LONG_CORRELATION_ID = f"correlationId is too long: it takes at most {MAX_CORRELATION_ID_BYTES} bytes as UTF-8"

_ACK_FAILURES: dict[int, tuple[type[BasculeError], str]] = {
    api.Ack.INCORRECT_OFFSET: (UnknownOutcome, "incorrect expected offset"),
    api.Ack.TOO_LARGE: (InvalidArgument, "message exceeds max replication size"),
    api.Ack.ENCRYPTION: (Internal, "encryption failed on partition"),
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
        self.error = error


class MessageSender:
    def __init__(self, environment: Environment, refusal: RefusalReason, resume: Resume) -> None:
        self._resume_stream = resume
        self._routes = environment.routes
        self._refusal = refusal
        self._bus = environment.ports.publishes
        self._inboxes = environment.inboxes

    async def publish(self, request: api.PublishRequest, timeout_s: float) -> None:
        """In process: returns when it is acked as the request asks, at once if it asks for no ack. Raises what went
        wrong; the message may be stored then, unless it is NotSent or was refused."""
        try:
            async with asyncio.timeout(timeout_s):
                subject, suffix = await self.resumed_route_of(request, timeout_s)
                message = message_of(request, subject)
                if request.ackPolicy == api.NONE:
                    self.send(subject, message)
                    return
                ack = await self.answered(suffix, message, lambda: self.send(subject, message))
        except RefusedError as refused:
            raise refused.error from None
        except TimeoutError:
            raise DeadlineExceeded(f"no ack within {timeout_s:g} s") from None
        self.check_stored(request, ack)

    async def store(self, leading: Leading, request: api.PublishRequest) -> None:
        """The same on the leader of the partition: stored without NATS, so that it is never stored later than a message
        that is sent after it. Returns when it is acked; raises Unavailable when this broker leads no longer, since no
        ack comes then."""
        try:
            subject, suffix = self.route_of(request)
        except RefusedError as refused:
            raise refused.error from None
        message = message_of(request, subject)
        ack = await self.answered(suffix, message, lambda: leading.take_own(_envelope(message)), leading.unanswered)
        self.check_stored(request, ack)

    # --- acks ------------------------------------------------------------------------------------------------

    async def answered(
        self,
        suffix: bytes,
        message: api.Message,
        send: Callable[[], None],
        waiting: set[asyncio.Future[bytes]] | None = None,
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
                waiting.add(arrived)
            send()
            frames = await arrived
            return api.Ack.FromString(frames[5 : 5 + int.from_bytes(frames[1:5], "big")])
        finally:
            if waiting is not None:
                waiting.discard(arrived)
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
        reason = self._refusal(request.stream, request.partition) or "its leader could not store it; see its log"
        raise UnknownOutcome(
            f"unknown error: the message may be stored in partition {request.partition} or not, read before you send "
            f"it again: {reason}"
        )

    def send(self, subject: bytes, message: api.Message) -> None:
        """Raises NotSent if it is certain that NATS does not get it."""
        payload = _envelope(message)
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
        route = self._route(request)
        if route is not None and route[1] & PAUSED:
            try:
                await self._resume_stream(request.stream, (request.partition,), timeout_s)
            except BasculeError as error:
                raise RefusedError(Code.INTERNAL, type(error)(f"failed to resume stream: {error}")) from error
        return subject, suffix

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
        subject, flags, suffix = route
        if flags & READONLY:
            raise RefusedError(Code.READONLY, FailedPrecondition(f"readonly partition: {request.partition}"))
        if flags & NEEDS_ACK_POLICY and request.ackPolicy not in (api.LEADER, api.ALL):
            text = "stream with concurrency control must have AckPolicy set"
            raise RefusedError(Code.BAD_REQUEST, InvalidArgument(text))
        if flags & REFUSES_WRITES:
            reason = self._refusal(request.stream, request.partition)
            raise RefusedError(Code.INTERNAL, Internal(f"partition {request.partition} takes no writes: {reason}"))
        if len(request.correlationId.encode()) > MAX_CORRELATION_ID_BYTES:
            raise RefusedError(Code.BAD_REQUEST, InvalidArgument(LONG_CORRELATION_ID))
        return subject, suffix


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
    )


def _envelope(message: api.Message) -> bytes:
    return encode_envelope(MsgType.PUBLISH, message.SerializeToString())
