"""How a cluster is founded, and only one in a namespace.

Who is told to found one asks first, on `<namespace>.raft.metadata.bootstrap`, who is there. Brokers of a cluster that
has decided anything answer; those that are about to found one hear each other's questions. So a broker that lost its
folder comes back to its cluster instead of founding another (and as a new incarnation: it must not vote twice), and
of two seeds none starts.

A cluster that nobody answered for, because it was cut off, shows later: see `Controller.heard`.
"""

import asyncio
import logging
from collections.abc import Callable

from bascule.errors import BusUnavailable, StartError
from bascule.ports import Bus
from bascule.wire.nats import messages, pub

logger = logging.getLogger(__name__)

ASK_S = 0.5
ASK_EVERY_S = 0.1
SEED, MEMBER = "seed", "member"


class Bootstrap:
    def __init__(self, namespace: str, broker_id: str, seed: bool, bus: Bus) -> None:
        self._subject = f"{namespace}.raft.metadata.bootstrap".encode()
        self._reply = f"{namespace}.raft.metadata.bootstrap.reply".encode()
        self._namespace = namespace
        self._id = broker_id
        self._role = SEED if seed else MEMBER
        self._bus = bus

    @property
    def _word(self) -> bytes:
        return f"{self._id} {self._role}".encode()

    async def found(self) -> bool:
        """True if a cluster may be founded, False if there is one to join. StartError if there is another seed."""
        askers: dict[str, str] = {}
        members: dict[str, str] = {}
        subscriptions = [
            self._bus.subscribe(self._subject, lambda batch, _: askers.update(_words(batch))),
            self._bus.subscribe(self._reply, lambda batch, _: members.update(_words(batch))),
        ]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ASK_S
        try:
            while loop.time() < deadline:
                self._send(self._subject, self._reply)
                await asyncio.sleep(ASK_EVERY_S)
        finally:
            for subscription in subscriptions:
                subscription.unsubscribe()
        others = {name: role for name, role in sorted({**askers, **members}.items()) if name != self._id}
        if self._role == SEED and SEED in others.values():
            other = next(name for name, role in others.items() if role == SEED)
            raise StartError(
                f"two seeds in namespace {self._namespace}: broker {other} was started with --raft-bootstrap-seed too; "
                "start this one without it, and it joins that one's cluster"
            )
        if members:
            logger.warning("there is a cluster in namespace %s: joining it, not founding one", self._namespace)
        return not members

    def listen(self, formed: Callable[[], bool]) -> None:
        """Answer who asks, once our cluster has decided anything."""

        def on_batch(batch: bytes, count: int) -> None:
            if formed():
                self._send(self._reply)

        self._bus.subscribe(self._subject, on_batch)

    def _send(self, subject: bytes, reply: bytes = b"") -> None:
        try:
            self._bus.send(pub(subject, self._word, reply))
        except BusUnavailable:
            pass  # asked again


def _words(batch: bytes) -> dict[str, str]:
    """Who spoke, and as what."""
    words = (message.payload.decode("utf-8", "replace").partition(" ") for message in messages(batch))
    return {name: role for name, _, role in words if role in (SEED, MEMBER)}
