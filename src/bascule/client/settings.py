"""The settings that a stream may have of its own, where those of the brokers do not fit. Times in milliseconds."""

from __future__ import annotations

from typing import TypedDict


class StreamSettings(TypedDict, total=False):
    """They can be altered later."""

    retention_max_bytes: int
    retention_max_messages: int
    retention_max_age_ms: int
    cleaner_interval_ms: int
    segment_max_bytes: int
    segment_max_age_ms: int
    compact_max_goroutines: int
    compact_enabled: bool
    auto_pause_time_ms: int
    auto_pause_disable_if_subscribers: bool
    min_isr: int
    optimistic_concurrency_control: bool
    encryption: bool
    flatbuffers_draft: bool
    compact_min_lag_ms: int
    compact_tombstone_delay_ms: int


class StreamOverrides(StreamSettings, total=False):
    """Of a new stream."""

    group: str


SETTING_FIELDS = {
    "retention_max_bytes": "retentionMaxBytes",
    "retention_max_messages": "retentionMaxMessages",
    "retention_max_age_ms": "retentionMaxAge",
    "cleaner_interval_ms": "cleanerInterval",
    "segment_max_bytes": "segmentMaxBytes",
    "segment_max_age_ms": "segmentMaxAge",
    "compact_max_goroutines": "compactMaxGoroutines",
    "compact_enabled": "compactEnabled",
    "auto_pause_time_ms": "autoPauseTime",
    "auto_pause_disable_if_subscribers": "autoPauseDisableIfSubscribers",
    "min_isr": "minIsr",
    "optimistic_concurrency_control": "optimisticConcurrencyControl",
    "encryption": "encryption",
    "flatbuffers_draft": "flatbuffersDraft",
    "compact_min_lag_ms": "compactMinLag",
    "compact_tombstone_delay_ms": "compactTombstoneDelay",
}
"""Their names in requests."""
