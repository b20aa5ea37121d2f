"""NATS in memory: as many connections as a test wants, on one event loop, with nothing left to chance.

`MemoryNats` routes the very bytes a broker sends (PUB commands) by NATS's rules: literal subjects, `*`, `>`, queue
groups. What is sent in one turn of the loop arrives in the next, one packed batch per subscription, as from a socket.
A queue group takes turns, where the real server draws lots. A connection that is off receives nothing and keeps its
subscriptions, and what was on its way to it is lost, as with the real one.
"""

import asyncio
from collections.abc import Awaitable, Iterator

from bascule.errors import BusUnavailable
from bascule.limits import NATS_DEFAULT_PAYLOAD_BYTES
from bascule.ports import OnBatch
from bascule.wire.nats import NatsMessage, pack, pub, sub


class MemoryNats:
    """The server."""

    def __init__(self, max_payload: int = NATS_DEFAULT_PAYLOAD_BYTES) -> None:
        self.max_payload = max_payload
        self._buses: list[MemoryBus] = []
        self._subscriptions: dict[int, _Subscription] = {}
        self._next_sid = 1
        self._turns: dict[bytes, int] = {}
        self._deliveries: list[tuple[_Subscription, int, bytes]] = []
        self._pongs: list[asyncio.Future[None]] = []
        self._scheduled = False

    def connect(self, name: str = "") -> "MemoryBus":
        bus = MemoryBus(self, name)
        self._buses.append(bus)
        return bus

    def disconnect(self) -> None:
        """The server is gone for everyone."""
        for bus in self._buses:
            bus.disconnect()

    def reconnect(self) -> None:
        for bus in self._buses:
            bus.reconnect()

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"") -> None:
        """What any NATS client does."""
        self.route(pub(subject, payload, reply))

    # --- for MemoryBus ---------------------------------------------------------------------------------------

    def route(self, commands: bytes) -> None:
        for message in list(parse_commands(commands, self.max_payload)):
            entry = pack(message)
            for subscription in self._receivers(message.subject):
                self._deliveries.append((subscription, subscription.bus.life, entry))
        self._schedule()

    def add(self, bus: "MemoryBus", subject: bytes, on_batch: OnBatch, queue: bytes) -> "_Subscription":
        sid = self._next_sid
        sub(subject, sid, queue)  # for its checks
        self._next_sid += 1
        self._subscriptions[sid] = _Subscription(bus, sid, subject, queue, on_batch)
        return self._subscriptions[sid]

    def remove(self, sid: int) -> None:
        self._subscriptions.pop(sid, None)

    def pong(self, future: "asyncio.Future[None]") -> None:
        """Answered in the turn that delivers what was sent before."""
        self._pongs.append(future)
        self._schedule()

    def _receivers(self, subject: bytes) -> Iterator["_Subscription"]:
        groups: dict[bytes, list[_Subscription]] = {}
        for subscription in self._subscriptions.values():
            if not (subscription.bus.connected and matches(subscription.subject, subject)):
                continue
            if subscription.queue:
                groups.setdefault(subscription.queue, []).append(subscription)
            else:
                yield subscription
        for queue, members in groups.items():
            turn = self._turns.get(queue, 0)
            self._turns[queue] = turn + 1
            yield members[turn % len(members)]

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        deliveries, self._deliveries = self._deliveries, []
        pongs, self._pongs = self._pongs, []
        batches: dict[tuple[int, int], tuple[_Subscription, list[bytes]]] = {}
        for subscription, life, entry in deliveries:
            batches.setdefault((subscription.sid, life), (subscription, []))[1].append(entry)
        for (sid, life), (subscription, entries) in batches.items():
            if sid in self._subscriptions and subscription.bus.receives(life):
                subscription.deliver(b"".join(entries), len(entries))
        for pong in pongs:
            if not pong.done():
                pong.set_result(None)


class MemoryBus:
    """`ports.Bus` on a `MemoryNats`."""

    def __init__(self, server: MemoryNats, name: str) -> None:
        self.name = name
        self.life = 0
        self.sent_bytes = 0
        self.held = False
        """What `hold` said last; in memory messages are delivered all the same."""
        self._server = server
        self._connected = True
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def max_payload(self) -> int:
        return self._server.max_payload

    @property
    def unavailable_reason(self) -> str:
        return "" if self._connected else "the connection to the NATS in memory is switched off"

    def subscribe(self, subject: bytes, on_batch: OnBatch, queue: bytes = b"") -> "_Subscription":
        return self._server.add(self, subject, on_batch, queue)

    def unsubscribe(self, sid: int) -> None:
        self._server.remove(sid)

    def send(self, commands: bytes) -> None:
        if not self._connected:
            raise BusUnavailable(self.unavailable_reason)
        self.sent_bytes += len(commands)
        self._server.route(commands)

    def hold(self, held: bool) -> None:
        self.held = held

    def drained(self) -> Awaitable[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def flush(self) -> None:
        if not self._connected:
            raise BusUnavailable(self.unavailable_reason)
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = [other for other in self._waiting if not other.done()]
        self._waiting.append(pong)
        self._server.pong(pong)
        await pong

    async def close(self) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """What was on its way here is lost; those who wait for a flush learn it."""
        if not self._connected:
            return
        self._connected = False
        self.life += 1
        waiting, self._waiting = self._waiting, []
        for pong in waiting:
            if not pong.done():
                pong.set_exception(BusUnavailable(self.unavailable_reason))

    def reconnect(self) -> None:
        self._connected = True

    def receives(self, life: int) -> bool:
        return self._connected and self.life == life


class _Subscription:
    def __init__(self, bus: MemoryBus, sid: int, subject: bytes, queue: bytes, on_batch: OnBatch) -> None:
        self.bus = bus
        self.sid = sid
        self.subject = subject
        self.queue = queue
        self._on_batch = on_batch

    def unsubscribe(self) -> None:
        self.bus.unsubscribe(self.sid)

    def deliver(self, batch: bytes, count: int) -> None:
        """A subscriber that fails must not take the others with it; the loop's exception handler hears of it."""
        try:
            self._on_batch(batch, count)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a subscriber of {self.subject!r} failed on {count} messages", "exception": error}
            )


def matches(pattern: bytes, subject: bytes) -> bool:
    """NATS's rule: `*` is any one token, a last `>` is one token or more."""
    wanted, given = pattern.split(b"."), subject.split(b".")
    if wanted[-1] == b">":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(w in (b"*", g) for w, g in zip(wanted, given, strict=True))


def parse_commands(commands: bytes, max_payload: int) -> Iterator[NatsMessage]:
    """The messages of PUB commands. Anything a real server would cut the connection for raises ValueError."""
    position = 0
    while position < len(commands):
        line_end = commands.find(b"\r\n", position)
        words = commands[position : max(line_end, position)].split()
        if len(words) not in (3, 4) or words[0] != b"PUB" or not words[-1].isdigit():
            raise ValueError(f"not a PUB command: {commands[position : position + 60]!r}")
        start, length = line_end + 2, int(words[-1])
        position = start + length + 2
        if length > max_payload or commands[start + length : position] != b"\r\n":
            raise ValueError(f"a PUB of {length} bytes is too large, or not as long as it says: {words!r}")
        yield NatsMessage(words[1], words[2] if len(words) == 4 else b"", commands[start : start + length])
