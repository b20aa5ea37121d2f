"""Requests that cannot be routed are answered one by one, in Python: whoever sends many makes nobody else wait."""

import asyncio
import random

from bascule.errors import Status
from bascule.limits import PUBLISH_SINGLY, SUBSCRIBER_BUFFER_BYTES
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node, split

FLOOD = 20_000
STREAMS = 5


def test_a_flood_of_unroutable_requests_makes_nobody_else_wait() -> None:
    """Twenty publishes, one after the other, are answered before one of five floods is over."""

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        floods = [MemoryCall(None) for _ in range(STREAMS)]
        for flood in floods:
            for number in range(FLOOD):
                flood.request(api.PublishRequest(stream="nope", correlationId=str(number)).SerializeToString())
            flood.half_close()
        running = [asyncio.ensure_future(flood.run(node.handler("PublishAsync"))) for flood in floods]
        await asyncio.sleep(0)
        for _ in range(20):
            await node.publish("s", b"v")
        assert not any(each.done() for each in running), "the floods go on meanwhile"
        for flood, each in zip(floods, running, strict=True):
            assert (await each)[0] is Status.OK
            answers = [api.PublishResponse.FromString(data) for data in split(bytes(flood.responses))]
            assert [answer.correlationId for answer in answers] == [str(number) for number in range(FLOOD)]
            assert {answer.asyncError.code for answer in answers} == {api.PublishAsyncError.NOT_FOUND}

    run(main())


def test_refusals_wait_for_a_client_that_reads_them() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        flood = MemoryCall(None)
        flood.taking = False
        name = "n" * 200
        request = api.PublishRequest(stream=name).SerializeToString()
        for _ in range(FLOOD):
            flood.request(request)
        flood.half_close()
        running = asyncio.ensure_future(flood.run(node.handler("PublishAsync")))
        await asyncio.sleep(1.0)
        assert flood.queued_bytes < SUBSCRIBER_BUFFER_BYTES + PUBLISH_SINGLY * 300
        while not running.done():
            flood.take()
            await asyncio.sleep(0)
        assert len(split(bytes(flood.responses))) == FLOOD

    run(main())


def test_requests_that_are_answered_singly_keep_their_order_among_themselves() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", partitions=2)
        call = MemoryCall(5.0)
        chance, wanted = random.Random(1), []
        for number in range(3 * PUBLISH_SINGLY):
            stream, partition = chance.choice((("s", 0), ("s", 7), ("nope", 0)))
            if (stream, partition) != ("s", 0):
                wanted.append(str(number))
            request = api.PublishRequest(
                stream=stream, partition=partition, correlationId=str(number), ackPolicy=api.ALL
            )
            call.request(request.SerializeToString())
        call.half_close()
        assert (await call.run(node.handler("PublishAsync")))[0] is Status.OK
        answers = [api.PublishResponse.FromString(data) for data in split(bytes(call.responses))]
        refused = [answer.correlationId for answer in answers if answer.HasField("asyncError")]
        assert refused == wanted
        assert len(answers) == 3 * PUBLISH_SINGLY

    run(main())
