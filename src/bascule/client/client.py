"""A client of a Liftbridge cluster, Bascule's or any other.

`Client.connect` needs one broker that answers; it learns the others from it. Publishing waits for every in-sync replica
by default; with `ack=AckPolicy.LEADER` or `NONE` it does not. Requests are tried again for as long as their timeout
allows, if the failure is transient.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Unpack, cast, overload

from bascule import limits
from bascule.client.admin import Admin
from bascule.client.arguments import (
    check_ack,
    check_at_least,
    check_publish,
    check_seconds,
    check_stream,
    check_streams,
)
from bascule.client.arrow import ArrowRead, ArrowStart
from bascule.client.beginning import described
from bascule.client.bulk import BulkRead, LogBounds, log_bounds
from bascule.client.bulkwrite import Batches, BulkWrite, WrittenBatch
from bascule.client.cluster import Cluster
from bascule.client.connecting import Connecting
from bascule.client.consumer import Consumer, Partitions, Position
from bascule.client.cursors import BEFORE_THE_FIRST, Cursor, Cursors
from bascule.client.export import ExportReport, OnProgress, export_parquet
from bascule.client.failures import Deadline, OnWait, persist
from bascule.client.groupconsumer import GroupConsumer, OnAssignment, check_group
from bascule.client.manypublish import ManyPublishes
from bascule.client.member import GroupStart
from bascule.client.numberedpublish import unfit_to_retry
from bascule.client.numberedwrite import Identity, NumberedWrite, WriteTo
from bascule.client.pipeline import OnAcks, Values, check_values
from bascule.client.producer import Partitioner, Producer
from bascule.client.producers import Producers
from bascule.client.requests import unfit, unfit_partition
from bascule.client.retrying import OnRetry
from bascule.client.settings import StreamOverrides
from bascule.client.singlepublish import SinglePublishes
from bascule.client.streams import Streams
from bascule.client.subscription import OnLost, Reading, Subscription
from bascule.client.values import (
    Ack,
    AckPolicy,
    Metadata,
    Outgoing,
    Partition,
    StartAt,
    StopAt,
    parse_address,
)
from bascule.errors import (
    BasculeError,
    DeadlineExceeded,
    InvalidArgument,
    PublishError,
    Unavailable,
)

logger = logging.getLogger(__name__)


class Client:
    """Made by `connect`; use it in `async with`, or `close` it."""

    def __init__(self, cluster: Cluster) -> None:
        if isinstance(cluster, str | Sequence):
            raise InvalidArgument(f"a client is made by connecting: `async with Client.connect({cluster!r}) as client`")
        self._cluster = cluster
        self._producers = Producers(cluster)
        self._single = SinglePublishes(cluster, self._producers)
        self._many = ManyPublishes(cluster, self._producers)
        self._cursors = Cursors(cluster)
        self._streams = Streams(cluster)
        self._open_producers: dict[Producer, None] = {}
        """Those that have sent something, and are not closed."""

    def __repr__(self) -> str:
        return f"<Client of {self._cluster!r}>"

    @classmethod
    def connect(
        cls,
        servers: Sequence[str] | str,
        *,
        tls: ssl.SSLContext | None = None,
        timeout: float = limits.CLIENT_CONNECT_TIMEOUT_S,
        on_wait: OnWait = lambda error, seconds: None,
    ) -> Connecting[Client]:
        """`async with Client.connect("localhost:9292") as client`, or `client = await Client.connect(...)` and later
        `close`. `servers`: some brokers' addresses, in a list or separated by commas. One is enough. `on_wait` is
        called before each retry of a request, with the reason and with how long the request has been tried."""
        return Connecting(lambda: cls._connect(servers, tls, timeout, on_wait))

    @classmethod
    async def _connect(
        cls, servers: Sequence[str] | str, tls: ssl.SSLContext | None, timeout: float, on_wait: OnWait
    ) -> Client:
        try:
            texts = servers.split(",") if isinstance(servers, str) else list(servers)
        except TypeError:
            texts = []
        if not texts or not all(isinstance(text, str) for text in texts):
            raise InvalidArgument("no server address was given: connect('localhost:9292')")
        cluster = Cluster([parse_address(text) for text in texts], tls, on_wait)
        try:
            await persist(cluster.any_connection, Deadline(timeout))
        except DeadlineExceeded as error:
            await cluster.close()
            raise Unavailable(f"no broker can be reached at {', '.join(texts)}: {error}") from None
        except BaseException:
            await cluster.close()
            raise
        return cls(cluster)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await (self.close() if kind is None else self._abandon())

    async def close(self) -> None:
        """Producers are flushed first, for as long as acks come; what failed is raised when everything is closed."""
        if self._cluster.connections.closed:
            return
        self._cluster.connections.check_loop()
        try:
            failures = await self._flush()
        finally:
            await self._abandon()
        if failures:
            raise failures[0]

    async def _flush(self) -> list[BaseException]:
        flushing = [asyncio.ensure_future(each.flush()) for each in self._open_producers]
        try:
            waiting: set[asyncio.Future[None]] = set(flushing)
            unanswered = self._unanswered + 1
            while waiting and self._unanswered < unanswered:
                unanswered = self._unanswered
                _, waiting = await asyncio.wait(waiting, timeout=limits.CLIENT_FLUSH_S)
        finally:
            for each in flushing:
                each.cancel()
        ended = await asyncio.gather(*flushing, return_exceptions=True)
        return [each for each in ended if isinstance(each, BasculeError)]

    @property
    def _unanswered(self) -> int:
        return sum([each.unanswered for each in self._open_producers])

    async def _abandon(self) -> None:
        """Close at once: nobody waits for messages that have no ack."""
        self._cluster.connections.check_loop()
        for producer in self._open_producers:
            if producer.unanswered:
                what = "the client is closed, and %d messages of %r have no ack: they may be lost. Close that first"
                logger.warning(what, producer.unanswered, producer)
        try:
            await self._single.close()
        finally:
            await self._cluster.close()
            await asyncio.gather(*[each.stop() for each in list(self._open_producers)])

    # --- streams ------------------------------------------------------------------------------------------

    async def create_stream(
        self,
        name: str,
        subject: str | None = None,
        partitions: int = 1,
        replication_factor: int = 1,
        timeout: float = limits.CLIENT_TIMEOUT_S,
        *,
        exist_ok: bool = False,
        **overrides: Unpack[StreamOverrides],
    ) -> None:
        """Attach a stream to a NATS subject (its own name, unless given); AlreadyExists if there is one, or, with
        `exist_ok`, if that has another subject or number of partitions. Its settings are not compared.

        Returns when its partitions have leaders, so that it can be used at once.
        """
        check_stream(name)
        check_at_least(1, partitions=partitions)
        check_at_least(-1, replication_factor=replication_factor)  # -1: one on every broker
        deadline = Deadline(timeout)
        await self._streams.create(name, subject, partitions, replication_factor, exist_ok, deadline, overrides)

    async def delete_stream(self, name: str, timeout: float = limits.CLIENT_TIMEOUT_S) -> None:
        await self._streams.delete(name, Deadline(timeout))

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
        await self._streams.pause(name, partitions, resume_all, Deadline(timeout))

    async def set_stream_readonly(
        self,
        name: str,
        readonly: bool = True,
        partitions: Sequence[int] = (),
        timeout: float = limits.CLIENT_TIMEOUT_S,
    ) -> None:
        """Publishes to these partitions, or to all of them, are refused; or, with False, taken again."""
        await self._streams.set_readonly(name, readonly, partitions, Deadline(timeout))

    async def fetch_metadata(self, streams: Sequence[str] = (), timeout: float = limits.CLIENT_TIMEOUT_S) -> Metadata:
        """Brokers, and these streams or all. A stream the cluster does not know is left out."""
        check_streams(streams)
        return await self._cluster.refresh(streams, Deadline(timeout))

    async def fetch_partition_metadata(
        self, stream: str, partition: int = 0, timeout: float = limits.CLIENT_TIMEOUT_S
    ) -> Partition:
        """As its leader knows it, with the leader's high watermark."""
        return await described(self._cluster, (stream, partition), Deadline(timeout))

    @property
    def admin(self) -> Admin:
        """Of a Bascule cluster: its brokers and replicas. Other Liftbridge servers have no such service."""
        return Admin(self._cluster)

    # --- cursors ------------------------------------------------------------------------------------------

    async def set_cursor(
        self, id: str, stream: str, partition: int, offset: int, timeout: float = limits.CLIENT_TIMEOUT_S
    ) -> None:
        """Store how far a client has got: `offset` is of the last message that it has processed, and a reader goes on
        at the next one; -1, or -2 for a consumer group, is before the first one. Whether there is such a stream is not
        looked up."""
        check_at_least(BEFORE_THE_FIRST, offset=offset)
        if reason := unfit_partition(partition):
            raise InvalidArgument(reason)
        await self._cursors.set(id, stream, partition, offset, timeout)

    async def fetch_cursor(
        self, id: str, stream: str, partition: int = 0, timeout: float = limits.CLIENT_TIMEOUT_S
    ) -> int:
        """The offset that was stored last; -1 if there is none. CorruptError if damage on the brokers may have had it:
        set it again."""
        if reason := unfit_partition(partition):
            raise InvalidArgument(reason)
        return await self._cursors.fetch(id, stream, partition, timeout)

    async def list_cursors(self) -> list[Cursor]:
        """All that were ever set, each with its last offset. Reads the whole stream `__cursors`."""
        return await self._cursors.all()

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
        retry_s: float = 0.0,
    ) -> Ack:
        """Publish one message and wait for its ack. Value, key and the values of headers are bytes.

        Without a partition the key chooses it, and without a key it is 0. Unconfirmed means that it is not known
        whether the message was stored. With `retry_s` it is sent again until it is acked, for that long; a Bascule
        server stores it once, with others it may be stored twice. Then `ack` is ALL, and no offset is expected.
        `expected_offset`: it is stored there or refused (IncorrectOffset), in a stream that was created with
        `optimistic_concurrency_control=True`. In others servers ignore it.
        """
        check_publish(stream, ack, expected_offset, timeout, retry_s)
        if partition is None and key is None and headers is None and not retry_s and type(value) is bytes:
            return await self._single.once(stream, value, 0, ack, expected_offset, timeout)
        message = Outgoing(value, key, headers, partition)
        if (reason := unfit(message)) or (reason := unfit_to_retry(retry_s, ack, expected_offset)):
            raise InvalidArgument(reason)
        publish = self._single if partition is not None or not key else self._single.by_key
        return await publish(stream, message, partition or 0, ack, expected_offset, timeout, retry_s)

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
        that long. A Bascule server stores each of them once, if `ack` is ALL: they are numbered (`producers`). They may
        be stored twice elsewhere. `on_retry` gets their number, and the reason.
        """
        check_values(values)
        check_stream(stream)
        check_ack(ack)
        check_seconds(timeout=timeout, retry_s=retry_s)
        return await self._many(
            stream,
            values,
            partition=partition,
            spread=spread,
            ack=ack,
            timeout=timeout,
            on_acks=on_acks,
            retry_s=retry_s,
            on_retry=on_retry,
        )

    def producer(
        self,
        stream: str,
        *,
        ack: AckPolicy = AckPolicy.ALL,
        linger: float = 0.0,
        max_in_flight: int = limits.CLIENT_PUBLISH_WINDOW,
        retry_for: float = limits.CLIENT_RETRY_FOR_S,
        timeout: float = limits.CLIENT_ACK_TIMEOUT_S,
        partitioner: Partitioner | None = None,
        idempotent: bool | None = None,
    ) -> Producer:
        """For messages that come one by one: `async with client.producer("orders") as producer`, and
        `receipt = await producer.send(b"...")`. Await the receipt for the ack, or leave it; `flush`, and the end of the
        block, wait for all.

        The key of a message chooses its partition; those without one take all in turn; or `partitioner` chooses.
        `linger`: seconds to wait for more messages before the first is sent. `max_in_flight`: messages without an ack;
        above it `send` waits. Messages without an ack are sent again after a lost connection, until nothing is
        confirmed for `retry_for` seconds. A Bascule server stores each of them once, if `ack` is ALL. They may be
        stored twice elsewhere, which is logged, and with `ack=AckPolicy.LEADER`. `idempotent`: with True they are not
        sent to a server that may store them twice (Unimplemented); with False they are sent again without numbers."""
        check_stream(stream)
        check_ack(ack)
        check_seconds(linger=linger, retry_for=retry_for, timeout=timeout)
        check_at_least(1, max_in_flight=max_in_flight)
        if idempotent is not None and not isinstance(idempotent, bool):
            raise InvalidArgument(f"idempotent={idempotent!r}: it is True, False or None")
        if partitioner is not None and not callable(partitioner):
            raise InvalidArgument(
                f"partitioner={partitioner!r}: it is a function of a message and a number of partitions"
            )
        return Producer(
            self._many,
            self._cluster,
            self._producers,
            stream,
            ack=ack,
            linger=linger,
            max_in_flight=max_in_flight,
            retry_for=retry_for,
            timeout=timeout,
            partitioner=partitioner,
            idempotent=idempotent,
            open_ones=self._open_producers,
        )

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

        `start`: "earliest", "latest", which is the newest message that is there, "new", an offset or a datetime;
        `stop`, inclusive: "latest", an offset, a datetime, or None to go on for ever. With `reverse` it begins with the
        newest, unless `start` says otherwise, and ends with the oldest, or at `stop`. `replica`: the id of a broker to
        read from instead of the leader; a message may arrive a moment later from it, and never before it is committed.
        `on_lost` is called with the reason when the connection is lost, and with None when the subscription goes on.
        """
        check_stream(stream)
        if reverse and start == "earliest":  # to begin there would be to end with the first message
            start = "latest"
        reading = Reading(stream, partition, start, stop, reverse, resume_paused, replica)
        return Subscription(self._cluster, reading, on_lost)

    @overload
    def consumer(
        self,
        streams: str | Sequence[str],
        *,
        partitions: Partitions = "all",
        start: StartAt | Position = "earliest",
        stop: StopAt = None,
        last: int | None = None,
        resume_paused: bool = False,
        on_lost: OnLost | None = None,
    ) -> Consumer: ...

    @overload
    def consumer(
        self,
        streams: str | Sequence[str],
        *,
        group: str,
        member: str = "",
        start: GroupStart = "earliest",
        auto_commit: float | None = limits.CLIENT_AUTO_COMMIT_S,
        on_assigned: OnAssignment | None = None,
        on_revoked: OnAssignment | None = None,
        resume_paused: bool = False,
        on_lost: OnLost | None = None,
    ) -> GroupConsumer: ...

    def consumer(
        self,
        streams: str | Sequence[str],
        *,
        group: str | None = None,
        member: str = "",
        partitions: Partitions = "all",
        start: StartAt | Position = "earliest",
        stop: StopAt = None,
        last: int | None = None,
        auto_commit: float | None = limits.CLIENT_AUTO_COMMIT_S,
        on_assigned: OnAssignment | None = None,
        on_revoked: OnAssignment | None = None,
        resume_paused: bool = False,
        on_lost: OnLost | None = None,
    ) -> Consumer | GroupConsumer:
        """Several partitions, of one stream or of several, in one iteration: `async with client.consumer("orders") as
        consumer`, and `async for message in consumer`, or its `batches()`; or `await consumer.next(timeout=1.0)`, which
        is None if nothing came. Within a partition messages come in order.

        `partitions`: all of each stream, or these. `start` and `stop` as of `subscribe`, for each of them; `start` is
        also a `position` that was stored: partitions that it does not name begin with the earliest message. `last`:
        begin with the last so many messages of each partition.

        With `group` it is a member of that consumer group: its members share the partitions, and go on where the group
        has committed to; `start` ("earliest", "new" or a datetime) is for partitions of which it has committed nothing.
        What was handled is committed every `auto_commit` seconds and at the end; with None only by `commit()`.
        `on_assigned` and `on_revoked` are called with the partitions that come and go, between two messages. `member`:
        an id of your own, for logs; one that another member has is waited for."""
        names = [streams] if isinstance(streams, str) else list(streams)
        if group is not None or member or on_assigned is not None or on_revoked is not None:
            check_group(group, partitions, start, stop, last)
            return GroupConsumer(
                self._cluster,
                names,
                group or "",
                member=member,
                start=cast("GroupStart", start),
                auto_commit=auto_commit,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
                resume_paused=resume_paused,
                on_lost=on_lost,
            )
        return Consumer(self._cluster, names, partitions, start, stop, last, resume_paused, on_lost)

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
        a broker to read from instead of the leader, which is read from where that one cannot be reached. `max_bytes`:
        about as many in a piece, at most 4 MB. Bascule only."""
        return BulkRead(self._cluster, stream, partition, start, end, creation, replica, max_bytes)

    def arrow(
        self,
        stream: str,
        *,
        partitions: Partitions = "all",
        columns: Sequence[str] | None = None,
        start: ArrowStart = "earliest",
        max_bytes: int = limits.CLIENT_ARROW_BYTES,
    ) -> ArrowRead:
        """Iterate the result for pyarrow record batches, each of one partition: everything that is committed when it
        begins, from `start` (as of a consumer; also its `position`). `columns`: some of those of `client.columns`, all
        unless given. `max_bytes`: about as many of the log in a batch. Needs pyarrow: `pip install 'bascule[arrow]'`.
        Bascule decodes in bulk; of other servers the same comes by way of a subscription, slower."""
        return ArrowRead(self._cluster, stream, partitions, columns, start, max_bytes)

    async def export_parquet(
        self,
        stream: str,
        folder: str | os.PathLike[str],
        *,
        partitions: Partitions = "all",
        columns: Sequence[str] | None = None,
        start: ArrowStart = "earliest",
        max_file_bytes: int = limits.EXPORT_FILE_BYTES,
        skip_damaged: bool = False,
        on_progress: OnProgress | None = None,
    ) -> ExportReport:
        """Write everything that is committed into Parquet files. Called again, also after it was interrupted, it goes
        on where it stopped, and appends what has come since: each message is in one file. `on_progress` is called with
        the report after each batch. Messages that are damaged on the broker's disk are an error, which passes when it
        has repaired them from another replica; with `skip_damaged` they are left out, and `damaged` of the report has
        them. Needs pyarrow, as `arrow`."""
        into = Path(folder)
        return await export_parquet(
            self._cluster, stream, into, partitions, columns, start, max_file_bytes, skip_damaged, on_progress
        )

    def write_batches(
        self,
        stream: str,
        batches: Batches,
        partition: int = 0,
        *,
        ack: AckPolicy = AckPolicy.ALL,
        creation: int = 0,
        bypass_others: bool = False,
        timeout: float = limits.CLIENT_ACK_TIMEOUT_S,
        atomic: bool = False,
    ) -> BulkWrite:
        """Iterate the result for the offsets of each batch, in order; while it is iterated, batches are sent.
        A batch is a sequence of values or `Outgoing`s (`batches_of` makes batches of an iterable), or a piece of a log
        that `read_range` gave. It is stored whole or refused; nothing is stored after one that is refused, which a
        PublishError names. Unconfirmed says how many batches are acked.

        The leader stores them without the way through NATS. So the stream is refused if it has a group, or another
        stream's subject overlaps the partition's, unless `bypass_others` accepts that the others miss the messages.
        `creation`: as `log_bounds` gives it; a stream that was made again is then refused. `timeout` bounds the wait
        for the next ack. `atomic`: each batch is there whole or not at all, also after a crash in the middle of its
        write; it is then at most as large as a message may be. Bascule only."""
        return BulkWrite(self._cluster, stream, partition, batches, ack, creation, bypass_others, timeout, atomic)

    def numbered_write(self, to: WriteTo, identity: Identity, patience_s: float) -> NumberedWrite:
        """Framed messages in bulk, each stored once however often they are written: as Spark writes. The same
        `Identity` stands for the same messages in the same order, in whichever process. Bascule only."""
        return NumberedWrite(self._cluster, to, identity, patience_s)

    async def publish_batch(
        self,
        stream: str,
        messages: Sequence[bytes | Outgoing],
        partition: int = 0,
        *,
        ack: AckPolicy = AckPolicy.ALL,
        bypass_others: bool = False,
        timeout: float = limits.CLIENT_ACK_TIMEOUT_S,
    ) -> WrittenBatch:
        """Messages that are stored together or not at all, with offsets that follow one another; together at most as
        large as one message may be. Unconfirmed means that it is not known whether they were stored: all are, or none.
        It is a bulk write, see `write_batches`. Bascule only."""
        write = self.write_batches(
            stream, [messages], partition, ack=ack, bypass_others=bypass_others, timeout=timeout, atomic=True
        )
        try:
            async with aclosing(write.written()) as written:
                return await anext(written)
        except PublishError as error:
            raise error.__cause__ or error from None

    async def log_bounds(self, stream: str, partition: int = 0, timeout: float = limits.CLIENT_TIMEOUT_S) -> LogBounds:
        """Which offsets a partition holds, and the number of its stream. Bascule only."""
        return await log_bounds(self._cluster, stream, partition, Deadline(timeout))
