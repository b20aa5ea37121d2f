"""What the partitions of one broker share, in one value that never changes: what the broker is given, and parts of it
such as the group commit.

It is made in `assemble`, complete. What a partition may ask of its broker is not in here: see `partition.ports`."""

from dataclasses import dataclass

from bascule.core.partition.pendingacks import PendingAcksBound
from bascule.log.promised import PromisedEnds
from bascule.log.sync import SyncScheduler
from bascule.node.calls.subjects import own_prefix
from bascule.node.config.broker import BrokerSettings
from bascule.node.membership.lease import Lease
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
    """What others are judged by: it stands still while our own event loop does."""
    scheduler: SyncScheduler
    routes: Routes
    inboxes: Inboxes
    pending: PendingAcksBound
    """Of the acks that wait, over all partitions led here."""
    lease: Lease
    """Until when writes may be taken without having heard from the cluster."""
    ends: PromisedEnds
    jobs: Jobs
    """The background work of this broker."""
    metrics: Metrics
    """Its counters and gauges."""
    refused: Counter
    """Messages that were published and not stored, by reason: the API counts those that it does not send to NATS, the
    leader of a partition those that came by NATS."""
    after_clean_shutdown: bool
    """The last life stopped in good order, with everything it had promised synced."""

    @property
    def cluster_prefix(self) -> bytes:
        return own_prefix(self.settings.namespace)
