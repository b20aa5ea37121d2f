"""Which member of a consumer group reads a partition: at most one, the one with the newest epoch."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from bascule.errors import FailedPrecondition
from bascule.wire.pb import api_pb2 as api


class GroupMembers:
    """The members that read one partition. A newer member replaces the older, whose subscription ends without error."""

    def __init__(self) -> None:
        self._current: dict[str, tuple[int, asyncio.Future[None]]] = {}

    @contextmanager
    def join(self, consumer: api.Consumer) -> Iterator["asyncio.Future[None]"]:
        """Gives a future that is done once another member has taken over; never without a group."""
        replaced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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
