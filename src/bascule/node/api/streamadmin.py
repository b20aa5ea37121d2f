"""The calls of `bascule.v1.Admin` that change a stream: resumed, its settings altered, holds set and removed."""

from collections.abc import Sequence

from bascule.core.metadata.altering import SETTINGS
from bascule.core.metadata.commands import AlterStream, SetHold
from bascule.core.metadata.streams import RESERVED_STREAMS, Partition, StreamConfig, camel
from bascule.errors import InvalidArgument, NotFound, Unavailable
from bascule.limits import MAX_PARTITIONS
from bascule.node.api.gate import Service, about_stream
from bascule.node.api.replicastatus import ReplicaStatus, settings_of
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import ControllerClient
from bascule.ports import Call
from bascule.wire.pb import admin_pb2 as admin


class StreamAdmin:
    def __init__(self, cluster: Cluster, client: ControllerClient, status: ReplicaStatus) -> None:
        self._cluster = cluster
        self._client = client
        self._status = status

    def register(self, service: Service) -> None:
        service.changing(
            "ResumeStream",
            admin.ResumeStreamRequest,
            self.resume_stream,
            lambda request: about_stream(request.stream),
            needs_metadata=True,
        )
        service.changing(
            "AlterStream",
            admin.AlterStreamRequest,
            self.alter_stream,
            lambda request: about_stream(request.stream),
            needs_metadata=True,
        )
        service.changing(
            "SetHold",
            admin.SetHoldRequest,
            self.set_hold,
            lambda request: about_stream(request.stream),
            needs_metadata=True,
        )
        service.changing(
            "RemoveHold",
            admin.RemoveHoldRequest,
            self.remove_hold,
            lambda request: about_stream(request.stream),
            needs_metadata=True,
        )

    async def resume_stream(self, request: admin.ResumeStreamRequest, call: Call) -> admin.ResumeStreamResponse:
        if not self._cluster.metadata.stream(request.stream):
            raise NotFound(f"no such stream: {request.stream}")
        await self._client.resume_stream(request.stream, _distinct(request.partitions), call.time_remaining())
        return admin.ResumeStreamResponse()

    # --- settings --------------------------------------------------------------------------------------------

    async def alter_stream(self, request: admin.AlterStreamRequest, call: Call) -> admin.AlterStreamResponse:
        if request.stream in RESERVED_STREAMS:
            raise InvalidArgument("Stream is reserved")
        names = {camel(name): name for name in SETTINGS}
        reset = tuple(dict.fromkeys(names.get(each, each) for each in request.reset[: 2 * len(names)]))
        command = AlterStream(request.stream, config_of(request.settings), reset)
        if not self._cluster.metadata.stream(request.stream):
            raise NotFound(f"no such stream: {request.stream}")
        await self._client.alter_stream(command, call.time_remaining())
        now = self._cluster.metadata.stream(request.stream)
        return admin.AlterStreamResponse(settings=settings_of(now.config) if now else None)

    # --- holds -----------------------------------------------------------------------------------------------

    async def set_hold(self, request: admin.SetHoldRequest, call: Call) -> admin.SetHoldResponse:
        item = self._partition(request.stream, request.partition)
        offset = item.start if request.atStart else request.offset
        if offset > item.start:
            await self._check_stored(request.stream, item, offset)
        hold = SetHold(request.stream, item.id, request.name, offset)
        await self._client.set_hold(hold, call.time_remaining())
        return admin.SetHoldResponse(offset=offset)

    async def _check_stored(self, stream: str, item: Partition, offset: int) -> None:
        """A hold says that all below it is archived: what is not committed yet cannot be."""
        end = await self._status.committed_end(stream, item)
        if end is None:
            raise Unavailable(
                f"{item.leader or 'no broker'} leads partition {item.id} and does not answer, so its end is not known: "
                "ask again; a paused partition must be resumed first"
            )
        if offset > end:
            raise InvalidArgument(
                f"offset {offset} is past the end of partition {item.id}, which is {end}: what is not stored yet "
                "cannot be archived"
            )

    async def remove_hold(self, request: admin.RemoveHoldRequest, call: Call) -> admin.RemoveHoldResponse:
        item = self._partition(request.stream, request.partition)
        await self._client.remove_hold(request.stream, item.id, request.name, call.time_remaining())
        return admin.RemoveHoldResponse()

    def _partition(self, name: str, number: int) -> Partition:
        stream = self._cluster.metadata.stream(name)
        if stream is None:
            raise NotFound(f"no such stream: {name}")
        item = stream.partition(number)
        if item is None:
            raise NotFound(f"no such partition: stream {name} has {len(stream.partitions)}, counted from 0")
        return item


def config_of(settings: admin.StreamSettings) -> StreamConfig:
    given = {name: camel(name) for name in SETTINGS}
    return StreamConfig(
        **{name: getattr(settings, there) if settings.HasField(there) else None for name, there in given.items()}
    )


def _distinct(partitions: Sequence[int]) -> tuple[int, ...]:
    if len(partitions) > MAX_PARTITIONS:
        raise InvalidArgument(f"at most {MAX_PARTITIONS} partitions can be named")
    return tuple(dict.fromkeys(partitions))
