"""What the controller may be requested to do is declared, command by command: nothing falls through to another part."""

import asyncio
from typing import get_args

import pytest

from bascule.core.metadata.codec import asking
from bascule.core.metadata.commands import LAYOUTS, ChangeLeader, Command, InitProducer
from bascule.errors import InvalidArgument
from bascule.limits import MAX_PRODUCER_NAME_BYTES
from bascule.node.controller.executor import OPERATIONS, Requester
from bascule.node.controller.proposals import Proposals
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import internal_pb2 as pb
from tests.harness.broker import Node

CARRIED_OUT = [op for op, handling in OPERATIONS.items() if handling.by is not Requester.NOBODY]


def test_every_command_is_carried_out_or_declared_as_never_requested() -> None:
    commands = [LAYOUTS[command].op for command in get_args(Command)]
    no_commands = [pb.BARRIER, pb.REPORT_CONSUMER_GROUP_COORDINATOR]
    assert sorted([*commands, *no_commands]) == sorted(OPERATIONS)


@pytest.mark.parametrize("op", [op for op in pb.Op.values() if op not in CARRIED_OUT])
def test_a_request_for_anything_else_is_refused(op: pb.Op) -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        since = node.broker.cluster.metadata.index
        request = pb.PropagatedRequest(op=op, operation=pb.Operation(id="it", since=since))
        with pytest.raises(InvalidArgument, match=f"operation {op} is not known to this broker"):
            await node.broker.controller.executor.carry_out(request)
        assert node.broker.cluster.metadata.index == since

    run(main())


@pytest.mark.parametrize(("op", "proposed"), [(pb.CHANGE_LEADER, 1), (pb.BARRIER, 2)])
def test_an_equal_change_that_is_under_way_is_not_proposed_again(op: pb.Op, proposed: int) -> None:
    """As a leader asks once more when no answer comes in time: with another id. A barrier is about its own moment."""

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        partition = node.broker.cluster.metadata.streams["s"].partitions[0]
        change = asking(ChangeLeader("s", 0, partition.leader, partition.leader_epoch))
        barrier = pb.PropagatedRequest(op=pb.BARRIER)
        barrier.brokerOp.broker = "me"
        request = change if op == pb.CHANGE_LEADER else barrier
        other = pb.PropagatedRequest()
        other.CopyFrom(request)
        request.operation.id, other.operation.id = "first", "second"
        executor = node.broker.controller.executor
        both = [asyncio.ensure_future(executor.carry_out(each)) for each in (request, other)]
        await asyncio.sleep(0)
        assert len(executor._under_way) == proposed
        await asyncio.gather(*both, return_exceptions=True)

    run(main())


def test_an_operation_that_was_refused_is_not_looked_at_anew_when_it_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller did not wait for as long as the refusal took. If many ask again, each refusal takes longer still."""
    proposed = []
    commit = Proposals.commit

    async def counted(proposals: Proposals, command: Command) -> int:
        proposed.append(command)
        return await commit(proposals, command)

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        monkeypatch.setattr(Proposals, "commit", counted)
        request = asking(InitProducer("x" * (MAX_PRODUCER_NAME_BYTES + 1)))
        request.operation.id, request.operation.since = "it", node.broker.cluster.metadata.index
        for _ in range(3):
            with pytest.raises(InvalidArgument, match="the name of a producer has at most"):
                await node.broker.controller.executor.carry_out(request)
        assert len(proposed) == 1
        request.operation.id = "another"
        with pytest.raises(InvalidArgument, match="the name of a producer has at most"):
            await node.broker.controller.executor.carry_out(request)
        assert len(proposed) == 2

    run(main())


@pytest.mark.parametrize(("least", "warned"), [(1, False), (2, True)])
def test_a_stream_that_can_never_commit_is_created_with_a_warning(
    least: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As the Go server creates it. It commits when its min ISR is set to the replicas that it has."""

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=1)
        request.minIsr.value = least
        await node.call("CreateStream", request)
        assert node.broker.cluster.metadata.streams["s"].config.min_isr == least
        assert ("`bascule stream alter s min.isr=1`" in caplog.text) is warned

    run(main())
