"""What idempotent producers have stored in one partition, in the order of its log.

A partition that remembers few producers forgets those that were not used for longest. Whoever is forgotten begins at 0
again, or is refused: a message that it sends again from 0 on is stored a second time then, and only then.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bascule.sim.history import Producer, Sent


class Sequences:
    def __init__(self, known: int = 0, gaps: bool = False) -> None:
        """`known`: a producer is known as long as fewer others than this were used since; 0: always. With `gaps` some
        of the records are not seen."""
        self._known = known
        self._gaps = gaps
        self._next: dict[int, tuple[int, int]] = {}
        """By id the epoch and the next sequence, in the order of their last records."""

    def take(self, producer: Producer, sequence: int) -> str:
        """The next record. What is wrong about it; "" if nothing is."""
        epoch, expected = self._next.get(producer.id, (0, 0))
        forgotten = self._may_be_forgotten(producer.id)
        self._next.pop(producer.id, None)
        self._next[producer.id] = (producer.epoch, sequence + 1)
        if forgotten and (sequence == 0 or self._gaps):
            return ""
        if producer.epoch < epoch:
            return f"{producer} is stored here, after a record of its epoch {epoch}"
        if producer.epoch > epoch:
            expected = 0
        if sequence < expected or (sequence > expected and not self._gaps):
            return f"sequence {sequence} of {producer} is stored here, where {expected} was to be"
        return ""

    def _may_be_forgotten(self, id: int) -> bool:
        if not self._known or id not in self._next:
            return False
        since = len(self._next) - 1 - list(self._next).index(id)
        return self._gaps or since >= self._known


class Forgotten(NamedTuple):
    """A producer was told that it is unknown."""

    sent: Sent
    acked: int
    """A record of it had this offset when the message was sent."""
    serial: int
    """Messages that others had sent by then are below."""

    def others(self, names: Mapping[int, Sent], messages: Iterable[Sent]) -> int:
        """How many other producers may have been used since that record, `names` being the log in the end: what a
        fail-over truncated is stored later, or never."""
        later = [each for offset, each in names.items() if offset > self.acked]
        lost = [each for each in messages if self.sent.target not in each.stored]
        own = self.sent.producer
        return len(
            {
                each.producer.id
                for each in (*later, *lost)
                if each.producer is not None and each.serial < self.serial and each.target == self.sent.target
            }
            - {own.id if own is not None else 0}
        )
