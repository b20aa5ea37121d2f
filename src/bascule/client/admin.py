"""Administering a Bascule cluster, through its service beside the Liftbridge API.

Answers are the service's messages (`bascule.wire.pb.admin_pb2`). Draining and removing take long: the request is sent
again until it is done or the timeout passes, and a later request goes on where it stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar, Unpack

from google.protobuf.message import Message

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline
from bascule.client.settings import SETTING_FIELDS, StreamSettings
from bascule.client.values import Address
from bascule.errors import InvalidArgument, Unavailable, Unimplemented
from bascule.wire.pb import admin_pb2 as pb

Response = TypeVar("Response", bound=Message)

ROUND_S = 5.0
"""Of one request for something that takes long."""
AGAIN_S = 0.2


class Admin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __repr__(self) -> str:
        return f"<Admin of {self._cluster!r}>"

    async def cluster_status(self, timeout: float = limits.CLIENT_TIMEOUT_S) -> pb.ClusterStatusResponse:
        return await self._ask("ClusterStatus", pb.ClusterStatusRequest(), pb.ClusterStatusResponse, Deadline(timeout))

    async def describe_stream(self, stream: str, timeout: float = limits.CLIENT_TIMEOUT_S) -> pb.DescribeStreamResponse:
        request = pb.DescribeStreamRequest(stream=stream)
        return await self._ask("DescribeStream", request, pb.DescribeStreamResponse, Deadline(timeout))

    async def drain_broker(
        self, broker: str, *, stop: bool = False, timeout: float = limits.CLIENT_ADMIN_TIMEOUT_S
    ) -> pb.DrainBrokerResponse:
        """Move its leaderships to other replicas in sync; `kept` names the partitions that no other replica could
        take. Not `done` if the timeout passed."""
        request = pb.DrainBrokerRequest(broker=broker, stop=stop)
        deadline = Deadline(timeout)
        while True:
            answer = await self._ask_other(broker, "DrainBroker", request, pb.DrainBrokerResponse, deadline)
            if answer.done or deadline.remaining() <= AGAIN_S:
                return answer
            await asyncio.sleep(AGAIN_S)

    async def undrain_broker(self, broker: str, timeout: float = limits.CLIENT_TIMEOUT_S) -> None:
        request = pb.UndrainBrokerRequest(broker=broker)
        await self._ask("UndrainBroker", request, pb.UndrainBrokerResponse, Deadline(timeout))

    async def remove_broker(
        self,
        broker: str,
        *,
        force: bool = False,
        timeout: float = limits.CLIENT_ADMIN_TIMEOUT_S,
        on_waiting: Callable[[pb.RemoveBrokerResponse], None] = lambda answer: None,
    ) -> pb.RemoveBrokerResponse:
        """Other brokers get its replicas, then it leaves the cluster. Not `done` if the timeout passed: `waiting` names
        the partitions it waits for."""
        request = pb.RemoveBrokerRequest(broker=broker, force=force)
        deadline = Deadline(timeout)
        while True:
            answer = await self._ask_other(broker, "RemoveBroker", request, pb.RemoveBrokerResponse, deadline)
            if answer.done or deadline.remaining() <= AGAIN_S:
                return answer
            on_waiting(answer)
            await asyncio.sleep(AGAIN_S)

    async def elect_leader(
        self,
        stream: str,
        partition: int = 0,
        *,
        replica: str = "",
        accept_loss: bool = False,
        in_sync: Sequence[str] = (),
        eligible: Sequence[str] = (),
        timeout: float = limits.CLIENT_TIMEOUT_S,
    ) -> pb.ElectLeaderResponse:
        """Unclean election, for a partition without a live replica in sync or eligible, or whose leader waits for
        others: one of the live replicas leads, and the messages that it lacks are lost. Without `accept_loss` it only
        says what would happen; with `in_sync` and `eligible` of that answer it is refused if these have changed
        since."""
        request = pb.ElectLeaderRequest(
            stream=stream,
            partition=partition,
            replica=replica,
            acceptLoss=accept_loss,
            inSync=in_sync,
            eligible=eligible,
        )
        return await self._ask("ElectLeader", request, pb.ElectLeaderResponse, Deadline(timeout))

    # --- streams ----------------------------------------------------------------------------------------------

    async def resume_stream(
        self, stream: str, partitions: Sequence[int] = (), timeout: float = limits.CLIENT_TIMEOUT_S
    ) -> None:
        """These partitions, or all that are paused. `Client.pause_stream` pauses them."""
        request = pb.ResumeStreamRequest(stream=stream, partitions=partitions)
        await self._ask("ResumeStream", request, pb.ResumeStreamResponse, Deadline(timeout))

    async def alter_stream(
        self,
        stream: str,
        *,
        reset: Sequence[str] = (),
        timeout: float = limits.CLIENT_TIMEOUT_S,
        **settings: Unpack[StreamSettings],
    ) -> pb.StreamSettings:
        """Settings that are given are set; those whose names are in `reset` are the brokers' again. Returns the
        stream's own settings afterwards, when they are in use."""
        request = pb.AlterStreamRequest(stream=stream, reset=[SETTING_FIELDS.get(each, each) for each in reset])
        request.settings.SetInParent()
        for name, value in settings.items():
            if name not in SETTING_FIELDS:
                raise InvalidArgument(f"no stream setting is called {name}: there are {', '.join(SETTING_FIELDS)}")
            setattr(request.settings, SETTING_FIELDS[name], value)
        answer = await self._ask("AlterStream", request, pb.AlterStreamResponse, Deadline(timeout))
        return answer.settings

    async def set_hold(
        self,
        stream: str,
        partition: int,
        name: str,
        offset: int | None = None,
        timeout: float = limits.CLIENT_TIMEOUT_S,
    ) -> int:
        """Nothing at or above the offset is removed from the partition until the hold is raised or removed; without an
        offset, nothing that is there now. A hold is raised by setting it again: that states that all below is archived.
        Returns the offset."""
        request = pb.SetHoldRequest(stream=stream, partition=partition, name=name, atStart=offset is None)
        if offset is not None:
            request.offset = offset
        return (await self._ask("SetHold", request, pb.SetHoldResponse, Deadline(timeout))).offset

    async def remove_hold(
        self, stream: str, partition: int, name: str, timeout: float = limits.CLIENT_TIMEOUT_S
    ) -> None:
        request = pb.RemoveHoldRequest(stream=stream, partition=partition, name=name)
        await self._ask("RemoveHold", request, pb.RemoveHoldResponse, Deadline(timeout))

    async def delete_records(
        self,
        stream: str,
        partition: int,
        before: int | None = None,
        *,
        dry_run: bool = False,
        timeout: float = limits.CLIENT_TIMEOUT_S,
    ) -> pb.DeleteRecordsResponse:
        """Remove everything below the offset, or without one what has expired by the limits of the stream, from every
        replica. It does not come back. Refused above the high watermark, and above a hold."""
        request = pb.DeleteRecordsRequest(
            stream=stream, partition=partition, before=before or 0, expired=before is None, dryRun=dry_run
        )
        return await self._ask("DeleteRecords", request, pb.DeleteRecordsResponse, Deadline(timeout))

    # --- consumer groups --------------------------------------------------------------------------------------

    async def list_groups(self, timeout: float = limits.CLIENT_TIMEOUT_S) -> list[pb.GroupListing]:
        """Those that have members."""
        answer = await self._ask("ListGroups", pb.ListGroupsRequest(), pb.ListGroupsResponse, Deadline(timeout))
        return list(answer.groups)

    async def describe_group(self, group: str, timeout: float = limits.CLIENT_TIMEOUT_S) -> pb.DescribeGroupResponse:
        """Its members, and which partitions each of them reads. NotFound if it has none."""
        request = pb.DescribeGroupRequest(group=group)
        return await self._ask("DescribeGroup", request, pb.DescribeGroupResponse, Deadline(timeout))

    # --- asking -----------------------------------------------------------------------------------------------

    async def _ask(self, method: str, request: Message, response: type[Response], deadline: Deadline) -> Response:
        try:
            answer = await self._cluster.ask_any(f"/bascule.v1.Admin/{method}", request.SerializeToString(), deadline)
        except Unimplemented:
            raise _no_bascule() from None
        return response.FromString(answer)

    async def _ask_other(
        self, broker: str, method: str, request: Message, response: type[Response], deadline: Deadline
    ) -> Response:
        """Ask another broker than that one, if one can be reached: that one may be gone before it answers."""

        async def attempt() -> bytes:
            brokers = (await self._cluster.refresh([], deadline)).brokers.values()
            for other in brokers:
                if other.id != broker:
                    try:
                        channel = await self._cluster.connections.requests(Address(other.host, other.port))
                    except Unavailable:
                        continue
                    return await channel.unary(path, data, timeout=min(ROUND_S, deadline.remaining()))
            _, channel = await self._cluster.any_connection()
            return await channel.unary(path, data, timeout=min(ROUND_S, deadline.remaining()))

        path, data = f"/bascule.v1.Admin/{method}", request.SerializeToString()
        try:
            return response.FromString(await self._cluster.persist(attempt, deadline))
        except Unimplemented:
            raise _no_bascule() from None


def _no_bascule() -> Unimplemented:
    return Unimplemented(
        "this server has no service bascule.v1.Admin: it is not a Bascule broker, or it has an older version"
    )
