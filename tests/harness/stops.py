"""Brokers in memory that are stopped, and the ends of their logs."""

from bascule.testing.disk import MemoryDisk
from tests.harness.broker import Node
from tests.harness.members import Member


def last_segment(disk: MemoryDisk) -> str:
    return [path for path in disk.paths() if path.startswith("streams/") and path.endswith(".log")][-1]


async def stop(node: Node | Member) -> None:
    await node.broker.hand_over(1.0)
    await node.broker.stop()
    await node.broker.close()
    await node.broker.environment.scheduler.close()
    assert node.life is not None
    node.life.kill()
    for bus in node.buses:
        bus.disconnect()


def record_starts(data: bytes) -> list[int]:
    found, position = [], 0
    while position < len(data):
        found.append(position)
        position += 5 + int.from_bytes(data[position + 1 : position + 5], "big")
    return found
