"""Which changes were made already, so that a request that is sent twice is applied once.

A controller may die between making a change and answering. The client then asks the next controller, with the same
operation: its id, and the index that the client had seen when it began. A change that was made under an id is answered
from here. Another one is made only if that stream was not created or deleted since that index: a late copy of a request
must neither bring back a stream that was deleted since, nor delete one that was created again. A client that still
waits gets an error, looks again and sends a new request.

Bounded: the oldest ids and deletions are forgotten. A request that began before the newest forgotten one is refused,
because it may have been applied. All of it follows from the commands alone and is part of the snapshot.
"""

from dataclasses import dataclass

from bascule.errors import Internal, Outdated
from bascule.limits import REMEMBERED_OPERATIONS
from bascule.wire.pb import internal_pb2 as pb


@dataclass(frozen=True, slots=True)
class Operation:
    """A unique id for each change that a client asked for; empty for changes by the cluster itself."""

    id: str = ""
    since: int = 0
    """The last command the client had seen when it asked."""

    @classmethod
    def from_wire(cls, message: pb.Operation) -> "Operation":
        return cls(message.id, message.since)

    def to_wire(self) -> pb.Operation:
        return pb.Operation(id=self.id, since=self.since)


UNASKED = Operation()


class Operations:
    remembered = REMEMBERED_OPERATIONS

    def __init__(self) -> None:
        self._made: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        self._forgotten = 0

    def made(self, operation: Operation) -> int:
        """The index of the command that made it; 0 if none did."""
        return self._made.get(operation.id, 0) if operation.id else 0

    def check_remembered(self, operation: Operation) -> None:
        if operation.id and operation.since < self._forgotten:
            raise Internal(
                "whether the change was made is not known any more: too many others came since it was asked for; "
                "look, and ask again"
            )

    def check_absent(self, operation: Operation, name: str) -> None:
        """Raise Outdated unless the client had seen the last deletion of this stream."""
        if operation.id and self._deleted.get(name, 0) > operation.since:
            raise Outdated("the stream was deleted meanwhile; ask again")

    def check_present(self, operation: Operation, creation_index: int) -> None:
        """Raise Outdated unless the client had seen this stream, and not an earlier one of its name."""
        if operation.id and creation_index > operation.since:
            raise Outdated("the stream was created meanwhile; ask again")

    def record(self, operation: Operation, index: int) -> None:
        if operation.id:
            self._made[operation.id] = index
            self._forget(self._made)

    def record_deleted(self, name: str, index: int) -> None:
        self._deleted.pop(name, None)  # the order is that of the indexes
        self._deleted[name] = index
        self._forget(self._deleted)

    def _forget(self, table: dict[str, int]) -> None:
        while len(table) > self.remembered:
            self._forgotten = max(self._forgotten, table.pop(next(iter(table))))

    def to_wire(self) -> pb.Operations:
        return pb.Operations(
            made=[pb.IndexOf(name=name, index=index) for name, index in self._made.items()],
            deleted=[pb.IndexOf(name=name, index=index) for name, index in self._deleted.items()],
            forgotten=self._forgotten,
        )

    @classmethod
    def from_wire(cls, message: pb.Operations) -> "Operations":
        operations = cls()
        operations._made = {item.name: item.index for item in message.made}
        operations._deleted = {item.name: item.index for item in message.deleted}
        operations._forgotten = message.forgotten
        return operations
