"""A client uses a stream at the broker that has created it, the moment it is answered; and not after it was deleted
there."""

import asyncio
from typing import Any

import pytest

from bascule.errors import Status
from bascule.node.membership.metadata import MetadataStore
from bascule.node.partition.manager import ReplicaManager
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.members import Member, three

LATE_S = 0.5
CREATE = api.CreateStreamRequest(name="s", subject="s", replicationFactor=1)


def other_than_controller(members: dict[str, Member]) -> Member:
    leader = members["a"].broker.cluster.raft.raft.leader
    return next(member for member in members.values() if member.name != leader)


def test_it_is_published_to_where_it_was_created_though_roles_are_taken_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        asked = other_than_controller(members)
        real = ReplicaManager.take_roles

        async def late(manager: ReplicaManager, *args: Any) -> None:
            if manager is asked.broker.manager:
                await asyncio.sleep(LATE_S)
            await real(manager, *args)

        monkeypatch.setattr(ReplicaManager, "take_roles", late)
        for number in range(3):
            assert (await asked.call("CreateStream", CREATE))[0] is Status.OK
            assert (await asked.publish("s", b"%d" % number)).offset == 0
            assert (await asked.call("DeleteStream", api.DeleteStreamRequest(name="s")))[0] is Status.OK

    run(main())


def test_a_broker_that_learns_late_answers_when_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        asked = other_than_controller(members)
        store: MetadataStore = asked.broker.cluster.store
        real = store.apply

        async def late(*args: Any) -> Any:
            await asyncio.sleep(LATE_S)
            return await real(*args)

        monkeypatch.setattr(store, "apply", late)
        assert (await asked.call("CreateStream", CREATE))[0] is Status.OK
        assert asked.broker.cluster.metadata.stream("s") is not None
        assert (await asked.publish("s", b"x")).offset == 0
        assert (await asked.call("DeleteStream", api.DeleteStreamRequest(name="s")))[0] is Status.OK
        assert asked.broker.cluster.metadata.stream("s") is None

    run(main())
