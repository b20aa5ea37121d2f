"""The simulated NATS: what a link does to messages, and what it never does in fair conditions."""

import asyncio
import random

from bascule.testing.bus import MemoryNats, NetworkConditions
from bascule.testing.loop import run
from bascule.wire.nats import messages, pub


class Inbox:
    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def __call__(self, batch: bytes, count: int) -> None:
        self.payloads += [message.payload for message in messages(batch)]


def sent(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def exchange(conditions: NetworkConditions, count: int = 300) -> list[bytes]:
    """One publisher, one subscriber, with pauses."""
    nats = MemoryNats(conditions=conditions)
    sender, receiver, inbox = nats.connect(), nats.connect(), Inbox()
    receiver.subscribe(b"s", inbox)
    await receiver.flush()
    for payload in sent(count):
        sender.send(pub(b"s", payload))
        if conditions.chance.random() < 0.3:
            await asyncio.sleep(0.003)
    await asyncio.sleep(5)
    return inbox.payloads


def test_in_usual_conditions_messages_are_late_but_whole_and_in_order() -> None:
    async def main() -> None:
        conditions = NetworkConditions(random.Random(1), 0.001, 0.05)
        assert await exchange(conditions) == sent(300)

    run(main())


def test_harsh_conditions_drop_repeat_and_reorder() -> None:
    async def main() -> None:
        dropped = await exchange(NetworkConditions(random.Random(1), 0.001, 0.05, drop=0.1))
        assert 240 < len(dropped) < 300
        assert dropped == [payload for payload in sent(300) if payload in dropped]
        repeated = await exchange(NetworkConditions(random.Random(1), 0.001, 0.05, duplicate=0.1))
        assert len(repeated) > 310
        assert sorted(set(repeated)) == sorted(sent(300))
        reordered = await exchange(NetworkConditions(random.Random(1), 0.001, 0.05, reorder=0.1))
        assert reordered != sent(300)
        assert sorted(reordered) == sorted(sent(300))

    run(main())


def test_a_subscription_counts_from_the_moment_the_server_receives_it() -> None:
    async def main() -> None:
        nats = MemoryNats(conditions=NetworkConditions(random.Random(1), 0.01, 0.01))
        bus, inbox = nats.connect(), Inbox()
        bus.subscribe(b"s", inbox)
        nats.publish(b"s", b"too early")
        await bus.flush()
        nats.publish(b"s", b"in time")
        await asyncio.sleep(1)
        assert inbox.payloads == [b"in time"]

    run(main())


def test_a_link_holds_one_direction_and_a_lost_connection_loses_what_it_held() -> None:
    async def main() -> None:
        nats = MemoryNats(conditions=NetworkConditions(random.Random(1), 0.01, 0.01))
        bus, other, inbox, others = nats.connect(), nats.connect(), Inbox(), Inbox()
        bus.subscribe(b"in", inbox)
        other.subscribe(b"out", others)
        await bus.flush()
        await other.flush()
        bus.up.hold()
        bus.send(pub(b"out", b"held"))
        other.send(pub(b"in", b"passes"))
        await asyncio.sleep(1)
        assert (inbox.payloads, others.payloads) == ([b"passes"], [])
        bus.up.release()
        await asyncio.sleep(1)
        assert others.payloads == [b"held"]
        bus.up.hold()
        bus.send(pub(b"out", b"lost"))
        bus.disconnect()
        bus.up.release()
        bus.reconnect()
        other.send(pub(b"in", b"again"))
        await asyncio.sleep(1)
        assert (inbox.payloads, others.payloads) == ([b"passes", b"again"], [b"held"])

    run(main())


def test_hosts_that_are_severed_receive_nothing_from_each_other_one_way() -> None:
    async def main() -> None:
        nats = MemoryNats()
        a, b = nats.connect("a", "a"), nats.connect("b", "b")
        of_a, of_b = Inbox(), Inbox()
        a.subscribe(b"s", of_a)
        b.subscribe(b"s", of_b)
        nats.sever("a", "b")
        a.send(pub(b"s", b"from a"))
        b.send(pub(b"s", b"from b"))
        await asyncio.sleep(1)
        assert (of_a.payloads, of_b.payloads) == ([b"from a", b"from b"], [b"from b"])
        nats.rejoin("a", "b")
        a.send(pub(b"s", b"mended"))
        await asyncio.sleep(1)
        assert of_b.payloads == [b"from b", b"mended"]

    run(main())
