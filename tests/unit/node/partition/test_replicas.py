"""The table of the replicas on a broker: which is found, and whether a stream is led."""

from typing import Any

from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.members import three, until

CREATE = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)


def test_a_broker_with_changes_before_it_does_not_say_that_it_leads() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", CREATE)
        metadata = members["a"].broker.cluster.metadata
        stream = metadata.streams["s"]
        replicas = members[stream.partitions[0].leader].broker.replicas
        await until(lambda: replicas.leads_all_it_should(stream.creation_index))
        replicas.behind += 1
        assert not replicas.leads_all_it_should(stream.creation_index), "the change may take the lead away"
        replicas.behind -= 1
        others = [members[name].broker.replicas for name in members if name != stream.partitions[0].leader]
        assert not any(each.leads_all_it_should(stream.creation_index) for each in others)
        assert not replicas.leads_all_it_should(stream.creation_index + 1)

    run(main())


def test_a_replica_is_found_by_the_stream_that_has_the_name_now() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", CREATE)
        replicas = members["a"].broker.replicas
        await until(lambda: replicas.find("s", 0) is not None)
        old: Any = replicas.find("s", 0)
        await members["a"].call("DeleteStream", api.DeleteStreamRequest(name="s"))
        await until(lambda: old.key not in replicas)
        replicas.add(old)  # as while its files are being removed
        assert replicas.find("s", 0) is None
        await members["a"].call("CreateStream", CREATE)
        await until(lambda: replicas.find("s", 0) is not None)
        assert replicas.find("s", 0) is not old
        replicas.pop(old.key)

    run(main())
