"""The gRPC service `bascule.v1.Producers`: idempotent producers begin here. Atomic batches are in `batches.py`.

Any broker answers, out of the metadata: it is about no partition and needs no leader of one, as `bascule.v1.Log` does.
So it is a service of its own.
"""

from collections.abc import Mapping

from bascule.errors import NotFound, Unavailable
from bascule.net.grpc import Handler
from bascule.node.api.batches import BatchPublisher
from bascule.node.api.gate import Gate, Service, about_stream
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import ControllerClient
from bascule.ports import Call
from bascule.wire.pb import producer_pb2 as pb


class ProducersApi:
    def __init__(self, gate: Gate, cluster: Cluster, client: ControllerClient, batches: BatchPublisher) -> None:
        self._gate = gate
        self._batches = batches
        self._cluster = cluster
        self._client = client

    def methods(self) -> Mapping[str, Handler]:
        service = Service("bascule.v1.Producers", self._gate)
        service.changing(
            "InitProducer",
            pb.InitProducerRequest,
            self.init_producer,
            lambda request: about_stream(request.stream),
            needs_metadata=True,
        )
        self._batches.register(service)
        return service.methods

    async def init_producer(self, request: pb.InitProducerRequest, call: Call) -> pb.InitProducerResponse:
        self._creation_of(request.stream)
        epoch = await self._client.init_producer(request.name, call.time_remaining())
        return pb.InitProducerResponse(
            id=self._id_of(request.name, epoch), epoch=epoch, creation=self._creation_of(request.stream)
        )

    def _creation_of(self, name: str) -> int:
        stream = self._cluster.metadata.stream(name)
        if stream is None:
            raise NotFound(f"no such stream: {name}")
        return stream.creation_index

    def _id_of(self, name: str, epoch: int) -> int:
        """The epoch is the answer's own, whoever began under the same name since."""
        if not name:
            return epoch
        named = self._cluster.metadata.producers.named.get(name)
        if named is None or named.epoch < epoch:
            raise Unavailable(f"producer {name} was forgotten meanwhile; ask again")
        return named.id
