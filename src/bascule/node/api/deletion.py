"""The call DeleteRecords of `bascule.v1.Admin`: everything below an offset of a partition is removed, on every replica.

It raises the partition's start in the metadata, as the cleaner does (`node.partition.cleaner`). The leader is asked for
the end of what is committed first: the metadata does not have it.
"""

import asyncio

from bascule.core.metadata.commands import NewStart
from bascule.core.metadata.streams import CURSORS, Partition, Stream
from bascule.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from bascule.node.api.gate import Service, about_stream
from bascule.node.controller.brokeradmin import BrokerAdmin
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import ControllerClient
from bascule.ports import Call
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import internal_pb2 as pb

KNOWN_S = 2.0
"""How long an answer waits for the live replicas to know: until then they may still serve what is deleted."""
POLL_S = 0.02


class RecordDeletion:
    def __init__(self, cluster: Cluster, client: ControllerClient, brokers: BrokerAdmin) -> None:
        self._cluster = cluster
        self._client = client
        self._brokers = brokers

    def register(self, service: Service) -> None:
        service.changing(
            "DeleteRecords",
            admin.DeleteRecordsRequest,
            self.delete_records,
            lambda request: about_stream(request.stream),
            needs_metadata=True,
        )

    async def delete_records(self, request: admin.DeleteRecordsRequest, call: Call) -> admin.DeleteRecordsResponse:
        if request.stream == CURSORS:
            raise InvalidArgument("cursors are not deleted by their offset: one is replaced when it is set again")
        stream, item = self._partition(request.stream, request.partition)
        there = await self._position(stream, item)
        before = there.expiredEnd if request.expired else request.before
        _check(item, before, there.hwEnd)
        response = admin.DeleteRecordsResponse(start=max(item.start, before), previousStart=item.start)
        if request.dryRun or before <= item.start:
            return response
        start = NewStart(stream.name, stream.creation_index, item.id, item.leader_epoch, before)
        await self._client.raise_starts(item.leader, (start,), call.time_remaining())
        self._check_made(stream, item.id, before)
        await self._known(stream.name, item.id, before)
        return response

    def _partition(self, name: str, number: int) -> tuple[Stream, Partition]:
        stream = self._cluster.metadata.stream(name)
        if stream is None:
            raise NotFound(f"no such stream: {name}")
        item = stream.partition(number)
        if item is None:
            raise NotFound(f"no such partition: stream {name} has {len(stream.partitions)}, counted from 0")
        return stream, item

    async def _position(self, stream: Stream, item: Partition) -> pb.PartitionPosition:
        found = (
            await self._brokers.positions(item.leader, stream.name, [item.id], expired=True) if item.leader else None
        )
        there = next((each for each in found.positions if each.leads), None) if found is not None else None
        if there is None:
            raise Unavailable(
                f"{item.leader or 'no broker'} leads partition {item.id} and does not answer, so its end is not known: "
                "ask again; a paused partition must be resumed first"
            )
        return there

    def _check_made(self, stream: Stream, number: int, before: int) -> None:
        """A command that came too late changes nothing."""
        now = self._cluster.metadata.stream(stream.name)
        item = now.partition(number) if now is not None and now.creation_index == stream.creation_index else None
        if item is None:
            raise NotFound(f"stream {stream.name} was deleted meanwhile")
        if item.start < before:
            _check_holds(item, before)
            raise Unavailable(f"partition {number} has another leader meanwhile, and nothing was deleted: ask again")

    async def _known(self, stream: str, number: int, before: int) -> None:
        """Returns when every live replica begins there, or when that takes too long: one that is not reached learns of
        it with the metadata."""
        until = asyncio.get_running_loop().time() + KNOWN_S
        item = self._cluster.metadata.partition(stream, number)
        alive = {self._cluster.broker_id, *(peer.id for peer in self._cluster.peers.alive())}
        waits_for = [each for each in item.replicas if each in alive] if item is not None else []
        while waits_for and asyncio.get_running_loop().time() < until:
            asked = [self._brokers.positions(each, stream, [number]) for each in waits_for]
            found = dict(zip(waits_for, await asyncio.gather(*asked), strict=True))
            waits_for = [each for each in waits_for if not _begins_at(found[each], before)]
            if waits_for:
                await asyncio.sleep(POLL_S)


def _begins_at(answer: pb.PositionsResponse | None, start: int) -> bool:
    """One that has no replica open serves nothing, either."""
    return answer is not None and all(each.start >= start for each in answer.positions)


def _check(item: Partition, before: int, committed_end: int) -> None:
    if before > committed_end:
        raise InvalidArgument(
            f"offset {before} is past the end of partition {item.id}, which is {committed_end}: only what is committed "
            "can be deleted"
        )
    _check_holds(item, before)


def _check_holds(item: Partition, before: int) -> None:
    lowest = min(item.holds, key=lambda hold: hold.offset, default=None)
    if lowest is not None and before > lowest.offset:
        raise FailedPrecondition(
            f"hold {lowest.name!r} keeps partition {item.id} from offset {lowest.offset} on: delete before that at "
            "most, or raise or remove the hold first"
        )
