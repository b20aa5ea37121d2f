"""A publish that does not get to NATS is stored nowhere: it is refused, and counted, as such."""

from typing import Any

import pytest

from bascule.errors import NotSent, Status
from bascule.node.partition.sender import MessageSender
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node, split

TOO_LARGE = "failed to publish to NATS: nats: maximum payload exceeded"
WITH_ACK: dict[str, Any] = {"ackPolicy": api.ALL}
WITHOUT_ACK: dict[str, Any] = {"ackPolicy": api.NONE}
TO_AN_INBOX: dict[str, Any] = {"ackPolicy": api.ALL, "ackInbox": "mine"}


async def one() -> Node:
    node = await Node(MemoryDisk(), MemoryNats()).start()
    await node.create("s")
    return node


def refused(node: Node) -> dict[str, int]:
    counted = {each.name: each.values for each in node.broker.environment.metrics.read()}
    return {reason: int(count) for reason, count in counted["bascule_refused_messages_total"].items()}


@pytest.mark.parametrize("fields", [WITH_ACK, WITHOUT_ACK, TO_AN_INBOX], ids=["ack", "no-ack", "inbox"])
def test_a_publish_that_nats_would_not_take(fields: dict[str, Any]) -> None:
    async def main() -> None:
        node = await one()
        value = bytes(node.broker.environment.ports.publishes.max_payload)
        for method, request in (
            ("Publish", api.PublishRequest(stream="s", value=value, **fields)),
            ("PublishToSubject", api.PublishToSubjectRequest(subject="s", value=value, **fields)),
        ):
            status, text, _ = await node.call(method, request)
            assert (status, text) == (Status.UNKNOWN, TOO_LARGE)
        assert refused(node) == {"not_sent": 2}
        assert await node.read("s") == []

    run(main())


@pytest.mark.parametrize("fields", [WITH_ACK, WITHOUT_ACK, TO_AN_INBOX], ids=["ack", "no-ack", "inbox"])
def test_a_publish_without_nats(fields: dict[str, Any]) -> None:
    async def main() -> None:
        node = await one()
        node.nats.disconnect()
        status, text, _ = await node.call("Publish", api.PublishRequest(stream="s", value=b"x", **fields))
        assert status is Status.UNKNOWN
        assert text.startswith("failed to publish to NATS: ")
        assert refused(node) == {"not_sent": 1}

    run(main())


def test_messages_of_a_publish_async() -> None:
    async def main() -> None:
        node = await one()
        call = MemoryCall()
        for size in (1, node.broker.environment.ports.publishes.max_payload):
            request = api.PublishRequest(stream="s", value=bytes(size), correlationId=str(size), ackPolicy=api.ALL)
            call.request(request.SerializeToString())
        call.half_close()
        await call.run(node.handler("PublishAsync"))
        answers = [api.PublishResponse.FromString(item) for item in split(bytes(call.responses))]
        errors = [answer.asyncError for answer in answers if answer.HasField("asyncError")]
        assert [(error.code, error.message) for error in errors] == [(api.PublishAsyncError.INTERNAL, TOO_LARGE)]
        assert refused(node) == {"not_sent": 1}
        assert len(await node.read("s")) == 1

    run(main())


def test_the_broker_knows_of_its_own_messages_that_they_were_not_sent() -> None:
    async def main() -> None:
        node = await one()
        broker = node.broker
        sender = MessageSender(broker.environment, broker.manager.refusal, broker.client.resume_stream)
        node.nats.disconnect()
        with pytest.raises(NotSent):
            await sender.publish(api.PublishRequest(stream="s", value=b"x", ackPolicy=api.ALL), 1.0)

    run(main())
