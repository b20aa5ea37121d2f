"""Messages that nobody may confirm: their stream is deleted, or their partition paused or read-only, and a broker has
said so before they were sent."""

import asyncio
from collections.abc import Callable

from bascule.errors import BusUnavailable
from bascule.sim.history import Sent, StreamInfo
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.nats import messages, pub
from bascule.wire.pb import api_pb2 as api

AFTERWARDS_S = 0.5


class UnwantedPublisher:
    """Sends straight to NATS, which no broker can refuse. Where there are replicas only an ack of ALL counts: a LEADER
    ack of a broker that was replaced unawares goes with it."""

    def __init__(self, world: World, stream: StreamInfo, on_acked: Callable[[Sent, api.Ack], None]) -> None:
        """`on_acked` is told that a broker has confirmed one."""
        name = stream.name
        self._on_acked = on_acked
        self._world = world
        self._stream = stream
        self._bus = world.nats.connect(name, name)
        self._inbox = f"inbox.{name}"
        self._bus.subscribe(self._inbox.encode(), self._on_acks)

    async def send(self, part: Part, why: str) -> None:
        """Returns after a while, when it would have been acked."""
        sent = self._world.history.send(part, 0)
        self._world.checker.unknown(sent, why)
        policy = api.LEADER if self._stream.replication == 1 else api.ALL
        message = api.Message(
            value=sent.value, ackInbox=self._inbox, ackPolicy=policy, correlationId=sent.token.decode()
        )
        payload = encode(MsgType.PUBLISH, message.SerializeToString())
        try:
            self._bus.send(pub(self._stream.subject_of(part.number).encode(), payload))
        except BusUnavailable:
            return
        await asyncio.sleep(AFTERWARDS_S)

    def _on_acks(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            payload = decode(message.payload, MsgType.ACK)
            assert payload is not None, "a broker sent something that is no ack"
            ack = api.Ack.FromString(payload)
            if ack.ackError:
                continue
            sent = self._world.history.sent[ack.correlationId.encode()]
            if ack.stream != self._stream.name:
                self._world.checker.acked(sent, ack, named_stream=False)
            elif not self._world.checker.repeats:  # or it was repeated when it was welcome again
                self._on_acked(sent, ack)
