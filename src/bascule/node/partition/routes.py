"""Where publishes go: the table the publish kernel reads, one entry per partition of the cluster. And whose acks
answer them.

`(subject, flags, suffix)`: no flag means "publish straight away". Every other flag sends the request back to Python as
an exception, where it gets its exact answer. The suffix is put behind the ack inbox of the call and names the stream
that was asked: other streams may listen on its subject, and store, and ack what is published there, but a publish is
answered by the stream it named. Or by one of the same load-balance group: NATS gives a message to one member of it, so
that stream stored the message in the other's place. A stream is known by its creation index here, and an ack by the
name of its stream: if the stream was deleted and made anew meanwhile, the new one may have taken the message.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from bascule.core.metadata.streams import Partition, Stream
from bascule.limits import CACHED_ROUTES
from bascule.wire.subjects import partition_subject

NEEDS_ACK_POLICY = 1
"""Optimistic concurrency: ackPolicy NONE is refused; the kernel tells those apart itself."""
READONLY = 2
PAUSED = 4
REFUSES_WRITES = 8

SUFFIX_MARK = b"-"
"""Between the token of a call, which has letters and digits, and the stream that was asked."""

Route = tuple[bytes, int, bytes]
Table = dict[bytes, list[Route | None]]


class _Asked(NamedTuple):
    stream: bytes
    group: bytes


class Routes:
    def __init__(self) -> None:
        self.table: Table = {}
        self._asked: dict[bytes, _Asked] = {}
        """By what follows the mark in a suffix."""
        self._groups: dict[bytes, bytes] = {}
        """Load-balance groups of streams by name; of those that have one."""
        self._dropped: deque[bytes] = deque()

    def set_stream(self, stream: Stream, optimistic_concurrency: bool) -> None:
        name, group = stream.name.encode(), stream.group.encode()
        self._asked[_number(stream)] = _Asked(name, group)
        if group:
            self._groups[name] = group
        else:
            self._groups.pop(name, None)
        self.table[name] = [_route(stream, item, optimistic_concurrency) for item in stream]

    def set_partitions(self, stream: Stream, partitions: Sequence[int], optimistic_concurrency: bool) -> None:
        """Those that changed; of a stream not known here, all."""
        routes = self.table.get(stream.name.encode(), [])
        if len(routes) != len(stream.partitions) or len(partitions) == len(routes):
            self.set_stream(stream, optimistic_concurrency)
            return
        for number in partitions:
            routes[number] = _route(stream, stream.partitions[number], optimistic_concurrency)

    def drop_stream(self, stream: Stream) -> None:
        """What was published to it may still be acked: whom it asked is kept for a while."""
        name, number = stream.name.encode(), _number(stream)
        routes = self.table.get(name)
        if routes and routes[0] and routes[0][2] == SUFFIX_MARK + number:  # and not those of its successor
            del self.table[name]
            self._groups.pop(name, None)
            self._dropped.append(number)
        while len(self._dropped) > CACHED_ROUTES:
            self._asked.pop(self._dropped.popleft(), None)

    def set_refuses_writes(self, stream: str, partition: int, refuses: bool) -> None:
        routes = self.table.get(stream.encode())
        route = routes[partition] if routes else None
        if routes and route:
            flags = route[1] | REFUSES_WRITES if refuses else route[1] & ~REFUSES_WRITES
            routes[partition] = (route[0], flags, route[2])

    def answers(self, stream: bytes, suffix: bytes) -> bool:
        """Whether an ack, or an error, of this stream answers a publish whose inbox has this suffix. A publish to a
        subject has none, and is answered by every stream that listens there."""
        if not suffix:
            return True
        asked = self._asked.get(suffix.removeprefix(SUFFIX_MARK))
        if asked is None:
            return False
        return stream == asked.stream or (bool(asked.group) and self._groups.get(stream) == asked.group)


def _number(stream: Stream) -> bytes:
    return b"%d" % stream.creation_index


def _route(stream: Stream, partition: Partition, optimistic_concurrency: bool) -> Route:
    subject = partition_subject(stream.subject, partition.id).encode()
    return subject, _flags(partition, optimistic_concurrency), SUFFIX_MARK + _number(stream)


def _flags(partition: Partition, optimistic_concurrency: bool) -> int:
    return (
        (NEEDS_ACK_POLICY if optimistic_concurrency else 0)
        | (READONLY if partition.readonly else 0)
        | (PAUSED if partition.paused else 0)
    )
