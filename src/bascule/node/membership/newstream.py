"""A stream that a client wants: from the API, which checks it, to the controller, which checks it again and places its
replicas."""

from dataclasses import dataclass

from bascule.core.metadata.streams import StreamConfig
from bascule.errors import InvalidArgument
from bascule.limits import MAX_PARTITIONS
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.subjects import valid_stream_name, valid_stream_subject


@dataclass(frozen=True, slots=True)
class NewStream:
    """A stream as a client requested it, with valid names and numbers."""

    name: str
    subject: str
    group: str
    partitions: int
    replication_factor: int
    config: StreamConfig

    def to_wire(self) -> pb.NewStream:
        return pb.NewStream(
            name=self.name,
            subject=self.subject,
            group=self.group,
            partitions=self.partitions,
            replicationFactor=self.replication_factor,
            config=self.config.to_wire(),
        )

    @classmethod
    def from_wire(cls, op: pb.NewStream) -> "NewStream":
        config = StreamConfig.from_wire(op.config)
        return cls(op.name, op.subject, op.group, op.partitions, op.replicationFactor, config)

    def check(self) -> None:
        """The controller checks again: the request came over NATS, and every broker opens the stream."""
        reason = valid_stream_name(self.name)
        if reason or not valid_stream_subject(self.subject):
            raise InvalidArgument(f"Name is invalid: {reason}" if reason else "Subject is invalid")
        if not 1 <= self.partitions <= MAX_PARTITIONS or self.replication_factor < -1 or not self.replication_factor:
            raise InvalidArgument(
                f"Invalid partitions {self.partitions} or replicationFactor {self.replication_factor}"
            )
