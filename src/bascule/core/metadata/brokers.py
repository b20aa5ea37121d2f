"""What administrators decided about single brokers: who drains, who is on the way out, who was removed. Values only.

Membership itself is Raft's. A removed broker is remembered with its incarnation, so that the same life is told when it
comes back, while a new one under the old name may join.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bascule.limits import REMOVED_BROKERS
from bascule.wire.pb import internal_pb2 as pb


@dataclass(frozen=True, slots=True)
class Brokers:
    draining: tuple[str, ...] = ()
    removing: tuple[str, ...] = ()
    """On the way out; they drain too."""
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
