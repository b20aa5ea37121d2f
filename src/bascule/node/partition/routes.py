"""Where publishes go: the table that the publish kernel reads, one entry per partition of the cluster. And which
streams' acks answer them.

An entry is `(subject, flags, suffix, creation)`. Without flags the kernel publishes straight away; with a flag the
request goes to Python, which answers it (with NEEDS_ACK_POLICY alone only if it asks for no ack). So does one with the
numbers of a producer that are not about this partition of the stream with this creation index: its leader would ignore
them. The suffix is appended to the ack inbox of the call and names the stream of the publish. Other streams may listen
on its subject, store the message and ack it, but only the named stream answers the publish, or one of the same load-
balance group: NATS delivers a message to one member of the group, and that one stores it. A suffix names a stream by
its creation index, an ack names it by name: if the stream was deleted and created again meanwhile, the new one may have
stored the message.
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
"""Between the token of a call, which has letters and digits, and the creation index of the stream."""

Route = tuple[bytes, int, bytes, int]
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
        """Load-balance groups by stream name, for streams that have one."""
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
        """Update the routes of these partitions; of all partitions if the stream is new here."""
        routes = self.table.get(stream.name.encode(), [])
        if len(routes) != len(stream.partitions) or len(partitions) == len(routes):
            self.set_stream(stream, optimistic_concurrency)
            return
        for number in partitions:
            routes[number] = _route(stream, stream.partitions[number], optimistic_concurrency)

    def has(self, stream: Stream) -> bool:
        """Whether messages are routed to this stream, and not to an earlier one of its name."""
        routes, number = self.table.get(stream.name.encode(), []), _number(stream)
        return bool(routes) and all(route is not None and route[2] == SUFFIX_MARK + number for route in routes)

    def drop_stream(self, stream: Stream) -> None:
        """Remove the routes of a stream. Its publishes may still be acked, so its suffix stays valid for a while."""
        name, number = stream.name.encode(), _number(stream)
        routes = self.table.get(name)
        if routes and routes[0] and routes[0][2] == SUFFIX_MARK + number:  # and not those of a new stream of that name
            del self.table[name]
            self._groups.pop(name, None)
            self._dropped.append(number)
        while len(self._dropped) > CACHED_ROUTES:
            self._asked.pop(self._dropped.popleft(), None)

    def restrict(self, stream: Stream, partitions: Sequence[int]) -> None:
        """From the moment that the metadata says so, a publish resumes a paused partition, and none goes to a read-only
        one: sent to NATS, it would be lost. PAUSED is cleared later, when this broker has carried the change out
        (`set_partitions`)."""
        routes = self.table.get(stream.name.encode())
        if not routes or len(routes) != len(stream.partitions):
            return
        for number in partitions:
            if (route := routes[number]) and route[2] == SUFFIX_MARK + _number(stream):
                flags = route[1] & ~READONLY | _restrictions(stream.partitions[number])
                if flags != route[1]:
                    routes[number] = (route[0], flags, *route[2:])

    def set_refuses_writes(self, stream: str, partition: int, refuses: bool) -> None:
        routes = self.table.get(stream.encode())
        route = routes[partition] if routes else None
        if routes and route:
            flags = route[1] | REFUSES_WRITES if refuses else route[1] & ~REFUSES_WRITES
            routes[partition] = (route[0], flags, *route[2:])

    def answers(self, stream: bytes, suffix: bytes) -> bool:
        """Whether an ack or error of this stream answers a publish whose inbox has this suffix. A publish to a subject
        has no suffix, and every stream that listens there answers it."""
        if not suffix:
            return True
        asked = self._asked.get(suffix.removeprefix(SUFFIX_MARK))
        if asked is None:
            return False
        return stream == asked.stream or (bool(asked.group) and self._groups.get(stream) == asked.group)


def suffix_of(stream: Stream) -> bytes:
    """Of the ack inbox of whoever asks this stream to store messages."""
    return SUFFIX_MARK + _number(stream)


def _number(stream: Stream) -> bytes:
    return b"%d" % stream.creation_index


def _route(stream: Stream, partition: Partition, optimistic_concurrency: bool) -> Route:
    subject = partition_subject(stream.subject, partition.id).encode()
    return subject, _flags(partition, optimistic_concurrency), suffix_of(stream), stream.creation_index


def _flags(partition: Partition, optimistic_concurrency: bool) -> int:
    return (NEEDS_ACK_POLICY if optimistic_concurrency else 0) | _restrictions(partition)


def _restrictions(partition: Partition) -> int:
    return (READONLY if partition.readonly else 0) | (PAUSED if partition.paused else 0)
