"""Where a message goes is remembered, and looked up again as soon as anything that decided it has changed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.values import Address, Broker, Metadata, Partition, Stream
from bascule.errors import ClientClosed
from bascule.net.channel import Channel


def open_channel() -> Any:
    connection = SimpleNamespace(silent=False, too_many_pings=False)
    return SimpleNamespace(closed=False, connection=connection)


def led_by(broker: str) -> Metadata:
    brokers = {name: Broker(name, name, 9292, 0, 0) for name in "ab"}
    partition = Partition(0, broker, ("a", "b"), ("a", "b"), -1, -1, paused=False, readonly=False)
    return Metadata(brokers, {"s": Stream("s", "s", {0: partition}, 0)})


class Known:
    """A cluster of two brokers, both connected."""

    def __init__(self) -> None:
        self.cluster = Cluster([Address("a", 9292)], None, lambda error, seconds: None)
        self.channels = {name: open_channel() for name in "ab"}
        for name, channel in self.channels.items():
            self.cluster.connections._requests[Address(name, 9292)] = cast(Channel, channel)
        self.cluster._note(led_by("a"), ["s"])

    def leader(self, seconds: float = 0.0) -> str | None:
        now = asyncio.get_running_loop().time() + seconds
        found = self.cluster.known_leader("s", 0, now)
        return next((name for name, channel in self.channels.items() if channel is found), None)


def test_the_leader_is_known_until_something_changes() -> None:
    async def main() -> None:
        known = Known()
        assert [known.leader(), known.leader()] == ["a", "a"]
        assert known.leader(limits.CLIENT_METADATA_AGE_S + 1) is None, "it is old"
        known.cluster._note(led_by("b"), ["s"])
        assert [known.leader(), known.leader()] == ["b", "b"]
        known.channels["b"].closed = True
        assert known.leader() is None
        known.cluster._note(led_by("a"), ["s"])
        assert known.leader() == "a"
        known.cluster.forget("s")
        assert known.leader() is None
        known.cluster._note(led_by("a"), ["s"])
        assert known.leader() == "a"
        known.cluster.suspect("s")
        known.cluster._note(led_by("a"), ["s"])
        assert known.leader() is None, "until a leader has answered"
        known.cluster.connections.closed = True
        with pytest.raises(ClientClosed):
            known.leader()

    asyncio.run(main())


def test_a_client_is_refused_in_another_loop_however_well_it_knows_the_leader() -> None:
    known: list[Known] = []

    async def here() -> None:
        known.append(Known())
        assert known[0].leader() == "a"

    async def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            known[0].leader()

    asyncio.run(here())
    asyncio.run(elsewhere())
