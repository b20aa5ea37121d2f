"""A message whose leader could not store it, and whose followers may have it: the client says that its outcome is
unknown, and sends it again only if it was told to. Brokers in memory, the client's own pipeline."""

import asyncio
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from bascule.client.pipeline import OnAcks, Pipeline, Sendable
from bascule.client.producers import INIT_PRODUCER, Prepare, ProducerSession, preparing
from bascule.client.requests import Encoder
from bascule.client.retrying import Retrying
from bascule.client.values import AckPolicy
from bascule.errors import BasculeError, RpcError, Status, Unconfirmed
from bascule.net.channel import ClientCall
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import producer_pb2 as producer
from tests.harness.broker import split
from tests.harness.members import Member, isr, item_of, leader_of, three, until


class Connection:
    """A call of the client to a broker in memory."""

    def __init__(self, member: Member) -> None:
        self._call = MemoryCall(None)
        assert member.process is not None
        member.process.start(self._call.run(member.methods["/proto.API/PublishAsync"]))

    queued_bytes = 0

    def write(self, frames: bytes) -> None:
        for message in split(frames):
            self._call.request(message)

    async def drained(self) -> None:
        pass

    async def receive(self) -> bytes | None:
        frames = await self._call.arrived()
        if frames:
            return frames
        status, text = await self._call.over()
        if status is not Status.OK:
            raise RpcError(status, text)
        return None

    def half_close(self) -> None:
        self._call.half_close()

    def cancel(self) -> None:
        self._call.cancel()


def pipeline(member: Member, on_acks: OnAcks | None = None) -> Pipeline:
    call = cast(ClientCall, Connection(member))
    return Pipeline(call, "s", 1, keyless=[0], partition=0, policy=AckPolicy.ALL, timeout=5.0, on_acks=on_acks)


async def three_with_a_stream() -> dict[str, Member]:
    members = await three(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
    request.minIsr.value = 2
    await members["a"].call("CreateStream", request)
    await members["a"].publish("s", b"before")
    return members


@contextmanager
def failing(leader: Member) -> Iterator[None]:
    """Its disk takes a while for a sync, and then fails: the followers have what it could not store."""
    leader.disk.sync_delay_s = 0.2
    asyncio.get_running_loop().call_later(0.1, fail, leader)
    yield
    leader.disk.heal()
    leader.disk.sync_delay_s = 0.0


def fail(leader: Member) -> None:
    leader.disk.injected_error = lambda path: 5 if path.startswith("streams/") else None


def test_without_retries_the_outcome_is_unknown_and_the_message_is_committed_all_the_same() -> None:
    async def main() -> None:
        members = await three_with_a_stream()
        leader = leader_of(members, "s")
        client = next(each for each in members.values() if each is not leader)
        with failing(leader), pytest.raises(Unconfirmed, match="the message may be stored or not"):
            await pipeline(client).run([b"unknown"])
        await until(lambda: leader_of(members, "s") is not leader, 10)
        await until(lambda: len(isr(members)) == 3, 60)
        assert await leader_of(members, "s").read("s") == [b"before", b"unknown"]

    run(main())


async def numbering(member: Member) -> Prepare:
    """As of an idempotent producer."""
    call = MemoryCall(5.0)
    call.request(producer.InitProducerRequest(stream="s").SerializeToString())
    assert member.process is not None
    assert (await member.process.start(call.run(member.methods[INIT_PRODUCER])))[0] is Status.OK
    answer = producer.InitProducerResponse.FromString(split(bytes(call.responses))[0])
    return preparing(ProducerSession(answer), Encoder("s", AckPolicy.ALL), 1, [0], 0)


@pytest.mark.parametrize("numbered", [False, True], ids=["any server", "idempotent"])
def test_with_retries_it_is_sent_again_and_stored_twice_unless_the_producer_is_idempotent(numbered: bool) -> None:
    async def main() -> None:
        members = await three_with_a_stream()
        leader = leader_of(members, "s")
        client = next(each for each in members.values() if each is not leader)
        acked: list[int] = []
        reasons: list[BasculeError] = []

        async def attempt(values: AsyncIterable[Sendable], on_acks: OnAcks) -> int:
            return await pipeline(client, on_acks).run(values)

        retrying = Retrying(
            lambda acks: acked.extend(index for index, _, _ in acks),
            lambda count, error: reasons.append(error),
            await numbering(client) if numbered else None,
        )
        with failing(leader):
            assert await retrying.run([b"0", b"1", b"2"], attempt, 30.0) == 3
        assert acked == [0, 1, 2]
        assert isinstance(reasons[0], Unconfirmed)
        await until(lambda: len(isr(members)) == 3, 60)
        stored = await leader_of(members, "s").read("s")
        assert stored == [b"before", *[b"0", b"1", b"2"] * (1 if numbered else 2)]
        assert item_of(members).leader != leader.name

    run(main())


def test_with_retries_a_disk_that_fails_for_a_while_is_waited_for() -> None:
    """With one replica nobody else can lead: until its log is open again the broker refuses, and says so."""

    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s"))
        leader = leader_of(members, "s")
        reasons: list[BasculeError] = []

        async def attempt(values: AsyncIterable[Sendable], on_acks: OnAcks) -> int:
            return await pipeline(leader, on_acks).run(values)

        fail(leader)
        asyncio.get_running_loop().call_later(3.0, leader.disk.heal)
        retrying = Retrying(None, lambda count, error: reasons.append(error))
        assert await retrying.run([b"0", b"1"], attempt, 30.0) == 2
        assert isinstance(reasons[0], Unconfirmed)
        assert all("takes no writes" in str(reason) for reason in reasons[1:])
        assert 1 < len(reasons) < 12, "with pauses that grow"
        assert await leader.read("s") == [b"0", b"1"]

    run(main())
