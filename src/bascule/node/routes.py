"""Where publishes go: the table the publish kernel reads, one entry per partition of the cluster.

`(subject, flags)`: no flag means "publish straight away". Every other flag sends the request back to Python as an
exception, where it gets its exact answer.
"""

from collections.abc import Sequence

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
        self.table[stream.name.encode()] = [_route(stream, item, optimistic_concurrency) for item in stream]

    def set_partitions(self, stream: Stream, partitions: Sequence[int], optimistic_concurrency: bool) -> None:
        """Those that changed; of a stream not known here, all."""
        routes = self.table.get(stream.name.encode(), [])
        if len(routes) != len(stream.partitions) or len(partitions) == len(routes):
            self.set_stream(stream, optimistic_concurrency)
            return
        for number in partitions:
            routes[number] = _route(stream, stream.partitions[number], optimistic_concurrency)

    def drop_stream(self, stream: Stream) -> None:
        self.table.pop(stream.name.encode(), None)

    def set_refuses_writes(self, stream: str, partition: int, refuses: bool) -> None:
        routes = self.table.get(stream.encode())
        route = routes[partition] if routes else None
        if routes and route:
            flags = route[1] | REFUSES_WRITES if refuses else route[1] & ~REFUSES_WRITES
            routes[partition] = (route[0], flags)


def _route(stream: Stream, partition: Partition, optimistic_concurrency: bool) -> Route:
    return partition_subject(stream.subject, partition.id).encode(), _flags(partition, optimistic_concurrency)


def _flags(partition: Partition, optimistic_concurrency: bool) -> int:
    return (
        (NEEDS_ACK_POLICY if optimistic_concurrency else 0)
        | (READONLY if partition.readonly else 0)
        | (PAUSED if partition.paused else 0)
    )
