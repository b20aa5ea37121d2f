"""A broker that stood still, as real processes do under SIGSTOP: it judges nobody by the time it did not listen."""

import time
from pathlib import Path

from bascule.node.membership.peers import SESSION_S
from bascule.testing.probe import call
from bascule.testing.processes import HOST, BrokerProcess, poll, start_broker, start_nats
from bascule.wire.pb import api_pb2 as api

STREAM = "orders"
PARTITIONS = 4
PAUSES_S = (SESSION_S + 0.5, 2 * SESSION_S, 4 * SESSION_S)
SETTLE_S = 2 * SESSION_S
"""Whoever was taken for dead would be on record by then."""


def described(process: BrokerProcess) -> dict[int, tuple[str, tuple[str, ...]]]:
    """By partition: its leader, and who is in sync."""
    request = api.FetchMetadataRequest(streams=[STREAM]).SerializeToString()
    answer = call(HOST, process.port, "/proto.API/FetchMetadata", request, 10.0)
    (stream,) = api.FetchMetadataResponse.FromString(answer.message).streamMetadata
    return {number: (item.leader, tuple(sorted(item.isr))) for number, item in stream.partitions.items()}


def ready(process: BrokerProcess) -> bool:
    return [isr for _, isr in described(process).values()] == [("a", "b")] * PARTITIONS


def test_a_controller_that_stood_still_takes_nobody_for_dead(tmp_path: Path) -> None:
    with (
        start_nats(tmp_path) as nats,
        start_broker(tmp_path, nats_url=nats.nats_url, name="a", config={"clustering.server.id": "a"}) as first,
        BrokerProcess(
            tmp_path / "b", nats_url=nats.nats_url, seed=False, config={"clustering.server.id": "b"}
        ) as second,
    ):
        second.start().wait_ready()
        request = api.CreateStreamRequest(name=STREAM, subject=STREAM, partitions=PARTITIONS, replicationFactor=2)
        assert call(HOST, first.port, "/proto.API/CreateStream", request.SerializeToString(), 10.0).status == 0
        assert poll(lambda: ready(first) and ready(second))
        assert "this broker is the controller" in first.logs()
        before = described(second)
        assert {leader for leader, _ in before.values()} == {"a", "b"}
        for pause_s in PAUSES_S:
            first.pause()
            time.sleep(pause_s)
            first.resume()
            assert not poll(lambda: "it is fenced" in first.logs(), SETTLE_S), first.log_tail()
            assert described(first) == before, first.log_tail()
