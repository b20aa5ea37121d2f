"""NATS in memory: as many connections as a test wants, on one event loop, with nothing left to chance but what a seed
decides.

`MemoryNats` routes the very bytes a broker sends (PUB commands) by NATS's rules: literal subjects, `*`, `>`, queue
groups. A queue group takes turns, where the real server chooses at random. A connection that is off receives nothing
and keeps its subscriptions, and messages in flight to it are lost, as with the real one.

Every connection has two links, up to the server and down from it. Each keeps its order and delivers all messages that
arrived meanwhile together, as one packed batch per subscription. By default a link takes one turn of the loop; with
`NetworkConditions` it takes time, and then PUB, SUB and PING wait for one another on the way up as on a socket.

Faults: a connection is lost and made again; a link is held (its messages wait, or are lost with the connection); a host
receives nothing from another (as when the routes between NATS servers break); and, harsher than NATS is, the network
drops, repeats or delays single messages.
"""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from bascule.errors import BusUnavailable
from bascule.limits import NATS_DEFAULT_PAYLOAD_BYTES
from bascule.ports import OnBatch
from bascule.testing.loop import SimulatedProcess
from bascule.wire.nats import NatsMessage, pack, pub, sub

Item = TypeVar("Item")


@dataclass(slots=True)
class NetworkConditions:
    """What happens to messages on their way. The rates are per message and receiver."""

    chance: random.Random
    min_delay_s: float = 0.0
    max_delay_s: float = 0.0
    """Of one link."""
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    late_s: float = 0.5
    """How much later a repeated or reordered message comes, at most."""

    def delay_s(self) -> float:
        return self.chance.uniform(self.min_delay_s, self.max_delay_s) if self.max_delay_s else 0.0

    @property
    def harsh(self) -> bool:
        return bool(self.drop or self.duplicate or self.reorder)


class MemoryNats:
    """The server."""

    def __init__(
        self, max_payload: int = NATS_DEFAULT_PAYLOAD_BYTES, conditions: NetworkConditions | None = None
    ) -> None:
        self.max_payload = max_payload
        self.conditions = conditions
        self.context = contextvars.Context()
        """The loop of the network, which goes on when a process dies."""
        self.routed = 0
        self.lost = 0
        """Messages the conditions or a severed route took."""
        self._buses: list[MemoryBus] = []
        self._subscriptions: dict[int, _Subscription] = {}
        self._by_subject: dict[bytes, dict[int, _Subscription]] = {}
        """Those to literal subjects, which are most."""
        self._wildcards: dict[int, _Subscription] = {}
        self._next_sid = 1
        self._turns: dict[bytes, int] = {}
        self._severed: dict[tuple[str, str], None] = {}
        self.swallows: Callable[[str, str, NatsMessage], bool] | None = None
        """Called for each message, with its source and target hosts: whether it is lost."""

    def connect(self, name: str = "", host: str = "") -> "MemoryBus":
        bus = MemoryBus(self, name, host)
        self._buses.append(bus)
        return bus

    def disconnect(self) -> None:
        """The server is gone for everyone."""
        for bus in self._buses:
            bus.disconnect()

    def reconnect(self) -> None:
        for bus in self._buses:
            bus.reconnect()

    def sever(self, sender: str, receiver: str) -> None:
        """From now on nothing this host sends reaches that one. The other direction is not affected."""
        self._severed[sender, receiver] = None

    def rejoin(self, sender: str, receiver: str) -> None:
        self._severed.pop((sender, receiver), None)

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"") -> None:
        """What any NATS client does."""
        self.route("", pub(subject, payload, reply))

    # --- for MemoryBus ---------------------------------------------------------------------------------------

    def route(self, host: str, commands: bytes) -> None:
        for message in list(parse_commands(commands, self.max_payload)):
            entry = pack(message)
            for subscription in self._receivers(message.subject):
                self.routed += 1
                if (host, subscription.bus.host) in self._severed or (
                    self.swallows is not None and self.swallows(host, subscription.bus.host, message)
                ):
                    self.lost += 1
                elif self.conditions is not None and self.conditions.harsh:
                    self._brave(self.conditions, subscription, entry)
                else:
                    subscription.bus.down.push((subscription, entry))

    def add(self, bus: "MemoryBus", subject: bytes, on_batch: OnBatch, queue: bytes) -> "_Subscription":
        sid = self._next_sid
        sub(subject, sid, queue)  # for its checks
        self._next_sid += 1
        self._subscriptions[sid] = subscription = _Subscription(bus, sid, subject, queue, on_batch)
        if subject.endswith(b">") or b"*" in subject:
            self._wildcards[sid] = subscription
        else:
            self._by_subject.setdefault(subject, {})[sid] = subscription
        return subscription

    def remove(self, sid: int) -> None:
        subscription = self._subscriptions.pop(sid, None)
        if subscription is not None:
            self._wildcards.pop(sid, None)
            self._by_subject.get(subscription.subject, {}).pop(sid, None)

    def forget(self, bus: "MemoryBus") -> None:
        self._buses = [other for other in self._buses if other is not bus]
        for sid in [sid for sid, item in self._subscriptions.items() if item.bus is bus]:
            self.remove(sid)

    def knows(self, sid: int) -> bool:
        return sid in self._subscriptions

    def activate_all(self, bus: "MemoryBus") -> None:
        """A client that comes back subscribes to everything again before it does anything else."""
        for subscription in self._subscriptions.values():
            if subscription.bus is bus:
                subscription.active = True

    def _brave(self, conditions: NetworkConditions, subscription: "_Subscription", entry: bytes) -> None:
        """One message through harsh conditions."""
        chance = conditions.chance
        if chance.random() < conditions.drop:
            self.lost += 1
            return
        copies = 2 if chance.random() < conditions.duplicate else 1
        for copy in range(copies):
            if copy or chance.random() < conditions.reorder:
                self._push_later(chance.uniform(0, conditions.late_s), subscription, entry)
            else:
                subscription.bus.down.push((subscription, entry))

    def _push_later(self, delay_s: float, subscription: "_Subscription", entry: bytes) -> None:
        bus, connection_number = subscription.bus, subscription.bus.connection_number

        def push() -> None:
            if bus.receives(connection_number):
                bus.down.push((subscription, entry))

        asyncio.get_running_loop().call_later(delay_s, push, context=self.context)

    def _receivers(self, subject: bytes) -> Iterator["_Subscription"]:
        groups: dict[bytes, list[_Subscription]] = {}
        matching = dict(self._by_subject.get(subject, {}))
        tokens = subject.split(b".")
        for sid, subscription in self._wildcards.items():
            if subscription.matches(tokens):
                matching[sid] = subscription
        for sid in sorted(matching):
            subscription = matching[sid]
            if not (subscription.active and subscription.bus.connected):
                continue
            if subscription.queue:
                groups.setdefault(subscription.queue, []).append(subscription)
            else:
                yield subscription
        for queue, members in groups.items():
            turn = self._turns.get(queue, 0)
            self._turns[queue] = turn + 1
            yield members[turn % len(members)]


class MemoryBus:
    """`ports.Bus` on a `MemoryNats`."""

    def __init__(self, server: MemoryNats, name: str, host: str = "") -> None:
        self.name = name
        self.host = host
        self.connection_number = 0
        self.up: _Link[Callable[[], None]] = _Link(server, _run_all, at_once=True)
        self.down: _Link[_Delivery] = _Link(server, self._hand_over, at_once=False)
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
        subscription = self._server.add(self, subject, on_batch, queue)
        if self._connected:
            self.up.push(subscription.activate)
        return subscription

    def unsubscribe(self, sid: int) -> None:
        self._server.remove(sid)

    def send_now(self, commands: bytes) -> None:
        self.send(commands)

    def push(self) -> None:
        """Nothing waits here."""

    def send(self, commands: bytes) -> None:
        if not self._connected:
            raise BusUnavailable(self.unavailable_reason)
        self.up.push(lambda: self._server.route(self.host, commands))

    def pause_reading(self, paused: bool) -> None:
        if paused:
            self.down.hold("its owner")
        else:
            self.down.release("its owner")

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
        self.up.push(lambda: self.down.push((None, pong)))
        await pong

    async def close(self) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Messages in flight, up or down, are lost; waiting flushes fail."""
        if not self._connected:
            return
        self._connected = False
        self.connection_number += 1
        self.up.lose()
        self.down.lose()
        waiting, self._waiting = self._waiting, []
        for pong in waiting:
            if not pong.done():
                pong.set_exception(BusUnavailable(self.unavailable_reason))

    def reconnect(self) -> None:
        if not self._connected:
            self._connected = True
            self._server.activate_all(self)

    def abandon(self) -> None:
        """Its process is dead: the server forgets it and all it subscribed to."""
        self.disconnect()
        self._server.forget(self)

    def receives(self, connection_number: int) -> bool:
        return self._connected and self.connection_number == connection_number

    def _hand_over(self, deliveries: list["_Delivery"]) -> None:
        batches: dict[int, tuple[_Subscription, list[bytes]]] = {}
        pongs: list[asyncio.Future[None]] = []
        for subscription, item in deliveries:
            if subscription is None:
                assert isinstance(item, asyncio.Future)
                pongs.append(item)
            else:
                assert isinstance(item, bytes)
                batches.setdefault(subscription.sid, (subscription, []))[1].append(item)
        for sid, (subscription, entries) in batches.items():
            if self._server.knows(sid) and self._connected:
                subscription.deliver(b"".join(entries), len(entries))
        for pong in pongs:
            if not pong.done():
                pong.set_result(None)


_Delivery = tuple["_Subscription | None", "bytes | asyncio.Future[None]"]
"""An entry of a batch for a subscription, or None and the one who waits for a PONG."""


class _Link(Generic[Item]):
    """One direction of one connection. What is pushed is handed over in order, together with what came meanwhile."""

    def __init__(self, server: MemoryNats, hand_over: Callable[[list[Item]], None], at_once: bool) -> None:
        self._server = server
        self._hand_over = hand_over
        self._at_once = at_once
        self._items: list[Item] = []
        self._scheduled = False
        self._held: dict[str, None] = {}

    def push(self, item: Item) -> None:
        self._items.append(item)
        self._schedule()

    def hold(self, reason: str = "fault") -> None:
        """Nothing passes until every reason to hold it is gone."""
        self._held[reason] = None

    def release(self, reason: str = "fault") -> None:
        self._held.pop(reason, None)
        self._schedule()

    def lose(self) -> None:
        self._items = []

    def _schedule(self) -> None:
        if self._scheduled or self._held or not self._items:
            return
        delay_s = self._server.conditions.delay_s() if self._server.conditions else 0.0
        if self._at_once and not delay_s:
            self._pass_on()
            return
        self._scheduled = True
        loop = asyncio.get_running_loop()
        if delay_s:
            loop.call_later(delay_s, self._arrive, context=self._server.context)
        else:
            loop.call_soon(self._arrive, context=self._server.context)

    def _arrive(self) -> None:
        self._scheduled = False
        if not self._held:
            self._pass_on()

    def _pass_on(self) -> None:
        items, self._items = self._items, []
        self._hand_over(items)


def _run_all(items: list[Callable[[], None]]) -> None:
    for item in items:
        item()


class _Subscription:
    def __init__(self, bus: MemoryBus, sid: int, subject: bytes, queue: bytes, on_batch: OnBatch) -> None:
        self.bus = bus
        self.sid = sid
        self.subject = subject
        self.queue = queue
        self.active = False
        """Whether the server has received its SUB."""
        self._on_batch = on_batch
        self._process = SimulatedProcess.current()
        self._tokens = subject.split(b".")
        self._open = self._tokens[-1] == b">"
        if self._open:
            self._tokens.pop()

    def matches(self, given: list[bytes]) -> bool:
        wanted = self._tokens
        if len(given) <= len(wanted) if self._open else len(given) != len(wanted):
            return False
        return all(want in (b"*", have) for want, have in zip(wanted, given, strict=False))

    def activate(self) -> None:
        self.active = True

    def unsubscribe(self) -> None:
        self.bus.unsubscribe(self.sid)

    def deliver(self, batch: bytes, count: int) -> None:
        if self._process is None:
            self._receive(batch, count)
        else:
            self._process.call(self._receive, batch, count)

    def _receive(self, batch: bytes, count: int) -> None:
        """A subscriber that fails must not affect the others; the loop's exception handler gets the error."""
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
    """The messages of PUB commands. Anything for which a real server ends the connection raises ValueError."""
    position = 0
    while position < len(commands):
        line_end = commands.find(b"\r\n", position)
        arguments = commands[position : max(line_end, position)].split()
        if len(arguments) not in (3, 4) or arguments[0] != b"PUB" or not arguments[-1].isdigit():
            raise ValueError(f"not a PUB command: {commands[position : position + 60]!r}")
        start, length = line_end + 2, int(arguments[-1])
        position = start + length + 2
        if length > max_payload or commands[start + length : position] != b"\r\n":
            raise ValueError(f"a PUB of {length} bytes is too large, or not as long as it says: {arguments!r}")
        yield NatsMessage(arguments[1], arguments[2] if len(arguments) == 4 else b"", commands[start : start + length])
