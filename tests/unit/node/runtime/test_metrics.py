"""The counters and gauges of a broker: one registration each, one place that reads them, bounded labels."""

import asyncio
from dataclasses import replace

import pytest

from bascule.core.metadata.commands import SetStreamReadonly
from bascule.errors import Status
from bascule.limits import METRIC_LABEL_VALUES
from bascule.node.runtime.metrics import OTHER, Metrics, Reading
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import DEFAULTS, Node


def values(metrics: Metrics, name: str) -> dict[str, float]:
    return next(dict(reading.values) for reading in metrics.read() if reading.name == name)


def test_what_is_registered_is_read() -> None:
    metrics, depth = Metrics(), 3.0
    metrics.gauge("bascule_depth", "How deep", lambda: depth)
    metrics.gauge("bascule_ends", "By log", lambda: {"a": 1, "b": 2}, label="log")
    drops = metrics.counter("bascule_drops_total", "What was dropped", label="kind")
    drops.add("rain")
    drops.add("rain", 4)
    depth = 5.0
    assert metrics.read() == [
        Reading("bascule_depth", "gauge", "How deep", "", {"": 5.0}),
        Reading("bascule_drops_total", "counter", "What was dropped", "kind", {"rain": 5}),
        Reading("bascule_ends", "gauge", "By log", "log", {"a": 1, "b": 2}),
    ]


def test_a_counter_that_is_registered_twice_is_one() -> None:
    metrics = Metrics()
    metrics.counter("bascule_drops_total", "What was dropped").add()
    metrics.counter("bascule_drops_total", "What was dropped").add()
    assert values(metrics, "bascule_drops_total") == {"": 2}
    with pytest.raises(AssertionError, match="something else"):
        metrics.counter("bascule_drops_total", "What was dropped", label="kind")


def test_the_values_of_a_label_are_bounded_and_none_is_lost() -> None:
    metrics = Metrics()
    counter = metrics.counter("bascule_drops_total", "What was dropped", label="kind")
    everything = {f"kind {number}": 2.0 for number in range(METRIC_LABEL_VALUES + 50)}
    metrics.gauge("bascule_depth", "How deep", lambda: everything, label="kind")
    for kind in everything:
        counter.add(kind, 2)
    for name in ("bascule_drops_total", "bascule_depth"):
        found = values(metrics, name)
        assert len(found) == METRIC_LABEL_VALUES + 1
        assert found[OTHER] == 100


def test_what_is_beyond_the_bound_of_a_gauge_is_combined_as_its_registration_says() -> None:
    metrics = Metrics()
    ages = {f"hold {number}": float(number) for number in range(METRIC_LABEL_VALUES + 50)}
    metrics.gauge("bascule_age_seconds", "How old", lambda: ages, label="hold", combine=max)
    metrics.gauge("bascule_held", "How much", lambda: {OTHER: 7.0, **ages}, label="hold")
    assert values(metrics, "bascule_age_seconds")[OTHER] == METRIC_LABEL_VALUES + 49
    found = values(metrics, "bascule_held")
    assert len(found) == METRIC_LABEL_VALUES
    assert sum(found.values()) == sum(ages.values()) + 7


async def answer(node: Node, method: str, *requests: bytes) -> tuple[Status, str]:
    call = MemoryCall(1.0)
    for request in requests:
        call.request(request)
    call.half_close()
    return await call.run(node.handler(method))


def test_messages_that_are_not_stored_are_counted_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.harness.broker.DEFAULTS", replace(DEFAULTS, max_message_bytes=1_000))

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        unknown = api.PublishRequest(stream="none").SerializeToString()
        assert (await answer(node, "Publish", unknown))[0] is Status.NOT_FOUND
        await answer(node, "PublishAsync", unknown, unknown)
        blank = api.PublishToSubjectRequest(subject="a b").SerializeToString()
        assert (await answer(node, "PublishToSubject", blank))[0] is Status.INVALID_ARGUMENT
        node.nats.publish(b"s", b"fits")
        node.nats.publish(b"s", bytes(1_001))
        node.nats.publish(b"s", bytes(1_002))
        await asyncio.sleep(1)
        metrics = node.broker.environment.metrics
        found = values(metrics, "bascule_refused_messages_total")
        assert found == {"not_found": 3, "invalid_argument": 1, "too_large": 2}
        assert values(metrics, "bascule_pending_ack_bytes") == {"": 0}

    run(main())


def test_what_comes_by_nats_to_a_readonly_partition_is_counted() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        await node.broker.controller.proposals.propose(lambda: SetStreamReadonly("s", (0,), True))
        await asyncio.sleep(1)
        node.nats.publish(b"s", b"dropped")
        await asyncio.sleep(1)
        assert values(node.broker.environment.metrics, "bascule_refused_messages_total") == {"readonly": 1}

    run(main())


def test_what_is_published_to_a_readonly_partition_is_counted_alike_by_each_way() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        await node.broker.controller.proposals.propose(lambda: SetStreamReadonly("s", (0,), True))
        await asyncio.sleep(1)
        request = api.PublishRequest(stream="s").SerializeToString()
        assert (await answer(node, "Publish", request))[0] is Status.FAILED_PRECONDITION
        await answer(node, "PublishAsync", request, request)
        node.nats.publish(b"s", b"dropped")
        await asyncio.sleep(1)
        assert values(node.broker.environment.metrics, "bascule_refused_messages_total") == {"readonly": 4}

    run(main())


@pytest.mark.parametrize("readonly", [False, True])
def test_messages_between_brokers_are_no_refused_messages_of_a_stream_that_hears_them(
    monkeypatch: pytest.MonkeyPatch, readonly: bool
) -> None:
    monkeypatch.setattr("tests.harness.broker.DEFAULTS", replace(DEFAULTS, max_message_bytes=1_000))

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        request = api.CreateStreamRequest(name="archive", subject=">")
        assert (await node.call("CreateStream", request))[0] is Status.OK
        await node.broker.controller.proposals.propose(lambda: SetStreamReadonly("archive", (0,), readonly))
        own = node.broker.environment.cluster_prefix
        node.nats.publish(own + b"raft.metadata.info", b"a heartbeat")
        node.nats.publish(own + b"replicated.a.b", bytes(1_001))
        await asyncio.sleep(3)
        metrics = node.broker.environment.metrics
        assert values(metrics, "bascule_refused_messages_total") == {}
        node.nats.publish(own + b"raft.metadata.info", b"another one")
        node.nats.publish(b"s", bytes(1_001))
        await asyncio.sleep(1)
        expected = {"readonly": 1} if readonly else {"too_large": 1}
        assert values(metrics, "bascule_refused_messages_total") == expected

    run(main())
