"""What the partitions of one broker share, in one immutable value: ports, settings, and parts such as the group commit.

`assemble` builds it. What a partition may ask of its broker is not in here: see `partition.ports`."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from bascule.core.metadata.streams import Stream
from bascule.core.partition.pendingacks import PendingAcksBound
from bascule.limits import PRODUCER_REBUILDS
from bascule.log.promised import PromisedEnds
from bascule.log.sync import SyncScheduler
from bascule.node.calls.subjects import own_prefix
from bascule.node.config.broker import BrokerSettings
from bascule.node.membership.lease import Lease
from bascule.node.partition.awaited import AwaitedReplicas
from bascule.node.partition.inboxes import Inboxes
from bascule.node.partition.routes import Routes
from bascule.node.runtime.jobs import Jobs
from bascule.node.runtime.metrics import Counter, Metrics
from bascule.node.runtime.ports import Ports
from bascule.ports import Clock


@dataclass(frozen=True, slots=True)
class Environment:
    settings: BrokerSettings
    ports: Ports
    active_clock: Clock
    """For the timeouts of others: it stops while our own event loop is blocked."""
    scheduler: SyncScheduler
    routes: Routes
    inboxes: Inboxes
    pending: PendingAcksBound
    """The bound of the pending acks of all partitions led here."""
    lease: Lease
    """How long leaders take writes after the last contact with the controller."""
    ends: PromisedEnds
    awaited: AwaitedReplicas
    """For whom replicas here would wait before they lead, on record over restarts."""
    jobs: Jobs
    """The background work of this broker."""
    metrics: Metrics
    """Its counters and gauges."""
    refused: Counter
    """Messages that were published and not stored, by reason: the API counts those that it does not send to NATS, the
    leader of a partition those that came by NATS, and a bulk write the batches that it refuses."""
    duplicates: Counter
    """Messages of idempotent producers that were stored before, and are not stored again. They are not refused: most
    are acked with the offset that they have."""
    after_clean_shutdown: bool
    """The last boot ended with a clean shutdown: everything it had promised is synced."""
    known_index: int
    """The last change of the metadata that was on the disk when this broker started: a stream that was created later
    had nothing here before."""
    at_start: Callable[[str, int], Stream | None]
    """A stream, by its name and creation index, as the metadata had it when the last boot ended."""
    reading_again: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PRODUCER_REBUILDS))
    """How many logs are read at a time to derive something from them."""

    @property
    def cluster_prefix(self) -> bytes:
        return own_prefix(self.settings.namespace)
