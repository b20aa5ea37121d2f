"""The gRPC API: requests checked in the protocol's order, answers in its exact codes and texts."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from bascule.core.metadata.streams import RESERVED_STREAMS, StreamConfig
from bascule.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from bascule.limits import GRPC_MAX_MESSAGE_BYTES, MAX_PARTITIONS, METADATA_NAMES
from bascule.net.grpc import Handler
from bascule.node.api.cursors import Cursors
from bascule.node.api.descriptions import Descriptions, describe_partition, positions_of
from bascule.node.api.gate import ALL_STREAMS, ITS_MESSAGES, Gate, Service, about_stream, about_subject
from bascule.node.api.groups import GroupsApi
from bascule.node.api.leadership import confirm_leads
from bascule.node.api.partitionend import PartitionEnds
from bascule.node.api.publish import Publisher
from bascule.node.api.subscribe import subscribe
from bascule.node.api.unread import UnreadRecords
from bascule.node.controller.brokeradmin import BrokerAdmin
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import DEFAULT_TIMEOUT_S, POLL_S, ControllerClient
from bascule.node.membership.newstream import NewStream
from bascule.node.membership.peers import SESSION_S
from bascule.node.partition.environment import Environment
from bascule.node.partition.manager import ReplicaManager
from bascule.node.partition.replicas import Replicas
from bascule.node.partition.sender import MessageSender
from bascule.node.runtime.ports import Address
from bascule.ports import Call
from bascule.wire.pb import api_pb2 as api
from bascule.wire.subjects import partition_subject, valid_stream_name, valid_stream_subject


class Api:
    def __init__(
        self,
        gate: Gate,
        environment: Environment,
        replicas: Replicas,
        manager: ReplicaManager,
        cluster: Cluster,
        client: ControllerClient,
        sender: MessageSender,
        groups: GroupsApi,
        unread: UnreadRecords,
        brokers: BrokerAdmin,
        address: Address,
    ) -> None:
        self._gate = gate
        self._environment = environment
        self._replicas = replicas
        self._manager = manager
        self._cluster = cluster
        self._client = client
        self._groups = groups
        self._unread = unread
        self._ends = PartitionEnds(cluster, replicas, brokers)
        self._address = address
        self._publisher = Publisher(gate, environment, sender)
        self._cursors = Cursors(environment, replicas, cluster, manager, client.resume_stream, sender)
        self._descriptions = Descriptions(lambda: cluster.metadata, replicas.described, environment.jobs)

    def methods(self) -> Mapping[str, Handler]:
        """Each by its path, behind the gate. What is answered out of the metadata needs a broker that has caught up."""
        service, publisher = Service("proto.API", self._gate), self._publisher
        service.changing(
            "CreateStream", api.CreateStreamRequest, self.create_stream, lambda request: about_stream(request.name)
        )
        service.changing(
            "DeleteStream", api.DeleteStreamRequest, self.delete_stream, lambda request: about_stream(request.name)
        )
        service.changing(
            "PauseStream",
            api.PauseStreamRequest,
            self.pause_stream,
            lambda request: about_stream(request.name),
            needs_metadata=True,
        )
        service.changing(
            "SetStreamReadonly",
            api.SetStreamReadonlyRequest,
            self.set_stream_readonly,
            lambda request: about_stream(request.name),
            needs_metadata=True,
        )
        service.sending(
            "FetchMetadata",
            api.FetchMetadataRequest,
            self.fetch_metadata,
            lambda request: about_stream(*request.streams) if request.streams else ALL_STREAMS,
            needs_metadata=True,
        )
        service.unary(
            "FetchPartitionMetadata",
            api.FetchPartitionMetadataRequest,
            self.fetch_partition_metadata,
            lambda request: about_stream(request.stream),
            needs_metadata=True,
        )
        service.unary(
            "Publish",
            api.PublishRequest,
            publisher.publish,
            lambda request: about_stream(request.stream),
            most=GRPC_MAX_MESSAGE_BYTES,
            needs_metadata=True,
        )
        service.unary(
            "PublishToSubject",
            api.PublishToSubjectRequest,
            publisher.publish_to_subject,
            lambda request: about_subject(request.subject),
            most=GRPC_MAX_MESSAGE_BYTES,
        )
        service.streaming("PublishAsync", publisher.publish_async, ITS_MESSAGES, needs_metadata=True)
        service.sending(
            "Subscribe",
            api.SubscribeRequest,
            self.subscribe,
            lambda request: about_stream(request.stream),
            needs_metadata=True,
        )
        service.unary(
            "SetCursor",
            api.SetCursorRequest,
            self._cursors.set_cursor,
            lambda request: about_stream(request.stream),
            needs_metadata=True,
        )
        service.unary(
            "FetchCursor",
            api.FetchCursorRequest,
            self._cursors.fetch_cursor,
            lambda request: about_stream(request.stream),
            needs_metadata=True,
        )
        self._groups.register(service)
        return service.methods

    # --- streams ------------------------------------------------------------------------------------------------

    async def create_stream(self, request: api.CreateStreamRequest, call: Call) -> api.CreateStreamResponse:
        await self._client.create_stream(self._new_stream(request), call.time_remaining())
        await self._routed(request.name)
        return api.CreateStreamResponse()

    async def _routed(self, name: str) -> None:
        """Returns when messages to the stream have a route, so that a client can publish here when it is answered. The
        stream is there in any case: this waits for some seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DEFAULT_TIMEOUT_S):
                while (stream := self._cluster.metadata.stream(name)) and not self._environment.routes.has(stream):
                    await asyncio.sleep(POLL_S)

    def _new_stream(self, request: api.CreateStreamRequest) -> NewStream:
        if not request.name:
            raise InvalidArgument("Name cannot be empty")
        if not valid_stream_subject(request.subject):
            raise InvalidArgument("Subject is invalid")
        if request.name in RESERVED_STREAMS:
            raise InvalidArgument("Stream is reserved")
        if reason := valid_stream_name(request.name):
            raise InvalidArgument(f"Name is invalid: {reason}")
        config = StreamConfig.from_wire(request)
        if config.encryption:
            raise FailedPrecondition(
                "Failed on preconditions for stream's encryption handler: this version cannot encrypt yet"
            )
        factor = request.replicationFactor or 1
        if factor < -1:
            raise InvalidArgument(f"Invalid replicationFactor {factor}")
        partitions = request.partitions or 1
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise InvalidArgument(f"Invalid partitions {partitions}: from 1 to {MAX_PARTITIONS} are possible")
        if partitions > 1 and request.subject.rsplit(".", 1)[-1] == ">":
            raise InvalidArgument("Subject is invalid")
        last = partition_subject(request.subject, partitions - 1)  # `<namespace>` alone is nobody's, `<namespace>.1` is
        if last.encode().startswith(self._environment.cluster_prefix):
            namespace = self._environment.settings.namespace
            raise InvalidArgument(f"Subject is invalid: {namespace}. is the cluster's own namespace")
        _check_group(request.group)
        _check_config(config)
        return NewStream(request.name, request.subject, request.group, partitions, factor, config)

    async def delete_stream(self, request: api.DeleteStreamRequest, call: Call) -> api.DeleteStreamResponse:
        if request.name in RESERVED_STREAMS:
            raise InvalidArgument("Stream is reserved")
        await self._client.delete_stream(request.name, call.time_remaining())
        return api.DeleteStreamResponse()

    async def pause_stream(self, request: api.PauseStreamRequest, call: Call) -> api.PauseStreamResponse:
        partitions = self._named(request.name, request.partitions)
        with _failing("Failed to pause stream"):
            await self._client.pause_stream(request.name, partitions, request.resumeAll, call.time_remaining())
        return api.PauseStreamResponse()

    async def set_stream_readonly(
        self, request: api.SetStreamReadonlyRequest, call: Call
    ) -> api.SetStreamReadonlyResponse:
        partitions = self._named(request.name, request.partitions)
        with _failing("Failed to set stream readonly flag"):
            await self._client.set_readonly(request.name, partitions, request.readonly, call.time_remaining())
        return api.SetStreamReadonlyResponse()

    def _named(self, stream: str, partitions: Sequence[int]) -> tuple[int, ...]:
        """The partitions that a request names, each once; none means all."""
        if not partitions and self._cluster.metadata.stream(stream) is None:
            raise NotFound("stream not found")
        if len(partitions) > MAX_PARTITIONS:
            raise InvalidArgument(f"at most {MAX_PARTITIONS} partitions can be named")
        return tuple(dict.fromkeys(partitions))

    # --- metadata -----------------------------------------------------------------------------------------------

    async def fetch_metadata(self, request: api.FetchMetadataRequest, call: Call) -> None:
        """Each stream once, in the order in which it is first named. Large answers are sent as the client reads
        them."""
        if max(len(request.streams), len(request.groups)) > METADATA_NAMES:
            raise ResourceExhausted(f"at most {METADATA_NAMES} streams and groups can be asked for at a time")
        answer = await self._descriptions.of(tuple(dict.fromkeys(request.streams)))
        head = api.FetchMetadataResponse(
            brokers=[self._describe_self(), *self._describe_others()],
            groupMetadata=[self._groups.describe(group) for group in dict.fromkeys(request.groups)],
        )
        await self._descriptions.send(call, head.SerializeToString(), answer)

    def _describe_self(self) -> api.Broker:
        held, led = self._cluster.store.counts(self._environment.settings.broker_id)
        return api.Broker(
            id=self._environment.settings.broker_id,
            host=self._address.host,
            port=self._address.port,
            partitionCount=held,
            leaderCount=led,
        )

    def _describe_others(self) -> list[api.Broker]:
        return [
            api.Broker(
                id=peer.id,
                host=peer.host,
                port=peer.port,
                partitionCount=peer.partition_count,
                leaderCount=peer.leader_count,
            )
            for peer in self._cluster.peers.alive()
            if peer.id in self._cluster.servers
        ]

    async def fetch_partition_metadata(
        self, request: api.FetchPartitionMetadataRequest, call: Call
    ) -> api.FetchPartitionMetadataResponse:
        partition = self._cluster.metadata.partition(request.stream, request.partition)
        if partition is None:
            raise NotFound("partition not found")
        replica = self._replicas.find(request.stream, request.partition)
        if replica is None or replica.leading is None or partition.paused:
            raise FailedPrecondition("The request should be sent to partition leader")
        if not await confirm_leads(self._cluster, replica):
            raise FailedPrecondition("The request should be sent to partition leader")
        await replica.established(SESSION_S)
        return api.FetchPartitionMetadataResponse(metadata=describe_partition(replica.partition, positions_of(replica)))

    # --- reading ------------------------------------------------------------------------------------------------

    async def subscribe(self, request: api.SubscribeRequest, call: Call) -> None:
        resume = self._client.resume_stream
        await subscribe(self._replicas, self._ends, self._manager, resume, self._unread, request, call)


@contextmanager
def _failing(text: str) -> Iterator[None]:
    """What the cluster could not decide is told with what was to be done."""
    try:
        yield
    except Internal as error:
        raise Internal(f"{text}: {error}") from error


def _check_group(group: str) -> None:
    """It becomes a NATS queue name on the SUB line."""
    if any(char.isspace() or ord(char) < 0x20 or ord(char) == 0x7F for char in group) or len(group.encode()) > 200:
        raise InvalidArgument("Group is invalid: at most 200 bytes, without blanks or control characters")


def _check_config(config: StreamConfig) -> None:
    for name in config.__slots__:
        value: Any = getattr(config, name)
        if isinstance(value, int) and value < 0:
            raise InvalidArgument(f"Invalid {name} {value}: it cannot be negative")
