"""Calls that are refused, in great numbers: they leave nothing to the garbage collector, whose full collections hold up
all clients, and one connection has a bounded number of changes under way."""

import asyncio
import gc
from types import FrameType, TracebackType

import pytest
from google.protobuf.message import Message

from bascule.limits import CONNECTION_CHANGES
from bascule.node.controller.executor import Executor
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import internal_pb2 as internal
from bascule.wire.pb import log_pb2 as log
from bascule.wire.pb import producer_pb2 as producer
from tests.harness.broker import Node

REFUSED: dict[str, tuple[str, Message]] = {
    "a member that is one": (
        "JoinConsumerGroup",
        api.JoinConsumerGroupRequest(groupId="g", consumerId="c", streams=["s"]),
    ),
    "a member of no group": ("LeaveConsumerGroup", api.LeaveConsumerGroupRequest(groupId="x", consumerId="c")),
    "a long name": ("/bascule.v1.Producers/InitProducer", producer.InitProducerRequest(stream="s", name="x" * 300)),
    "a stream that is there": ("CreateStream", api.CreateStreamRequest(name="s", subject="s")),
    "a stream that is not": ("DeleteStream", api.DeleteStreamRequest(name="x")),
    "nothing to alter": ("/bascule.v1.Admin/AlterStream", admin.AlterStreamRequest(stream="s")),
    "an election": ("/bascule.v1.Admin/ElectLeader", admin.ElectLeaderRequest(stream="s", replica="x")),
    "an unknown broker": ("/bascule.v1.Admin/DrainBroker", admin.DrainBrokerRequest(broker="x")),
    "no partition": ("Publish", api.PublishRequest(stream="s", partition=7, value=b"v", ackPolicy=api.ALL)),
    "readonly": ("Publish", api.PublishRequest(stream="readonly", value=b"v", ackPolicy=api.ALL)),
    "a torn batch": (
        "/bascule.v1.Producers/PublishBatch",
        producer.PublishBatchRequest(stream="s", messages=b"torn"),
    ),
    "a range backwards": ("/bascule.v1.Log/Read", log.ReadRequest(stream="s", start=5, end=3)),
    "another creation": ("/bascule.v1.Log/Write", log.WriteRequest(open=log.WriteOpen(stream="s", creation=99))),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_call_that_is_refused_leaves_nothing_to_collect(case: str) -> None:
    method, request = REFUSED[case]

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        await node.create("readonly")
        await node.call("SetStreamReadonly", api.SetStreamReadonlyRequest(name="readonly", readonly=True))
        await node.call("JoinConsumerGroup", REFUSED["a member that is one"][1])
        await node.call(method, request)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                status, text, _ = await node.call(method, request)
                assert status, text
            await asyncio.sleep(0)
            gc.collect()
            left = [each for each in gc.garbage if isinstance(each, FrameType | TracebackType | BaseException)]
            assert left == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    run(main())


def test_a_connection_has_a_bounded_number_of_changes_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = most = 0
    carry_out = Executor.carry_out

    async def counted(executor: Executor, request: internal.PropagatedRequest) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await carry_out(executor, request)
        finally:
            under_way -= 1

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        monkeypatch.setattr(Executor, "carry_out", counted)
        calls = []
        for number in range(300):
            call = MemoryCall()
            call.peer = "flood"
            call.request(producer.InitProducerRequest(stream="s", name=str(number)).SerializeToString())
            calls.append(asyncio.ensure_future(call.run(node.handler("/bascule.v1.Producers/InitProducer"))))
        other = MemoryCall()
        other.peer = "other"
        other.request(producer.InitProducerRequest(stream="s").SerializeToString())
        await other.run(node.handler("/bascule.v1.Producers/InitProducer"))
        assert sum(each.done() for each in calls) <= 2 * CONNECTION_CHANGES, "it did not wait for all the others"
        assert {(await each)[0] for each in calls} == {0}
        assert most <= CONNECTION_CHANGES + 1

    run(main())
