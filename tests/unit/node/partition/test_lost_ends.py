"""A log that was the only replica and lost its last records: a replica that is added has everything without them."""

import asyncio

from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.testing.records import record_starts
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import another, answer, create, partitions_of, publish
from tests.harness.members import three, until
from tests.harness.segments import last_segment
from tests.harness.stops import stop

COUNT = 10


def test_its_broker_can_be_removed_without_another_message() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 1, 1)
        for number in range(COUNT):
            await publish(members["a"], b"%d" % number)
        victim = members[partitions_of(members["a"])[0].leader]
        await asyncio.sleep(1)
        await stop(victim)
        path = last_segment(victim.disk)
        victim.disk.shorten(path, record_starts(victim.disk.content(path))[-2])
        await victim.start()
        entry = another(members, victim.name)
        replica = victim.broker.replicas.find("s", 0)
        assert replica is not None
        assert replica.log.end == COUNT
        assert (await answer(entry, "DrainBroker", admin.DrainBrokerRequest(broker=victim.name))).done
        response = await answer(entry, "RemoveBroker", admin.RemoveBrokerRequest(broker=victim.name), 30.0)
        assert response.done
        assert not response.lost
        (item,) = partitions_of(entry)
        assert item.leader != victim.name
        assert await members[item.leader].read("s") == [b"%d" % number for number in range(COUNT - 2)]
        await until(lambda: members[item.leader].broker.replicas.find("s", 0) is not None)
        request = api.PublishRequest(stream="s", value=b"next", ackPolicy=api.ALL)
        status, text, answers = await members[item.leader].call("Publish", request)
        assert api.PublishResponse.FromString(answers[0]).ack.offset == COUNT, (status, text)

    run(main())
