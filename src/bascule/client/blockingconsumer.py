"""Consumers for code without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import queue
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import Any, Self, TypeVar

from bascule import limits
from bascule.client.arrow import ArrowRead
from bascule.client.consumer import Consuming, Position
from bascule.client.crossing import Run, Submit, fail, fulfil, outcome, tell
from bascule.client.groupconsumer import Assignment, GroupConsumer, OnAssignment
from bascule.client.values import Message
from bascule.errors import InvalidArgument

T = TypeVar("T")
Waiting = queue.SimpleQueue[Callable[[], object] | None]
_waiting: ContextVar[Waiting] = ContextVar("waiting")
"""What the thread that waits for this work is to call; None when the work has ended."""


class BlockingConsumer:
    """Made by `BlockingClient.consumer`. Iterate it for messages, or `batches()`; use it in `with`, or `close` it."""

    def __init__(self, consumer: Consuming, run: Run) -> None:
        self._consumer = consumer
        self._run = run

    def __repr__(self) -> str:
        return f"<Blocking {self._consumer!r}>"

    def __enter__(self) -> Self:
        self._run(self._consumer.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._consumer.__aexit__(kind, error, trace))

    @property
    def position(self) -> dict[str, dict[int, int]]:
        """As that of `Consumer`."""
        return self._consumer.position

    def __iter__(self) -> Iterator[Message]:
        while (message := self.next()) is not None:
            yield message

    def batches(self) -> Iterator[list[Message]]:
        while batch := self._run(self._consumer.next_batch()):
            yield batch

    def next(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came in time, or there are no more."""
        return self._consumer.next_buffered() or self._run(self._consumer.next(timeout))

    def close(self) -> None:
        self._run(self._consumer.close())


class BlockingArrowRead:
    """Made by `BlockingClient.arrow`. Iterate it for pyarrow record batches."""

    def __init__(self, read: ArrowRead, run: Run) -> None:
        self._read = read
        self._run = run

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._read)[1:]}"

    @property
    def position(self) -> dict[str, dict[int, int]]:
        """As that of `ArrowRead`."""
        return self._read.position

    def __iter__(self) -> Iterator[Any]:
        while (batch := self._run(self._next())) is not None:
            yield batch

    async def _next(self) -> Any:
        return await anext(self._read, None)

    def close(self) -> None:
        self._run(self._read.aclose())


class Calls:
    """What is called back runs in the thread that waits: it may use the consumer, and what belongs to that thread."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    def crossing(self, callback: OnAssignment | None) -> OnAssignment | None:
        if callback is None:
            return None
        if inspect.iscoroutinefunction(callback):
            raise InvalidArgument("the callbacks of a blocking client are functions, and no coroutine functions")

        def call(given: Assignment) -> asyncio.Future[None]:
            """At once: whoever waits now waits until it has been called, also if the call that they made has ended."""
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()
            context = copy_context()

            def here() -> None:
                try:
                    context.run(callback, given)
                except BaseException as error:
                    tell(loop, fail, done, error)
                else:
                    tell(loop, fulfil, done, None)

            _waiting.get().put(here)
            return done

        return call

    def run(self, work: Coroutine[Any, Any, T], /) -> T:
        calls: Waiting = queue.SimpleQueue()
        token = _waiting.set(calls)
        try:
            future = self._submit(work)
        finally:
            _waiting.reset(token)
        future.add_done_callback(lambda _: calls.put(None))
        try:
            while (call := calls.get()) is not None:
                call()
            return outcome(future)
        except BaseException:
            future.cancel()
            raise


class BlockingGroupConsumer(BlockingConsumer):
    """Made by `BlockingClient.consumer(..., group=...)`: a member of a consumer group, as `GroupConsumer`."""

    def __init__(self, consumer: GroupConsumer, calls: Calls) -> None:
        super().__init__(consumer, calls.run)
        self._member = consumer

    @property
    def id(self) -> str:
        return self._member.id

    @property
    def group(self) -> str:
        return self._member.group

    @property
    def assignment(self) -> Assignment:
        """The partitions that are its own now."""
        return self._member.assignment

    def commit(
        self, position: Position | None = None, *, timeout: float = limits.CLIENT_TIMEOUT_S
    ) -> dict[str, dict[int, int]]:
        """As that of `GroupConsumer`."""
        return self._run(self._member.commit(position, timeout=timeout))
