"""Where acks for this broker's own gRPC calls arrive.

Every broker listens on `<namespace>.ack.<broker>.*`; the last token names the call and, behind a `-`, the stream that
was asked (`routes.py`). Acks are forwarded by inbox, never matched by correlation id, which may be empty, repeated or
shared. The kernels hand over whole runs of framed responses per token and stream; one question per run decides whether
that stream's acks, and errors, answer this publish. Tokens that begin with `u` get bare Acks (a unary call wants the
ack itself), others PublishResponses.

A call may end before its acks came: the client is gone, or has waited long enough. Brokers tell each other the tokens
of such calls, so that no leader keeps what nobody waits for. It is said once, and need not reach everybody: what is
kept in vain is bounded all the same.
"""

from collections import deque
from collections.abc import Callable

from bascule.core.partition.pendingacks import Gone
from bascule.limits import GONE_CALLS, GONE_CALLS_AT_ONCE
from bascule.node.calls.calls import Calls, Handler
from bascule.node.calls.messages import ENDED_CALLS
from bascule.node.partition.routes import SUFFIX_MARK, Routes
from bascule.ports import Bus, Random
from bascule.wire.kernels import ack_responses
from bascule.wire.nats import NatsMessage

OnFrames = Callable[[bytes, int], None]


class Inboxes:
    def __init__(self, calls: Calls, bus: Bus, random: Random, routes: Routes) -> None:
        """`bus` is the connection that `calls` are made over: acks come by the batch, and the kernels decode them."""
        self.prefix = calls.subjects.acks(calls.broker_id)
        self._calls = calls
        self._bus = bus
        self._routes = routes
        self._random = random
        self._waiting: dict[bytes, OnFrames] = {}
        self._gone: dict[bytes, None] = {}
        self._gone_round = 0
        self._unsaid: deque[bytes] = deque(maxlen=GONE_CALLS)

    def listen(self) -> None:
        self._bus.subscribe(self.prefix + b"*", self._on_batch)
        self._calls.handle(self._calls.subjects.ended_calls, Handler(ENDED_CALLS, self._on_ended_calls))

    def open(self, on_frames: OnFrames, *, unary: bool) -> bytes:
        """A fresh inbox; pass it to `close` when the call ends. The suffix of the route taken goes behind it."""
        token = (("u" if unary else "s") + self._random.token()).encode()
        self._waiting[token] = on_frames
        return self.prefix + token

    def close(self, inbox: bytes, unanswered: bool) -> None:
        """`unanswered`: acks may wait for this call somewhere."""
        token = inbox[len(self.prefix) :]
        self._waiting.pop(token, None)
        if unanswered:
            self._unsaid.append(token)

    def tell_gone(self) -> None:
        """Calls that ended unanswered since the last time are made known, here and to the others."""
        while self._unsaid:
            tokens = [self._unsaid.popleft() for _ in range(min(len(self._unsaid), GONE_CALLS_AT_ONCE))]
            self._remember(tokens)
            self._calls.tell(self._calls.subjects.ended_calls, ENDED_CALLS, tokens)  # or some acks are kept in vain

    @property
    def gone(self) -> Gone:
        return Gone(self._calls.subjects.every_ack, self._gone, self._gone_round)

    def _on_ended_calls(self, tokens: list[bytes], message: NatsMessage) -> None:
        self._remember(tokens)

    def _remember(self, tokens: list[bytes]) -> None:
        new = [token for token in tokens if token not in self._gone and token not in self._waiting]
        if new:
            self._gone.update(dict.fromkeys(new))
            self._gone_round += 1
        while len(self._gone) > GONE_CALLS:
            del self._gone[next(iter(self._gone))]

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
