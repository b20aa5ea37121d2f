"""A leader that was replaced and does not know it yet receives the messages that its successor stores: it refuses none
of them."""

import asyncio
from typing import Any

import pytest

from bascule.errors import Status
from bascule.node.partition import refusals
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.nats import messages, pub
from bascule.wire.pb import api_pb2 as api
from tests.harness.led import is_controller, replica_of
from tests.harness.members import Member, isr, leader_of, three, until

OK, INCORRECT_OFFSET, UNKNOWN = api.Ack.OK, api.Ack.INCORRECT_OFFSET, api.Ack.UNKNOWN


class Publisher:
    """On NATS, at a host of its own."""

    def __init__(self, nats: MemoryNats) -> None:
        self._bus = nats.connect("client", "client")
        self._bus.subscribe(b"acks", self._on_batch)
        self.acks: list[api.Ack] = []

    def send(self, expected: int) -> None:
        message = api.Message(value=b"v", offset=expected, ackInbox="acks", correlationId="c", ackPolicy=api.ALL)
        self._bus.send(pub(b"s", encode(MsgType.PUBLISH, message.SerializeToString())))

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            payload = decode(message.payload, MsgType.ACK)
            assert payload is not None
            self.acks.append(api.Ack.FromString(bytes(payload)))

    async def ask(self, expected: int) -> list[tuple[Any, int]]:
        """All that comes within three seconds."""
        self.acks.clear()
        self.send(expected)
        await asyncio.sleep(3.0)
        return sorted((ack.ackError, ack.offset) for ack in self.acks)


async def optimistic() -> tuple[MemoryNats, dict[str, Member], Member]:
    """A stream on three brokers, led by one that is not the controller."""
    nats = MemoryNats()
    members = await three(nats)
    for number in range(10):
        request = api.CreateStreamRequest(
            name="s", subject="s", replicationFactor=3, optimisticConcurrencyControl=api.NullableBool(value=True)
        )
        assert (await members["a"].call("CreateStream", request))[0] is Status.OK
        leader = leader_of(members, "s")
        if not is_controller(leader):
            await until(lambda: len(isr(members)) == 3)
            return nats, members, leader
        assert (await members["a"].call("DeleteStream", api.DeleteStreamRequest(name="s")))[0] is Status.OK
        filler = api.CreateStreamRequest(name=f"f{number}", subject=f"f{number}")
        assert (await members["a"].call("CreateStream", filler))[0] is Status.OK
    raise AssertionError("the controller leads everything")


def test_a_wrong_expected_offset_is_told_by_a_leader_and_not_by_one_that_was_replaced() -> None:
    async def main() -> None:
        nats, members, old = await optimistic()
        publisher = Publisher(nats)
        assert await publisher.ask(0) == [(OK, 0)]
        assert await publisher.ask(7) == [(INCORRECT_OFFSET, 0)]
        others = {name: member for name, member in members.items() if member is not old}
        for name in others:
            nats.sever(old.name, name)
            nats.sever(name, old.name)
        some = next(iter(others.values())).broker.cluster
        await until(lambda: (known := some.metadata.partition("s", 0)) is not None and known.leader in others)
        new = leader_of(others, "s")
        await until(lambda: replica_of(new).leading is not None)
        assert replica_of(old).leading is not None, "its lease is not over yet"
        nats.sever("client", old.name)
        publisher.send(1)
        await asyncio.sleep(0.1)
        nats.rejoin("client", old.name)
        publisher.send(2)
        await asyncio.sleep(0.5)
        assert replica_of(old).leading is not None
        assert [(ack.ackError, ack.offset) for ack in publisher.acks[-2:]] == [(OK, 1), (OK, 2)]
        await asyncio.sleep(3.0)
        assert [ack.ackError for ack in publisher.acks if ack.ackError] == [INCORRECT_OFFSET, UNKNOWN]

    run(main())


def test_refusals_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond are answered at once, with an unknown outcome."""
    monkeypatch.setattr(refusals, "PENDING_REFUSAL_BYTES", 100)

    async def main() -> None:
        nats, _, _ = await optimistic()
        publisher = Publisher(nats)
        for _ in range(200):
            publisher.send(9)
        await asyncio.sleep(3.0)
        errors = [ack.ackError for ack in publisher.acks]
        assert len(errors) == 200
        assert UNKNOWN in errors
        assert set(errors) <= {UNKNOWN, INCORRECT_OFFSET}
        assert await publisher.ask(9) == [(INCORRECT_OFFSET, 0)], "the bound is free again"

    run(main())
