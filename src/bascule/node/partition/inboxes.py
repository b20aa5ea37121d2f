"""Where acks for this broker's own gRPC calls arrive.

Every broker listens on `<namespace>.ack.<broker>.*`; the last token names the call and, after a `-`, the stream of the
publish (`routes.py`). Acks are forwarded by inbox, never matched by correlation id, which may be empty, repeated or
shared. The kernels hand over whole runs of framed responses per token and stream; one check per run decides whether
acks and errors of that stream answer this publish. Tokens that begin with `u` get bare Acks (a unary call wants the
ack itself), others PublishResponses.

A call may end before its acks arrive: the client disconnects, or its deadline passes. Brokers send each other the
tokens of such calls, so that leaders drop their pending acks. This is sent once and may get lost: pending acks are
bounded anyway.
"""

from collections import deque
from collections.abc import Callable

from bascule.core.partition.pendingacks import Gone
from bascule.limits import GONE_CALLS, GONE_CALLS_AT_ONCE
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import ENDED_CALLS
from bascule.node.partition.routes import SUFFIX_MARK, Routes
from bascule.ports import Bus, Random
from bascule.wire.kernels import ack_responses

OnFrames = Callable[[bytes, int], None]


class Inboxes:
    def __init__(self, calls: Calls, bus: Bus, random: Random, routes: Routes) -> None:
        """`bus` is the connection of `calls`: acks arrive in batches, which the kernels decode."""
        self.prefix = calls.subjects.acks(calls.broker_id)
        self._calls = calls
        self._bus = bus
        self._routes = routes
        self._random = random
        self._waiting: dict[bytes, OnFrames] = {}
        self._gone: dict[bytes, None] = {}
        self._gone_round = 0
        self._ended_unsent: deque[bytes] = deque(maxlen=GONE_CALLS)

    def listen(self) -> None:
        self._bus.subscribe(self.prefix + b"*", self._on_batch)
        self._calls.subscribe(self._calls.subjects.ended_calls, self._on_ended_calls)

    def open(self, on_frames: OnFrames, *, unary: bool) -> bytes:
        """A new inbox; pass it to `close` when the call ends. The caller appends the suffix of the route."""
        token = (("u" if unary else "s") + self._random.token()).encode()
        self._waiting[token] = on_frames
        return self.prefix + token

    def close(self, inbox: bytes, unanswered: bool) -> None:
        """`unanswered`: acks for this call may be pending on a leader."""
        token = inbox[len(self.prefix) :]
        self._waiting.pop(token, None)
        if unanswered:
            self._ended_unsent.append(token)

    def tell_gone(self) -> None:
        """Send the calls that ended unanswered since the last time to all brokers, and remember them here."""
        while self._ended_unsent:
            tokens = [self._ended_unsent.popleft() for _ in range(min(len(self._ended_unsent), GONE_CALLS_AT_ONCE))]
            self._remember(tokens)
            self._calls.tell(self._calls.subjects.ended_calls, ENDED_CALLS, tokens)  # if it is lost, acks stay pending

    @property
    def gone(self) -> Gone:
        return Gone(self._calls.subjects.every_ack, self._gone, self._gone_round)

    def _on_ended_calls(self, batch: bytes, count: int) -> None:
        for message in self._calls.received(batch, ENDED_CALLS):
            with message as payload:
                self._remember(ENDED_CALLS.decode(payload))

    def _remember(self, tokens: list[bytes]) -> None:
        new = [token for token in tokens if token not in self._gone and token not in self._waiting]
        if new:
            self._gone.update(dict.fromkeys(new))
            self._gone_round += 1
        while len(self._gone) > GONE_CALLS:
            del self._gone[next(iter(self._gone))]

    def deliver(self, token: bytes, stream: bytes, frames: bytes, count: int) -> None:
        """Acks of `stream`; `count` of them are awaited. Acks for a call that has ended, or of a stream that does not
        answer this publish, are dropped."""
        call, mark, number = token.partition(SUFFIX_MARK)
        on_frames = self._waiting.get(call)
        if on_frames is not None and self._routes.answers(stream, mark + number):
            on_frames(frames, count)

    def _on_batch(self, batch: bytes, count: int) -> None:
        for token, stream, frames, framed in ack_responses(batch):
            self.deliver(token, stream, frames, framed)
