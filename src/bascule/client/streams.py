"""Streams: made, deleted, paused and set read-only."""

from __future__ import annotations

from collections.abc import Sequence

from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline
from bascule.client.settings import SETTING_FIELDS, StreamOverrides
from bascule.client.values import Stream
from bascule.errors import AlreadyExists, InvalidArgument, Unavailable
from bascule.wire.pb import api_pb2 as pb
from bascule.wire.subjects import subject_refusal

SUBJECT_IS_INVALID = "Subject is invalid"


class Streams:
    """Those of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(
        self,
        name: str,
        subject: str | None,
        partitions: int,
        replication_factor: int,
        exist_ok: bool,
        deadline: Deadline,
        overrides: StreamOverrides,
    ) -> None:
        """Returns when its partitions have leaders."""
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
        try:
            await self._ask("CreateStream", request.SerializeToString(), deadline)
        except InvalidArgument as error:
            raise _explained(error, request) from None
        except AlreadyExists:
            if not exist_ok:
                raise
        stream = await self._with_leaders(name, deadline)
        if exist_ok:
            _check_same(stream, request)

    async def _with_leaders(self, name: str, deadline: Deadline) -> Stream:
        """The broker that answers may be a moment behind the one that created it."""

        async def look() -> Stream:
            stream = (await self._cluster.refresh([name], deadline)).streams.get(name)
            if stream is None or not all(each.leader or each.paused for each in stream.partitions.values()):
                raise Unavailable(f"stream {name} was created, but not every partition has a leader yet")
            return stream

        return await self._cluster.persist(look, deadline)

    async def delete(self, name: str, deadline: Deadline) -> None:
        await self._ask("DeleteStream", pb.DeleteStreamRequest(name=name).SerializeToString(), deadline)
        self._cluster.forget(name)

    async def pause(self, name: str, partitions: Sequence[int], resume_all: bool, deadline: Deadline) -> None:
        request = pb.PauseStreamRequest(name=name, partitions=partitions, resumeAll=resume_all)
        await self._ask("PauseStream", request.SerializeToString(), deadline)
        self._cluster.forget(name)

    async def set_readonly(self, name: str, readonly: bool, partitions: Sequence[int], deadline: Deadline) -> None:
        request = pb.SetStreamReadonlyRequest(name=name, partitions=partitions, readonly=readonly)
        await self._ask("SetStreamReadonly", request.SerializeToString(), deadline)
        self._cluster.forget(name)

    async def _ask(self, method: str, request: bytes, deadline: Deadline) -> bytes:
        return await self._cluster.ask_any(f"/proto.API/{method}", request, deadline)


def _check_same(stream: Stream, request: pb.CreateStreamRequest) -> None:
    """A program that counts on four partitions must not go on with two."""
    found, wanted = (stream.subject, len(stream.partitions)), (request.subject, max(1, request.partitions))
    if found != wanted:
        raise AlreadyExists(
            f"stream {stream.name} exists with subject {found[0]} and {found[1]} partitions, and not with subject "
            f"{wanted[0]} and {wanted[1]}"
        )


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
