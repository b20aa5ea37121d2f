"""A broker freezes objects as often as it grows: streams that come and go, or are paused and resumed, freeze nothing,
for what is frozen is never freed."""

import pytest

from bascule.errors import Status
from bascule.node.partition.manager import GROWN
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node


async def ok(node: Node, method: str, request: object) -> None:
    assert (await node.call(method, request))[0] is Status.OK


def create(name: str) -> api.CreateStreamRequest:
    return api.CreateStreamRequest(name=name, subject=name, partitions=GROWN)


def test_what_takes_the_place_of_others_is_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        frozen: list[int] = []
        monkeypatch.setattr(node.broker.manager, "_on_grown", lambda: frozen.append(1))
        await ok(node, "CreateStream", create("s"))
        first = len(frozen)
        assert first >= 1
        for _ in range(5):
            await ok(node, "PauseStream", api.PauseStreamRequest(name="s", resumeAll=True))
            await ok(node, "Publish", api.PublishRequest(stream="s", value=b"x"))
            await ok(node, "DeleteStream", api.DeleteStreamRequest(name="s"))
            await ok(node, "CreateStream", create("s"))
        assert len(frozen) <= first + 1, (
            "all replicas and leader roles are counted at the first count after they are there"
        )
        await ok(node, "CreateStream", create("more"))
        assert len(frozen) > first

    run(main())
