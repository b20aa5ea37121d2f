"""Which member of a consumer group reads which partitions: a pure function of who subscribes to what, and of who reads
what now.

Every partition of a stream that somebody subscribes to has one reader, a subscriber of that stream. The numbers of
partitions per member are as even as the subscriptions allow: nobody could give a partition, directly or by way of
others, to a member that has at least two fewer. What need not move stays: partitions change hands only if their reader
is gone, or along such a chain, the shortest one first.

Partitions of one stream are alike, so a chain is looked for between members, not partitions.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace

Subscriptions = Mapping[str, Iterable[str]]
"""By member, the streams it subscribes to."""
Assignment = dict[str, dict[str, tuple[int, ...]]]
"""By member and stream, the partitions it reads."""


def assign(subscriptions: Subscriptions, partitions: Mapping[str, int], before: Assignment) -> Assignment:
    """`partitions` has the number of partitions of each stream; a stream that is not there has none."""
    holdings = _Holdings(subscriptions, partitions, before)
    holdings.give_unread()
    holdings.balance()
    return holdings.assignment()


class _Holdings:
    """Who reads what, while it is worked out."""

    def __init__(self, subscriptions: Subscriptions, partitions: Mapping[str, int], before: Assignment) -> None:
        self._members = sorted(subscriptions)
        self._subscribers: dict[str, list[str]] = {}
        for member in self._members:
            for stream in sorted(set(subscriptions[member])):
                if partitions.get(stream, 0) > 0:
                    self._subscribers.setdefault(stream, []).append(member)
        self._streams = sorted(self._subscribers)
        self._partitions = partitions
        self._held: dict[str, dict[str, list[int]]] = {member: {} for member in self._members}
        self._load = dict.fromkeys(self._members, 0)
        self._unread = {stream: self._keep(stream, before) for stream in self._streams}

    def _keep(self, stream: str, before: Assignment) -> list[int]:
        """Whoever reads a partition and still may goes on. The partitions that nobody reads."""
        unread = dict.fromkeys(range(self._partitions[stream]))
        for member in self._subscribers[stream]:
            held = [number for number in sorted(before.get(member, {}).get(stream, ())) if number in unread]
            for number in held:
                del unread[number]
            self._held[member][stream] = held
            self._load[member] += len(held)
        return list(unread)

    def give_unread(self) -> None:
        """Each to the subscriber with the fewest partitions; of those with the same number to the first by name."""
        for stream in self._streams:
            loads = [(self._load[member], member) for member in self._subscribers[stream]]
            heapify(loads)
            for number in self._unread[stream]:
                load, member = loads[0]
                heapreplace(loads, (load + 1, member))
                self._held[member][stream].append(number)
                self._load[member] += 1

    def balance(self) -> None:
        """Pass partitions on from the members with the most, until no chain leads to one with at least two fewer."""
        while any(
            self._relieve(member) for member in sorted(self._members, key=lambda each: (-self._load[each], each))
        ):
            pass

    def _relieve(self, loaded: str) -> bool:
        """Whether a chain was found by which this member has one partition less."""
        came_by: dict[str, tuple[str, str]] = {}
        queue = deque([loaded])
        while queue:
            giver = queue.popleft()
            for stream in self._streams:
                if not self._held[giver].get(stream):
                    continue
                for taker in self._subscribers[stream]:
                    if taker == loaded or taker in came_by:
                        continue
                    came_by[taker] = (giver, stream)
                    if self._load[taker] <= self._load[loaded] - 2:
                        self._pass_on(loaded, taker, came_by)
                        return True
                    queue.append(taker)
        return False

    def _pass_on(self, loaded: str, last: str, came_by: dict[str, tuple[str, str]]) -> None:
        taker = last
        while taker != loaded:
            giver, stream = came_by[taker]
            number = max(self._held[giver][stream])
            self._held[giver][stream].remove(number)
            self._held[taker][stream].append(number)
            taker = giver
        self._load[loaded] -= 1
        self._load[last] += 1

    def assignment(self) -> Assignment:
        return {
            member: {stream: tuple(sorted(numbers)) for stream, numbers in held.items() if numbers}
            for member, held in self._held.items()
        }
