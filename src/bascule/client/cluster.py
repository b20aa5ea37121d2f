"""The brokers a client knows, and who leads what.

It starts with the seeds; the brokers' advertised addresses come with the metadata. Most requests may go to any broker:
connected ones first, in turn, so that one that fails is not asked twice in a row. Some must go to the partition's
leader: the cached metadata names it, and is fetched again whenever an answer shows that it is stale
(FailedPrecondition, Unavailable), and from another broker if the one that gave it named a leader that is none. A broker
that does not answer soon is not waited for: the next one is asked for the metadata, too. A cluster of one broker is
always reached by the address that its metadata came from, whatever address it advertises: so it works behind a port
forward, and in a container with a name of its own.

Messages that are published while nobody leads get no acks. So after the leader of a stream was lost, the stream is
suspect: nothing is sent to it until its leader has answered.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from bascule import limits
from bascule.client.connections import Connections, NoAnswer, first_answer
from bascule.client.failures import Deadline, OnWait, from_status, passes_by_itself, persist
from bascule.client.values import Address, Metadata, Partition, Stream, metadata_of
from bascule.client.watch import Watch
from bascule.errors import (
    BasculeError,
    Cancelled,
    FailedPrecondition,
    HungUp,
    NotFound,
    RpcError,
    Status,
    TimedOut,
    TlsRefused,
    Unavailable,
    WrongServer,
)
from bascule.net.channel import Channel
from bascule.wire.pb import api_pb2 as pb

T = TypeVar("T")

FETCH_METADATA = "/proto.API/FetchMetadata"
FETCH_PARTITION_METADATA = "/proto.API/FetchPartitionMetadata"
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
        self.connections = Connections(tls)
        self._seeds = list(seeds)
        self._turn = 0
        self._source = self._seeds[0]
        self._misled: Address | None = None
        """Gave the metadata that proved wrong last."""
        self._metadata = Metadata()
        self._fetched: dict[str, float] = {}
        """When the metadata of a stream was fetched."""
        self._looking: dict[str, asyncio.Task[Stream | None]] = {}
        self._suspect: dict[str, None] = {}
        self._leaders: dict[tuple[str, int], tuple[Channel, float]] = {}
        """What `known_leader` found, and until when its metadata is fresh. Emptied when the metadata change."""
        self._on_wait = on_wait
        self._brokers_of: WeakKeyDictionary[Channel, str] = WeakKeyDictionary()
        self.watch = Watch(self._ask_others)

    def __repr__(self) -> str:
        state = ", closed" if self.connections.closed else ""
        return f"<Cluster at {', '.join(map(str, self._addresses()))}{state}>"

    async def close(self) -> None:
        await self.connections.close()
        await self.watch.close()
        looking = list(self._looking.values())
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)

    # --- connections --------------------------------------------------------------------------------------

    async def any_connection(self) -> tuple[Address, Channel]:
        """A live connection if there is one, else the first broker that takes one."""
        self.connections.check_open()
        addresses = self._addresses()
        for address in addresses:
            if (channel := self.connections.live(address)) is not None:
                return address, channel

        async def connect(address: Address) -> tuple[Address, Channel]:
            return address, await self.connections.requests(address)

        try:
            return await first_answer([partial(connect, each) for each in addresses], limits.CLIENT_HEDGE_S)
        except NoAnswer as nobody:
            raise _nobody(nobody.errors) from None

    def _addresses(self) -> list[Address]:
        """All that are known, in turn; those that did not answer lately come last."""
        advertised = [Address(b.host, b.port) for b in self._metadata.brokers.values()]
        if len(advertised) == 1:
            advertised = [self._source]
        known = list(dict.fromkeys(self._seeds + advertised))
        begin = self._turn % len(known)
        return sorted(known[begin:] + known[:begin], key=self.connections.is_late)

    # --- requests -----------------------------------------------------------------------------------------

    async def persist(
        self,
        attempt: Callable[[], Awaitable[T]],
        deadline: Deadline,
        again: Callable[[BasculeError], bool] = passes_by_itself,
    ) -> T:
        """Try until the deadline; `on_wait` is called before each retry."""
        try:
            return await persist(attempt, deadline, again, self._on_wait)
        except Cancelled:
            self.connections.check_open()  # that is why it was cancelled
            raise

    async def ask_any(self, method: str, request: bytes, deadline: Deadline, try_s: float | None = None) -> bytes:
        """With `try_s` a broker that does not answer for that long is not waited for: the next one is asked."""

        async def attempt() -> bytes:
            _, channel = await self.any_connection()
            left = deadline.remaining()
            limit = left if try_s is None else min(try_s, left)
            try:
                return await channel.unary(method, request, timeout=limit)
            except RpcError as error:
                self._turn += 1
                if error.code is Status.DEADLINE_EXCEEDED and limit < left:
                    raise Unavailable(f"a broker did not answer for {limit:g} s: {error}") from None
                raise self._explained(error) from None

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
                self.misled(stream)
                raise self._explained(error) from None

        return await self.persist(attempt, deadline, again)

    async def ask_broker(self, broker: str, method: str, request: bytes, timeout: float) -> bytes:
        """Ask this one, once. It is one of those that the last metadata named."""
        if broker not in self._metadata.brokers:
            raise Unavailable(f"broker {broker} is not in the metadata: it is down, or cannot be reached")
        channel = await self.connections.requests(self._address(broker))
        try:
            return await channel.unary(method, request, timeout=timeout)
        except RpcError as error:
            raise self._explained(error) from None

    def _explained(self, error: RpcError) -> BasculeError:
        self.connections.check_open()  # a call that ended because the client was closed
        return from_status(error)

    # --- metadata -----------------------------------------------------------------------------------------

    async def refresh(self, streams: Sequence[str], deadline: Deadline, groups: Sequence[str] = ()) -> Metadata:
        """Ask for these streams (all, if none is named), and these groups. What is known of other streams stays."""
        return await self.persist(lambda: self._ask_for_metadata(streams, deadline, groups), deadline)

    async def _ask_for_metadata(
        self, streams: Sequence[str], deadline: Deadline, groups: Sequence[str] = (), last: Collection[Address] = ()
    ) -> Metadata:
        """The first answer of a broker that sees most of the others: one that is partitioned from them is not
        believed, as long as others can be asked. Those that are to be asked `last` are."""
        request = pb.FetchMetadataRequest(streams=streams, groups=groups).SerializeToString()
        alone: list[tuple[Address, Metadata]] = []

        async def ask(address: Address) -> tuple[Address, Metadata]:
            channel = await self.connections.requests(address)
            try:
                answer = await channel.unary(FETCH_METADATA, request, timeout=deadline.remaining())
            except RpcError as error:
                self._turn += 1
                raise self._explained(error) from None
            found = metadata_of(pb.FetchMetadataResponse.FromString(answer))
            if 2 * len(found.brokers) <= len(self._metadata.brokers):
                alone.append((address, found))
                raise Unavailable(f"the broker at {address} sees few of the others")
            return address, found

        self.connections.check_open()
        addresses = sorted(self._addresses(), key=lambda each: (each in last, *self._is_second_choice(each)))
        try:
            self._source, fresh = await first_answer([partial(ask, each) for each in addresses], limits.CLIENT_HEDGE_S)
        except NoAnswer as nobody:
            if not alone:
                answers = [error for error in nobody.errors if not isinstance(error, UNREACHABLE)]
                raise (answers[0] if answers else _nobody(nobody.errors)) from None
            self._source, fresh = alone[0]
        self._note(fresh, streams)
        return fresh

    def _note(self, fresh: Metadata, streams: Sequence[str]) -> None:
        self._leaders.clear()
        others = {n: s for n, s in self._metadata.streams.items() if streams and n not in streams}
        self._metadata = Metadata(fresh.brokers, others | fresh.streams)
        now = asyncio.get_running_loop().time()
        self._fetched = {name: self._fetched.get(name, now) for name in others} | dict.fromkeys(fresh.streams, now)

    async def _ask_others(self, streams: Sequence[str], quiet: Collection[str]) -> Metadata | None:
        known = self._metadata.brokers
        if len(known) < 2:
            return None
        deadline = Deadline(limits.CLIENT_CONNECT_TRY_S)
        last = [Address(known[each].host, known[each].port) for each in quiet if each in known]
        async with asyncio.timeout(2 * limits.CLIENT_CONNECT_TRY_S):
            return await self._ask_for_metadata(streams, deadline, last=last)

    def broker_of(self, channel: Channel) -> str | None:
        """The id of the broker at its other end, if that is known."""
        found = self._brokers_of.get(channel)
        if found is None:
            for each in self._metadata.brokers:
                if self.connections.live(self._address(each)) is channel:
                    return each
        return found

    def _is_second_choice(self, address: Address) -> tuple[bool, bool]:
        return address == self._misled, self.connections.live(address) is None

    def forget(self, stream: str) -> None:
        """Its cached metadata is stale: the next look-up fetches it again."""
        self._metadata.streams.pop(stream, None)
        self._leaders.clear()

    def misled(self, stream: str) -> None:
        """The leader that its metadata names is none, or cannot be reached: the next look-up asks another broker."""
        self._misled = self._source
        self.forget(stream)

    def suspect(self, stream: str) -> None:
        """Its leader was lost, or does not ack: nothing is published before a leader has answered."""
        self._suspect[stream] = None
        self.misled(stream)

    async def stream(self, name: str, deadline: Deadline) -> Stream:
        now = self.connections.check_open().time()
        known = self._metadata.streams.get(name)
        if known is None:
            known = await self._look_up(name, deadline)
        elif self._is_old(name, now):
            self._fetched[name] = now  # others go on with what is known meanwhile
            try:
                known = (await self.refresh([name], Deadline(min(deadline.remaining(), 1.0)))).streams.get(name)
            except BasculeError:
                pass
        if known is None:
            raise NotFound(f"no such stream: {name}. `create_stream` creates one")
        return known

    async def _look_up(self, name: str, deadline: Deadline) -> Stream | None:
        """Callers that ask at the same time share one request; each has a deadline of its own."""
        task = self._looking.get(name)
        if task is None:
            task = self._looking[name] = asyncio.create_task(self._fetch(name))
            task.add_done_callback(partial(self._looked, name))
        try:
            async with asyncio.timeout(deadline.remaining()):
                return await asyncio.shield(task)
        except BasculeError as error:
            raise error.with_traceback(None) from None  # raised by each of them
        except TimeoutError:
            raise TimedOut(f"no broker said within {deadline.seconds:g} s who leads stream {name}") from None
        except asyncio.CancelledError:
            self.connections.check_open()
            raise

    def _looked(self, name: str, task: asyncio.Task[Stream | None]) -> None:
        self._looking.pop(name, None)
        if not task.cancelled():
            task.exception()  # all who asked may be gone

    async def _fetch(self, name: str) -> Stream | None:
        return (await self.refresh([name], Deadline(limits.CLIENT_TIMEOUT_S))).streams.get(name)

    def _is_old(self, stream: str, now: float) -> bool:
        return now - self._fetched.get(stream, 0.0) > limits.CLIENT_METADATA_AGE_S

    async def _partition(self, stream: str, partition: int, deadline: Deadline) -> Partition:
        known = await self.stream(stream, deadline)
        found = known.partitions.get(partition)
        if found is None:
            self.forget(stream)  # it may have been made anew, with more
            raise NotFound(f"no such partition: {partition}. Stream {stream} has {len(known.partitions)}")
        return found

    # --- leaders and replicas -----------------------------------------------------------------------------

    async def leader(self, stream: str, partition: int, deadline: Deadline, *, reads: bool = False) -> Channel:
        """A connection to the partition's leader, for requests or to read from. Unavailable while it has none."""
        leader = (await self._partition(stream, partition, deadline)).leader
        if leader not in self._metadata.brokers:
            self.misled(stream)
            raise Unavailable(
                f"partition {partition} of stream {stream} has no reachable leader right now; "
                "`bascule cluster status` shows why"
            )
        return await self._broker(stream, leader, reads)

    async def replica(self, stream: str, partition: int, broker: str, deadline: Deadline) -> Channel:
        """A connection to read from this broker, if it has the partition. Unavailable while it cannot be reached."""
        replicas = (await self._partition(stream, partition, deadline)).replicas
        if broker not in replicas:
            self.forget(stream)
            raise NotFound(f"broker {broker} has no replica of {stream}/{partition}: it is on {', '.join(replicas)}")
        if broker not in self._metadata.brokers:
            self.forget(stream)
            raise Unavailable(f"broker {broker} is not in the metadata: it is down, or cannot be reached")
        return await self._broker(stream, broker, reads=True)

    def _address(self, broker: str) -> Address:
        if len(self._metadata.brokers) == 1:
            return self._source
        known = self._metadata.brokers[broker]
        return Address(known.host, known.port)

    async def _broker(self, stream: str, id: str, reads: bool) -> Channel:
        address = self._address(id)
        try:
            channel = await (self.connections.reader(address) if reads else self.connections.requests(address))
        except UNREACHABLE:
            self.misled(stream)
            raise
        self._brokers_of[channel] = id
        return channel

    def known_leader(self, stream: str, partition: int, now: float) -> Channel | None:
        """The connection to publish on, if everything is known and in order."""
        self.connections.check_open()
        leader = self._leaders.get((stream, partition))
        if leader is not None and now < leader[1] and not leader[0].closed:
            return leader[0]
        known = self._metadata.streams.get(stream)
        if known is None or stream in self._suspect or self._is_old(stream, now):
            return None
        found = known.partitions.get(partition)
        if found is None or found.leader not in self._metadata.brokers:
            return None
        channel = self.connections.live(self._address(found.leader))
        if channel is not None:
            self._leaders[stream, partition] = channel, self._fetched.get(stream, 0.0) + limits.CLIENT_METADATA_AGE_S
        return channel

    async def publisher(self, stream: str, partition: int | None, deadline: Deadline) -> Channel:
        """Any broker takes a publish; the leader is the first choice, because its acks need no way over NATS. Of a
        suspect stream the leader of the partition, or without one of each, has to answer first."""
        try:
            known = await self.stream(stream, deadline)
            found = await self._partition(stream, partition or 0, deadline)
            if stream in self._suspect:
                await self._confirm(known, [found] if partition is not None else list(known.partitions.values()))
            if not found.paused:  # a paused partition has no leader: whoever takes the message has it resumed
                return await self._leader_or_any(stream, found, deadline)
        except NotFound:
            pass  # a broker that has just learned of it takes messages
        return (await self.any_connection())[1]

    async def _leader_or_any(self, stream: str, partition: Partition, deadline: Deadline) -> Channel:
        try:
            return await self.leader(stream, partition.id, deadline)
        except UNREACHABLE:
            if partition.leader not in self._metadata.brokers:
                raise
            if self.connections.lost_lately(self._address(partition.leader)):
                self.suspect(stream)
                raise
        return (await self.any_connection())[1]

    async def _confirm(self, stream: Stream, partitions: Sequence[Partition]) -> None:
        """Returns when the leaders of these partitions have answered. Unavailable if one does not."""

        async def ask(partition: Partition) -> None:
            try:
                channel = await self.leader(stream.name, partition.id, Deadline(limits.CLIENT_CONNECT_TRY_S))
            except UNREACHABLE:
                known = partition.leader in self._metadata.brokers  # a broker that died may be gone from it
                if known and not self.connections.lost_lately(self._address(partition.leader)):
                    return  # this client cannot reach it: other brokers can
                raise
            request = pb.FetchPartitionMetadataRequest(stream=stream.name, partition=partition.id).SerializeToString()
            await channel.unary(FETCH_PARTITION_METADATA, request, timeout=1.0)

        answers = await asyncio.gather(*(ask(each) for each in partitions if not each.paused), return_exceptions=True)
        failures = [answer for answer in answers if answer is not None]
        for failure in failures:
            if not isinstance(failure, BasculeError):
                raise failure
        if failures:
            self.misled(stream.name)
            self.connections.check_open()
            raise Unavailable(f"stream {stream.name} has no leader that answers: {failures[0]}")
        self._suspect.pop(stream.name, None)
