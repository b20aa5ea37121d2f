"""Calls between brokers, over one connection to NATS.

*Receiving.* A handler is registered with its subject: which kind of message (`messages`), and the function that takes
it. Everything is checked here, once, before the function is called: that the envelope is of a kind that is expected on
that subject, its checksum, that it decodes, and that a question names a subject for its answer. The subject names the
cluster a message is for (`subjects`). A message that fails a check is ignored, and counted by kind; of each kind a line
is logged, and then one every ten seconds with the number, for anyone who reaches the NATS server can send anything. A
function that fails is a bug: it is logged with its traceback, and the next message is taken all the same.

*Asking.* A question goes out with an inbox of its own and is waited for so long and no longer; of several answers the
first that decodes counts. Whoever asks decides whether it is asked again.

*Sending.* What NATS would not take, for it is larger than its `max_payload`, is not sent: NATS would end the connection
over it, and everything else that it carries with it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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
    """Gets the message decoded, and as it came: its subject and reply subject. A PeerError says that it cannot be
    right after all."""
    answers: bool = False
    """It is ignored without a reply subject that can be answered to."""


class Ignored:
    """What cannot be decoded: counted by kind, and logged in one way."""

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
        """`purpose` tells the inboxes of one connection of a broker from those of another."""
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
        """For an operation: never used before, by anybody."""
        return self._random.token()

    # --- receiving -------------------------------------------------------------------------------------------

    def handle(self, subject: bytes, *handlers: Handler[Any], after: Callable[[], None] | None = None) -> Subscription:
        """From now on messages on this subject are taken by these, each of its own kind. `after` is called behind each
        batch of them."""
        return self._bus.subscribe(subject, Listener(handlers, after, self.ignored).on_batch)

    def answering(self, method: Method[Q, A], answer: Callable[[Q], A | None]) -> Handler[Q]:
        """A handler for questions that are answered at once, or, with None, not at all."""

        def take(question: Q, message: NatsMessage) -> None:
            answered = answer(question)
            if answered is not None:
                self.tell(message.reply, method.answer, answered)

        return Handler(method.question, take, answers=True)

    def answering_later(
        self, method: Method[Q, A], answer: Callable[[Q], Later[A]], tasks: Tasks, admits: Callable[[Q], bool]
    ) -> Handler[Q]:
        """The same for answers that take a while; what is not admitted is not begun. Past the bound of `tasks`
        questions are dropped: they are asked again."""

        async def work(question: Q, reply: bytes) -> None:
            answered = await answer(question)  # made here: a task that ends before its first step leaves nothing behind
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
                f"{message.name} of {len(payload)} bytes cannot be sent, for NATS takes {self._bus.max_payload} at "
                "most: raise max_payload of the NATS servers"
            )
            return False
        self._bus.send(pub(subject, payload, reply))
        return True

    def tell(self, subject: bytes, message: Message[T], value: T) -> None:
        """What nobody misses, or asks for again, if NATS is away."""
        try:
            self.send(subject, message, value)
        except BusUnavailable:
            pass

    # --- asking ----------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """For answers. Before the first question."""
        self._bus.subscribe(self._inbox + b"*", self._on_answers)

    async def ask(self, subject: bytes, method: Method[Q, A], question: Q, timeout_s: float) -> A:
        """The first answer. DeadlineExceeded if none comes; BusUnavailable without NATS; Unavailable if the question is
        larger than NATS takes."""
        token = self._random.token().encode()
        arrived: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting[token] = (method.answer, arrived)
        try:
            if not self.send(subject, method.question, question, self._inbox + token):
                raise Unavailable(f"{method.question.name} is larger than NATS takes in one message (max_payload)")
            async with asyncio.timeout(timeout_s):
                return await arrived
        except TimeoutError:
            raise DeadlineExceeded(f"nobody answered on {subject.decode()} within {timeout_s:.1f} s") from None
        finally:
            del self._waiting[token]

    async def ask_once(self, subject: bytes, method: Method[Q, A], question: Q, timeout_s: float) -> A | None:
        """None without an answer, for whatever reason: who asks does without, or asks again by itself."""
        try:
            return await self.ask(subject, method, question, timeout_s)
        except (DeadlineExceeded, BusUnavailable, Unavailable):
            return None

    def _on_answers(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            kind, arrived = self._waiting.get(message.subject[len(self._inbox) :], (None, None))
            if kind is None or arrived is None or arrived.done():
                continue  # late, or the second one
            try:
                arrived.set_result(kind.decode(_opened(message.payload, kind)))
            except PeerError as error:
                self.ignored.count(kind.name, error)


class Listener:
    """One subscription. Replication receives through this: a call for each batch, and nothing awaited."""

    def __init__(self, handlers: tuple[Handler[Any], ...], after: Callable[[], None] | None, ignored: Ignored) -> None:
        types = [handler.message.type for handler in handlers]
        assert len(set(types)) == len(types), "two handlers for one kind of message"
        assert None not in types or len(types) == 1, "what has no envelope cannot be told from others"
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
                    raise PeerError("it names no subject to answer to")
                handler.take(value, message)
            except PeerError as error:
                self._ignored.count(kind.name, error)
            except Exception:
                logger.exception("%s could not be handled, and is dropped; report this", kind.name)
        if self._after is not None:
            self._after()


def _opened(data: bytes, kind: Decoded[T]) -> memoryview:
    if kind.type is None:
        return memoryview(data)
    payload = decode_checked(data, kind.type)
    if payload is None:
        raise PeerError("its envelope or its checksum is wrong")
    return payload
