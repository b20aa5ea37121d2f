"""Calls of `bascule.v1.Log/Write` to brokers in memory."""

import asyncio
from typing import Any

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.wire.grpc import frame
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as pb
from tests.harness.broker import Node, split
from tests.harness.members import Member

WRITE = "/bascule.v1.Log/Write"


def batch(*values: bytes, count: int | None = None, messages: bytes | None = None, atomic: bool = False) -> bytes:
    framed = b"".join(frame(api.Message(value=value).SerializeToString()) for value in values)
    body = pb.WriteBatch(
        count=len(values) if count is None else count,
        messages=framed if messages is None else messages,
        atomic=atomic,
    )
    return pb.WriteRequest(batch=body).SerializeToString()


class Writer:
    """A call of Write."""

    def __init__(self, node: Node | Member, timeout_s: float | None = 5.0, **fields: Any) -> None:
        self.call = MemoryCall(timeout_s)
        self.call.request(
            pb.WriteRequest(open=pb.WriteOpen(stream="s") if not fields else _open(fields)).SerializeToString()
        )
        handler: Any = node.broker.methods[WRITE]
        self.running = asyncio.create_task(self.call.run(handler))

    def send(self, *values: bytes, **fields: Any) -> None:
        self.call.request(batch(*values, **fields))

    @property
    def responses(self) -> list[pb.WriteResponse]:
        return [pb.WriteResponse.FromString(each) for each in split(bytes(self.call.responses))]

    @property
    def acked(self) -> list[tuple[int, int, int]]:
        return [(each.batch, each.firstOffset, each.lastOffset) for each in self.responses if each.batch]

    async def ends(self) -> tuple[Status, str]:
        self.call.half_close()
        return await self.running


def _open(fields: dict[str, Any]) -> pb.WriteOpen:
    return pb.WriteOpen(**{"stream": "s", **fields})


async def with_stream(**settings: Any) -> Node:
    node = await Node(MemoryDisk(), MemoryNats(), **settings).start()
    await node.create("s")
    return node


async def stored(node: Node) -> bytes:
    replica = node.broker.replicas.find("s", 0)
    records = await replica.log.reader(0).read(1 << 20) if replica is not None else None
    assert records is not None
    return records
