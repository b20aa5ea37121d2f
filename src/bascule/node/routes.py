"""Where publishes go: the table the publish kernel reads, one entry per partition of the cluster.

`(subject, flags)`: no flag means "publish straight away". Every other flag sends the request back to Python as an
exception, where it gets its exact answer.
"""

from bascule.core.metadata.streams import Partition, Stream
from bascule.wire.subjects import partition_subject

NEEDS_ACK_POLICY = 1
"""Optimistic concurrency: ackPolicy NONE is refused; the kernel tells those apart itself."""
READONLY = 2
PAUSED = 4
REFUSES_WRITES = 8

Route = tuple[bytes, int]
Table = dict[bytes, list[Route | None]]


class Routes:
    def __init__(self) -> None:
        self.table: Table = {}

    def set_stream(self, stream: Stream, optimistic_concurrency: bool) -> None:
        self.table[stream.name.encode()] = [
            (partition_subject(stream.subject, item.id).encode(), _flags(item, optimistic_concurrency))
            for item in stream
        ]

    def drop_stream(self, stream: Stream) -> None:
        self.table.pop(stream.name.encode(), None)

    def set_refuses_writes(self, stream: str, partition: int, refuses: bool) -> None:
        routes = self.table.get(stream.encode())
        route = routes[partition] if routes else None
        if routes and route:
            flags = route[1] | REFUSES_WRITES if refuses else route[1] & ~REFUSES_WRITES
            routes[partition] = (route[0], flags)


def _flags(partition: Partition, optimistic_concurrency: bool) -> int:
    return (
        (NEEDS_ACK_POLICY if optimistic_concurrency else 0)
        | (READONLY if partition.readonly else 0)
        | (PAUSED if partition.paused else 0)
    )
