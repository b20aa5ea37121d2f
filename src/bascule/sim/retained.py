"""What the logs of one partition had, at most, since they were looked at last: whether a limit of messages or bytes was
exceeded. Nobody says when a log grows. It may have what was sent meanwhile, or was under way then; and a replica that
lags may have caught up, with segments at its front that others have removed.
"""

from typing import NamedTuple

from bascule.sim.history import Outcome, Sent
from bascule.sim.trace import Part
from bascule.sim.world import World

RECORD_BYTES = 150
"""More than a record has besides its key and value."""
UNDER_WAY = 20
"""More than there are messages under way: their client waits for each, or for a while."""


class Size(NamedTuple):
    messages: int = 0
    nbytes: int = 0
    end: int = 0

    def and_sent(self, messages: list[Sent]) -> "Size":
        nbytes = sum(RECORD_BYTES + len(each.key) + len(each.value) for each in messages)
        return Size(self.messages + len(messages), self.nbytes + nbytes, self.end + len(messages))


class LogSizes:
    def __init__(self, world: World, part: Part) -> None:
        self._world = world
        self._part = part
        self._sizes: dict[str, Size] = {}
        """By broker, of its log when that was open last, with what was sent since."""
        self._looked = 0
        self._under_way: list[Sent] = []
        """What was sent when the logs were looked at, and may have been stored later."""

    def look(self) -> Size:
        """What any of the logs may have had since the last look."""
        sent = self._world.history.sent_to(self._part)
        new = [*self._under_way, *sent[self._looked :]]
        most = largest(list(self._sizes.values())).and_sent(new)
        for host in self._world.cluster.hosts.values():
            replica = host.replica(self._part)
            if replica is None:
                self._sizes[host.name] = self._sizes.get(host.name, Size()).and_sent(new)
                continue
            log = replica.log
            messages = sum(each.records for each in log.segments)
            self._sizes[host.name] = Size(messages, sum(each.appended.size for each in log.segments), log.end)
        self._looked = len(sent)
        end = max(each.end for each in self._sizes.values())
        late = [each for each in sent[-UNDER_WAY:] if self._may_come(each)]
        late.sort(key=lambda each: len(each.key) + len(each.value), reverse=True)
        self._under_way = late[: max(0, len(sent) - end)]  # each that is stored has an offset
        return most

    def _may_come(self, sent: Sent) -> bool:
        return sent.outcome not in (Outcome.ACKED, Outcome.REFUSED) and self._part not in sent.stored


def largest(sizes: list[Size]) -> Size:
    """Of the largest log, when all have caught up."""
    end = max((each.end for each in sizes), default=0)
    whole = max((each.nbytes for each in sizes if each.end == end), default=0)
    return Size(
        max((each.messages + end - each.end for each in sizes), default=0),
        max((each.nbytes + (whole if each.end < end else 0) for each in sizes), default=0),
        end,
    )
