"""`bascule.v1.Producers/PublishBatch`: an atomic batch that goes through NATS, in one envelope.

Everybody who listens on the subject gets it, so it is the way for streams that others take messages of, too. Whether it
is stored is decided by the leader, as for every message. The largest is what one NATS message takes.
"""

from bascule.limits import CLIENT_ACK_TIMEOUT_S, GRPC_MAX_MESSAGE_BYTES
from bascule.node.api.gate import Service, about_stream
from bascule.node.partition.sender import MessageSender
from bascule.ports import Call
from bascule.wire.envelope import MsgType
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import producer_pb2 as pb


class BatchPublisher:
    def __init__(self, sender: MessageSender) -> None:
        self._sender = sender

    def register(self, service: Service) -> None:
        service.unary(
            "PublishBatch",
            pb.PublishBatchRequest,
            self.publish_batch,
            lambda request: about_stream(request.stream),
            most=GRPC_MAX_MESSAGE_BYTES,
            needs_metadata=True,
        )

    async def publish_batch(self, request: pb.PublishBatchRequest, call: Call) -> pb.PublishBatchResponse:
        publish = api.PublishRequest(
            stream=request.stream,
            partition=request.partition,
            value=request.messages,
            ackPolicy=api.LEADER if request.ackPolicy == pb.PublishBatchRequest.LEADER else api.ALL,
            expectedOffset=request.expectedOffset if request.HasField("expectedOffset") else -1,
            producer=request.producer,
        )
        timeout_s = call.time_remaining()
        ack = await self._sender.publish(
            publish, CLIENT_ACK_TIMEOUT_S if timeout_s is None else timeout_s, MsgType.BATCH
        )
        assert ack is not None, "who asks for an ack gets one, or an error"
        return pb.PublishBatchResponse(firstOffset=ack.offset)
