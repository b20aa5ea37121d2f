"""The cluster's own streams: the controller creates `__activity` and `__cursors` if they are configured.

Their subjects are in the cluster's namespace, where no client can have a stream. A replication factor of -1 means all
brokers that are members when the stream is created. So where a cluster is founded by a list of peers, the controller
waits for these a while; a factor that is too high waits until there are enough.
"""

import asyncio
import logging

from bascule.core.metadata.streams import ACTIVITY, CURSORS, StreamConfig
from bascule.errors import AlreadyExists, BasculeError
from bascule.node.calls.subjects import own_stream
from bascule.node.config.broker import BrokerSettings
from bascule.node.controller.executor import Executor
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.controller.proposals import Proposals
from bascule.node.membership.newstream import NewStream
from bascule.wire.pb import internal_pb2 as pb

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.1
AGAIN_S = 1.0
PEERS_PATIENCE_S = 10.0
"""How long a factor of -1 waits for the peers that this broker is configured with."""


class OwnStreams:
    def __init__(self, settings: BrokerSettings, proposals: Proposals, live: LiveBrokers, executor: Executor) -> None:
        self._peers = settings.peers
        self._proposals = proposals
        self._live = live
        self._executor = executor
        self._wanted = _wanted(settings)
        self._said = ""

    @property
    def configured(self) -> bool:
        return bool(self._wanted)

    async def run(self) -> None:
        """Until they exist."""
        waited_s = 0.0
        while missing := [new for new in self._wanted if self._proposals.metadata.stream(new.name) is None]:
            await asyncio.sleep(LOOK_EVERY_S)
            if not self._live.active:
                continue
            waited_s += LOOK_EVERY_S
            if waited_s < PEERS_PATIENCE_S and not self._complete:
                continue
            if not await self._create(missing[0]):
                await asyncio.sleep(AGAIN_S)

    @property
    def _complete(self) -> bool:
        return set(self._peers) <= set(self._proposals.raft.membership.everyone)

    async def _create(self, new: NewStream) -> bool:
        request = pb.PropagatedRequest(op=pb.CREATE_STREAM, createStreamOp=new.to_wire())
        request.operation.since = self._proposals.metadata.index
        try:
            await self._executor.carry_out(request)
            logger.info("stream %s is created", new.name)
            return True
        except AlreadyExists:
            return True
        except BasculeError as error:
            text = f"stream {new.name} could not be created, which is tried again: {error}"
            logger.log(logging.DEBUG if text == self._said else logging.WARNING, text)
            self._said = text
            return False


def _wanted(settings: BrokerSettings) -> list[NewStream]:
    wanted = []
    if settings.activity.enabled:
        # It is never paused for being idle: to report that it is paused, it would have to be resumed.
        config = StreamConfig(auto_pause_time=0)
        wanted.append(NewStream(ACTIVITY, own_stream(settings.namespace, "activity"), "", 1, -1, config))
    if settings.cursors.partitions:
        # A cursor is never too old: only a newer one of its key may replace it.
        config = StreamConfig(
            retention_max_bytes=0,
            retention_max_messages=0,
            retention_max_age=0,
            compact_enabled=True,
            auto_pause_disable_if_subscribers=True,
        )
        partitions, factor = settings.cursors.partitions, settings.cursors.replication_factor
        wanted.append(NewStream(CURSORS, own_stream(settings.namespace, "cursors"), "", partitions, factor, config))
    return wanted
