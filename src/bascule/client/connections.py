"""The connections of one client, by the address of the broker.

Each broker has one connection for requests and publishing, and others for what is read, because a connection carries
only so many calls and a subscription is one for as long as it lasts. A broker that did not answer in time is left alone
for a moment, so that not every caller waits for it in turn; one that refuses a connection says so at once, and is tried
again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from bascule import limits
from bascule.client.values import Address
from bascule.errors import BasculeError, ClientClosed, Unavailable
from bascule.net.channel import Channel

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Connections:
    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self._requests: dict[Address, Channel] = {}
        self._readers: dict[Address, list[Channel]] = {}
        self._locks: dict[tuple[Address, bool], asyncio.Lock] = {}
        self._late: dict[Address, float] = {}
        """Brokers that did not answer in time, and when that was."""
        self._lost: dict[Address, float] = {}
        """Brokers to which a connection was lost, and when that was noticed."""
        self._no_pings: dict[Address, None] = {}
        self.closed = False

    def check_open(self) -> asyncio.AbstractEventLoop:
        """Raises if this client cannot be used, or not here. Returns its loop."""
        if self.closed:
            raise ClientClosed("this client is closed: connect a new one")
        loop = asyncio.get_running_loop()
        return loop if loop is self._loop and self._process == os.getpid() else self.check_loop()

    def check_loop(self) -> asyncio.AbstractEventLoop:
        """Raises if this client cannot be used here, not even closed: its connections would be half closed, or, after a
        fork, those of the other process. Returns its loop."""
        if self._process != os.getpid():
            raise RuntimeError(
                "this client belongs to another process, from before a fork: connect one in each process, and close it "
                "there"
            )
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise RuntimeError("this client belongs to another event loop: connect one in each, and close it there")
        return loop

    def told(self, error: BasculeError) -> BasculeError:
        """What a call says that has ended: if this client was closed, that."""
        return ClientClosed("this client was closed meanwhile: connect a new one") if self.closed else error

    async def close(self) -> None:
        self.check_loop()
        self.closed = True
        channels = [*self._requests.values(), *(each for readers in self._readers.values() for each in readers)]
        self._requests, self._readers = {}, {}
        await asyncio.gather(*(channel.close() for channel in channels))

    # --- to one broker --------------------------------------------------------------------------------------

    def live(self, address: Address) -> Channel | None:
        """Its connection for requests, if there is one now."""
        channel = self._requests.get(address)
        if channel is not None and channel.closed:
            self._note_lost(address, channel)
            del self._requests[address]
            return None
        return channel

    async def requests(self, address: Address) -> Channel:
        """For requests and publishing."""
        self.check_open()
        if (live := self.live(address)) is not None:
            return live
        async with self._locks.setdefault((address, False), asyncio.Lock()):
            channel = self.live(address)
            if channel is None:
                channel = self._requests[address] = await self._connect(address)
            return channel

    async def reader(self, address: Address) -> Channel:
        """For a call that lasts. The caller opens it at once, or another may take its place."""
        self.check_open()
        async with self._locks.setdefault((address, True), asyncio.Lock()):
            for channel in list(self._readers.get(address, ())):
                if channel.closed:
                    self._note_lost(address, channel)
                    self._readers[address].remove(channel)
                elif channel.calls < limits.CLIENT_READERS_PER_CONNECTION and channel.has_room:
                    return channel
            channel = await self._connect(address)
            self._readers.setdefault(address, []).append(channel)
            return channel

    async def _connect(self, address: Address) -> Channel:
        clock = asyncio.get_running_loop().time
        if clock() - self._late.get(address, -limits.CLIENT_LATE_S) < limits.CLIENT_LATE_S:
            raise Unavailable(f"cannot connect to {address}: it did not answer a moment ago")
        began = clock()
        try:
            channel = await Channel.connect(
                address.host,
                address.port,
                tls=self._tls,
                timeout=limits.CLIENT_CONNECT_TRY_S,
                pings=address not in self._no_pings,
            )
        except Unavailable:
            if clock() - began >= limits.CLIENT_CONNECT_TRY_S:
                self._late[address] = clock()
            raise
        if self.closed:
            await channel.close()
            self.check_open()
        self._late.pop(address, None)
        lost = self._lost.pop(address, None)
        if lost is not None:
            logger.info("connected to %s again", address)
        return channel

    def _note_lost(self, address: Address, channel: Channel) -> None:
        now = asyncio.get_running_loop().time()
        if address not in self._lost:
            logger.info("the connection to %s is lost", address)
        self._lost.setdefault(address, now)
        if channel.connection.silent:
            self._late[address] = now
        if channel.connection.too_many_pings:
            self._no_pings[address] = None

    def is_late(self, address: Address) -> bool:
        return address in self._late

    def lost_lately(self, address: Address) -> bool:
        """There was a connection, it is gone, and the cluster may need this long to notice."""
        lost = self._lost.get(address)
        return lost is not None and asyncio.get_running_loop().time() - lost < limits.CLIENT_LEADER_GONE_S


async def first_answer(attempts: Iterable[Callable[[], Awaitable[T]]], patience_s: float) -> T:
    """What the first of them returns that does not fail. Each begins when the one before it has failed, or has taken
    longer than `patience_s`. Raises the errors of all of them, in a `NoAnswer`."""
    waiting = deque(attempts)
    running: set[asyncio.Future[T]] = set()
    errors: list[BasculeError] = []
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.ensure_future(waiting.popleft()()))
            done, running = await asyncio.wait(
                running, timeout=patience_s if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            failures = [task.exception() for task in done]
            for task, failure in zip(done, failures, strict=True):
                if failure is None:
                    return task.result()
                if not isinstance(failure, BasculeError):
                    raise failure
                errors.append(failure)
        raise NoAnswer(errors)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class NoAnswer(Exception):
    def __init__(self, errors: list[BasculeError]) -> None:
        super().__init__(*errors)
        self.errors = errors
