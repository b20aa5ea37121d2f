"""Idempotent producers of the client: which numbers messages get, and when a producer is used again."""

import asyncio
import logging
from typing import Any, cast

import pytest

from bascule import limits
from bascule.client import AckPolicy, Outgoing
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline
from bascule.client.producers import INIT_PRODUCER, Producers, ProducerSession, preparing
from bascule.client.requests import Encoder
from bascule.client.values import Address, Broker, Metadata, Partition, Stream
from bascule.errors import InvalidArgument, Unavailable, Unimplemented
from bascule.net.channel import Channel
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import producer_pb2 as pb
from bascule.wire.producers import numbered, producer_prefix

STREAM = Stream("s", "s", {}, 100)


class Server:
    """Answers InitProducer, or does not know it."""

    def __init__(self, knows: bool = True) -> None:
        self.asked = 0
        self._knows = knows

    async def ask_any(self, method: str, request: bytes, deadline: Deadline, try_s: float | None = None) -> bytes:
        assert method == INIT_PRODUCER
        assert pb.InitProducerRequest.FromString(request) == pb.InitProducerRequest(stream="s")
        self.asked += 1
        if not self._knows:
            raise Unimplemented("unknown service bascule.v1.Producers")
        return pb.InitProducerResponse(id=self.asked, epoch=self.asked, creation=7).SerializeToString()


def producers(server: Server) -> Producers:
    return Producers(cast(Cluster, server))


def test_a_producer_is_used_again_when_all_its_messages_were_confirmed() -> None:
    async def main() -> None:
        server = Server()
        pool, deadline = producers(server), Deadline(5.0)
        first, second = await pool.take(STREAM, deadline), await pool.take(STREAM, deadline)
        assert first is not None
        assert second is not first
        pool.give_back(STREAM, first)
        assert await pool.take(STREAM, deadline) is first
        pool.give_back(STREAM, first)
        made_again = Stream("s", "s", {}, 200)
        assert await pool.take(made_again, deadline) is not first
        assert pool._idle == {}, "those of a stream that is gone are not kept"
        assert server.asked == 3

    asyncio.run(main())


def test_a_server_that_does_not_know_producers_is_asked_again_after_a_while() -> None:
    async def main() -> None:
        server = Server(knows=False)
        pool = producers(server)
        for _ in range(3):
            assert await pool.take(STREAM, Deadline(5.0)) is None
        assert server.asked == 1
        server._knows = True
        assert await pool.take(STREAM, Deadline(5.0)) is None
        await asyncio.sleep(limits.CLIENT_PRODUCERS_AGAIN_S)
        assert await pool.take(STREAM, Deadline(5.0)) is not None

    run(main())


def test_that_messages_may_be_stored_twice_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    pool = producers(Server(knows=False))
    pool.say_at_least_once()
    pool.say_at_least_once()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "may be stored twice" in caplog.text


def sent(prepare: Any, encoder: Encoder, *values: bytes | Outgoing) -> list[api.PublishRequest]:
    frames = encoder.encode_prepared([prepare(value, number) for number, value in enumerate(values)], 10)
    found = []
    while frames:
        size = int.from_bytes(frames[1:5], "big")
        found.append(api.PublishRequest.FromString(frames[5 : 5 + size]))
        frames = frames[5 + size :]
    return found


def test_each_partition_has_its_own_sequence() -> None:
    encoder = Encoder("s", AckPolicy.ALL)
    producer = ProducerSession(pb.InitProducerResponse(id=3, epoch=4, creation=7))
    prepare = preparing(producer, encoder, 2, [1, 0], None)
    keyed, placed = Outgoing(b"k", b"key", {"h": b"v"}), Outgoing(b"p", partition=1)
    requests = sent(prepare, encoder, b"a", b"b", b"c", keyed, placed)
    assert [request.partition for request in requests[:3]] == [1, 0, 1]
    assert requests[4].partition == 1
    sequences: dict[int, int] = {}
    for number, request in enumerate(requests):
        sequence = sequences.get(request.partition, 0)
        sequences[request.partition] = sequence + 1
        assert request.producer == numbered(producer_prefix(3, 4, 7, request.partition), sequence)
        assert (request.correlationId, request.expectedOffset, request.ackPolicy) == (str(10 + number), -1, api.ALL)
    assert (requests[3].key, dict(requests[3].headers)) == (b"key", {"h": b"v"})


def test_an_unfit_message_takes_no_number() -> None:
    encoder = Encoder("s", AckPolicy.ALL)
    producer = ProducerSession(pb.InitProducerResponse(id=3, epoch=4, creation=7))
    prepare: Any = preparing(producer, encoder, 1, [0], None)
    with pytest.raises(InvalidArgument, match="messages are bytes"):
        prepare("text", 0)
    (request,) = sent(prepare, encoder, b"bytes")
    assert request.producer == numbered(producer_prefix(3, 4, 7, 0), 0)


def test_a_leader_that_is_gone_from_the_metadata_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed while messages were under way: they are sent again when there is another one."""

    async def main() -> None:
        cluster = Cluster([Address("localhost", 9292)], None, on_wait=lambda error, seconds: None)
        lost = Partition(0, "b", ("a", "b"), ("a", "b"), -1, -1, paused=False, readonly=False)

        async def unreachable(*_: object, **__: object) -> Channel:
            raise Unavailable("partition 0 of stream s has no reachable leader right now")

        monkeypatch.setattr(cluster, "leader", unreachable)
        brokers = {id: Broker(id, "localhost", port, 0, 0) for port, id in enumerate("ac")}
        cluster._metadata = Metadata(brokers, {})
        with pytest.raises(Unavailable, match="no leader that answers"):
            await cluster._confirm(Stream("s", "s", {0: lost}, 1), [lost])

    asyncio.run(main())
