"""Calls between brokers, over one connection to NATS.

*Receiving.* A handler is registered for a subject: a kind of message (`messages`), and the function that takes it. All
checks are made here, once, before the function is called: that the envelope is of a kind that is expected on that
subject, its checksum, that it decodes, and that a request has a reply subject. The subject names the cluster of a
message (`subjects`). A message that fails a check is ignored, and counted by kind. Each kind is logged at most once in
ten seconds, with the number, for anyone who reaches the NATS server can send anything. A function that fails is a bug:
it is logged with its traceback, and the next message is handled.

*Asking.* A request is sent with an inbox of its own and has a timeout; of several answers the first that decodes
counts. The caller decides whether to retry.

*Sending.* A message that is larger than `max_payload` of NATS is not sent: NATS would close the connection, which
carries other messages too.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from bascule.errors import BusUnavailable, DeadlineExceeded, PeerError, Unavailable
from bascule.node.calls.messages import Decoded, Message, Method
from bascule.node.calls.subjects import Subjects
from bascule.node.runtime.countedlog import CountedLog
from bascule.node.runtime.jobs import Tasks
from bascule.node.runtime.metrics import Metrics
from bascule.ports import Bus, Random, Subscription
from bascule.wire.envelope import CRC_HEADER_BYTES, decode_checked, encode
from bascule.wire.nats import NatsMessage, messages, pub
from bascule.wire.subjects import usable_subject

logger = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

Later = Coroutine[object, object, A | None]

_TYPE_AT = 7
"""Where in an envelope its type is."""


@dataclass(frozen=True, slots=True)
class Handler(Generic[T]):
    message: Decoded[T]
    take: Callable[[T, NatsMessage], None]
    """Gets the decoded message, and the raw one for its subject and reply subject. Raises PeerError if it is
    invalid."""
    answers: bool = False
    """The message is ignored without a valid reply subject."""


class Batched(Protocol):
    def batch_taken(self) -> None:
        """All messages of one batch have been."""


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

    def handle(self, subject: bytes, *handlers: Handler[Any], after: Batched | None = None) -> Subscription:
        """Subscribe these handlers to this subject, one per kind of message. `after` is told after each batch."""
        return self._bus.subscribe(subject, Listener(handlers, after, self.ignored).on_batch)

    def answering(self, method: Method[Q, A], answer: Callable[[Q], A | None]) -> Handler[Q]:
        """A handler for requests that are answered at once, or, with None, not at all."""

        def take(question: Q, message: NatsMessage) -> None:
            answered = answer(question)
            if answered is not None:
                self.tell(message.reply, method.answer, answered)

        return Handler(method.question, take, answers=True)

    def answering_later(
        self, method: Method[Q, A], answer: Callable[[Q], Later[A]], tasks: Tasks, admits: Callable[[Q], bool]
    ) -> Handler[Q]:
        """The same for answers that take a while. Requests that are not admitted, or exceed the bound of `tasks`, are
        dropped: the caller retries."""

        async def work(question: Q, reply: bytes) -> None:
            answered = await answer(question)  # created here: a cancelled task leaves no coroutine behind
            if answered is not None:
                self.tell(reply, method.answer, answered)

        def take(question: Q, message: NatsMessage) -> None:
            if not tasks.full and admits(question):
                tasks.start(work(question, message.reply))

        return Handler(method.question, take, answers=True)

    # --- sending ---------------------------------------------------------------------------------------------

    def send(self, subject: bytes, message: Message[T], value: T, reply: bytes = b"") -> bool:
        """False if it is larger than NATS takes. Raises BusUnavailable."""
        payload = message.encode(value)
        if message.type is not None:
            payload = encode(message.type, payload, crc=True)
        if len(payload) > self._bus.max_payload:
            self._too_large.count(
                f"{message.name} of {len(payload)} bytes cannot be sent: NATS takes at most {self._bus.max_payload}; "
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
            try:
                arrived.set_result(kind.decode(_opened(message.payload, kind)))
            except PeerError as error:
                self.ignored.count(kind.name, error)


class Listener:
    """One subscription. It is synchronous, one call for each batch: replication receives through it."""

    def __init__(self, handlers: tuple[Handler[Any], ...], after: Batched | None, ignored: Ignored) -> None:
        types = [handler.message.type for handler in handlers]
        assert len(set(types)) == len(types), "two handlers for one kind of message"
        assert None not in types or len(types) == 1, "a message without an envelope needs a subject of its own"
        self._by_type: dict[int | None, Handler[Any]] = dict(zip(types, handlers, strict=True))
        self._bare = self._by_type.get(None)
        self._names = ", or ".join(handler.message.name for handler in handlers)
        self._after = after
        self._ignored = ignored

    def on_batch(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            data = message.payload
            handler = self._bare
            if handler is None and len(data) >= CRC_HEADER_BYTES:
                handler = self._by_type.get(data[_TYPE_AT])
            if handler is None:
                self._ignored.count(self._names, "no such envelope")
                continue
            kind = handler.message
            try:
                value = kind.decode(_opened(data, kind))
                if handler.answers and not usable_subject(message.reply):
                    raise PeerError("it has no valid reply subject")
                handler.take(value, message)
            except PeerError as error:
                self._ignored.count(kind.name, error)
            except Exception:
                logger.exception("%s could not be handled, and is dropped; report this", kind.name)
        if self._after is not None:
            self._after.batch_taken()


def _opened(data: bytes, kind: Decoded[T]) -> memoryview:
    if kind.type is None:
        return memoryview(data)
    payload = decode_checked(data, kind.type)
    if payload is None:
        raise PeerError("its envelope or its checksum is wrong")
    return payload
