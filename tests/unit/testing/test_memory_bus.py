"""NATS in memory routes like the real server, and does the same thing every time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bascule.errors import BusUnavailable, InvalidArgument
from bascule.ports import Bus
from bascule.testing.bus import MemoryBus, MemoryNats, matches, parse_commands
from bascule.testing.loop import run
from bascule.wire.nats import NatsMessage, messages, pub


class Inbox:
    """What one subscription got."""

    def __init__(self) -> None:
        self.messages: list[NatsMessage] = []
        self.batches: list[int] = []

    def __call__(self, batch: bytes, count: int) -> None:
        got = list(messages(batch))
        assert len(got) == count
        self.messages += got
        self.batches.append(count)

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]


def on_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def wrapped() -> None:
        run(test())

    wrapped.__name__ = test.__name__
    return wrapped


def test_a_memory_bus_is_a_bus() -> None:
    bus: Bus = MemoryNats().connect()
    assert bus.connected
    assert bus.unavailable_reason == ""
    assert bus.max_payload == 1024 * 1024


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        (b"a", b"a", True),
        (b"a", b"b", False),
        (b"a.b", b"a", False),
        (b"a", b"a.b", False),
        (b"a.*", b"a.b", True),
        (b"a.*", b"a", False),
        (b"a.*", b"a.b.c", False),
        (b"*.b", b"a.b", True),
        (b"*", b"a.b", False),
        (b"a.>", b"a.b", True),
        (b"a.>", b"a.b.c", True),
        (b"a.>", b"a", False),
        (b">", b"a.b", True),
        (b"*.>", b"a", False),
        (b"*.>", b"a.b", True),
        (b"a.>", b"a.>", True),
        (b"a*", b"ab", False),
        (b"a*", b"a*", True),
    ],
)
def test_subjects_match_by_the_rules_of_nats(pattern: bytes, subject: bytes, expected: bool) -> None:
    assert matches(pattern, subject) is expected


@on_virtual_time
async def test_what_is_sent_in_one_turn_arrives_as_one_batch_in_order() -> None:
    nats = MemoryNats()
    sender, receiver = nats.connect(), nats.connect()
    inbox = Inbox()
    receiver.subscribe(b"s.>", inbox)
    sender.send(pub(b"s.1", b"one") + pub(b"other", b"lost"))
    sender.send(pub(b"s.2", b"PUB x 3\r\n", reply=b"r"))
    assert inbox.messages == []
    await sender.flush()
    assert inbox.messages == [NatsMessage(b"s.1", b"", b"one"), NatsMessage(b"s.2", b"r", b"PUB x 3\r\n")]
    assert inbox.batches == [2]


@on_virtual_time
async def test_every_plain_subscription_gets_a_copy_and_each_queue_group_one() -> None:
    nats = MemoryNats()
    bus = nats.connect()
    plain, also, first, second, other = (Inbox() for _ in range(5))
    bus.subscribe(b"s", plain)
    bus.subscribe(b"*", also)
    bus.subscribe(b"s", first, queue=b"q")
    bus.subscribe(b">", second, queue=b"q")
    bus.subscribe(b"s", other, queue=b"other")
    for number in range(4):
        nats.publish(b"s", b"%d" % number)
    await bus.flush()
    everything = [b"0", b"1", b"2", b"3"]
    assert plain.payloads == also.payloads == other.payloads == everything
    assert first.payloads == [b"0", b"2"]
    assert second.payloads == [b"1", b"3"]


@on_virtual_time
async def test_nothing_arrives_after_unsubscribe_even_if_it_was_on_its_way() -> None:
    nats = MemoryNats()
    bus = nats.connect()
    inbox = Inbox()
    subscription = bus.subscribe(b"s", inbox)
    bus.send(pub(b"s", b"late"))
    subscription.unsubscribe()
    subscription.unsubscribe()
    await bus.flush()
    assert inbox.messages == []


@on_virtual_time
async def test_a_disconnected_bus_loses_what_was_under_way_and_keeps_its_subscriptions() -> None:
    nats = MemoryNats()
    bus, other = nats.connect(), nats.connect()
    inbox = Inbox()
    bus.subscribe(b"s", inbox)
    other.send(pub(b"s", b"under way"))
    bus.disconnect()
    bus.reconnect()
    await other.flush()
    bus.disconnect()
    other.send(pub(b"s", b"meanwhile"))
    await other.flush()
    assert not bus.connected
    assert "off" in bus.unavailable_reason
    with pytest.raises(BusUnavailable):
        bus.send(pub(b"s", b"x"))
    with pytest.raises(BusUnavailable):
        await bus.flush()
    bus.reconnect()
    other.send(pub(b"s", b"after"))
    await other.flush()
    assert inbox.payloads == [b"after"]


@on_virtual_time
async def test_who_waits_for_a_flush_learns_of_the_disconnect() -> None:
    nats = MemoryNats()
    bus = nats.connect()
    waiting = asyncio.create_task(bus.flush())
    await asyncio.sleep(0)
    nats.disconnect()
    with pytest.raises(BusUnavailable):
        await waiting
    nats.reconnect()
    await bus.flush()
    await bus.drained()


@on_virtual_time
async def test_a_failing_subscriber_does_not_disturb_the_others() -> None:
    nats = MemoryNats()
    bus = nats.connect()
    heard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["message"]))
    inbox = Inbox()

    def fail(batch: bytes, count: int) -> None:
        raise RuntimeError("no")

    bus.subscribe(b"s", fail)
    bus.subscribe(b"s", inbox)
    nats.publish(b"s", b"x")
    await bus.flush()
    assert inbox.payloads == [b"x"]
    assert len(heard) == 1


@on_virtual_time
async def test_messages_sent_while_delivering_arrive_in_the_next_turn() -> None:
    nats = MemoryNats()
    bus: MemoryBus = nats.connect()
    inbox = Inbox()
    at_send: list[int] = []

    def answer(batch: bytes, count: int) -> None:
        bus.send(pub(b"pong", b"%d" % count))
        at_send.append(len(inbox.messages))

    bus.subscribe(b"ping", answer)
    bus.subscribe(b"pong", inbox)
    nats.publish(b"ping", b"")
    await bus.flush()
    await bus.flush()
    assert at_send == [0]
    assert inbox.payloads == [b"1"]


@pytest.mark.parametrize(
    "commands",
    [
        b"PUB s\r\n\r\n",
        b"PUB s 3\r\nab\r\n",
        b"PUB s 2\r\nabc\r\n",
        b"SUB s 1\r\n",
        b"PUB s 5",
        b"PUB s 11\r\n" + b"x" * 13,
    ],
)
def test_what_a_real_server_would_refuse_is_refused(commands: bytes) -> None:
    with pytest.raises(ValueError, match="PUB"):
        list(parse_commands(commands, 10))


def test_a_subscription_to_no_subject_is_refused() -> None:
    bus = MemoryNats().connect()
    with pytest.raises(InvalidArgument):
        bus.subscribe(b"a b", Inbox())
