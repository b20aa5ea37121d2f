"""One broker in memory whose acks are watched."""

from typing import Any

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node


async def create(member: Any, name: str, subject: str, **fields: Any) -> None:
    request = api.CreateStreamRequest(name=name, subject=subject, **fields)
    assert (await member.call("CreateStream", request))[0] is Status.OK


async def one_node() -> Node:
    return await Node(MemoryDisk(), MemoryNats()).start()
