"""Cursors: where clients have got to, kept by the cluster in the stream `__cursors`. A cursor is the offset of the last
message that was processed; -1 is one that was never set."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from google.protobuf.message import DecodeError

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline
from bascule.client.subscription import Reading, Subscription
from bascule.client.values import Message, Stream
from bascule.errors import FailedPrecondition, NotFound, Unavailable
from bascule.wire.pb import api_pb2 as pb
from bascule.wire.pb import internal_pb2 as stored

CURSORS = "__cursors"
GROUP = "__group:"
"""The cursors of a consumer group have this before its id, as go-liftbridge's Consumer has it."""
NEVER_SET = -1
BEFORE_THE_FIRST = -2
"""A client that goes on after it asks for offset -1, and begins with the first message. (The members of a consumer
group take NEVER_SET for a choice of their own: they may begin with the next new message.)"""


class Cursor(NamedTuple):
    id: str
    stream: str
    partition: int
    offset: int


class Cursors:
    """Those of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def set(self, id: str, stream: str, partition: int, offset: int, timeout: float) -> None:
        request = pb.SetCursorRequest(stream=stream, partition=partition, cursorId=id, offset=offset)
        await self._ask("SetCursor", id, stream, partition, request.SerializeToString(), timeout)

    async def fetch(self, id: str, stream: str, partition: int, timeout: float) -> int:
        request = pb.FetchCursorRequest(stream=stream, partition=partition, cursorId=id).SerializeToString()
        answer = await self._ask("FetchCursor", id, stream, partition, request, timeout)
        return pb.FetchCursorResponse.FromString(answer).offset

    async def _ask(self, method: str, id: str, stream: str, partition: int, request: bytes, timeout: float) -> bytes:
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

    async def all(self) -> list[Cursor]:
        """Reads the whole stream."""
        found: dict[tuple[str, str, int], Cursor] = {}
        streams = (await self._cluster.refresh([CURSORS], Deadline(limits.CLIENT_TIMEOUT_S))).streams
        for number in streams[CURSORS].partitions if CURSORS in streams else ():
            reading = Reading(CURSORS, number, "earliest", "latest", reverse=False, resume_paused=True)
            async with Subscription(self._cluster, reading) as subscription:
                async for batch in subscription.batches():
                    found |= {cursor[:3]: cursor for each in batch if (cursor := cursor_of(each)) is not None}
        return [found[name] for name in sorted(found)]


def cursor_partition(id: str, stream: str, partition: int, partitions: int) -> int:
    """The partition of `__cursors` whose leader answers for it."""
    return zlib.crc32(f"{id},{stream},{partition}".encode()) % partitions


def cursor_of(message: Message) -> Cursor | None:
    """As a record of `__cursors` has it; None if it is something else: anybody may publish there."""
    try:
        found = stored.Cursor.FromString(message.value)
    except DecodeError:
        return None
    if message.key != f"{found.cursorId},{found.stream},{found.partition}".encode():
        return None
    return Cursor(found.cursorId, found.stream, found.partition, found.offset)
