"""What administrators decided about brokers: which drain, which are being removed, which were removed. Values only.

Membership itself is in Raft. A removed broker is stored with its incarnation: that incarnation is refused when it comes
back, while a new one of the same id may join.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bascule.limits import REMOVED_BROKERS
from bascule.wire.pb import internal_pb2 as pb


@dataclass(frozen=True, slots=True)
class Brokers:
    draining: tuple[str, ...] = ()
    removing: tuple[str, ...] = ()
    """Being removed; they drain too."""
    removed: tuple[tuple[str, str], ...] = ()
    """(id, incarnation), the newest last."""

    def with_draining(self, broker: str) -> "Brokers":
        return replace(self, draining=_with(self.draining, broker))

    def with_removing(self, broker: str) -> "Brokers":
        return replace(self, draining=_with(self.draining, broker), removing=_with(self.removing, broker))

    def without(self, broker: str) -> "Brokers":
        return replace(self, draining=_without(self.draining, broker), removing=_without(self.removing, broker))

    def with_removed(self, broker: str, incarnation: str) -> "Brokers":
        server = (broker, incarnation)
        removed = (*(each for each in self.removed if each != server), server)
        return replace(self.without(broker), removed=removed[-REMOVED_BROKERS:])

    @classmethod
    def from_wire(cls, message: pb.MetadataSnapshot) -> "Brokers":
        removed = tuple((each.id, each.incarnation) for each in message.removed)
        return cls(tuple(message.draining), tuple(message.removing), removed)

    def to_wire(self, message: pb.MetadataSnapshot) -> None:
        message.draining.extend(self.draining)
        message.removing.extend(self.removing)
        for broker, incarnation in self.removed:
            message.removed.add(id=broker, incarnation=incarnation)


def _with(brokers: Iterable[str], broker: str) -> tuple[str, ...]:
    return tuple(sorted({*brokers, broker}))


def _without(brokers: Iterable[str], broker: str) -> tuple[str, ...]:
    return tuple(each for each in brokers if each != broker)
