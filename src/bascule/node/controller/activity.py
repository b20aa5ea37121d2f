"""The activity stream: the controller publishes what happened to streams, one event after the other.

The events are in the metadata (`core.metadata.activity`), which the controller reads from the oldest on. An event is
published when the one before it is acked, so that whoever takes each id once has them all in order, also if an earlier
controller still publishes. From time to time a command says how far it has come; after a change of controllers the
events since then are published again, with the same ids.
"""

import asyncio
import logging

from bascule.core.metadata.commands import PublishActivity
from bascule.core.metadata.streams import ACTIVITY
from bascule.errors import BasculeError
from bascule.node.config.broker import ActivitySettings
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.controller.proposals import Proposals
from bascule.node.partition.sender import MessageSender
from bascule.wire.pb import api_pb2 as api

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.05
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
AT_ONCE = 64
"""Events that are published before a command says so."""

_POLICIES = {"none": api.NONE, "leader": api.LEADER, "all": api.ALL}


def next_pause_s(pause_s: float) -> float:
    """How long to wait after another failure; 0 before the first one."""
    return min(2 * pause_s, LONGEST_PAUSE_S) if pause_s else FIRST_PAUSE_S


class ActivityDispatcher:
    def __init__(
        self, settings: ActivitySettings, proposals: Proposals, live: LiveBrokers, sender: MessageSender
    ) -> None:
        self._settings = settings
        self._proposals = proposals
        self._live = live
        self._sender = sender
        self._published = 0
        """The last event that this broker has published."""
        self._pause_s = 0.0
        self._dropped: int | None = None
        """How many events the metadata had dropped when this was last looked at."""

    @property
    def enabled(self) -> bool:
        return self._settings.enabled

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s or LOOK_EVERY_S)
            if self._live.active and self._sender.has_route(ACTIVITY):
                await self._publish_some()

    async def _publish_some(self) -> None:
        activity = self._proposals.metadata.activity
        self._say_dropped(activity.dropped)
        try:
            for index in list(activity.unpublished)[:AT_ONCE]:
                if index > self._published:
                    await self._publish(index, activity.unpublished.get(index))
            self._pause_s = 0.0
        except BasculeError as error:
            self._pause_s = next_pause_s(self._pause_s)
            logger.warning(
                "an event of the activity stream could not be published, later ones wait for it; it is tried again in "
                "%g s: %s",
                self._pause_s,
                error,
            )
        await self._say_published()

    async def _publish(self, index: int, event: bytes | None) -> None:
        if event is None or not self._live.active:
            return  # another controller has published it, or is to
        policy = _POLICIES[self._settings.ack_policy]
        request = api.PublishRequest(stream=ACTIVITY, partition=0, value=event, ackPolicy=policy)
        await self._sender.publish(request, self._settings.publish_timeout_s)
        self._published = index

    async def _say_published(self) -> None:
        """Tell the metadata."""
        unpublished = self._proposals.metadata.activity.unpublished
        if not self._live.active or not unpublished or next(iter(unpublished)) > self._published:
            return
        try:
            await self._proposals.submit(PublishActivity(self._published))
        except BasculeError as error:
            logger.info("events of the activity stream are published, and are on record as such later: %s", error)

    def _say_dropped(self, dropped: int) -> None:
        if self._dropped is not None and dropped > self._dropped:
            logger.error(
                "%d events are missing in the activity stream: too many waited to be published", dropped - self._dropped
            )
        self._dropped = dropped
