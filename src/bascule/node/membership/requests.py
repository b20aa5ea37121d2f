"""One broker asks another and waits for the answer, over NATS.

Both carry a checksum: a wrong bit must not become another question, such as the deletion of another stream.
"""

import asyncio

from bascule.errors import DeadlineExceeded
from bascule.ports import Bus, Random
from bascule.wire.envelope import MsgType, decode_checked, encode
from bascule.wire.nats import messages, pub


class Requests:
    def __init__(self, namespace: str, broker_id: str, bus: Bus, random: Random) -> None:
        self._prefix = f"{namespace}.reply.{broker_id}.".encode()
        self._bus = bus
        self._random = random
        self._waiting: dict[bytes, tuple[MsgType, asyncio.Future[bytes]]] = {}

    def listen(self) -> None:
        self._bus.subscribe(self._prefix + b"*", self._on_batch)

    def new_id(self) -> str:
        """For an operation: never used before, by anybody."""
        return self._random.token()

    async def ask(self, subject: bytes, kind: MsgType, request: bytes, answer: MsgType, timeout_s: float) -> bytes:
        """The payload of the first answer. DeadlineExceeded if none comes; BusUnavailable without NATS."""
        token = self._random.token().encode()
        arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[token] = (answer, arrived)
        try:
            self._bus.send(pub(subject, encode(kind, request, crc=True), self._prefix + token))
            async with asyncio.timeout(timeout_s):
                return await arrived
        except TimeoutError:
            raise DeadlineExceeded(f"nobody answered on {subject.decode()} within {timeout_s:.1f} s") from None
        finally:
            del self._waiting[token]

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            kind, arrived = self._waiting.get(message.subject[len(self._prefix) :], (None, None))
            if kind is None or arrived is None or arrived.done():
                continue
            payload = decode_checked(message.payload, kind)
            if payload is not None:
                arrived.set_result(bytes(payload))
