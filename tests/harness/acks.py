"""Acks that are watched."""

import asyncio
from typing import Any

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.nats import messages, pub
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node


async def create(member: Any, name: str, subject: str, **fields: Any) -> None:
    request = api.CreateStreamRequest(name=name, subject=subject, **fields)
    assert (await member.call("CreateStream", request))[0] is Status.OK


async def one_node() -> Node:
    return await Node(MemoryDisk(), MemoryNats()).start()


class Publishing:
    """A NATS client that publishes to the subject, and receives the acks: it is not partitioned from anybody."""

    def __init__(self, nats: MemoryNats) -> None:
        self._bus = nats.connect("client", "client")
        self._bus.subscribe(b"inbox", self._on_batch)
        self.acks: dict[str, tuple[float, int]] = {}
        """By correlation id: when it came, and the error."""
        self.errors = 0

    def send(self, name: str, policy: api.AckPolicy = api.ALL, subject: str = "s") -> None:
        message = api.Message(value=name.encode(), ackInbox="inbox", ackPolicy=policy, correlationId=name)
        self._bus.send(pub(subject.encode(), encode(MsgType.PUBLISH, message.SerializeToString())))

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            payload = decode(message.payload, MsgType.ACK)
            assert payload is not None
            ack = api.Ack.FromString(payload)
            self.errors += ack.ackError != api.Ack.OK
            self.acks[ack.correlationId] = (asyncio.get_running_loop().time(), ack.ackError)

    @property
    def taken(self) -> dict[str, float]:
        return {name: at for name, (at, error) in self.acks.items() if not error}
