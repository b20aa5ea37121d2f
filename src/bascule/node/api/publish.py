"""Publish, PublishAsync and PublishToSubject: gRPC in, NATS out, acks back.

A publish always goes through NATS, because other streams may listen on the subject. These store it too, and ack it,
but a publish that names a stream is answered by that stream (`routes.py`). PublishAsync works per read: one
kernel call turns all requests that arrived into one NATS write; requests that need another answer (unknown stream,
readonly, too large, NATS not connected, a client whose messages are checked) are returned to Python and answered one by
one. Those of a paused partition wait until it is resumed, and so do the next reads of their call: the messages of a
publisher to a partition keep their order. No other call waits.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from google.protobuf.message import DecodeError

from bascule.core.metadata.commands import PartitionName
from bascule.errors import (
    BasculeError,
    BusUnavailable,
    Internal,
    InvalidArgument,
    NotSent,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from bascule.limits import (
    GRPC_MAX_MESSAGE_BYTES,
    MAX_SUBJECT_BYTES,
    PUBLISH_OUTSTANDING_ACKS,
    PUBLISH_SINGLY,
    SUBSCRIBER_BUFFER_BYTES,
)
from bascule.node.api.gate import Gate
from bascule.node.api.requests import check_fields
from bascule.node.partition.environment import Environment
from bascule.node.partition.routes import Table
from bascule.node.partition.sender import (
    Code,
    MessageSender,
    RefusedError,
    long_correlation_id,
    message_of,
    not_resumed,
    too_many_resumed,
)
from bascule.ports import Call
from bascule.wire.envelope import MsgType
from bascule.wire.envelope import decode as decode_envelope
from bascule.wire.grpc import frame
from bascule.wire.kernels import route_publishes
from bascule.wire.nats import messages
from bascule.wire.pb import api_pb2 as api
from bascule.wire.subjects import usable_subject

logger = logging.getLogger(__name__)

CLOSE_WAIT_S = 5.0
"""How long a half-closed PublishAsync waits for outstanding acks, as the Go server does."""
STALLED_ACKS_S = 5.0
"""Acks that are missing for this long will not arrive (a lost NATS connection): the call goes on without them."""

Waiting = dict[PartitionName, list[bytes]]
"""Requests of one call that wait until their partition is resumed, in their order."""

_MALFORMED, _TOO_LARGE, _COMPRESSED = 1, 2, 3


class Publisher:
    def __init__(self, gate: Gate, environment: Environment, sender: MessageSender) -> None:
        self._gate = gate
        self._sender = sender
        self._routes = environment.routes
        self._refused = environment.refused
        self._bus = environment.ports.publishes
        self._inboxes = environment.inboxes
        self._singly = asyncio.Lock()

    # --- unary ------------------------------------------------------------------------------------------------

    async def publish(self, request: api.PublishRequest, call: Call) -> api.PublishResponse:
        if not request.stream:
            raise self._counted(InvalidArgument("no stream provided"))
        try:
            subject, suffix = await self._sender.resumed_route_of(request, call.time_remaining())
        except RefusedError as refused:
            raise self._counted_refusal(refused) from None
        message = message_of(request, subject)
        ack = await self._publish_and_wait(subject, suffix, message, call)
        if ack is None:
            return api.PublishResponse()
        self._sender.check_stored(request, ack)
        return api.PublishResponse(ack=ack)

    async def publish_to_subject(
        self, request: api.PublishToSubjectRequest, call: Call
    ) -> api.PublishToSubjectResponse:
        subject = request.subject.encode()
        if not usable_subject(subject):
            raise self._counted(
                InvalidArgument(
                    f"Subject is invalid: a message goes to one subject of at most {MAX_SUBJECT_BYTES} bytes, "
                    "without blanks, control characters, wildcards or empty tokens"
                )
            )
        message = api.Message(
            key=request.key,
            value=request.value,
            subject=request.subject,
            headers=request.headers,
            ackInbox=request.ackInbox,
            correlationId=request.correlationId,
            ackPolicy=request.ackPolicy,
        )
        if (long := long_correlation_id(request.correlationId)) is not None:
            raise self._counted(long)
        ack = await self._publish_and_wait(subject, b"", message, call)
        return api.PublishToSubjectResponse(ack=ack)

    async def _publish_and_wait(
        self, subject: bytes, suffix: bytes, message: api.Message, call: Call
    ) -> api.Ack | None:
        """The first ack that answers; None at once if the caller asked for none or set no deadline (as clients expect).
        Then the message names no inbox of ours: no call would wait for the ack."""
        if message.ackInbox and not usable_subject(message.ackInbox.encode()):
            raise self._counted(
                InvalidArgument("ackInbox is invalid: it must be a NATS subject without blanks or wildcards")
            )
        if message.ackPolicy == api.NONE or call.time_remaining() is None:
            self._send(subject, message)
            return None
        if message.ackInbox:
            return await self._through_foreign_inbox(subject, suffix, message)
        return await self._sender.answered(suffix, message, lambda: self._send(subject, message))

    async def _through_foreign_inbox(self, subject: bytes, suffix: bytes, message: api.Message) -> api.Ack:
        """The caller named an inbox of its own: listen there too while the call lasts."""
        arrived: asyncio.Future[api.Ack] = asyncio.get_running_loop().create_future()

        def on_batch(batch: bytes, count: int) -> None:
            for ack in _acks(batch):
                if not arrived.done() and self._routes.answers(ack.stream.encode(), suffix):
                    arrived.set_result(ack)

        subscription = self._bus.subscribe(message.ackInbox.encode(), on_batch)
        try:
            try:
                await self._bus.flush()
            except BusUnavailable as error:
                raise self._counted(NotSent(f"failed to publish to NATS: {error}")) from error
            self._send(subject, message)
            return await arrived
        finally:
            subscription.unsubscribe()

    def _send(self, subject: bytes, message: api.Message) -> None:
        try:
            self._sender.send(subject, message)
        except NotSent as error:
            self._counted(error)
            raise

    def _counted(self, refusal: BasculeError) -> BasculeError:
        """Every publish that is refused here, once its request is decoded. Not counted are requests that cannot be
        decoded (`requests.receive`, `_problem`), and calls that do not pass the gate. What a leader refuses, it counts
        itself."""
        self._refused.add("not_sent" if isinstance(refusal, NotSent) else refusal.status.name.lower())
        return refusal

    def _counted_refusal(self, refused: RefusedError) -> BasculeError:
        if refused.code != Code.READONLY:
            return self._counted(refused.error)
        self._refused.add("readonly")  # as a leader counts what comes by NATS
        return refused.error

    # --- streaming ----------------------------------------------------------------------------------------------

    async def publish_async(self, call: Call) -> None:
        session = _Session(call)
        inbox = self._inboxes.open(session.on_frames, unary=False)
        # Without routes the kernel singles every message out.
        table = {} if self._gate.checks_each_message(call) else self._routes.table
        try:
            call.send_headers()
            carry = b""
            while (data := await call.receive_frames()) is not None:
                carry, singled_out, problem = self._route(session, inbox, carry + data if carry else data, table)
                await self._publish_each(session, inbox, singled_out)
                if problem is not None:
                    raise problem
                await session.room()
                await self._bus.drained()
            await session.all_acked(CLOSE_WAIT_S)
        finally:
            self._inboxes.close(inbox, unanswered=session.unanswered)

    def _route(
        self, session: "_Session", inbox: bytes, data: bytes, table: Table
    ) -> tuple[bytes, list[bytes], BasculeError | None]:
        """One read: publish the complete requests. Returns the incomplete rest, requests that need their own answer,
        and an error that ends the call."""
        consumed, commands, _, awaiting, exceptions, problem = route_publishes(
            data, 0, len(data), table, inbox, self._bus.max_payload, GRPC_MAX_MESSAGE_BYTES
        )
        if commands:
            try:
                self._bus.send(commands)
            except BusUnavailable:
                # Without routes every request is returned, and gets its own error.
                return self._route(session, inbox, data, {})
            session.outstanding += awaiting
        return data[consumed:], exceptions, _problem(problem, data, consumed) if problem else None

    async def _publish_each(self, session: "_Session", inbox: bytes, requests: list[bytes]) -> None:
        waiting: Waiting = {}
        await self._some_a_turn(session, requests, lambda data: self._decode_singly(session, inbox, data, waiting))
        if waiting:
            await self._publish_resumed(session, inbox, waiting)

    async def _some_a_turn(self, session: "_Session", requests: list[bytes], answer: Callable[[bytes], None]) -> None:
        """One by one, a bounded number per turn of the event loop over all calls: a read may have 200,000 of them."""
        for first in range(0, len(requests), PUBLISH_SINGLY):
            async with self._singly:
                for request in requests[first : first + PUBLISH_SINGLY]:
                    answer(request)
                session.send_refusals()
                await asyncio.sleep(0)
            await session.room()

    def _decode_singly(self, session: "_Session", inbox: bytes, data: bytes, waiting: Waiting) -> None:
        try:
            check_fields(data)
        except InvalidArgument as error:  # its correlation id is not decoded
            session.refuse(api.PublishRequest(), Code.BAD_REQUEST, str(self._counted(error)))
            return
        request = api.PublishRequest.FromString(data)
        with self._refusing(session, request):
            self._gate.admit_message(request, session.call)
            name = (request.stream, request.partition)
            if name not in waiting:
                subject, suffix = self._sender.route_of(request)
                if not self._sender.is_paused(request):
                    self._publish_singly(session, inbox, request, subject, suffix)
                    return
            waiting.setdefault(name, []).append(data)

    async def _publish_resumed(self, session: "_Session", inbox: bytes, waiting: Waiting) -> None:
        """Each partition's messages in their order, once it is resumed; if that fails all of them are refused."""
        work = self._sender.resume(waiting)
        pending = set(work)
        while pending:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in [each for each in work if each.done()]:
                answer = partial(self._answer_resumed, session, inbox, _failure(task))
                for name in work.pop(task):
                    await self._some_a_turn(session, waiting.pop(name), answer)
        for left in waiting.values():
            await self._some_a_turn(session, left, partial(self._answer_resumed, session, inbox, too_many_resumed()))

    def _answer_resumed(self, session: "_Session", inbox: bytes, failure: BasculeError | None, data: bytes) -> None:
        request = api.PublishRequest.FromString(data)
        with self._refusing(session, request):
            if failure is not None:
                raise RefusedError(Code.INTERNAL, failure)
            self._publish_singly(session, inbox, request, *self._sender.route_of(request))

    def _publish_singly(
        self, session: "_Session", inbox: bytes, request: api.PublishRequest, subject: bytes, suffix: bytes
    ) -> None:
        message = message_of(request, subject)
        message.ackInbox = (inbox + suffix).decode()
        self._send(subject, message)
        session.outstanding += request.ackPolicy in (api.LEADER, api.ALL)

    @contextmanager
    def _refusing(self, session: "_Session", request: api.PublishRequest) -> Iterator[None]:
        try:
            yield
        except PermissionDenied as error:
            session.refuse(request, Code.PERMISSION_DENIED, str(self._counted(error)))
        except RefusedError as refused:
            session.refuse(request, refused.code, str(self._counted_refusal(refused)))
        except NotSent as error:  # counted by `_send`
            session.refuse(request, Code.INTERNAL, str(error))
        except BasculeError as error:  # of the gate
            session.refuse(request, Code.INTERNAL, str(self._counted(error)))


def _failure(resumption: asyncio.Task[None]) -> BasculeError | None:
    if resumption.cancelled():
        return not_resumed(Unavailable("this broker stops"))
    error = resumption.exception()
    if error is None or isinstance(error, BasculeError):
        return error
    raise error


class _Session:
    """One PublishAsync call: counts its outstanding acks, so that neither side buffers without bound."""

    def __init__(self, call: Call) -> None:
        self.outstanding = 0
        self._gave_up = False
        self.call = call
        self._refusals: list[bytes] = []
        self._changed = asyncio.Event()

    @property
    def unanswered(self) -> bool:
        """Acks for this call may be pending on a leader."""
        return self._gave_up or self.outstanding > 0

    def on_frames(self, frames: bytes, count: int) -> None:
        # A message may be acked twice, by a leader and the next one, and acks that were given up may still arrive: the
        # count never falls below zero.
        self.outstanding = max(0, self.outstanding - count)
        self._changed.set()
        if not self.call.ended:
            self.call.write(frames)

    def refuse(self, request: api.PublishRequest, code: api.PublishAsyncError.Code, message: str) -> None:
        response = api.PublishResponse(
            correlationId=request.correlationId,
            asyncError=api.PublishAsyncError(code=code, message=message),
            ack=api.Ack(),
        )
        self._refusals.append(frame(response.SerializeToString()))

    def send_refusals(self) -> None:
        refusals, self._refusals = self._refusals, []
        if refusals and not self.call.ended:
            self.call.write(b"".join(refusals))

    async def room(self) -> None:
        """Returns when more requests may be read: not too many acks are outstanding, or unread by the client."""
        if self.call.queued_bytes > SUBSCRIBER_BUFFER_BYTES:
            await self.call.drained()
        if self.outstanding > PUBLISH_OUTSTANDING_ACKS:
            await self._until(PUBLISH_OUTSTANDING_ACKS // 2, STALLED_ACKS_S)

    async def all_acked(self, timeout_s: float) -> None:
        await self._until(0, timeout_s)

    async def _until(self, most: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while self.outstanding > most:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._gave_up = True
            self.outstanding = 0


def _acks(batch: bytes) -> Iterator[api.Ack]:
    for message in messages(batch):
        payload = decode_envelope(message.payload, MsgType.ACK)
        if payload is not None:
            try:
                yield api.Ack.FromString(payload)
            except DecodeError:
                continue


def _problem(problem: int, data: bytes, consumed: int) -> BasculeError:
    if problem == _TOO_LARGE:
        size = int.from_bytes(data[consumed + 1 : consumed + 5], "big")
        return ResourceExhausted(f"grpc: received message larger than max ({size} vs. {GRPC_MAX_MESSAGE_BYTES})")
    if problem == _COMPRESSED:
        return Internal("grpc: compressed flag set with identity or empty encoding")
    return Internal("grpc: error unmarshalling request: not a valid PublishRequest")
