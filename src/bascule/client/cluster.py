"""The brokers a client knows, the connections to them, and who leads what.

It starts with the seeds; the brokers' advertised addresses come with the metadata. Most requests may go to any broker:
connected ones first, in turn, so that one that fails is not asked twice in a row. Some must go to the partition's
leader: the cached metadata names it, and is fetched again whenever an answer shows that it is stale
(FailedPrecondition, Unavailable). A cluster of one broker is always reached by the address that its metadata came from,
whatever address it advertises: so it works behind a port forward, and in a container with a name of its own.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from bascule import limits
from bascule.client.failures import Deadline, OnWait, from_status, passes_by_itself, persist
from bascule.client.values import Address, Metadata, Partition, Stream, metadata_of
from bascule.errors import (
    BasculeError,
    FailedPrecondition,
    HungUp,
    NotFound,
    RpcError,
    TlsRefused,
    Unavailable,
    WrongServer,
)
from bascule.net.channel import Channel
from bascule.wire.pb import api_pb2 as pb

T = TypeVar("T")

FETCH_METADATA = "/proto.API/FetchMetadata"
UNREACHABLE = (Unavailable, TlsRefused, WrongServer)


def _stale(error: BasculeError) -> bool:
    return passes_by_itself(error) or isinstance(error, FailedPrecondition)


def _nobody(refusals: Sequence[BasculeError]) -> BasculeError:
    """Why no broker could be reached: a final error if each of them is there and refuses us."""
    reasons = "; ".join(map(str, refusals))
    if all(isinstance(error, TlsRefused) for error in refusals):
        return TlsRefused(reasons)
    if all(isinstance(error, WrongServer) for error in refusals):
        return WrongServer(reasons)
    if all(isinstance(error, TlsRefused | HungUp) for error in refusals):
        return HungUp(reasons)
    return Unavailable(f"no broker can be reached ({reasons}): is one running there? `bascule up` starts one")


class Cluster:
    def __init__(self, seeds: Sequence[Address], tls: ssl.SSLContext | None, on_wait: OnWait) -> None:
        self._seeds = list(seeds)
        self._tls = tls
        self._channels: dict[Address, Channel] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}
        self._turn = 0
        self._source = self._seeds[0]
        self._metadata = Metadata()
        self._closed = False
        self._on_wait = on_wait

    async def close(self) -> None:
        self._closed = True
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    # --- connections --------------------------------------------------------------------------------------

    async def connection(self, address: Address) -> Channel:
        lock = self._connecting.setdefault(address, asyncio.Lock())
        async with lock:
            if self._closed:
                raise Unavailable("this client is closed: connect a new one")
            channel = self._channels.get(address)
            if channel is None or channel.closed:
                channel = await Channel.connect(
                    address.host, address.port, tls=self._tls, timeout=limits.CLIENT_CONNECT_TIMEOUT_S
                )
                self._channels[address] = channel
            return channel

    async def any_connection(self) -> tuple[Address, Channel]:
        """A live connection if there is one, else the first broker that takes one."""
        known = self._addresses()
        turned = known[self._turn % len(known) :] + known[: self._turn % len(known)]
        for address in turned:
            channel = self._channels.get(address)
            if channel is not None and not channel.closed:
                return address, channel
        refusals: list[BasculeError] = []
        for address in turned:
            try:
                return address, await self.connection(address)
            except UNREACHABLE as error:
                refusals.append(error)
        raise _nobody(refusals)

    def _addresses(self) -> list[Address]:
        advertised = [Address(b.host, b.port) for b in self._metadata.brokers.values()]
        if len(advertised) == 1:
            advertised = [self._source]
        return list(dict.fromkeys(self._seeds + advertised))

    # --- requests -----------------------------------------------------------------------------------------

    async def persist(
        self,
        attempt: Callable[[], Awaitable[T]],
        deadline: Deadline,
        again: Callable[[BasculeError], bool] = passes_by_itself,
    ) -> T:
        """Try until the deadline; `on_wait` is called before each retry."""
        return await persist(attempt, deadline, again, self._on_wait)

    async def ask_any(self, method: str, request: bytes, deadline: Deadline) -> bytes:
        async def attempt() -> bytes:
            _, channel = await self.any_connection()
            try:
                return await channel.unary(method, request, timeout=deadline.remaining())
            except RpcError:
                self._turn += 1
                raise

        return await self.persist(attempt, deadline)

    async def ask_leader(
        self,
        stream: str,
        partition: int,
        method: str,
        request: bytes,
        deadline: Deadline,
        again: Callable[[BasculeError], bool] = _stale,
    ) -> bytes:
        async def attempt() -> bytes:
            channel = await self.leader(stream, partition, deadline)
            try:
                return await channel.unary(method, request, timeout=deadline.remaining())
            except RpcError as error:
                self.forget(stream)
                raise from_status(error) from None

        return await self.persist(attempt, deadline, again)

    # --- metadata -----------------------------------------------------------------------------------------

    async def refresh(self, streams: Sequence[str], deadline: Deadline) -> Metadata:
        """Ask for these streams (all, if none is named). What is known of others stays."""

        async def attempt() -> bytes:
            self._source, channel = await self.any_connection()
            try:
                return await channel.unary(FETCH_METADATA, request, timeout=deadline.remaining())
            except RpcError:
                self._turn += 1
                raise

        request = pb.FetchMetadataRequest(streams=streams).SerializeToString()
        fresh = metadata_of(pb.FetchMetadataResponse.FromString(await self.persist(attempt, deadline)))
        others = {n: s for n, s in self._metadata.streams.items() if streams and n not in streams}
        self._metadata = Metadata(fresh.brokers, others | fresh.streams)
        return fresh

    def forget(self, stream: str) -> None:
        """Its cached metadata is stale: the next look-up fetches it again."""
        self._metadata.streams.pop(stream, None)

    async def stream(self, name: str, deadline: Deadline) -> Stream:
        known = self._metadata.streams.get(name)
        if known is None:
            known = (await self.refresh([name], deadline)).streams.get(name)
        if known is None:
            raise NotFound(f"no such stream: {name}. `create_stream` creates one")
        return known

    async def _partition(self, stream: str, partition: int, deadline: Deadline) -> Partition:
        known = await self.stream(stream, deadline)
        found = known.partitions.get(partition)
        if found is None:
            raise NotFound(f"no such partition: {partition}. Stream {stream} has {len(known.partitions)}")
        return found

    async def leader(self, stream: str, partition: int, deadline: Deadline) -> Channel:
        """A connection to the partition's leader. Unavailable while it has none."""
        leader = (await self._partition(stream, partition, deadline)).leader
        if leader not in self._metadata.brokers:
            self.forget(stream)
            raise Unavailable(
                f"partition {partition} of stream {stream} has no reachable leader right now; "
                "`bascule cluster status` shows why"
            )
        return await self._broker(stream, leader)

    async def replica(self, stream: str, partition: int, broker: str, deadline: Deadline) -> Channel:
        """A connection to this broker, if it has the partition. Unavailable while it cannot be reached."""
        replicas = (await self._partition(stream, partition, deadline)).replicas
        if broker not in replicas:
            self.forget(stream)
            raise NotFound(f"broker {broker} has no replica of {stream}/{partition}: it is on {', '.join(replicas)}")
        if broker not in self._metadata.brokers:
            self.forget(stream)
            raise Unavailable(f"broker {broker} is not in the metadata: it is down, or cannot be reached")
        return await self._broker(stream, broker)

    async def _broker(self, stream: str, id: str) -> Channel:
        broker = self._metadata.brokers[id]
        if len(self._metadata.brokers) == 1:
            return await self.connection(self._source)
        try:
            return await self.connection(Address(broker.host, broker.port))
        except UNREACHABLE:
            self.forget(stream)
            raise

    async def publisher(self, stream: str, partition: int, deadline: Deadline) -> Channel:
        """Any broker takes a publish; the leader is the first choice, because its acks need no way over NATS."""
        if stream in self._metadata.streams:
            try:
                return await self.leader(stream, partition, deadline)
            except (*UNREACHABLE, NotFound):
                pass
        return (await self.any_connection())[1]
