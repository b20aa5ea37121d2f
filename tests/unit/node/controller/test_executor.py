"""What the controller may be requested to do is declared, command by command: nothing falls through to another part."""

from typing import get_args

import pytest

from bascule.core.metadata.commands import LAYOUTS, Command
from bascule.errors import InvalidArgument
from bascule.node.controller.administration import ADMINISTRATION
from bascule.node.controller.executor import AS_REQUESTED, ASKED_BY_CLIENTS, NEVER_REQUESTED, REPEATABLE
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import internal_pb2 as pb
from tests.harness.broker import Node

CARRIED_OUT = (pb.BARRIER, pb.REPORT_CONSUMER_GROUP_COORDINATOR, *ASKED_BY_CLIENTS, *AS_REQUESTED, *ADMINISTRATION)


def test_every_command_is_carried_out_or_declared_as_never_requested() -> None:
    commands = [LAYOUTS[command].op for command in get_args(Command)]
    assert sorted(commands) == sorted([*ASKED_BY_CLIENTS, *AS_REQUESTED, *ADMINISTRATION, *NEVER_REQUESTED])
    assert set(REPEATABLE) <= set(CARRIED_OUT)


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
