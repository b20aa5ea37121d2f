"""A stream `s` that is paused, read-only, described and read, through the API of a broker in memory."""

from typing import Any

from bascule.errors import Status
from bascule.testing.call import MemoryCall
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node
from tests.harness.members import Member


async def pause(node: Node | Member, *partitions: int, resume_all: bool = False) -> None:
    request = api.PauseStreamRequest(name="s", partitions=partitions, resumeAll=resume_all)
    assert (await node.call("PauseStream", request))[0] is Status.OK


async def set_readonly(node: Node | Member, readonly: bool, *partitions: int) -> None:
    request = api.SetStreamReadonlyRequest(name="s", partitions=partitions, readonly=readonly)
    assert (await node.call("SetStreamReadonly", request))[0] is Status.OK


async def partitions_of(node: Node | Member) -> dict[int, api.PartitionMetadata]:
    _, _, responses = await node.call("FetchMetadata", api.FetchMetadataRequest(streams=["s"]))
    return dict(api.FetchMetadataResponse.FromString(b"".join(responses)).streamMetadata[0].partitions)


async def subscribe(node: Any, **fields: Any) -> tuple[Status, str, int]:
    """How it ended, and how much was sent, the handshake included."""
    call = MemoryCall(3.0)
    call.request(api.SubscribeRequest(stream="s", **fields).SerializeToString())
    assert node.process is not None
    status, text = await node.process.start(call.run(node.methods["/proto.API/Subscribe"]))
    return status, text, len(call.responses)
