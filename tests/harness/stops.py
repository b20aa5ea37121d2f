"""Brokers in memory that stop in good order."""

from tests.harness.broker import Node
from tests.harness.members import Member


async def stop(node: Node | Member) -> None:
    await node.broker.hand_over(1.0)
    await node.broker.stop()
    await node.broker.close()
    await node.broker.environment.scheduler.close()
    assert node.process is not None
    node.process.kill()
    for bus in node.buses:
        bus.disconnect()
