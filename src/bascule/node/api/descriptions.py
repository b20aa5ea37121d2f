"""The streams in answers to FetchMetadata, as bytes: encoded in rounds, in slices, once for all callers.

A round serves all calls that arrived before it began, as a group commit does: it takes the metadata as it is then,
which are immutable values, and encodes each stream once, however many calls name it. So an answer is of one version of
the metadata, never older than its call, and a thousand clients that call at once cost little more than one. Between
slices it yields to the event loop.

The metadata of a partition is cached encoded until it changes; so are the offsets of a replica on this broker.

An answer is a list of pieces that all its callers share. A slow client holds it in memory, so this memory has a bound
for the broker: beyond it the call that has taken longest is ended, and its client has to ask again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import EventTimes, Key, Partition, Stream
from bascule.errors import Internal, ResourceExhausted
from bascule.limits import (
    METADATA_ANSWER_BYTES,
    METADATA_HELD_BYTES,
    METADATA_PIECE_BYTES,
    METADATA_SLICE_ENTRIES,
    METADATA_TAKE_S,
)
from bascule.node.partition.replica import Replica
from bascule.node.partition.summary import LogSummary
from bascule.node.runtime.jobs import Jobs
from bascule.ports import Call
from bascule.wire.grpc import frame_head
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pure.protobuf import bytes_field, number_field, varint

logger = logging.getLogger(__name__)

_KEY, _VALUE = 0x08, 0x12
_STREAM, _PARTITION = 0x12, 0x22
"""Tags: of a map entry, of a stream in the response, and of a partition in a stream."""

Positions = tuple[int, int, int, int] | None
"""Of the replica here, also while it is paused: high watermark, log end, and when the first and the latest message
arrived."""


class Answer:
    """Streams of one version of the metadata, in pieces that are never changed."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        self.receivers = 0
        self._open: list[bytes] = []
        self._open_bytes = 0

    @property
    def too_large(self) -> bool:
        return self.size > METADATA_ANSWER_BYTES

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self._open.append(data)
        self._open_bytes += len(data)
        if self._open_bytes >= METADATA_PIECE_BYTES:
            self.end()

    def end(self) -> None:
        if self._open:
            self.pieces.append(b"".join(self._open))
            self._open, self._open_bytes = [], 0


class Descriptions:
    def __init__(
        self, metadata: Callable[[], Metadata], find: Callable[[Key], Replica | LogSummary | None], jobs: Jobs
    ) -> None:
        self._metadata = metadata
        self._find = find
        self._asked: dict[tuple[str, ...], asyncio.Future[Answer]] = {}
        self._rounds = jobs.tasks("the encoding of metadata for clients", 2)  # one may have ended and still be counted
        self._describing = False
        self._cached: dict[str, _Cached] = {}
        self._slice = 0
        self._receivers: dict[object, tuple[Answer, asyncio.Timeout]] = {}
        self._held_bytes = 0

    async def of(self, names: tuple[str, ...]) -> Answer:
        """These streams in this order, each name once; () stands for all of them, by name."""
        asked = self._asked.get(names)
        if asked is None:
            asked = self._asked[names] = asyncio.get_running_loop().create_future()
        if not self._describing:
            self._describing = True
            self._rounds.start(self._run())
        try:
            answer = await asyncio.shield(asked)  # several calls wait for it: one that ends must not cancel it
        except asyncio.CancelledError:
            if not asked.cancelled():
                raise  # it is this call that was cancelled
            raise Internal("the metadata could not be encoded; the log of this broker says why") from None
        if answer.too_large:
            raise ResourceExhausted(
                f"the answer would be larger than {METADATA_ANSWER_BYTES} bytes: ask for fewer streams at a time"
            )
        return answer

    async def send(self, call: Call, head: bytes, answer: Answer) -> None:
        """One response message: `head`, then the streams, piece by piece as the client reads them."""
        receiver = object()
        try:
            async with asyncio.timeout(METADATA_TAKE_S) as deadline:
                self._hold(receiver, answer, deadline)
                call.write(frame_head(len(head) + answer.size) + head)
                for piece in answer.pieces:
                    await call.send(piece)
        except TimeoutError:
            raise ResourceExhausted("the answer was not read in time, and other calls wait: ask again") from None
        finally:
            self._release(receiver)

    def _hold(self, receiver: object, answer: Answer, deadline: asyncio.Timeout) -> None:
        self._receivers[receiver] = (answer, deadline)
        self._held_bytes += 0 if answer.receivers else answer.size
        answer.receivers += 1
        while self._held_bytes > METADATA_HELD_BYTES and len(self._receivers) > 1:
            slowest = next(iter(self._receivers))
            self._receivers[slowest][1].reschedule(asyncio.get_running_loop().time())
            self._release(slowest)

    def _release(self, receiver: object) -> None:
        answer, _ = self._receivers.pop(receiver, (None, None))
        if answer is not None:
            answer.receivers -= 1
            self._held_bytes -= 0 if answer.receivers else answer.size
        assert self._held_bytes >= 0, "an answer was released twice"

    # --- rounds -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, {}
                try:
                    await self._round(asked)
                except Exception:
                    logger.exception("metadata could not be encoded for clients, whose calls fail; report this")
                finally:
                    for waits in asked.values():
                        waits.cancel()  # no effect on those that were answered
        finally:
            self._describing = False

    async def _round(self, asked: dict[tuple[str, ...], "asyncio.Future[Answer]"]) -> None:
        streams = dict(self._metadata().streams)
        described: dict[str, list[bytes]] = {}
        for names, waits in asked.items():
            answer = Answer()
            for name in names or sorted(streams):
                if name not in described:
                    described[name] = await self._describe(name, streams.get(name))
                for piece in described[name]:
                    answer.add(piece)
                await self._let_go(1)
                if answer.too_large:
                    break
            answer.end()
            if not waits.done():
                waits.set_result(answer)
        for name in [name for name in self._cached if name not in streams]:
            del self._cached[name]

    async def _let_go(self, done: int) -> None:
        self._slice += done
        if self._slice >= METADATA_SLICE_ENTRIES:
            self._slice = 0
            await asyncio.sleep(0)

    async def _describe(self, name: str, stream: Stream | None) -> list[bytes]:
        if stream is None:
            unknown = api.StreamMetadata(name=name, error=api.StreamMetadata.UNKNOWN_STREAM)
            return [bytes_field(_STREAM, unknown.SerializeToString())]
        cached = self._cached.get(name)
        if cached is None or cached.creation_index != stream.creation_index:
            cached = self._cached[name] = _Cached(stream)
        pieces: list[bytes] = []
        for first in range(0, len(stream.partitions), METADATA_SLICE_ENTRIES):
            items = stream.partitions[first : first + METADATA_SLICE_ENTRIES]
            pieces.append(b"".join(self._entries(cached, stream.creation_index, items)))
            await self._let_go(len(items))
        size = len(cached.head) + sum(map(len, pieces))
        return [bytes((_STREAM,)) + varint(size) + cached.head, *pieces]

    def _entries(self, cached: "_Cached", creation_index: int, items: Iterable[Partition]) -> Iterable[bytes]:
        find, entry = self._find, cached.entry
        for item in items:
            known = find((creation_index, item.id))
            yield entry(item, None if known is None else positions_of(known))


def positions_of(known: Replica | LogSummary) -> Positions:
    end = known.end if isinstance(known, LogSummary) else known.log.end
    return known.hw_end, end, known.first_received, known.latest_received


class _Cached:
    """A stream and its partitions as they were last encoded."""

    def __init__(self, stream: Stream) -> None:
        self.creation_index = stream.creation_index
        self.head = api.StreamMetadata(
            name=stream.name, subject=stream.subject, creationTimestamp=stream.creation_timestamp
        ).SerializeToString()
        self._entries: list[tuple[Partition, bytes, Positions, bytes] | None] = [None] * len(stream.partitions)

    def entry(self, item: Partition, positions: Positions) -> bytes:
        """An entry of the map of partitions. Protobuf merges two encodings of a message that follow each other."""
        cached = self._entries[item.id]
        if cached is not None and cached[0] is item:
            if cached[2] == positions:
                return cached[3]
            fixed = cached[1]
        else:
            fixed = _fixed(item)
        value = bytes_field(_VALUE, fixed + _moving(positions))
        data = bytes_field(_PARTITION, number_field(_KEY, item.id) + value)
        self._entries[item.id] = (item, fixed, positions, data)
        return data


def describe_partition(item: Partition, positions: Positions) -> api.PartitionMetadata:
    """With the local log's positions; a broker without the partition reports it as empty (-1)."""
    return api.PartitionMetadata.FromString(_fixed(item) + _moving(positions))


def _fixed(item: Partition) -> bytes:
    """The fields that come from the metadata."""
    return api.PartitionMetadata(
        id=item.id,
        leader=item.leader,
        replicas=item.replicas,
        isr=item.isr,
        eligible=item.eligible,
        paused=item.paused,
        readonly=item.readonly,
        pauseTimestamps=_times(item.pauses),
        readonlyTimestamps=_times(item.readonly_changes),
    ).SerializeToString()


def _times(times: EventTimes) -> api.PartitionEventTimestamps:
    return api.PartitionEventTimestamps(firstTimestamp=times.first, latestTimestamp=times.latest)


def _moving(positions: Positions) -> bytes:
    """The fields that come from the log on this broker."""
    if positions is None:
        return _NOT_HERE
    hw_end, end, first, latest = positions
    return api.PartitionMetadata(
        highWatermark=hw_end - 1,
        newestOffset=end - 1,
        messagesReceivedTimestamps=api.PartitionEventTimestamps(firstTimestamp=first, latestTimestamp=latest),
    ).SerializeToString()


_NOT_HERE = _moving((0, 0, 0, 0))
