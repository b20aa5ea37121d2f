"""Calls between brokers, over one connection to NATS.

*Receiving.* Whoever subscribes to a subject takes its batches apart with `received`, which checks every message: that
its envelope is of a kind that is expected on that subject, its checksum, and that a request has a reply subject. The
subject names the cluster of a message (`subjects`). Each message is then decoded and handled within `with`, so that one
that fails takes no other of its batch with it:

    for message in calls.received(batch, HEARTBEAT):
        with message as payload:
            self._note(HEARTBEAT.decode(payload))

A message that fails a check, or whose handling raises PeerError, is ignored, and counted by kind. Each kind is logged
at most once in ten seconds, with the number, for anyone who reaches the NATS server can send anything. Any other
exception is a bug: it is logged with its traceback.

*Asking.* A request is sent with an inbox of its own and has a timeout; of several answers the first that decodes
counts. The caller decides whether to retry.

*Sending.* A message that is larger than `max_payload` of NATS is not sent: NATS would close the connection, which
carries other messages too.
"""

import asyncio
import logging
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TypeVar

from bascule.errors import BusUnavailable, DeadlineExceeded, PeerError, Unavailable
from bascule.node.calls.messages import Kind, Message, Method
from bascule.node.calls.subjects import Subjects
from bascule.node.runtime.countedlog import CountedLog
from bascule.node.runtime.metrics import Metrics
from bascule.ports import Bus, OnBatch, Random, Subscription
from bascule.wire.envelope import CRC_HEADER_BYTES, decode_checked, encode
from bascule.wire.nats import NatsMessage, messages, pub
from bascule.wire.subjects import usable_subject

logger = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

_TYPE_AT = 7
"""Where in an envelope its type is."""
BAD_ENVELOPE = "its envelope or its checksum is wrong"


class Ignored:
    """Messages that cannot be decoded: counted by kind, and logged."""

    def __init__(self, metrics: Metrics) -> None:
        self.counter = metrics.counter(
            "bascule_malformed_messages_total", "Messages between brokers that cannot be decoded", label="kind"
        )
        self._logs: dict[str, CountedLog] = {}

    def count(self, name: str, reason: object) -> None:
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = CountedLog(logger, self.counter, name)
        log.count(f"{name} that cannot be decoded is ignored: {reason}")


class Received:
    """A message that has passed the checks of `Calls.received`, and the context in which it is handled."""

    __slots__ = ("_ignored", "_payload", "kind", "reply", "subject")

    def __init__(self, kind: Kind, message: NatsMessage, payload: memoryview, ignored: Ignored) -> None:
        self.kind = kind
        self.subject = message.subject
        self.reply = message.reply
        self._payload = payload
        self._ignored = ignored

    def __enter__(self) -> memoryview:
        """What is in its envelope."""
        return self._payload

    def __exit__(
        self, type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, PeerError):
            self._ignored.count(self.kind.name, error)
        elif isinstance(error, Exception):
            logger.error("%s could not be handled, and is dropped; report this", self.kind.name, exc_info=error)
        return isinstance(error, Exception)


class Calls:
    def __init__(
        self, broker_id: str, subjects: Subjects, bus: Bus, random: Random, metrics: Metrics, purpose: str = ""
    ) -> None:
        """`purpose` distinguishes the inboxes of two connections of one broker."""
        self.broker_id = broker_id
        self.subjects = subjects
        self.ignored = Ignored(metrics)
        self._bus = bus
        self._random = random
        unsent = metrics.counter("bascule_unsent_messages_total", "Messages to brokers that are larger than NATS takes")
        self._too_large = CountedLog(logger, unsent)
        self._inbox = subjects.answers(broker_id, purpose)
        self._waiting: dict[bytes, tuple[Message[Any], asyncio.Future[Any]]] = {}

    @property
    def max_payload(self) -> int:
        return self._bus.max_payload

    def new_id(self) -> str:
        """A globally unique id, for an operation."""
        return self._random.token()

    # --- receiving -------------------------------------------------------------------------------------------

    def subscribe(self, subject: bytes, on_batch: OnBatch) -> Subscription:
        """`on_batch` takes the batch apart with `received`."""
        return self._bus.subscribe(subject, on_batch)

    def received(self, batch: bytes, *kinds: Kind) -> Iterator[Received]:
        """The messages of a batch that are of one of these kinds and pass all checks."""
        assert _differ(kinds), "kinds of message on one subject are told apart by their types"
        for message in messages(batch):
            kind = kinds[0] if len(kinds) == 1 else _kind_of(message.payload, kinds)
            if kind is None:
                self.ignored.count(", or ".join(each.name for each in kinds), "no such envelope")
            elif (payload := _opened(message.payload, kind)) is None:
                self.ignored.count(kind.name, BAD_ENVELOPE)
            elif kind.asks and not usable_subject(message.reply):
                self.ignored.count(kind.name, "it has no valid reply subject")
            else:
                yield Received(kind, message, payload, self.ignored)

    # --- sending ---------------------------------------------------------------------------------------------

    def send(self, subject: bytes, message: Message[T], value: T, reply: bytes = b"") -> bool:
        """False if it is larger than NATS takes. Raises BusUnavailable."""
        return self.send_encoded(subject, message, message.encode(value), reply)

    def send_encoded(self, subject: bytes, kind: Kind, payload: bytes, reply: bytes = b"") -> bool:
        if kind.type is not None:
            payload = encode(kind.type, payload, crc=True)
        if len(payload) > self._bus.max_payload:
            self._too_large.count(
                f"{kind.name} of {len(payload)} bytes cannot be sent: NATS takes at most {self._bus.max_payload}; "
                "raise max_payload of the NATS servers"
            )
            return False
        self._bus.send(pub(subject, payload, reply))
        return True

    def tell(self, subject: bytes, message: Message[T], value: T) -> None:
        """Send a message that may be lost if NATS is not connected: it is not needed, or is sent again."""
        try:
            self.send(subject, message, value)
        except BusUnavailable:
            pass

    # --- asking ----------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Subscribe to answers. To be called before the first request."""
        self._bus.subscribe(self._inbox + b"*", self._on_answers)

    async def ask(self, subject: bytes, method: Method[Q, A], question: Q, timeout_s: float) -> A:
        """The first answer. Raises DeadlineExceeded without an answer, BusUnavailable without NATS, and Unavailable if
        the request is larger than NATS takes."""
        token = self._random.token().encode()
        arrived: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting[token] = (method.answer, arrived)
        try:
            if not self.send(subject, method.question, question, self._inbox + token):
                raise Unavailable(f"{method.question.name} is larger than NATS takes in one message (max_payload)")
            async with asyncio.timeout(timeout_s):
                return await arrived
        except TimeoutError:
            raise DeadlineExceeded(f"no answer on {subject.decode()} within {timeout_s:.1f} s") from None
        finally:
            del self._waiting[token]

    async def ask_once(self, subject: bytes, method: Method[Q, A], question: Q, timeout_s: float) -> A | None:
        """None without an answer, for any reason: the caller does without, or retries itself."""
        try:
            return await self.ask(subject, method, question, timeout_s)
        except (DeadlineExceeded, BusUnavailable, Unavailable):
            return None

    def _on_answers(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            kind, arrived = self._waiting.get(message.subject[len(self._inbox) :], (None, None))
            if kind is None or arrived is None or arrived.done():
                continue  # late, or a second answer
            payload = _opened(message.payload, kind)
            if payload is None:
                self.ignored.count(kind.name, BAD_ENVELOPE)
                continue
            with Received(kind, message, payload, self.ignored):
                arrived.set_result(kind.decode(payload))


def _differ(kinds: tuple[Kind, ...]) -> bool:
    return len(kinds) == 1 or len({kind.type for kind in kinds} - {None}) == len(kinds)


def _kind_of(data: bytes, kinds: tuple[Kind, ...]) -> Kind | None:
    if len(data) < CRC_HEADER_BYTES:
        return None
    return next((kind for kind in kinds if kind.type == data[_TYPE_AT]), None)


def _opened(data: bytes, kind: Kind) -> memoryview | None:
    """What is in the envelope; None if that or its checksum is wrong."""
    return memoryview(data) if kind.type is None else decode_checked(data, kind.type)
