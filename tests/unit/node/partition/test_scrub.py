"""All records are read once after a start and daily: damage is found where nobody reads, with one replica too."""

import asyncio

import pytest

from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node


def test_damage_in_a_partition_with_one_replica_is_found_by_the_scrub(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk, MemoryNats()).start()
        await node.create("s")
        for number in range(3):
            await node.call("Publish", api.PublishRequest(stream="s", value=b"value %d" % number, ackPolicy=api.ALL))
        path = next(path for path in disk.paths() if path.startswith("streams/s@") and path.endswith(".log"))
        await asyncio.sleep(1.0)
        assert "damaged" not in caplog.text
        disk.flip(path, len(disk.content(path)) // 2, 3)
        await node.broker.manager.scrub()
        assert f"{path}: " in caplog.text
        assert "are damaged and left out" in caplog.text

    run(main())
