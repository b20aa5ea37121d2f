"""What a broker is given, in one value that never changes: its ports, the settings that shape it, its process; and what
all its drivers share, such as the group commit.

It is made in `assemble`, complete. What a partition may ask of its broker is not in here: see `partition`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bascule.core.metadata.streams import StreamConfig
from bascule.core.partition.owed import OwedBound
from bascule.log.appender import LogConfig
from bascule.log.promised import PromisedEnds
from bascule.log.sync import SyncScheduler
from bascule.node.calls.subjects import own_prefix
from bascule.node.membership.lease import Lease
from bascule.node.partition.inboxes import Inboxes
from bascule.node.partition.routes import Routes
from bascule.node.runtime.jobs import Jobs
from bascule.ports import Bus, Clock, Disk, Random

RESERVED_STREAMS = ("__activity", "__cursors")
_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class StreamDefaults:
    """What a stream gets where its own configuration is silent."""

    segment_max_bytes: int
    segment_max_age_ns: int
    min_isr: int
    optimistic_concurrency: bool
    max_message_bytes: int
    max_lag_ns: int = 15_000_000_000

    def log_config(self, config: StreamConfig) -> LogConfig:
        return LogConfig(
            segment_max_bytes=config.segment_max_bytes or self.segment_max_bytes,
            segment_max_age_ns=self.segment_max_age_ns
            if config.segment_max_age is None
            else config.segment_max_age * _MS,
        )

    def min_isr_of(self, config: StreamConfig) -> int:
        return self.min_isr if config.min_isr is None else config.min_isr

    def optimistic_concurrency_of(self, config: StreamConfig) -> bool:
        own = config.optimistic_concurrency_control
        return self.optimistic_concurrency if own is None else own


class Address(Protocol):
    """Where clients reach this broker; the port is known only once it listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Process:
    """What a broker tells the process it runs in, and may ask of it."""

    on_fatal: Callable[[str], None]
    """This broker cannot go on, and why."""
    on_stop: Callable[[], None] | None
    """An administrator asks for a clean shutdown; None where the process cannot be ended from here."""
    on_grown: Callable[[], None]
    """Replicas and roles have come, which stay: called now and then."""
    on_files: Callable[[str], None]
    """The data folder or the metadata was taken away, and how; or, with an empty text, it is back."""
    on_role: Callable[[int, bool], None]
    """The term of Raft, and whether this broker leads it: called when either, or the leader, has changed."""


@dataclass(frozen=True, slots=True)
class Environment:
    broker_id: str
    namespace: str
    disk: Disk
    clock: Clock
    attention: Clock
    """What others are judged by: it stands still while our own event loop does."""
    random: Random
    streams_bus: Bus
    """Delivers what publishers send; a slow-consumer cut of it must not take anything else along."""
    publishes_bus: Bus
    """Carries publishes of gRPC clients, acks, and the ack inboxes."""
    scheduler: SyncScheduler
    routes: Routes
    inboxes: Inboxes
    owed: OwedBound
    """Of the acks that wait, over all partitions led here."""
    lease: Lease
    """Until when writes may be taken without having heard from the cluster."""
    defaults: StreamDefaults
    ends: PromisedEnds
    process: Process
    jobs: Jobs
    """The background work of this broker."""
    after_clean_shutdown: bool
    """The last life stopped in good order, with everything it had promised synced."""

    @property
    def cluster_prefix(self) -> bytes:
        return own_prefix(self.namespace)
