"""What the controller may be requested to do is declared, command by command: nothing falls through to another part."""

import asyncio
from typing import get_args

import pytest

from bascule.core.metadata.codec import asking
from bascule.core.metadata.commands import LAYOUTS, ChangeLeader, Command
from bascule.errors import InvalidArgument
from bascule.node.controller.executor import OPERATIONS, Asker
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import internal_pb2 as pb
from tests.harness.broker import Node

CARRIED_OUT = [op for op, handling in OPERATIONS.items() if handling.by is not Asker.NOBODY]


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
