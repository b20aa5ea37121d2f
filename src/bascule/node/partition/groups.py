"""Which member of a consumer group reads a partition: at most one, the one with the newest epoch.

That is known to the broker that leads the partition, and to no other. So when it stops leading its members are sent
away: another member may begin to read at the next leader, which knows nothing of them.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from bascule.errors import FailedPrecondition, Unavailable
from bascule.wire.pb import api_pb2 as api

Ended = asyncio.Future[Unavailable | None]
"""Done when a member is to read no more: it has been replaced, without an error, or this broker leads no more."""


class GroupMembers:
    """The members that read one partition. A newer member replaces the older, whose subscription ends without error."""

    def __init__(self) -> None:
        self._current: dict[str, tuple[int, Ended]] = {}

    def end(self, partition: str) -> None:
        """This broker leads the partition of that name no more: its members are to read at the next leader."""
        members, self._current = self._current, {}
        for _, ended in members.values():
            if not ended.done():
                ended.set_result(Unavailable(f"the leader of {partition} has changed: subscribe to it again"))

    @contextmanager
    def join(self, consumer: api.Consumer) -> Iterator[Ended]:
        """Gives a future that is done when this member is to read no more; never without a group."""
        replaced: Ended = asyncio.get_running_loop().create_future()
        group = consumer.groupId
        if not group:
            yield replaced
            return
        if group in self._current:
            epoch, older = self._current[group]
            if consumer.groupEpoch < epoch:
                raise FailedPrecondition("Consumer is not currently assigned this partition")
            if not older.done():
                older.set_result(None)
        self._current[group] = (consumer.groupEpoch, replaced)
        try:
            yield replaced
        finally:
            if self._current.get(group, (0, None))[1] is replaced:
                del self._current[group]
