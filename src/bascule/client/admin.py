"""Administering a Bascule cluster, through the service it has beside the Liftbridge API.

Answers are the service's messages (`bascule.wire.pb.admin_pb2`). Draining and removing take as long as they take: they
are asked for again until they are done or the time is up, and asking once more goes on where it stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline
from bascule.client.values import Address
from bascule.errors import Unavailable, Unimplemented
from bascule.wire.pb import admin_pb2 as pb

Response = TypeVar("Response", bound=Message)

ROUND_S = 5.0
"""Of one request for something that takes long."""
AGAIN_S = 0.2


class Admin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def cluster_status(self, timeout: float = limits.CLIENT_TIMEOUT_S) -> pb.ClusterStatusResponse:
        return await self._ask("ClusterStatus", pb.ClusterStatusRequest(), pb.ClusterStatusResponse, Deadline(timeout))

    async def describe_stream(self, stream: str, timeout: float = limits.CLIENT_TIMEOUT_S) -> pb.DescribeStreamResponse:
        request = pb.DescribeStreamRequest(stream=stream)
        return await self._ask("DescribeStream", request, pb.DescribeStreamResponse, Deadline(timeout))

    async def drain_broker(
        self, broker: str, *, stop: bool = False, timeout: float = limits.CLIENT_ADMIN_TIMEOUT_S
    ) -> pb.DrainBrokerResponse:
        """What it leads goes to others in sync; `kept` names what nobody else could take. Not `done` if time was up."""
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
        """Others get replicas of what it holds, then it leaves the cluster. Not `done` if time was up: `waiting` says
        what for."""
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
        """For a partition none of whose in-sync or eligible replicas lives, or whose leader waits for others: one of
        those that live leads, and what it lacks is lost. Without `accept_loss` only tells what would happen; `in_sync`
        and `eligible` of that answer make sure that nobody came back since."""
        request = pb.ElectLeaderRequest(
            stream=stream,
            partition=partition,
            replica=replica,
            acceptLoss=accept_loss,
            inSync=in_sync,
            eligible=eligible,
        )
        return await self._ask("ElectLeader", request, pb.ElectLeaderResponse, Deadline(timeout))

    async def _ask(self, method: str, request: Message, response: type[Response], deadline: Deadline) -> Response:
        try:
            answer = await self._cluster.ask_any(f"/bascule.Admin/{method}", request.SerializeToString(), deadline)
        except Unimplemented:
            raise _no_bascule() from None
        return response.FromString(answer)

    async def _ask_other(
        self, broker: str, method: str, request: Message, response: type[Response], deadline: Deadline
    ) -> Response:
        """Not that broker itself, as long as another one can be reached: it may be gone before it answers."""

        async def attempt() -> bytes:
            brokers = (await self._cluster.refresh([], deadline)).brokers.values()
            for other in brokers:
                if other.id != broker:
                    try:
                        channel = await self._cluster.connection(Address(other.host, other.port))
                    except Unavailable:
                        continue
                    return await channel.unary(path, data, timeout=min(ROUND_S, deadline.remaining()))
            _, channel = await self._cluster.any_connection()
            return await channel.unary(path, data, timeout=min(ROUND_S, deadline.remaining()))

        path, data = f"/bascule.Admin/{method}", request.SerializeToString()
        try:
            return response.FromString(await self._cluster.persist(attempt, deadline))
        except Unimplemented:
            raise _no_bascule() from None


def _no_bascule() -> Unimplemented:
    return Unimplemented(
        "this server has no service bascule.Admin: it is no Bascule broker, or one of an older version"
    )
