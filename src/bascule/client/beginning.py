"""Where a reader begins: times as offsets, and whether an offset that was stored still is one of the stream.

Offsets are stored outside the log, as positions and cursors, and the log changes meanwhile. Retention removes its
beginning: a reader begins with the first message that is left, and is warned. A stream that was deleted and made again
counts from 0 again: an offset beyond its end shows that. (An offset that it has reached again does not; Bascule's own
cursors know of which stream they are.)
"""

from __future__ import annotations

import logging
from datetime import datetime

from bascule.client.bulk import log_bounds
from bascule.client.cluster import FETCH_PARTITION_METADATA, Cluster
from bascule.client.failures import Deadline, Paused, passes_by_itself
from bascule.client.parts import Name
from bascule.client.subscription import Reading, Subscription
from bascule.client.values import Partition, partition_of
from bascule.errors import BasculeError, FailedPrecondition, Unimplemented
from bascule.wire.pb import api_pb2 as pb

logger = logging.getLogger(__name__)


async def described(cluster: Cluster, name: Name, deadline: Deadline) -> Partition:
    """A partition, as its leader knows it; Paused if it is: nobody answers for it then."""
    request = pb.FetchPartitionMetadataRequest(stream=name[0], partition=name[1]).SerializeToString()

    async def ask() -> bytes:
        try:
            return await cluster.ask_leader(*name, FETCH_PARTITION_METADATA, request, deadline, passes_by_itself)
        except FailedPrecondition:  # of a broker that does not lead it
            if await is_paused(cluster, name, deadline):
                raise Paused(*name) from None
            raise

    answer = await cluster.persist(ask, deadline, _is_led_elsewhere)
    return partition_of(pb.FetchPartitionMetadataResponse.FromString(answer).metadata)


def _is_led_elsewhere(error: BasculeError) -> bool:
    return passes_by_itself(error) or (isinstance(error, FailedPrecondition) and not isinstance(error, Paused))


async def is_paused(cluster: Cluster, name: Name, deadline: Deadline) -> bool:
    known = (await cluster.stream(name[0], deadline)).partitions.get(name[1])
    return known is not None and known.paused


async def resume(cluster: Cluster, name: Name) -> None:
    """A paused partition, as whoever subscribes with `resume` does. It has a leader then, who says where it ends."""
    async with Subscription(cluster, Reading(*name, "new", None, reverse=False, resume_paused=True)):
        cluster.forget(name[0])


async def committed_end(cluster: Cluster, name: Name, deadline: Deadline) -> int:
    """The offset after the last message that is committed."""
    return (await described(cluster, name, deadline)).high_watermark + 1


async def stored_end(cluster: Cluster, name: Name, deadline: Deadline) -> int:
    """The offset after the last message that its leader has: no message that was ever read is beyond it, while the high
    watermark of a leader that has just begun may be behind what was read."""
    found = await described(cluster, name, deadline)
    return max(found.high_watermark, found.newest_offset) + 1


async def first_since(cluster: Cluster, name: Name, moment: datetime, end: int) -> int:
    """The offset of the first message at a time or after it; `end` if there was none when that was the end."""
    reading = Reading(*name, moment, "latest", False, False)
    async with Subscription(cluster, reading) as subscription:
        async for message in subscription:
            return message.offset
    return end


async def warn_of_removed(cluster: Cluster, name: Name, offset: int, reader: str, deadline: Deadline) -> None:
    """If messages from this offset on were removed. Servers other than Bascule do not say where a log begins."""
    try:
        bounds = await log_bounds(cluster, *name, deadline)
    except Unimplemented:
        return
    if offset < bounds.start:
        logger.warning(
            "%s: messages %d to %d of partition %d of stream %s were removed before they were read; it begins with "
            "offset %d. Retention that keeps messages for longer, or a hold, lets a reader be away for longer",
            reader, offset, bounds.start - 1, name[1], name[0], bounds.start,
        )  # fmt: skip
