"""Idempotent producers in the metadata: the ids and epochs that were given.

An epoch is the index of the command by which its producer began: no two are the same, and later ones are higher. It is
the id, too, of a producer without a name, about which nothing needs to be stored. A name has the id of its first
beginning and the epoch of its last: whoever begins under it fences those that began before.

Bounded: a name that was not used for `PRODUCER_EXPIRY_NS` is forgotten when room is needed for another one. What is too
old depends on the times in the commands alone. If it comes back it has another id.
"""

from collections.abc import Iterable
from typing import NamedTuple

from bascule.core.metadata.commands import InitProducer
from bascule.errors import InvalidArgument, ResourceExhausted
from bascule.limits import MAX_NAMED_PRODUCERS, MAX_PRODUCER_NAME_BYTES, PRODUCER_EXPIRY_NS
from bascule.wire.pb import internal_pb2 as pb


class NamedProducer(NamedTuple):
    id: int
    epoch: int
    used: int
    """When it began last, by the controller's clock."""


class Producers:
    most = MAX_NAMED_PRODUCERS

    def __init__(self) -> None:
        self.named: dict[str, NamedProducer] = {}
        self._oldest = ("", 0)
        """A name, and when it was used: no other was used earlier, as long as this is still so. To look through all
        names for each one that is refused would take a millisecond."""

    def check(self, command: InitProducer) -> None:
        if len(command.name.encode()) > MAX_PRODUCER_NAME_BYTES:
            raise InvalidArgument(f"the name of a producer has at most {MAX_PRODUCER_NAME_BYTES} bytes")
        if not command.name or command.name in self.named or len(self.named) < self.most:
            return
        if command.at - self._oldest_use() <= PRODUCER_EXPIRY_NS:
            raise ResourceExhausted(
                f"a cluster has at most {self.most} producers with a name, and all were used in the last "
                f"{PRODUCER_EXPIRY_NS // 86_400_000_000_000} days; use one of these names, or none"
            )

    def begin(self, index: int, command: InitProducer) -> None:
        if not command.name:
            return
        known = self.named.get(command.name)
        if known is None and len(self.named) >= self.most:
            for name in self._expired(command.at):
                del self.named[name]
        used = command.at if known is None else max(command.at, known.used)  # the clock may have stepped back
        self.named[command.name] = NamedProducer(index if known is None else known.id, index, used)
        if used < self._oldest[1]:
            self._oldest = (command.name, used)

    def _oldest_use(self) -> int:
        """Of any name."""
        name, used = self._oldest
        known = self.named.get(name)
        if known is None or known.used != used:
            name, known = min(self.named.items(), key=lambda item: item[1].used)
            self._oldest = (name, known.used)
        return known.used

    def _expired(self, now: int) -> list[str]:
        return [name for name, each in self.named.items() if now - each.used > PRODUCER_EXPIRY_NS]

    def to_wire(self) -> list[pb.NamedProducer]:
        return [
            pb.NamedProducer(name=name, id=each.id, epoch=each.epoch, used=each.used)
            for name, each in sorted(self.named.items())
        ]

    @classmethod
    def from_wire(cls, messages: Iterable[pb.NamedProducer]) -> "Producers":
        producers = cls()
        producers.named = {each.name: NamedProducer(each.id, each.epoch, each.used) for each in messages}
        return producers
