"""The broker's configuration: one frozen tree, whole and checked before anything starts.

`load` puts four sources on top of each other: flags over environment over file over defaults. The names,
defaults and meanings of the settings are in `settings`, one field here for each. Wrong settings raise
ConfigError; questionable ones are collected in `warnings`, to be logged once logging is set up. Nothing here
opens a file but the configuration file itself; `check_files` looks at the others when a broker is about to
start.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from bascule.errors import ConfigError
from bascule.log.sync import SyncMode
from bascule.node.config.durations import UNIT_NS, is_plain_number
from bascule.node.config.environment import ENCRYPTION_KEY, encryption_key, read_environment
from bascule.node.config.file import read_file
from bascule.node.config.settings import BY_KEY, SECTIONS, SETTINGS, Kind, nearest
from bascule.node.config.values import Address, Raw, Value, parse, show

_WILDCARD_HOSTS = ("0.0.0.0", "::")
_MIN_SEGMENT_AGE_NS = UNIT_NS["s"]
_ENCRYPTION_KEY_BYTES = (16, 32)


@dataclass(frozen=True, slots=True)
class MetadataConfig:
    cache_max_age_ns: int


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    level: str
    recovery: bool
    raft: bool
    nats: bool


@dataclass(frozen=True, slots=True)
class BatchConfig:
    max_messages: int
    max_time_ns: int


@dataclass(frozen=True, slots=True)
class TlsConfig:
    key: str
    cert: str
    client_auth_enabled: bool
    client_auth_ca: str
    client_authz_enabled: bool
    client_authz_model: str
    client_authz_policy: str

    @property
    def enabled(self) -> bool:
        return bool(self.key and self.cert)


@dataclass(frozen=True, slots=True)
class NatsConfig:
    servers: tuple[str, ...] = field(repr=False)
    """URLs with scheme and port; they may carry user and password."""
    user: str
    password: str = field(repr=False)
    tls_cert: str
    tls_key: str
    tls_ca: str
    embedded: bool
    embedded_config: str


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    sync: SyncMode
    retention_max_bytes: int
    retention_max_messages: int
    retention_max_age_ns: int
    cleaner_interval_ns: int
    segment_max_bytes: int
    segment_max_age_ns: int
    """0 if segments never grow too old."""
    compact_enabled: bool
    compact_max_goroutines: int
    compact_min_lag_ns: int
    compact_tombstone_delay_ns: int
    compact_key_map_bytes: int
    auto_pause_time_ns: int
    auto_pause_disable_if_subscribers: bool
    concurrency_control: bool
    flatbuffers_draft: bool
    encryption: bool


@dataclass(frozen=True, slots=True)
class ClusteringConfig:
    server_id: str
    """Empty if one is to be chosen; an id that is stored in the data folder wins either way."""
    namespace: str
    raft_snapshot_retain: int
    raft_snapshot_threshold: int
    raft_cache_size: int
    raft_bootstrap_seed: bool
    raft_bootstrap_peers: tuple[str, ...]
    raft_max_quorum_size: int
    replica_max_lag_time_ns: int
    replica_max_leader_timeout_ns: int
    replica_max_idle_wait_ns: int
    replica_fetch_timeout_ns: int
    min_insync_replicas: int
    """At least 1."""
    min_replication_factor: int
    replication_max_bytes: int


@dataclass(frozen=True, slots=True)
class ActivityConfig:
    stream_enabled: bool
    stream_publish_timeout_ns: int
    stream_publish_ack_policy: str
    """`none`, `leader` or `all`."""


@dataclass(frozen=True, slots=True)
class CursorsConfig:
    stream_partitions: int
    stream_replication_factor: int
    stream_auto_pause_time_ns: int


@dataclass(frozen=True, slots=True)
class GroupsConfig:
    consumer_timeout_ns: int
    coordinator_timeout_ns: int


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """Accepted and never used: nothing is sent."""

    enabled: bool
    interval_seconds: int


@dataclass(frozen=True, slots=True)
class Config:
    listen: Address | None
    host: str
    port: int
    data_dir: str
    metadata: MetadataConfig
    logging: LoggingConfig
    batch: BatchConfig
    tls: TlsConfig
    nats: NatsConfig
    streams: StreamsConfig
    clustering: ClusteringConfig
    activity: ActivityConfig
    cursors: CursorsConfig
    groups: GroupsConfig
    telemetry: TelemetryConfig
    encryption_key: bytes = field(repr=False)
    """The master key of encryption at rest; empty if there is none."""
    explicit: frozenset[str]
    """The keys that were set, as opposed to those left at their defaults."""
    warnings: tuple[str, ...]

    @property
    def bind(self) -> Address:
        """Where to listen. Port 0 lets the system choose."""
        return self.listen or Address(self.host or "0.0.0.0", self.port)

    def advertised(self, bound_port: int) -> Address:
        """The address that clients connect to, given the port that was bound."""
        if self.host:
            host, port = self.host, self.port
        elif self.listen:
            host, port = self.listen.host, self.listen.port
        else:
            host, port = "localhost", self.port
        # Clients cannot connect to a wildcard address; the Go server advertises it anyway.
        return Address("localhost" if host in _WILDCARD_HOSTS else host, port or bound_port)

    def value(self, key: str) -> Value:
        """The value of the setting with this key."""
        setting = BY_KEY[key]
        owner = getattr(self, setting.section) if setting.section else self
        value: Value = getattr(owner, setting.field)
        return value

    def describe(self) -> dict[str, str]:
        """Every setting as it is in effect, for debug logs; secrets are masked."""
        effective = {setting.key: show(setting, self.value(setting.key)) for setting in SETTINGS}
        return effective | {ENCRYPTION_KEY: "***" if self.encryption_key else ""}

    def check_files(self) -> None:
        """Raises ConfigError if a file that a setting names cannot be read."""
        for setting in SETTINGS:
            path = self.value(setting.key)
            if setting.kind is not Kind.PATH or setting.key == "data.dir" or not path:
                continue
            try:
                with open(str(path), "rb"):
                    pass
            except OSError as error:
                raise ConfigError(f"Cannot read {path}, the {setting.key} setting: {error.strerror}") from None


_SECTION_TYPES: dict[str, Any] = {
    "metadata": MetadataConfig,
    "logging": LoggingConfig,
    "batch": BatchConfig,
    "tls": TlsConfig,
    "nats": NatsConfig,
    "streams": StreamsConfig,
    "clustering": ClusteringConfig,
    "activity": ActivityConfig,
    "cursors": CursorsConfig,
    "groups": GroupsConfig,
    "telemetry": TelemetryConfig,
}


def load(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Config:
    """The configuration of these sources. `overrides` (flags) are by setting key; `environ` is the process's
    own unless given."""
    environ = os.environ if environ is None else environ
    file, warnings = read_file(os.fspath(path)) if path is not None else ({}, [])
    variables, more = read_environment(environ)
    given = file | variables | _read_overrides(overrides or {})
    values: dict[str, Any] = {
        setting.key: parse(setting, given.get(setting.key, Raw(setting.default, "default"))) for setting in SETTINGS
    }
    key = encryption_key(environ)
    warnings += more
    warnings += _plain_durations(given, values)
    warnings += _warnings_about(values, given, key)
    _derive(values, given, environ)
    _check(values)
    tree: dict[str, dict[str, Any]] = {section: {} for section in ("", *SECTIONS)}
    for setting in SETTINGS:
        tree[setting.section][setting.field] = values[setting.key]
    sections = {name: _SECTION_TYPES[name](**tree[name]) for name in SECTIONS}
    return Config(**tree[""], **sections, encryption_key=key, explicit=frozenset(given), warnings=tuple(warnings))


def _read_overrides(overrides: Mapping[str, object]) -> dict[str, Raw]:
    given: dict[str, Raw] = {}
    for key, value in overrides.items():
        setting = BY_KEY.get(key)
        if setting is None:
            raise ConfigError(f'Unknown configuration setting "{key}": did you mean "{nearest(key)}"?')
        text = tuple(map(str, value)) if isinstance(value, list | tuple) else str(value)
        given[key] = Raw(text, f"flag {setting.flags[0]}" if setting.flags else "override")
    return given


def _derive(values: dict[str, Any], given: Mapping[str, Raw], environ: Mapping[str, str]) -> None:
    """Settings that depend on others, or on the user."""
    for setting in SETTINGS:
        if setting.kind is Kind.PATH:
            values[setting.key] = _expand(values[setting.key], environ)
    values["data.dir"] = values["data.dir"] or _default_data_dir(environ, values["clustering.namespace"])
    if values["listen"] is not None and not values["listen"].host:
        values["listen"] = None
    if values["nats.embedded.config"] and "nats.embedded" not in given:
        values["nats.embedded"] = True
    age_ns = values["streams.segment.max.age"] or values["streams.retention.max.age"]
    values["streams.segment.max.age"] = max(age_ns, _MIN_SEGMENT_AGE_NS) if age_ns else 0
    values["clustering.min.insync.replicas"] = max(1, values["clustering.min.insync.replicas"])


def _expand(path: str, environ: Mapping[str, str]) -> str:
    """`~/` as in a shell: no shell has seen the value of a file or a variable."""
    home = environ.get("HOME", "")
    return home + path[1:] if home and (path == "~" or path.startswith("~/")) else path


def _default_data_dir(environ: Mapping[str, str], namespace: str) -> str:
    base = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
        home = environ.get("HOME") or os.path.expanduser("~")
        if not os.path.isabs(home):
            raise ConfigError("There is no home folder to put the data into: set data.dir, or give --data-dir")
        base = os.path.join(home, ".local", "share")
    return os.path.join(base, "bascule", quote(namespace, safe=""))


def _check(values: Mapping[str, Any]) -> None:
    """Raises ConfigError for settings that contradict each other."""
    for one, other in (("tls.key", "tls.cert"), ("nats.tls.key", "nats.tls.cert")):
        if bool(values[one]) != bool(values[other]):
            there, missing = (one, other) if values[one] else (other, one)
            raise ConfigError(f"{there} is set and {missing} is not: TLS needs both, so set both or neither")
    needs: Sequence[tuple[str, Sequence[str]]] = (
        ("tls.client.auth.enabled", ("tls.key", "tls.cert")),
        (
            "tls.client.authz.enabled",
            ("tls.client.auth.enabled", "tls.client.authz.model", "tls.client.authz.policy"),
        ),
    )
    for key, required in needs:
        missing = ", ".join(name for name in required if not values[name])
        if values[key] and missing:
            raise ConfigError(f"{key} needs {missing}: set that too, or switch {key} off")
    if values["cursors.stream.replication.factor"] == 0:
        raise ConfigError('Invalid cursors.stream.replication.factor setting "0": expected -1 (every broker) or more')


def _plain_durations(given: Mapping[str, Raw], values: Mapping[str, Any]) -> list[str]:
    """Warns of durations without a unit: `15` is 15 ns, which is rarely meant."""
    return [
        f"{key} is {raw.value} nanoseconds ({raw.source}): write a unit, such as {raw.value}s"
        for key, raw in given.items()
        if BY_KEY[key].kind is Kind.DURATION and is_plain_number(str(raw.value)) and 0 < values[key] < UNIT_NS["ms"]
    ]


def _warnings_about(values: Mapping[str, Any], given: Mapping[str, Raw], key: bytes) -> list[str]:
    warnings = []
    if values["listen"] is not None and not values["listen"].host:
        warnings.append("listen has no host and is ignored: set port, or a listen such as 0.0.0.0:9292")
    if values["nats.embedded.config"] and "nats.embedded" in given and not values["nats.embedded"]:
        warnings.append("nats.embedded is false, so nats.embedded.config has no effect: remove one of them")
    if key and len(key) not in _ENCRYPTION_KEY_BYTES:
        warnings.append(f"{ENCRYPTION_KEY} has {len(key)} bytes and must have 16 or 32: encryption will fail")
    if values["streams.encryption"] and not key:
        warnings.append(f"streams.encryption is on and {ENCRYPTION_KEY} is not set: no stream can be created")
    return warnings
