"""A client of a Liftbridge cluster, Bascule's or any other.

`Client.connect` needs one broker that answers; it learns the others from it. Publishing waits for every in-sync replica
by default; with `ack=AckPolicy.LEADER` or `NONE` it does not. Requests are tried again for as long as their timeout
allows, if the failure is transient.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Unpack

from bascule import limits
from bascule.client.admin import Admin
from bascule.client.bulk import BulkRead, LogBounds, log_bounds
from bascule.client.cluster import Cluster
from bascule.client.cursors import CURSORS, Cursor, cursor_of, cursor_partition
from bascule.client.failures import Deadline, OnWait, persist
from bascule.client.pipeline import OnAcks, Pipeline, Values, check_values
from bascule.client.publisher import PUBLISH_ASYNC, Publisher
from bascule.client.requests import partition_for, unfit
from bascule.client.retrying import OnRetry, Retrying
from bascule.client.settings import SETTING_FIELDS, StreamOverrides
from bascule.client.subscription import FETCH_PARTITION_METADATA, OnLost, Reading, Subscription
from bascule.client.values import (
    Ack,
    AckPolicy,
    Metadata,
    Outgoing,
    Partition,
    StartAt,
    StopAt,
    Stream,
    parse_address,
    partition_of,
)
from bascule.errors import FailedPrecondition, InvalidArgument, NotFound, PublishError, Unavailable, Unconfirmed
from bascule.wire.pb import api_pb2 as pb
from bascule.wire.subjects import subject_refusal

NO_STREAM = Stream("", "", {}, 0)
SUBJECT_IS_INVALID = "Subject is invalid"


class Client:
    """Made by `connect`; use it in `async with`, or `close` it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._publisher = Publisher(cluster)

    @classmethod
    async def connect(
        cls,
        servers: Sequence[str] | str,
        *,
        tls: ssl.SSLContext | None = None,
        timeout: float = limits.CLIENT_CONNECT_TIMEOUT_S,
        on_wait: OnWait = lambda error, seconds: None,
    ) -> Client:
        """`servers`: some brokers' addresses, in a list or separated by commas. One is enough. `on_wait` is called
        before each retry of a request, with the reason and with how long the request has been tried."""
        texts = servers.split(",") if isinstance(servers, str) else list(servers)
        if not texts:
            raise InvalidArgument("no server address was given: connect('localhost:9292')")
        cluster = Cluster([parse_address(text) for text in texts], tls, on_wait)
        deadline = Deadline(timeout)
        try:
            await persist(cluster.any_connection, deadline)
        except BaseException:
            await cluster.close()
            raise
        return cls(cluster)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._publisher.close()
        await self._cluster.close()

    # --- streams ------------------------------------------------------------------------------------------

    async def create_stream(
        self,
        name: str,
        subject: str | None = None,
        partitions: int = 1,
        replication_factor: int = 1,
        timeout: float = limits.CLIENT_TIMEOUT_S,
        **overrides: Unpack[StreamOverrides],
    ) -> None:
        """Attach a stream to a NATS subject (its own name, unless given); AlreadyExists if there is one.

        Returns when its partitions have leaders, so that it can be used at once.
        """
        request = pb.CreateStreamRequest(
            name=name,
            subject=name if subject is None else subject,
            partitions=partitions,
            replicationFactor=replication_factor,
        )
        for key, value in overrides.items():
            if key == "group":
                request.group = str(value)
            elif key in SETTING_FIELDS:
                getattr(request, SETTING_FIELDS[key]).value = value
            else:
                raise InvalidArgument(f"no stream setting is called {key}: there are {', '.join(SETTING_FIELDS)}")
        deadline = Deadline(timeout)
        try:
            await self._ask("CreateStream", request.SerializeToString(), deadline)
        except InvalidArgument as error:
            raise _explained(error, request) from None
        await self._wait_for_leaders(name, deadline)

    async def _wait_for_leaders(self, name: str, deadline: Deadline) -> None:
        """The broker that answers may be a moment behind the one that created it."""

        async def look() -> None:
            stream = (await self._cluster.refresh([name], deadline)).streams.get(name)
            if stream is None or not all(partition.leader for partition in stream.partitions.values()):
                raise Unavailable(f"stream {name} was created, but not every partition has a leader yet")

        await self._cluster.persist(look, deadline)

    async def delete_stream(self, name: str, timeout: float = limits.CLIENT_TIMEOUT_S) -> None:
        await self._ask("DeleteStream", pb.DeleteStreamRequest(name=name).SerializeToString(), Deadline(timeout))
        self._cluster.forget(name)

    async def pause_stream(
        self,
        name: str,
        partitions: Sequence[int] = (),
        *,
        resume_all: bool = False,
        timeout: float = limits.CLIENT_TIMEOUT_S,
    ) -> None:
        """Nothing is stored in these partitions, or in all of them, nor read from them, until a client publishes there,
        subscribes with `resume_paused`, or `admin.resume_stream` is called. With `resume_all` the first partition that
        is resumed resumes all of them."""
        request = pb.PauseStreamRequest(name=name, partitions=partitions, resumeAll=resume_all)
        await self._ask("PauseStream", request.SerializeToString(), Deadline(timeout))
        self._cluster.forget(name)

    async def set_stream_readonly(
        self,
        name: str,
        readonly: bool = True,
        partitions: Sequence[int] = (),
        timeout: float = limits.CLIENT_TIMEOUT_S,
    ) -> None:
        """Publishes to these partitions, or to all of them, are refused; or, with False, taken again."""
        request = pb.SetStreamReadonlyRequest(name=name, partitions=partitions, readonly=readonly)
        await self._ask("SetStreamReadonly", request.SerializeToString(), Deadline(timeout))
        self._cluster.forget(name)

    async def fetch_metadata(self, streams: Sequence[str] = (), timeout: float = limits.CLIENT_TIMEOUT_S) -> Metadata:
        """Brokers, and these streams or all. A stream the cluster does not know is left out."""
        return await self._cluster.refresh(streams, Deadline(timeout))

    async def fetch_partition_metadata(
        self, stream: str, partition: int = 0, timeout: float = limits.CLIENT_TIMEOUT_S
    ) -> Partition:
        """As its leader knows it, with the leader's high watermark."""
        request = pb.FetchPartitionMetadataRequest(stream=stream, partition=partition).SerializeToString()
        answer = await self._cluster.ask_leader(stream, partition, FETCH_PARTITION_METADATA, request, Deadline(timeout))
        return partition_of(pb.FetchPartitionMetadataResponse.FromString(answer).metadata)

    async def _ask(self, method: str, request: bytes, deadline: Deadline) -> bytes:
        return await self._cluster.ask_any(f"/proto.API/{method}", request, deadline)

    @property
    def admin(self) -> Admin:
        """Of a Bascule cluster: its brokers and replicas. Other Liftbridge servers have no such service."""
        return Admin(self._cluster)

    # --- cursors ------------------------------------------------------------------------------------------

    async def set_cursor(
        self, id: str, stream: str, partition: int, offset: int, timeout: float = limits.CLIENT_TIMEOUT_S
    ) -> None:
        """Store how far a client has got: `offset` is of the last message that it has processed."""
        request = pb.SetCursorRequest(stream=stream, partition=partition, cursorId=id, offset=offset)
        await self._ask_cursors("SetCursor", id, stream, partition, request.SerializeToString(), timeout)

    async def fetch_cursor(
        self, id: str, stream: str, partition: int = 0, timeout: float = limits.CLIENT_TIMEOUT_S
    ) -> int:
        """The offset that was stored last; -1 if there is none."""
        request = pb.FetchCursorRequest(stream=stream, partition=partition, cursorId=id).SerializeToString()
        answer = await self._ask_cursors("FetchCursor", id, stream, partition, request, timeout)
        return pb.FetchCursorResponse.FromString(answer).offset

    async def _ask_cursors(
        self, method: str, id: str, stream: str, partition: int, request: bytes, timeout: float
    ) -> bytes:
        deadline = Deadline(timeout)
        soon = Deadline(min(timeout, limits.CLIENT_CURSORS_S))  # a cluster that has just started is about to make them

        async def known() -> Stream:
            return await self._cluster.stream(CURSORS, soon)

        try:
            found = await self._cluster.persist(known, soon, lambda error: isinstance(error, NotFound | Unavailable))
            partitions = len(found.partitions)
        except NotFound:
            raise FailedPrecondition(
                "this cluster has no cursors: set cursors.stream.partitions of its brokers, and restart them"
            ) from None
        number = cursor_partition(id, stream, partition, partitions)
        return await self._cluster.ask_leader(CURSORS, number, f"/proto.API/{method}", request, deadline)

    async def list_cursors(self) -> list[Cursor]:
        """All that were ever set, each with its last offset. Reads the whole stream `__cursors`."""
        found: dict[tuple[str, str, int], Cursor] = {}
        for number in (await self.fetch_metadata([CURSORS])).streams.get(CURSORS, NO_STREAM).partitions:
            async with self.subscribe(CURSORS, number, stop="latest", resume_paused=True) as subscription:
                async for batch in subscription.batches():
                    found |= {cursor[:3]: cursor for each in batch if (cursor := cursor_of(each)) is not None}
        return [found[name] for name in sorted(found)]

    # --- messages -----------------------------------------------------------------------------------------

    async def publish(
        self,
        stream: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        ack: AckPolicy = AckPolicy.ALL,
        expected_offset: int = -1,
        timeout: float = limits.CLIENT_ACK_TIMEOUT_S,
    ) -> Ack:
        """Publish one message and wait for its ack. Value, key and the values of headers are bytes.

        Without a partition the key chooses it, and without a key it is 0. Unconfirmed means that it is not known
        whether the message was stored.
        """
        message = Outgoing(value, key, headers)
        if reason := unfit(message):
            raise InvalidArgument(reason)
        if partition is None:
            partition = await self._partition_for(stream, key, timeout)
        return await self._publisher.publish(stream, message, partition, ack, expected_offset, timeout)

    async def _partition_for(self, stream: str, key: bytes | None, timeout: float) -> int:
        if not key:
            return 0
        return partition_for(key, len((await self._cluster.stream(stream, Deadline(timeout))).partitions))

    async def publish_many(
        self,
        stream: str,
        values: Values,
        *,
        partition: int | None = None,
        spread: bool = False,
        ack: AckPolicy = AckPolicy.ALL,
        timeout: float = limits.CLIENT_ACK_TIMEOUT_S,
        on_acks: OnAcks | None = None,
        retry_s: float = 0.0,
        on_retry: OnRetry | None = None,
    ) -> int:
        """Publish values (or `Outgoing`s, with key and headers) pipelined; the number of them, all confirmed.

        Without a partition the key of a message chooses it. Messages without a key go to partition 0, or with `spread`
        to all of them in turn. `timeout` bounds the wait for the next ack. `on_acks` gets (index, offset, partition) of
        the messages just confirmed, in batches. A PublishError names the refused message; Unconfirmed says how many are
        confirmed.

        With `retry_s` messages without an ack are sent again after a lost connection, until nothing is confirmed for
        that long. They may then be stored twice. `on_retry` gets their number, and the reason.
        """
        check_values(values)
        if not retry_s or ack is AckPolicy.NONE:
            return await self._publish_many(stream, values, partition, spread, ack, timeout, on_acks)

        lost = False

        async def attempt(values: Values, on_acks: OnAcks) -> int:
            nonlocal lost
            try:
                if lost:  # messages that are published while there is no leader get no acks
                    await self.fetch_partition_metadata(stream, partition or 0, timeout)
                return await self._publish_many(stream, values, partition, spread, ack, timeout, on_acks)
            except (Unavailable, Unconfirmed, PublishError):
                lost = True
                self._cluster.forget(stream)  # another broker may lead by now
                raise

        return await Retrying(on_acks, on_retry).run(values, attempt, retry_s)

    async def _publish_many(
        self,
        stream: str,
        values: Values,
        partition: int | None,
        spread: bool,
        ack: AckPolicy,
        timeout: float,
        on_acks: OnAcks | None,
    ) -> int:
        deadline = Deadline(timeout)
        partitions = len((await self._cluster.stream(stream, deadline)).partitions)
        if partition is not None and not 0 <= partition < partitions:
            raise NotFound(f"no such partition: {partition}. Stream {stream} has {partitions}")
        first = random.randrange(partitions) if spread else 0  # many calls with a message each spread them, too
        keyless = [(first + number) % partitions for number in range(partitions)] if spread else [0]

        async def start() -> Pipeline:
            channel = await self._cluster.publisher(stream, partition or 0, deadline)
            return Pipeline(
                channel.stream(PUBLISH_ASYNC),
                stream,
                partitions,
                keyless=keyless,
                partition=partition,
                policy=ack,
                timeout=timeout,
                on_acks=on_acks,
            )

        return await (await self._cluster.persist(start, deadline)).run(values)

    def subscribe(
        self,
        stream: str,
        partition: int = 0,
        *,
        start: StartAt = "earliest",
        stop: StopAt = None,
        reverse: bool = False,
        resume_paused: bool = False,
        replica: str = "",
        on_lost: OnLost | None = None,
    ) -> Subscription:
        """Iterate the result for messages, or its `batches()`. It gets only committed messages.

        `start`: "earliest", "latest", "new", an offset or a datetime; `stop`, inclusive: "latest", an offset,
        a datetime, or None to go on for ever. `replica`: the id of a broker to read from instead of the leader; a
        message may arrive a moment later from it, and never before it is committed. `on_lost` is called with the reason
        when the connection is lost, and with None when the subscription goes on.
        """
        reading = Reading(stream, partition, start, stop, reverse, resume_paused, replica)
        return Subscription(self._cluster, reading, on_lost)

    def read_range(
        self,
        stream: str,
        partition: int = 0,
        start: int = 0,
        end: int | None = None,
        *,
        creation: int = 0,
        replica: str = "",
        max_bytes: int = 0,
    ) -> BulkRead:
        """Iterate the result for pieces of about a megabyte of the log, each with its range of offsets, from `start` to
        `end` (exclusive), or to the high watermark as it is then. OutOfRange if `start` was removed. `creation`: as a
        piece of an earlier call gave it; a stream that was deleted and made again is then refused. `replica`: the id of
        a broker to read from instead of the leader. `max_bytes`: about as many in a piece, at most 4 MB. Bascule
        only."""
        return BulkRead(self._cluster, stream, partition, start, end, creation, replica, max_bytes)

    async def log_bounds(self, stream: str, partition: int = 0, timeout: float = limits.CLIENT_TIMEOUT_S) -> LogBounds:
        """Which offsets a partition holds, and the number of its stream. Bascule only."""
        return await log_bounds(self._cluster, stream, partition, Deadline(timeout))


def _explained(error: InvalidArgument, request: pb.CreateStreamRequest) -> InvalidArgument:
    """The text of the Liftbridge protocol, with the reason and an example of a valid subject."""
    if str(error) != SUBJECT_IS_INVALID:
        return error
    reason = subject_refusal(request.subject)
    if reason is None and request.partitions > 1:
        reason = "a stream of several partitions cannot have one that ends with '>'"
    if reason is None:
        return error
    same = ", which is the name of the stream unless another one is given" if request.subject == request.name else ""
    return InvalidArgument(f"{error}: {reason}. It is {request.subject!r}{same}; 'orders' or 'orders.new' would do")
