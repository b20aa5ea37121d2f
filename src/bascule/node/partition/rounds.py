"""When the partitions of this broker had their turn last, in work that each of them gets once in its interval.

A turn counts over pauses and over leader epochs: a partition that is paused and resumed again and again, or changes its
leader, is due all the same. It is forgotten when this broker has no replica of the partition any more.
"""

from bascule.core.metadata.streams import Key
from bascule.node.partition.replicas import Replicas


class Rounds:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._at: dict[Key, int] = {}
        """The last turn of a partition, or when it was seen first."""

    def __len__(self) -> int:
        return len(self._at)

    def is_due(self, key: Key, now: int, interval_ns: int) -> bool:
        return now - self._at.setdefault(key, now) >= interval_ns

    def had_turn(self, key: Key, now: int) -> None:
        self._at[key] = now

    def forget_gone(self) -> None:
        for key in self._replicas.gone(self._at):
            del self._at[key]
