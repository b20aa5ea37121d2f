"""Which acks a gRPC publisher gets: those of the stream it named, or of one in the same load-balance group."""

import asyncio
from typing import Any

import pytest

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.nats import messages, pub
from bascule.wire.pb import api_pb2 as api
from tests.harness.acks import create, one_node
from tests.harness.broker import split
from tests.harness.members import three, until

NAMES = ("orders", "orders.eu", "order", "bestellungen-für-köln", "日本.注文")


def on_publish_async(member: Any, call: MemoryCall) -> "asyncio.Task[tuple[Status, str]]":
    return asyncio.create_task(call.run(member.methods["/proto.API/PublishAsync"]))


async def publish_async(member: Any, requests: list[api.PublishRequest]) -> list[api.PublishResponse]:
    """All answers until the call ends."""
    call = MemoryCall(30.0)
    for request in requests:
        call.request(request.SerializeToString())
    call.half_close()
    assert await on_publish_async(member, call) == (Status.OK, "")
    return [api.PublishResponse.FromString(item) for item in split(bytes(call.responses))]


def stop_storing(member: Any, stream: str) -> None:
    """The stream's leader receives nothing more from NATS: what is published to it is stored by others, or nobody."""
    replica = member.broker.replicas.find(stream, 0)
    assert replica.leading is not None
    replica.leading.stop_listening()


@pytest.mark.parametrize("archive", [">", "sub.>", "sub.*"])
def test_a_publish_is_answered_by_its_stream_and_not_by_an_archive(archive: str) -> None:
    async def main() -> None:
        node = await one_node()
        await create(node, "archive", archive)
        await create(node, "orders", "sub.orders")
        for number in range(5):
            ack = await node.publish("orders", b"%d" % number)
            assert (ack.stream, ack.offset) == ("orders", number)
        assert [value for _, value in await node.read("archive")] == [b"0", b"1", b"2", b"3", b"4"]

    run(main())


def test_a_publish_its_stream_did_not_store_is_not_ok() -> None:
    async def main() -> None:
        node = await one_node()
        await create(node, "archive", ">")
        await create(node, "orders", "orders")
        stop_storing(node, "orders")
        for policy in (api.LEADER, api.ALL):
            request = api.PublishRequest(stream="orders", value=b"x", ackPolicy=policy)
            assert (await node.call("Publish", request, 1.0))[0] is Status.DEADLINE_EXCEEDED
            request.ackInbox = "inbox.of.mine"
            assert (await node.call("Publish", request, 1.0))[0] is Status.DEADLINE_EXCEEDED
        assert await publish_async(node, [api.PublishRequest(stream="orders", value=b"x", correlationId="c")]) == []
        assert [value for _, value in await node.read("archive")].count(b"x") == 5

    run(main())


def test_publish_async_gets_one_ack_a_message_of_the_stream_it_named() -> None:
    async def main() -> None:
        node = await one_node()
        await create(node, "archive", ">")
        await create(node, "twin", "orders")
        await create(node, "orders", "orders", partitions=3)
        requests = [
            api.PublishRequest(stream=stream, value=b"v", partition=partition, ackPolicy=policy)
            for number in range(30)
            for stream, partition, policy in (
                ("orders", number % 3, api.LEADER),
                ("twin", 0, api.ALL),
                ("orders", 0, api.NONE),
            )
        ]
        answers = await publish_async(node, requests)
        asked = {"orders": 30, "twin": 30}
        assert {name: sum(answer.ack.stream == name for answer in answers) for name in asked} == asked
        assert len(answers) == 60

    run(main())


def test_a_half_closed_call_waits_for_its_own_acks() -> None:
    """An archive that is quicker than the stream must not end the call before the stream has answered."""

    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        await create(members["a"], "orders", "orders", replicationFactor=3)
        await create(members["a"], "archive", ">", replicationFactor=1)
        partition = members["a"].broker.cluster.metadata.stream("orders").partitions[0]  # type: ignore[union-attr]
        for name, member in members.items():
            if name != partition.leader:
                member.disk.sync_delay_s = 0.5
        requests = [api.PublishRequest(stream="orders", value=b"v", ackPolicy=api.ALL) for _ in range(8)]
        for member in members.values():
            answers = await publish_async(member, requests)
            assert [answer.ack.stream for answer in answers] == ["orders"] * 8

    run(main())


def test_an_error_of_a_message_nobody_waits_for_does_not_end_the_call_early() -> None:
    async def main() -> None:
        node = await one_node()
        await create(node, "orders", "orders")
        node.disk.sync_delay_s = 0.5
        node.nats.max_payload = 2 << 20
        too_large = api.PublishRequest(stream="orders", value=bytes(1 << 20), ackPolicy=api.NONE, correlationId="large")
        answers = await publish_async(
            node, [api.PublishRequest(stream="orders", value=b"v", correlationId="small"), too_large]
        )
        assert [(answer.correlationId, answer.HasField("asyncError")) for answer in answers] == [
            ("large", True),
            ("small", False),
        ]

    run(main())


@pytest.mark.parametrize("own", ["a", "b", "c"])
@pytest.mark.parametrize("broker", ["a", "b", "c"])
def test_with_three_brokers_the_stream_answers_wherever_it_is_led(own: str, broker: str) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        led: dict[str, str] = {}
        for number in range(6):
            name = f"orders.{number}" if number % 2 else f"bestellungen-{number}-für"
            await create(members["b"], name, f"sub.{number}")
            led[name] = members["b"].broker.cluster.metadata.stream(name).partitions[0].leader  # type: ignore[union-attr]
        await create(members["b"], "archive", "sub.>")
        await until(lambda: all(m.broker.cluster.metadata.stream("archive") for m in members.values()))
        names = [name for name, leader in led.items() if leader == own]
        assert names
        requests = [api.PublishRequest(stream=name, value=b"v") for name in names for _ in range(4)]
        answers = await publish_async(members[broker], requests)
        assert sorted(answer.ack.stream for answer in answers) == sorted(4 * names)
        for name in names:
            assert (await members[broker].publish(name, b"v")).stream == name

    run(main())


def test_names_that_are_beginnings_of_others_are_told_apart() -> None:
    async def main() -> None:
        node = await one_node()
        for name in NAMES:
            await create(node, name, "shared")
        for name in NAMES:
            assert (await node.publish(name, name.encode())).stream == name
        answers = await publish_async(node, [api.PublishRequest(stream=name, value=b"v") for name in NAMES])
        assert sorted(answer.ack.stream for answer in answers) == sorted(NAMES)
        stop_storing(node, "order")
        request = api.PublishRequest(stream="order", value=b"v", ackPolicy=api.LEADER)
        assert (await node.call("Publish", request, 1.0))[0] is Status.DEADLINE_EXCEEDED

    run(main())


@pytest.mark.parametrize("brokers", [1, 3])
def test_streams_of_one_load_balance_group_answer_for_each_other(brokers: int) -> None:
    async def main() -> None:
        members: list[Any] = [await one_node()] if brokers == 1 else list((await three(MemoryNats())).values())
        first = members[0]
        await create(first, "left", "shared", group="workers")
        await create(first, "right", "shared", group="workers")
        await create(first, "other", "shared", group="auditors")
        await create(first, "plain", "shared")
        await until(lambda: all(member.broker.cluster.metadata.stream("plain") for member in members))
        for member in members:
            answers = await publish_async(member, [api.PublishRequest(stream="left", value=b"v") for _ in range(10)])
            named = [answer.ack.stream for answer in answers]
            assert len(named) == 10
            assert set(named) == {"left", "right"}
            for _ in range(4):
                assert (await member.publish("right", b"v")).stream in ("left", "right")
                assert (await member.publish("other", b"v")).stream == "other"
                assert (await member.publish("plain", b"v")).stream == "plain"

    run(main())


def test_a_publish_to_a_subject_and_an_inbox_on_nats_get_all_acks() -> None:
    async def main() -> None:
        node = await one_node()
        await create(node, "archive", ">")
        await create(node, "orders", "orders")
        acked: list[str] = []

        def on_batch(batch: bytes, count: int) -> None:
            for item in messages(batch):
                payload = decode(item.payload, MsgType.ACK)
                assert payload is not None
                acked.append(api.Ack.FromString(payload).stream)

        client = node.nats.connect("client")
        client.subscribe(b"inbox.mine", on_batch)
        message = api.Message(value=b"v", ackInbox="inbox.mine", stream="orders")
        client.send(pub(b"orders", encode(MsgType.PUBLISH, message.SerializeToString())))
        await until(lambda: sorted(acked) == ["archive", "orders"])
        acked.clear()
        request = api.PublishRequest(stream="orders", value=b"v", ackInbox="inbox.mine", ackPolicy=api.LEADER)
        status, _, (answer,) = await node.call("Publish", request)
        assert (status, api.PublishResponse.FromString(answer).ack.stream) == (Status.OK, "orders")
        await until(lambda: "orders" in acked and "archive" in acked)
        stop_storing(node, "orders")
        to_subject = api.PublishToSubjectRequest(subject="orders", value=b"v")
        status, _, (answer,) = await node.call("PublishToSubject", to_subject)
        assert status is Status.OK
        assert api.PublishToSubjectResponse.FromString(answer).ack.stream == "archive"

    run(main())


def test_only_errors_of_the_stream_that_was_asked_fail_a_publish() -> None:
    async def main() -> None:
        node = await one_node()
        await create(node, "strict", "shared", optimisticConcurrencyControl=api.NullableBool(value=True))
        await create(node, "orders", "shared")
        for number in range(3):  # from the second on it is not what the strict one expects
            assert (await node.publish("orders", b"v")).offset == number
        requests = [api.PublishRequest(stream="orders", value=b"v", correlationId=str(n)) for n in range(3)]
        answers = await publish_async(node, requests)
        assert [(answer.ack.stream, answer.HasField("asyncError")) for answer in answers] == 3 * [("orders", False)]
        request = api.PublishRequest(stream="strict", value=b"v", expectedOffset=77, ackPolicy=api.LEADER)
        status, text, _ = await node.call("Publish", request)
        assert (status, text) == (Status.UNKNOWN, "incorrect expected offset")
        (answer,) = await publish_async(node, [request])
        assert answer.asyncError.code == api.PublishAsyncError.Code.INCORRECT_OFFSET

    run(main())


def test_a_stream_deleted_and_made_anew_under_way_still_answers() -> None:
    """The message went out by the old stream's route; the new one, without its group, stores it."""

    async def main() -> None:
        node = await one_node()
        await create(node, "archive", ">")
        await create(node, "orders", "orders", group="workers")
        bus = node.buses[2]
        bus.pause_reading(True)
        call = MemoryCall(30.0)
        serving = on_publish_async(node, call)
        held: list[bytes] = []
        send, bus.send = bus.send, held.append  # type: ignore[method-assign,assignment]
        call.request(api.PublishRequest(stream="orders", value=b"v", correlationId="c").SerializeToString())
        await until(lambda: held)
        bus.send = send  # type: ignore[method-assign]
        bus.pause_reading(False)
        assert (await node.call("DeleteStream", api.DeleteStreamRequest(name="orders")))[0] is Status.OK
        await create(node, "orders", "orders")
        bus.send(held[0])
        await until(lambda: call.responses)
        call.half_close()
        assert await serving == (Status.OK, "")
        (answer,) = [api.PublishResponse.FromString(item) for item in split(bytes(call.responses))]
        assert (answer.ack.stream, answer.correlationId) == ("orders", "c")

    run(main())
