"""Where acks for this broker's own gRPC calls arrive.

Every broker listens on `<namespace>.ack.<broker>.*`; the last token names the call and, behind a `-`, the stream that
was asked (`routes.py`). Acks are forwarded by inbox, never matched by correlation id, which may be empty, repeated or
shared. The kernels hand over whole runs of framed responses per token and stream; one question per run decides whether
that stream's acks, and errors, answer this publish. Tokens that begin with `u` get bare Acks (a unary call wants the
ack itself), others PublishResponses.
"""

from collections.abc import Callable

from bascule.node.routes import SUFFIX_MARK, Routes
from bascule.ports import Bus, Random
from bascule.wire.kernels import ack_responses

OnFrames = Callable[[bytes, int], None]


class Inboxes:
    def __init__(self, namespace: str, broker_id: str, random: Random, routes: Routes) -> None:
        self.prefix = f"{namespace}.ack.{broker_id}.".encode()
        self._routes = routes
        self._random = random
        self._waiting: dict[bytes, OnFrames] = {}

    def listen(self, bus: Bus) -> None:
        bus.subscribe(self.prefix + b"*", self._on_batch)

    def open(self, on_frames: OnFrames, *, unary: bool) -> bytes:
        """A fresh inbox; pass it to `close` when the call ends. The suffix of the route taken goes behind it."""
        token = (("u" if unary else "s") + self._random.token()).encode()
        self._waiting[token] = on_frames
        return self.prefix + token

    def close(self, inbox: bytes) -> None:
        self._waiting.pop(inbox[len(self.prefix) :], None)

    def deliver(self, token: bytes, stream: bytes, frames: bytes, count: int) -> None:
        """Acks of `stream`, of which `count` are waited for. Those for a call that has ended meanwhile are nobody's any
        more; those of a stream that was not asked are not an answer."""
        call, mark, number = token.partition(SUFFIX_MARK)
        on_frames = self._waiting.get(call)
        if on_frames is not None and self._routes.answers(stream, mark + number):
            on_frames(frames, count)

    def _on_batch(self, batch: bytes, count: int) -> None:
        for token, stream, frames, framed in ack_responses(batch):
            self.deliver(token, stream, frames, framed)
