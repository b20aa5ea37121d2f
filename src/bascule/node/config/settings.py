"""Every setting there is, in one table.

The table drives loading, environment names, suggestions for misspelt keys, `Config.describe` and the check
that docs/configuration.md is complete. The names are the Go server's; the few that are ours say so in
`differs`.

A setting's place in `Config` follows from its key: the first word names the section if there is such a
section, the rest is the field with `_` for `.`, and durations end in `_ns`: `streams.retention.max.age` is
`config.streams.retention_max_age_ns`, `data.dir` is `config.data_dir`.
"""

import difflib
from dataclasses import dataclass
from enum import Enum

from bascule.limits import LEAST_KEY_MAP_BYTES, MAX_PARTITIONS, MIB, RAFT_MAX_SERVERS

INT64_MAX = (1 << 63) - 1
ENV_PREFIX = "LIFTBRIDGE_"
SECTIONS = (
    "metadata",
    "logging",
    "batch",
    "tls",
    "nats",
    "streams",
    "clustering",
    "activity",
    "cursors",
    "groups",
    "telemetry",
)


class Kind(Enum):
    """How the text of a value is read. The value is the type's name in the documentation."""

    STRING = "string"
    HOST = "host"
    ADDRESS = "host:port"
    PATH = "path"
    TOKEN = "name"
    TOKENS = "list of names"
    SERVERS = "list of URLs"
    INT = "int"
    BOOL = "bool"
    DURATION = "duration"
    CHOICE = "choice"
    SYNC = "sync"


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    kind: Kind
    default: str
    """As a file would say it; empty is unset."""
    help: str
    flags: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = INT64_MAX
    choices: tuple[str, ...] = ()
    secret: bool = False
    differs: str = ""
    """How this differs from the Go server, for the documentation."""

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.key.upper().replace(".", "_")

    @property
    def section(self) -> str:
        """The part of `Config` it is in; empty for the root."""
        first = self.key.partition(".")[0]
        return first if first in SECTIONS else ""

    @property
    def field(self) -> str:
        name = self.key.removeprefix(self.section + ".") if self.section else self.key
        return name.replace(".", "_") + ("_ns" if self.kind is Kind.DURATION else "")


S = Setting
_OURS = "new here"
_NOT_SENT = "Bascule sends nothing to anybody"

SETTINGS: tuple[Setting, ...] = (
    S("listen", Kind.ADDRESS, "", "Address to bind. Without a host part it is ignored: use `port`."),
    S(
        "host",
        Kind.HOST,
        "",
        "Host that clients connect to; also the one to bind if `listen` is unset.",
    ),
    S(
        "port",
        Kind.INT,
        "9292",
        "Port that clients connect to; also the one to bind if `listen` is unset. 0: a free one.",
        flags=("--port", "-p"),
        maximum=65535,
    ),
    S(
        "data.dir",
        Kind.PATH,
        "",
        "Folder of the data. Unset: `bascule/<namespace>` in `$XDG_DATA_HOME` or `~/.local/share`.",
        flags=("--data-dir", "-d"),
        differs="there the default is in the temporary folder, lost on reboot",
    ),
    S(
        "metadata.cache.max.age",
        Kind.DURATION,
        "2m",
        "How long the list of brokers may be served from memory.",
        differs="no effect: every broker has the metadata itself",
    ),
    S(
        "logging.level",
        Kind.CHOICE,
        "info",
        "Least serious event to log.",
        flags=("--level", "-l"),
        choices=("debug", "info", "warn", "error"),
    ),
    S(
        "logging.recovery",
        Kind.BOOL,
        "false",
        "Log while the metadata log is replayed at the start.",
        differs="no effect: what a recovery finds is always logged",
    ),
    S("logging.raft", Kind.BOOL, "false", "Log the details of Raft."),
    S("logging.nats", Kind.BOOL, "false", "Log what the embedded NATS server says."),
    S(
        "batch.max.messages",
        Kind.INT,
        "1024",
        "Most messages in one write.",
        minimum=1,
        differs="no effect: a write takes all that has come since the last one",
    ),
    S(
        "batch.max.time",
        Kind.DURATION,
        "0",
        "How long to wait for more messages before a write.",
        differs="no effect: a write does not wait",
    ),
    S("tls.key", Kind.PATH, "", "Private key of the gRPC server (PEM).", flags=("--tls-key",)),
    S(
        "tls.cert",
        Kind.PATH,
        "",
        "Certificate of the gRPC server (PEM).",
        flags=("--tls-cert",),
        differs="a key without a certificate, or the reverse, is an error instead of no TLS",
    ),
    S("tls.client.auth.enabled", Kind.BOOL, "false", "Clients must show a certificate."),
    S("tls.client.auth.ca", Kind.PATH, "", "Authority that signs the clients' certificates (PEM)."),
    S(
        "tls.client.authz.enabled",
        Kind.BOOL,
        "false",
        "Check each call against the policy, by the common name of the client's certificate.",
        differs="there it takes the value of `tls.client.auth.enabled`",
    ),
    S("tls.client.authz.model", Kind.PATH, "", "Casbin model of the policy."),
    S("tls.client.authz.policy", Kind.PATH, "", "Policy (CSV), read again on SIGHUP."),
    S(
        "nats.servers",
        Kind.SERVERS,
        "nats://127.0.0.1:4222",
        "NATS servers to connect to.",
        flags=("--nats-servers", "-n"),
    ),
    S("nats.user", Kind.STRING, "", "User at the NATS servers."),
    S("nats.password", Kind.STRING, "", "Password at the NATS servers.", secret=True),
    S("nats.tls.cert", Kind.PATH, "", "Certificate to show to the NATS servers (PEM); needs `nats.tls.key`."),
    S("nats.tls.key", Kind.PATH, "", "Private key of that certificate (PEM)."),
    S("nats.tls.ca", Kind.PATH, "", "Authority that signs the NATS servers' certificates (PEM)."),
    S(
        "nats.embedded",
        Kind.BOOL,
        "false",
        "Run a NATS server together with this broker.",
        flags=("--embedded-nats", "-e"),
        differs="`false` means false, and it listens on 127.0.0.1 instead of every interface",
    ),
    S(
        "nats.embedded.config",
        Kind.PATH,
        "",
        "Configuration file of that NATS server; implies `nats.embedded` unless that is `false`.",
        flags=("--embedded-nats-config", "--nc"),
    ),
    S(
        "streams.sync",
        Kind.SYNC,
        "group",
        "When appended messages are forced to disk: `group`, before their acks leave; `interval:T`, every T "
        "(relaxed: up to T of acked data is lost with the power); `os`, whenever the system does.",
        differs=f"{_OURS}; the Go server works as with `os`",
    ),
    S(
        "streams.retention.max.bytes",
        Kind.INT,
        "0",
        "Most bytes a partition keeps, counted in whole segments. 0: no limit.",
    ),
    S(
        "streams.retention.max.messages",
        Kind.INT,
        "0",
        "Most messages a partition keeps, counted in whole segments. 0: no limit.",
    ),
    S(
        "streams.retention.max.age",
        Kind.DURATION,
        "168h",
        "How long a partition keeps messages. 0: for ever.",
    ),
    S("streams.cleaner.interval", Kind.DURATION, "5m", "Time between two rounds of retention.", minimum=1),
    S(
        "streams.segment.max.bytes",
        Kind.INT,
        str(256 * MIB),
        "Size at which a new segment file is begun. Never above 4 GiB.",
        minimum=1,
    ),
    S(
        "streams.segment.max.age",
        Kind.DURATION,
        "0",
        "Age at which a new segment file is begun; at least 1 s. 0: `streams.retention.max.age`.",
    ),
    S("streams.compact.enabled", Kind.BOOL, "false", "Keep only the newest message of each key."),
    S(
        "streams.compact.max.goroutines",
        Kind.INT,
        "10",
        "Accepted, without effect: a broker compacts one partition at a time.",
        minimum=1,
        differs="there, the goroutines that scan a partition",
    ),
    S(
        "streams.compact.min.lag",
        Kind.DURATION,
        "0",
        "Messages that are younger are not compacted.",
        differs="new here",
    ),
    S(
        "streams.compact.tombstone.delay",
        Kind.DURATION,
        "24h",
        "How long a tombstone stays at least when what it deletes is gone, from the logs of all replicas.",
        differs="new here",
    ),
    S(
        "streams.compact.key.map.bytes",
        Kind.INT,
        str(32 * MIB),
        "Memory of the keys that one pass of a compaction knows, 32 bytes each; more keys take more passes.",
        minimum=LEAST_KEY_MAP_BYTES,
        differs="new here",
    ),
    S(
        "streams.auto.pause.time",
        Kind.DURATION,
        "0",
        "Pause a partition after this time without messages. 0: off.",
    ),
    S(
        "streams.auto.pause.disable.if.subscribers",
        Kind.BOOL,
        "false",
        "Never auto-pause while there are subscribers.",
    ),
    S(
        "streams.concurrency.control",
        Kind.BOOL,
        "false",
        "Optimistic concurrency: a message that names an expected offset is stored only there.",
        differs="there it has no effect unless a stream asks for it",
    ),
    S(
        "streams.flatbuffers.draft",
        Kind.BOOL,
        "false",
        "Understand `Publish` envelopes of the FlatBuffers draft, where they are none of the protocol: see "
        "[the decision](decisions/flatbuffers-draft.md).",
        differs=_OURS,
    ),
    S(
        "streams.encryption",
        Kind.BOOL,
        "false",
        "Encrypt values at rest with the key in `LIFTBRIDGE_ENCRYPTION_KEY`.",
    ),
    S(
        "clustering.server.id",
        Kind.TOKEN,
        "",
        "Name of this broker: no blanks, periods or wildcards, and not one of the words that internal subjects use "
        "(`join`, `status` and the like). Unset: chosen once, then kept in the data folder. The name in the data "
        "folder wins.",
        flags=("--server-id", "--id"),
    ),
    S(
        "clustering.namespace",
        Kind.TOKEN,
        "liftbridge-default",
        "Name of the cluster: no blanks, periods or wildcards.",
        flags=("--namespace", "--ns"),
    ),
    S(
        "clustering.raft.snapshot.retain",
        Kind.INT,
        "2",
        "Metadata snapshots to keep.",
        minimum=1,
        differs="no effect: two are kept",
    ),
    S(
        "clustering.raft.snapshot.threshold",
        Kind.INT,
        "8192",
        "Metadata commands between two snapshots.",
        minimum=1,
    ),
    S(
        "clustering.raft.cache.size",
        Kind.INT,
        "512",
        "Metadata commands kept in memory.",
        minimum=1,
        differs="no effect",
    ),
    S(
        "clustering.raft.bootstrap.seed",
        Kind.BOOL,
        "false",
        "Begin a new cluster with this broker if it is in none yet.",
        flags=("--raft-bootstrap-seed",),
    ),
    S(
        "clustering.raft.bootstrap.peers",
        Kind.TOKENS,
        "",
        "Of these server ids and this broker one founds a new cluster when a majority of them is there; the "
        "others join it.",
        flags=("--raft-bootstrap-peers",),
    ),
    S("clustering.raft.max.quorum.size", Kind.INT, "0", "Most brokers that vote. 0: no limit."),
    S(
        "clustering.replica.max.lag.time",
        Kind.DURATION,
        "15s",
        "A follower that has not synced what its leader had this long ago leaves the in-sync set. An idle follower "
        "reports every 0.8 s, or three times within this time if that is more often.",
        minimum=1,
    ),
    S(
        "clustering.replica.max.leader.timeout",
        Kind.DURATION,
        "15s",
        "A leader that has been silent for this long is reported to the controller.",
        minimum=1,
        differs="no effect: a broker that is silent for 1.5 s counts as dead",
    ),
    S(
        "clustering.replica.max.idle.wait",
        Kind.DURATION,
        "10s",
        "Longest time between two fetches of an idle follower.",
        minimum=1,
        differs="no effect: leaders send without being asked",
    ),
    S(
        "clustering.replica.fetch.timeout",
        Kind.DURATION,
        "3s",
        "After how long without an answer a follower asks its leader again; 1.5 s at most, whatever is set.",
        minimum=1,
    ),
    S(
        "clustering.min.insync.replicas",
        Kind.INT,
        "1",
        "In-sync replicas that must have a message before it is committed, for streams that do not say. A default, not "
        "a minimum; stored with each stream when it is created. 0 is 1.",
        maximum=RAFT_MAX_SERVERS,
    ),
    S(
        "clustering.min.replication.factor",
        Kind.INT,
        "0",
        "Streams are created with at least so many replicas, whatever the client asks for; refused if there are fewer "
        "brokers. 0: clients choose freely.",
        maximum=RAFT_MAX_SERVERS,
        differs=_OURS,
    ),
    S(
        "clustering.replication.max.bytes",
        Kind.INT,
        str(MIB),
        "Bytes of one replication answer; also the largest message accepted, with its envelope. At most what "
        "the NATS server takes in one message.",
        minimum=1,
        maximum=64 * MIB,
    ),
    S(
        "activity.stream.enabled",
        Kind.BOOL,
        "false",
        "Publish what happens to streams to the stream `__activity`.",
    ),
    S(
        "activity.stream.publish.timeout",
        Kind.DURATION,
        "5s",
        "How long to wait for the ack of an event.",
        minimum=1,
    ),
    S(
        "activity.stream.publish.ack.policy",
        Kind.CHOICE,
        "all",
        "Ack to wait for when an event is published.",
        choices=("none", "leader", "all"),
    ),
    S(
        "cursors.stream.partitions",
        Kind.INT,
        "0",
        "Partitions of the stream `__cursors`; fixed once it exists. 0: no cursors.",
        maximum=MAX_PARTITIONS,
    ),
    S(
        "cursors.stream.replication.factor",
        Kind.INT,
        "-1",
        "Replicas of each cursors partition. -1: every broker.",
        minimum=-1,
        maximum=RAFT_MAX_SERVERS,
    ),
    S("cursors.stream.auto.pause.time", Kind.DURATION, "1m", "Pause an idle cursors partition. 0: never."),
    S(
        "groups.consumer.timeout",
        Kind.DURATION,
        "15s",
        "A consumer silent for this long leaves its group.",
        minimum=1,
    ),
    S(
        "groups.coordinator.timeout",
        Kind.DURATION,
        "15s",
        "A group coordinator silent for this long is reported by its consumers.",
        minimum=1,
    ),
    S("telemetry.enabled", Kind.BOOL, "true", "Accepted and ignored.", differs=_NOT_SENT),
    S("telemetry.interval.seconds", Kind.INT, "86400", "Accepted and ignored.", differs=_NOT_SENT),
)

BY_KEY: dict[str, Setting] = {setting.key: setting for setting in SETTINGS}


def nearest(key: str, names: tuple[str, ...] = tuple(BY_KEY)) -> str | None:
    """The name that was probably meant, or None if nothing is close."""
    tails = [name for name in names if name.endswith(("." + key, "_" + key))]
    if len(tails) == 1:
        return tails[0]
    return next(iter(difflib.get_close_matches(key, names, n=1, cutoff=0.6)), None)
