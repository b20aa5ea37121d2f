"""Which member of a consumer group reads which partitions: a pure function of who subscribes to what, and of who reads
what now.

Every partition of a stream that somebody subscribes to has one reader, a subscriber of that stream. The numbers of
partitions per member are as even as the subscriptions allow: nobody could give a partition, directly or by way of
others, to a member that has at least two fewer. What need not move stays: partitions change hands only if their reader
is gone, or along such a chain, the shortest one first.

Partitions of one stream are alike, so a chain is looked for between members, not partitions. Members are relieved in
the order of their load. A member from which no chain leads anywhere is done, and so is every member that a chain
from it reaches: none of them has two more than another one within reach, and later chains begin at members with no more
than it, so they neither pass through them nor end there.

A group may have ten thousand partitions: the work stops after each slice of it (`limits.ASSIGN_SLICE`).
"""

from collections import deque
from collections.abc import Generator, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from bascule.core.metadata.streams import finish
from bascule.limits import ASSIGN_SLICE

Subscriptions = Mapping[str, Iterable[str]]
"""By member, the streams it subscribes to."""
Assignment = dict[str, dict[str, tuple[int, ...]]]
"""By member and stream, the partitions it reads."""


def assign(subscriptions: Subscriptions, partitions: Mapping[str, int], before: Assignment) -> Assignment:
    """`partitions` has the number of partitions of each stream; a stream that is not there has none."""
    return finish(assigning(subscriptions, partitions, before))


def assigning(
    subscriptions: Subscriptions, partitions: Mapping[str, int], before: Assignment
) -> Generator[None, None, Assignment]:
    """The same in slices."""
    holdings = _Holdings(subscriptions, partitions)
    yield from holdings.keep(before)
    yield from holdings.give_unread()
    yield from holdings.balance()
    return holdings.assignment()


class _Holdings:
    """Who reads what, while it is worked out."""

    def __init__(self, subscriptions: Subscriptions, partitions: Mapping[str, int]) -> None:
        self._members = sorted(subscriptions)
        self._subscribers: dict[str, list[str]] = {}
        for member in self._members:
            for stream in sorted(set(subscriptions[member])):
                if partitions.get(stream, 0) > 0:
                    self._subscribers.setdefault(stream, []).append(member)
        self._streams = sorted(self._subscribers)
        self._partitions = partitions
        self._held: dict[str, dict[str, list[int]]] = {member: {} for member in self._members}
        for stream in self._streams:
            for member in self._subscribers[stream]:
                self._held[member][stream] = []
        self._load = dict.fromkeys(self._members, 0)
        self._unread: dict[str, list[int]] = {}
        self._worked = 0

    def _slice_is_over(self, work: int) -> bool:
        self._worked += work
        if self._worked < ASSIGN_SLICE:
            return False
        self._worked = 0
        return True

    def keep(self, before: Assignment) -> Generator[None, None, None]:
        """Whoever reads a partition and still may goes on."""
        for stream in self._streams:
            count = self._partitions[stream]
            unread = dict.fromkeys(range(count))
            for member in self._subscribers[stream]:
                stays = [number for number in before.get(member, {}).get(stream, ()) if number in unread]
                for number in stays:
                    del unread[number]
                self._held[member][stream] = stays
                self._load[member] += len(stays)
                if self._slice_is_over(1 + len(stays)):
                    yield
            self._unread[stream] = list(unread)
            if self._slice_is_over(count // 4):
                yield

    def give_unread(self) -> Generator[None, None, None]:
        """Each to the subscriber with the fewest partitions; of those with the same number to the first by name."""
        for stream in self._streams:
            loads = [(self._load[member], member) for member in self._subscribers[stream]]
            heapify(loads)
            for number in self._unread[stream]:
                load, member = loads[0]
                heapreplace(loads, (load + 1, member))
                self._held[member][stream].append(number)
                self._load[member] += 1
                if self._slice_is_over(2):
                    yield
            if self._slice_is_over(len(loads)):
                yield

    def balance(self) -> Generator[None, None, None]:
        """Pass partitions on from the members with the most, until no chain leads to one with at least two fewer."""
        least = min(self._load.values(), default=0)  # it only rises
        done: dict[str, None] = {}
        waiting = [(-load, member) for member, load in self._load.items()]
        heapify(waiting)
        while waiting and -waiting[0][0] >= least + 2:
            negative, member = heappop(waiting)
            if member in done or -negative != self._load[member]:
                continue  # its present load is in the heap, too
            came_by = {member: (member, "")}
            last = self._chain(member, came_by, done)
            if last:
                self._pass_on(member, last, came_by)
                heappush(waiting, (-self._load[member], member))
                heappush(waiting, (-self._load[last], last))
            else:
                done.update(dict.fromkeys(came_by))
            if self._slice_is_over(8 + len(came_by)):
                yield

    def _chain(self, loaded: str, came_by: dict[str, tuple[str, str]], done: Mapping[str, None]) -> str:
        """The end of the shortest chain by which this member has one partition less; empty if there is none. Fills in
        from whom, and of which stream, each member on the way is given one."""
        few = self._load[loaded] - 2
        queue, seen = deque([loaded]), dict[str, None]()
        while queue:
            giver = queue.popleft()
            for stream, numbers in self._held[giver].items():
                if not numbers or stream in seen:
                    continue
                seen[stream] = None
                for receiver in self._subscribers[stream]:
                    if receiver in came_by or receiver in done:
                        continue
                    came_by[receiver] = (giver, stream)
                    if self._load[receiver] <= few:
                        return receiver
                    queue.append(receiver)
        return ""

    def _pass_on(self, loaded: str, last: str, came_by: dict[str, tuple[str, str]]) -> None:
        receiver = last
        while receiver != loaded:
            giver, stream = came_by[receiver]
            self._held[receiver][stream].append(self._held[giver][stream].pop())
            receiver = giver
        self._load[loaded] -= 1
        self._load[last] += 1

    def assignment(self) -> Assignment:
        return {
            member: {stream: tuple(sorted(numbers)) for stream, numbers in held.items() if numbers}
            for member, held in self._held.items()
        }
