"""The part of the configuration that a broker and its streams use."""

from dataclasses import dataclass

from bascule.core.merging import MergeBounds, merge_bounds
from bascule.core.metadata.streams import CURSORS, Stream, StreamConfig
from bascule.core.retention import UNLIMITED, RetentionLimits
from bascule.limits import MIB
from bascule.log.appender import LogConfig
from bascule.log.sync import SyncMode
from bascule.node.config.tree import Config

_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class StreamDefaults:
    """Defaults for settings that a stream does not have itself."""

    segment_max_bytes: int
    segment_max_age_ns: int
    min_isr: int
    optimistic_concurrency: bool
    max_message_bytes: int
    max_lag_ns: int = 15_000_000_000
    auto_pause_ns: int = 0
    auto_pause_disable_if_subscribers: bool = False
    retention: RetentionLimits = UNLIMITED
    cleaner_interval_ns: int = 300_000_000_000
    flatbuffers_draft: bool = False
    compact_enabled: bool = False
    compact_min_lag_ns: int = 0
    tombstone_delay_ns: int = 86_400_000_000_000
    key_map_bytes: int = 32 * MIB
    """Of the map of keys of a compaction, of which a broker has one."""

    def log_config(self, config: StreamConfig) -> LogConfig:
        return LogConfig(
            segment_max_bytes=config.segment_max_bytes or self.segment_max_bytes,
            segment_max_age_ns=self.segment_max_age_ns_of(config),
        )

    def segment_max_age_ns_of(self, config: StreamConfig) -> int:
        """0 is no limit. A stream whose records are kept for less than the default gets segments to match: otherwise
        its active segment would keep them."""
        if config.segment_max_age is not None:
            return config.segment_max_age * _MS
        ages_ns = ((config.retention_max_age or 0) * _MS, self.segment_max_age_ns)
        return min((each for each in ages_ns if each), default=0)

    def retention_of(self, stream: Stream) -> RetentionLimits:
        if stream.name == CURSORS:
            return UNLIMITED  # only a newer one of its key may replace a cursor
        config, defaults = stream.config, self.retention
        own = (config.retention_max_bytes, config.retention_max_messages, config.retention_max_age)
        return RetentionLimits(
            defaults.max_bytes if own[0] is None else own[0],
            defaults.max_messages if own[1] is None else own[1],
            defaults.max_age_ns if own[2] is None else own[2] * _MS,
        )

    def merge_bounds_of(self, stream: Stream) -> MergeBounds:
        return merge_bounds(self.log_config(stream.config).segment_max_bytes, self.retention_of(stream))

    def cleaner_interval_ns_of(self, config: StreamConfig) -> int:
        return self.cleaner_interval_ns if config.cleaner_interval is None else config.cleaner_interval * _MS

    def compacts(self, config: StreamConfig) -> bool:
        return self.compact_enabled if config.compact_enabled is None else config.compact_enabled

    def compact_min_lag_ns_of(self, config: StreamConfig) -> int:
        """Records that are younger are not compacted."""
        return self.compact_min_lag_ns if config.compact_min_lag is None else config.compact_min_lag * _MS

    def tombstone_delay_ns_of(self, config: StreamConfig) -> int:
        """Tombstones that are younger stay."""
        own = config.compact_tombstone_delay
        return self.tombstone_delay_ns if own is None else own * _MS

    def min_isr_of(self, config: StreamConfig) -> int:
        return self.min_isr if config.min_isr is None else config.min_isr

    def optimistic_concurrency_of(self, config: StreamConfig) -> bool:
        own = config.optimistic_concurrency_control
        return self.optimistic_concurrency if own is None else own

    def flatbuffers_draft_of(self, config: StreamConfig) -> bool:
        return self.flatbuffers_draft if config.flatbuffers_draft is None else config.flatbuffers_draft

    def auto_pause_ns_of(self, config: StreamConfig) -> int:
        """After how long an idle partition is paused; 0 is never."""
        return self.auto_pause_ns if config.auto_pause_time is None else config.auto_pause_time * _MS

    def auto_pause_spares_subscribers(self, config: StreamConfig) -> bool:
        own = config.auto_pause_disable_if_subscribers
        return self.auto_pause_disable_if_subscribers if own is None else own


@dataclass(frozen=True, slots=True)
class CursorSettings:
    """The stream `__cursors`."""

    partitions: int = 0
    """0: there are no cursors."""
    replication_factor: int = -1
    auto_pause_ns: int = 60_000_000_000


@dataclass(frozen=True, slots=True)
class ActivitySettings:
    """The stream `__activity`."""

    enabled: bool = False
    publish_timeout_s: float = 5.0
    ack_policy: str = "all"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    consumer_timeout_ns: int = 15_000_000_000
    """A member that is silent for so long is gone."""
    coordinator_timeout_ns: int = 15_000_000_000
    """Members that do not reach their coordinator for so long report it."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """A broker and its place in the cluster."""

    broker_id: str
    namespace: str
    seed: bool
    peers: tuple[str, ...]
    max_quorum: int
    snapshot_threshold: int
    min_replication_factor: int
    fetch_timeout_s: float
    sync: SyncMode
    defaults: StreamDefaults
    cursors: CursorSettings = CursorSettings()
    activity: ActivitySettings = ActivitySettings()
    groups: GroupSettings = GroupSettings()

    def auto_pause_ns_of(self, stream: Stream) -> int:
        """After how long an idle partition of it is paused; 0 is never. For the cursors the setting of each broker
        counts, and not what it was when the stream was created."""
        return self.cursors.auto_pause_ns if stream.name == CURSORS else self.defaults.auto_pause_ns_of(stream.config)

    @classmethod
    def of(cls, config: Config, broker_id: str) -> "BrokerSettings":
        clustering = config.clustering
        return cls(
            broker_id=broker_id,
            namespace=clustering.namespace,
            seed=clustering.raft_bootstrap_seed,
            peers=clustering.raft_bootstrap_peers,
            max_quorum=clustering.raft_max_quorum_size,
            snapshot_threshold=clustering.raft_snapshot_threshold,
            min_replication_factor=clustering.min_replication_factor,
            fetch_timeout_s=clustering.replica_fetch_timeout_ns / 1e9,
            sync=config.streams.sync,
            defaults=StreamDefaults(
                segment_max_bytes=config.streams.segment_max_bytes,
                segment_max_age_ns=config.streams.segment_max_age_ns,
                min_isr=clustering.min_insync_replicas,
                optimistic_concurrency=config.streams.concurrency_control,
                flatbuffers_draft=config.streams.flatbuffers_draft,
                max_message_bytes=clustering.replication_max_bytes,
                max_lag_ns=clustering.replica_max_lag_time_ns,
                auto_pause_ns=config.streams.auto_pause_time_ns,
                retention=RetentionLimits(
                    config.streams.retention_max_bytes,
                    config.streams.retention_max_messages,
                    config.streams.retention_max_age_ns,
                ),
                cleaner_interval_ns=config.streams.cleaner_interval_ns,
                compact_enabled=config.streams.compact_enabled,
                compact_min_lag_ns=config.streams.compact_min_lag_ns,
                tombstone_delay_ns=config.streams.compact_tombstone_delay_ns,
                key_map_bytes=config.streams.compact_key_map_bytes,
                auto_pause_disable_if_subscribers=config.streams.auto_pause_disable_if_subscribers,
            ),
            cursors=CursorSettings(
                partitions=config.cursors.stream_partitions,
                replication_factor=config.cursors.stream_replication_factor,
                auto_pause_ns=config.cursors.stream_auto_pause_time_ns,
            ),
            activity=ActivitySettings(
                enabled=config.activity.stream_enabled,
                publish_timeout_s=config.activity.stream_publish_timeout_ns / 1e9,
                ack_policy=config.activity.stream_publish_ack_policy,
            ),
            groups=GroupSettings(config.groups.consumer_timeout_ns, config.groups.coordinator_timeout_ns),
        )
