"""Clients that call one method after the other with random requests: with and without time, to their end or cancelled
in the middle, on connections that are closed now and then."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from tools.fuzzing.chance import Chance
from tools.requesting.methods import Method
from tools.requesting.requests import Requests

TIMEOUTS_S = (0.02, 0.3, 1.0, 3.0, 10.0)
STREAM_TIMEOUTS_S = (0.02, 0.1, 0.3, 1.0)
OFTEN = {"CreateStream": 6, "JoinConsumerGroup": 3, "FetchConsumerGroupAssignments": 3, "Publish": 3, "Subscribe": 3}
"""How often a method is called, where others are called once: most calls need what these make."""
CALLS_PER_CONNECTION = 300
RESPONSES = 50
"""That are read of a call that streams them, at most."""
_VARIABLE = re.compile(r"\d+|'[^']*'|\"[^\"]*\"")


class Answers:
    """By method, how calls ended; and the texts of what went wrong inside a broker."""

    def __init__(self) -> None:
        self.statuses: dict[str, Counter[str]] = {}
        self.internal: Counter[tuple[str, str]] = Counter()
        self.calls = 0

    def ended(self, path: str, status: grpc.StatusCode, text: str = "") -> None:
        self.calls += 1
        self.statuses.setdefault(path, Counter())[status.name] += 1
        if status in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
            self.internal[path, f"{status.name}: {_VARIABLE.sub('#', text)[:160]}"] += 1

    def failed_inside(self) -> list[str]:
        """Those that a broker did not foresee."""
        return [f"{path}: {text}" for path, text in self.internal if "failed inside the server" in text]


class Caller:
    def __init__(
        self, chance: Chance, addresses: Sequence[str], methods: Sequence[Method], requests: Requests, answers: Answers
    ) -> None:
        self._chance = chance
        self._addresses = addresses
        self._methods = [method for method in methods for _ in range(OFTEN.get(method.name, 1))]
        self._requests = requests
        self._answers = answers

    async def run(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            address = self._chance.choice(self._addresses)
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(address, options=options) as channel:
                for _ in range(self._chance.randint(1, CALLS_PER_CONNECTION)):
                    if loop.time() > until_s:
                        return
                    await self._call(channel, self._chance.choice(self._methods))

    async def _call(self, channel: grpc.aio.Channel, method: Method) -> None:
        chance = self._chance
        path = method.path if not chance.one_in(200) else f"{method.path}{chance.choice(('x', '/', '/../x', '%00'))}"
        streams = method.streams_requests or method.streams_responses
        timeout_s = chance.choice(STREAM_TIMEOUTS_S if streams else TIMEOUTS_S)
        work = (self._stream if streams else self._unary)(channel, method, path, timeout_s)
        try:
            cancelled_s = chance.uniform(0, 0.05) if chance.one_in(10) else timeout_s + 5.0
            async with asyncio.timeout(cancelled_s):
                await work
        except TimeoutError:
            self._answers.ended(path, grpc.StatusCode.CANCELLED)
        except grpc.aio.AioRpcError as error:
            self._answers.ended(path, error.code(), error.details() or "")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._answers.ended(path, grpc.StatusCode.CANCELLED)  # the call was, and says so in this way

    async def _unary(self, channel: grpc.aio.Channel, method: Method, path: str, timeout_s: float) -> None:
        data = await channel.unary_unary(path)(self._requests.make(method), timeout=timeout_s)
        self._answers.ended(path, grpc.StatusCode.OK)
        self._learn(method, data)

    async def _stream(self, channel: grpc.aio.Channel, method: Method, path: str, timeout_s: float) -> None:
        most = self._chance.randint(0, RESPONSES)
        if method.streams_requests:
            call = channel.stream_stream(path)(self._several(method), timeout=timeout_s)
        else:
            call = channel.unary_stream(path)(self._requests.make(method), timeout=timeout_s)
        read = 0
        try:
            async for data in call:
                self._learn(method, data)
                read += 1
                if read > most:
                    break
            else:
                code = await call.code()
                self._answers.ended(path, code, await call.details() or "")
                return
        finally:
            call.cancel()
        self._answers.ended(path, grpc.StatusCode.OK)

    async def _several(self, method: Method) -> AsyncIterator[bytes]:
        for _ in range(self._chance.randint(0, 30)):
            yield self._requests.make(method)
            if self._chance.one_in(5):
                await asyncio.sleep(self._chance.uniform(0, 0.05))

    def _learn(self, method: Method, data: Any) -> None:
        try:
            self._requests.learn(method.response.FromString(data))
        except DecodeError as error:
            raise AssertionError(f"{method.path} answered what is no {method.response.DESCRIPTOR.name}") from error
