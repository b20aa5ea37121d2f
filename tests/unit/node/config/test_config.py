"""The configuration: what is accepted, what is refused and with which text, and which source wins."""

import dataclasses
import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import ConfigError
from bascule.log.sync import SyncMode
from bascule.node.config import Address, Config, load
from bascule.node.config.durations import UNIT_NS
from bascule.node.config.settings import BY_KEY, SECTIONS, SETTINGS, Kind, Setting, nearest
from bascule.wire.subjects import RESERVED_IDS
from tests.harness.paths import ROOT

SECOND = UNIT_NS["s"]
DOCUMENT = ROOT / "docs" / "configuration.md"
HOME = {"HOME": "/home/someone"}


def from_text(tmp_path: Path, text: str, environ: dict[str, str] | None = None, **overrides: object) -> Config:
    path = tmp_path / "broker.yml"
    path.write_text(text)
    return load(path, HOME | (environ or {}), {key.replace("__", "."): value for key, value in overrides.items()})


def refusal(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        from_text(tmp_path, text, environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- defaults and the table ---------------------------------------------------------------------------------


def test_defaults_are_the_go_servers() -> None:
    config = load(None, HOME)
    assert config.port == 9292
    assert config.nats.servers == ("nats://127.0.0.1:4222",)
    assert config.streams.retention_max_age_ns == 168 * 3600 * SECOND
    assert config.streams.segment_max_bytes == 268435456
    assert config.streams.cleaner_interval_ns == 300 * SECOND
    assert config.clustering.namespace == "liftbridge-default"
    assert config.clustering.replication_max_bytes == 1048576
    assert config.clustering.replica_max_lag_time_ns == 15 * SECOND
    assert config.cursors.stream_replication_factor == -1
    assert config.activity.stream_publish_ack_policy == "all"
    assert config.nats.embedded is False
    assert config.warnings == ()
    assert config.explicit == frozenset()


def test_defaults_of_our_own_settings() -> None:
    config = load(None, HOME)
    assert config.streams.sync == SyncMode("group")
    assert not config.streams.sync.relaxed
    assert config.clustering.min_replication_factor == 0


def test_every_setting_has_its_field_and_every_field_its_setting() -> None:
    hints = typing.get_type_hints(Config)
    fields = {("", field.name) for field in dataclasses.fields(Config)} - {("", name) for name in SECTIONS}
    fields -= {("", "encryption_key"), ("", "explicit"), ("", "warnings")}
    for section in SECTIONS:
        fields |= {(section, field.name) for field in dataclasses.fields(hints[section])}
    assert {(setting.section, setting.field) for setting in SETTINGS} == fields


def test_environment_names_are_unique() -> None:
    assert len({setting.env for setting in SETTINGS}) == len(SETTINGS) == len(BY_KEY)


def test_every_setting_can_be_set_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    samples = {
        Kind.STRING: "word",
        Kind.HOST: "example.org",
        Kind.ADDRESS: "127.0.0.1:9",
        Kind.PATH: "/somewhere",
        Kind.TOKEN: "name",
        Kind.TOKENS: "a,b",
        Kind.SERVERS: "nats://a:1,nats://b:2",
        Kind.INT: "1017",
        Kind.BOOL: "true",
        Kind.DURATION: "90s",
        Kind.SYNC: "os",
    }
    needed = {"tls.key": "/k", "tls.cert": "/c", "nats.tls.key": "/k", "nats.tls.cert": "/c"} | {
        "tls.client.auth.enabled": "true",
        "tls.client.authz.model": "/m",
        "tls.client.authz.policy": "/p",
    }
    for setting in SETTINGS:
        text = setting.choices[0] if setting.choices else samples[setting.kind]
        around = {key: value for key, value in needed.items() if key != setting.key}
        in_file = from_text(tmp_path, "\n".join(f"{k}: {v}" for k, v in {**around, setting.key: text}.items()))
        in_variable = load(None, HOME | {setting.env: text}, around)
        assert in_file.value(setting.key) == in_variable.value(setting.key), setting.key
        assert setting.key in in_file.explicit
        if setting.default != text:
            assert in_file.value(setting.key) != load(None, HOME).value(setting.key), setting.key


def documented(setting: Setting) -> str:
    """The setting's row in docs/configuration.md."""
    default = f"`{setting.default}`" if setting.default else "unset"
    kind = " or ".join(f"`{choice}`" for choice in setting.choices) or setting.kind.value
    flags = " ".join(f"`{flag}`" for flag in setting.flags)
    meaning = setting.help + (f" Flags: {flags}." if flags else "")
    cells = (f"`{setting.key}`", kind, default, meaning, f"`{setting.env}`", setting.differs)
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def test_the_documentation_has_every_setting_as_it_is() -> None:
    _, _, tables = DOCUMENT.read_text().partition("## Every setting")
    rows = [line for line in tables.splitlines() if line.startswith("| `")]
    assert rows == [documented(setting) for setting in SETTINGS]


def test_the_file_shown_in_the_documentation_is_accepted(tmp_path: Path) -> None:
    example = DOCUMENT.read_text().partition("```yaml\n")[2].partition("```")[0]
    config = from_text(tmp_path, example)
    assert config.clustering.server_id == "broker-1"
    assert config.streams.segment_max_age_ns == 72 * 3600 * SECOND
    assert len(config.nats.servers) == 2
    assert config.warnings == ()


# --- the file -----------------------------------------------------------------------------------------------


def test_nested_dotted_and_mixed_keys_mean_the_same(tmp_path: Path) -> None:
    texts = (
        "clustering.raft.snapshot.retain: 5\nlogging.level: debug\n",
        "clustering: {raft: {snapshot: {retain: 5}}}\nlogging: {level: debug}\n",
        "clustering:\n  raft.snapshot:\n    retain: 5\nlogging:\n  level: debug\n",
        "Clustering.Raft: {Snapshot.Retain: 5}\nLOGGING: {Level: DEBUG}\n",
    )
    configs = [from_text(tmp_path, text) for text in texts]
    assert configs[0].clustering.raft_snapshot_retain == 5
    assert configs[0].logging.level == "debug"
    assert all(config == configs[0] for config in configs)


def test_a_key_may_be_a_value_and_a_prefix_at_once(tmp_path: Path) -> None:
    config = from_text(tmp_path, "nats.embedded: true\nnats: {embedded: {config: /etc/nats.conf}}\n")
    assert config.nats.embedded
    assert config.nats.embedded_config == "/etc/nats.conf"


def test_embedded_config_implies_embedded(tmp_path: Path) -> None:
    assert from_text(tmp_path, "nats.embedded.config: /etc/nats.conf").nats.embedded


def test_embedded_false_means_false(tmp_path: Path) -> None:
    assert not from_text(tmp_path, "nats.embedded: false").nats.embedded
    config = from_text(tmp_path, "nats: {embedded: 'false', embedded.config: /etc/nats.conf}")
    assert not config.nats.embedded
    assert any("nats.embedded.config has no effect" in warning for warning in config.warnings)


@pytest.mark.parametrize(
    "text",
    ["port: 1\nport: 2", "logging.level: info\nlogging: {level: info}", "logging: {level: info}\nLogging.level: warn"],
)
def test_a_setting_given_twice_is_an_error_that_names_both_lines(tmp_path: Path, text: str) -> None:
    message = refusal(tmp_path, text)
    assert message.startswith("Duplicate configuration setting")
    assert "lines 1 and 2" in message


def test_an_unknown_setting_is_named_with_the_nearest_one_and_the_place(tmp_path: Path) -> None:
    message = refusal(tmp_path, "port: 1\nloging:\n  levle: debug\n")
    assert message.startswith('Unknown configuration setting "loging.levle"')
    assert 'did you mean "logging.level"?' in message
    assert "broker.yml, line 3" in message


def test_an_unknown_setting_with_nothing_near_it_points_to_the_list(tmp_path: Path) -> None:
    message = refusal(tmp_path, "xyzzy: 1")
    assert message.startswith('Unknown configuration setting "xyzzy"')
    assert "docs/configuration.md" in message


def test_a_section_given_a_value_says_what_is_inside(tmp_path: Path) -> None:
    assert "logging.level" in refusal(tmp_path, "logging: debug")


@pytest.mark.parametrize(
    ("key", "meant"),
    [("server.id", "clustering.server.id"), ("level", "logging.level"), ("data_dir", "data.dir"), ("prot", "port")],
)
def test_suggestions(key: str, meant: str) -> None:
    assert nearest(key) == meant


def test_values_keep_the_text_that_was_written(tmp_path: Path) -> None:
    config = from_text(tmp_path, "nats: {user: 0123, password: 1_0}\nclustering: {server.id: 007, namespace: on}")
    assert (config.nats.user, config.nats.password) == ("0123", "1_0")
    assert (config.clustering.server_id, config.clustering.namespace) == ("007", "on")


def test_numbers_and_booleans_may_be_quoted(tmp_path: Path) -> None:
    config = from_text(tmp_path, "port: '9293'\nlogging.raft: 'true'\nlogging.nats: yes\nlogging.recovery: \"1\"\n")
    assert config.port == 9293
    assert (config.logging.raft, config.logging.nats, config.logging.recovery) == (True, True, True)


def test_lists_are_yaml_lists_or_comma_separated(tmp_path: Path) -> None:
    listed = from_text(tmp_path, "nats.servers:\n  - nats://a:1\n  - ' b , tls://c '\n")
    joined = from_text(tmp_path, "nats.servers: 'nats://a:1, b,, tls://c'\n")
    assert listed.nats.servers == joined.nats.servers == ("nats://a:1", "nats://b:4222", "tls://c:4222")


def test_settings_and_sections_without_a_value_are_unset(tmp_path: Path) -> None:
    config = from_text(tmp_path, "clustering:\nlogging:\n  level:\nhost: ~\nport: 1\n")
    assert (config.logging.level, config.host, config.port) == ("info", "", 1)
    assert config.explicit == frozenset({"port"})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("port: [1, 2]", ["Invalid port setting", "not a list", "line 1"]),
        ("port: abc", ['Invalid port setting "abc"', "whole number from 0 to 65535", "line 1"]),
        ("port: 70000", ["70000", "65535"]),
        ("port: 92.5", ["92.5", "whole number"]),
        ("port: -1", ['"-1"']),
        ("logging.raft: maybe", ['Invalid logging.raft setting "maybe"', "true or false"]),
        ("logging.level: loud", ['Invalid logging.level setting "loud"', "debug, info, warn or error"]),
        ("batch.max.time: 5 parsecs", ['"5 parsecs"', "duration"]),
        ("batch.max.time: -5s", ["negative"]),
        ("clustering.replica.fetch.timeout: 0s", ["longer than 0"]),
        ("batch.max.messages: 0", ["at least 1"]),
        ("clustering.server.id: a b", ["spaces or periods"]),
        ("clustering.server.id: a.b", ["spaces or periods"]),
        *((f"clustering.server.id: {word}", ["internal subjects", "another id"]) for word in RESERVED_IDS),
        ("clustering.raft.bootstrap.peers: [a, join]", ["internal subjects"]),
        ("clustering.namespace: 'a*'", ["* or >"]),
        ("clustering.namespace: '>'", ["* or >"]),
        ('clustering.namespace: "a\\r\\nPUB"', ["spaces or periods"]),
        ("clustering.namespace: ''", ["must not be empty"]),
        ("clustering.raft.bootstrap.peers: [a, b.c]", ["spaces or periods"]),
        (f"clustering.server.id: {'x' * 129}", ["128 bytes"]),
        ("streams.sync: sometimes", ["group, os or interval:T"]),
        ("streams.sync: interval:0s", ["longer than 0"]),
        ("streams.sync: interval:soon", ["duration"]),
        ("activity.stream.publish.ack.policy: most", ["none, leader or all"]),
        ("listen: somewhere", ["host:port"]),
        ("listen: '::1:80'", ["[::1]:9292"]),
        ("host: 'localhost:9292'", ["without a port"]),
        ("nats.servers: []", ["at least one"]),
        ("nats.servers: http://a:1", ["nats://host:4222"]),
        ("nats.servers: nats://a:99999", ["nats://host:4222"]),
        ("tls.key: /k", ["tls.key is set and tls.cert is not"]),
        ("nats.tls.cert: /c", ["nats.tls.cert is set and nats.tls.key is not"]),
        ("tls.client.auth.enabled: true", ["needs tls.key, tls.cert"]),
        ("tls.client.authz.enabled: true", ["needs tls.client.auth.enabled, tls.client.authz.model"]),
        ("cursors.stream.partitions: 10001", ["from 0 to 10000"]),
        ("port: {a: 1}", ['Unknown configuration setting "port.a"']),
        ("port: !!python/object:os.system 1", ["Invalid port setting", "line 1"]),
        ("port: !x 1", ["Invalid port setting"]),
        ("<<: {port: 1}", ["Merge keys"]),
        ("? [a]\n: 1", ["plain text"]),
        ("- port", ["`port: 9292`"]),
        ("port", ["`port: 9292`"]),
        ("a: &a\n  b: *a\n", ["alias in a loop"]),
        ("port: 1\n  host: x: y\n", ["not valid YAML at line 2, column 7"]),
        ("port: 1\n---\nport: 2\n", ["not valid YAML at line 2"]),
        ("port: *nothing\n", ["not valid YAML at line 1"]),
        ("[" * 5000, ["nested too deeply"]),
        ("", ["is empty", "--config"]),
        ("\n \n", ["is empty"]),
    ],
)
def test_wrong_files_are_refused_in_one_line_that_helps(tmp_path: Path, text: str, parts: list[str]) -> None:
    message = refusal(tmp_path, text)
    assert [part for part in parts if part not in message] == [], message


def test_aliases_of_aliases_end_in_an_error_soon(tmp_path: Path) -> None:
    text = "a: &a0 {x: {port: 1}}\n" + "".join(
        f"b{n}: &a{n + 1} {{p: *a{n}, q: *a{n}, r: *a{n}, s: *a{n}}}\n" for n in range(12)
    )
    assert "Unknown" in refusal(tmp_path, text)
    empty = text.replace("{x: {port: 1}}", "{}")
    assert "alias in a loop" in refusal(tmp_path, empty)


def test_a_file_of_comments_means_defaults_and_a_warning(tmp_path: Path) -> None:
    config = from_text(tmp_path, "# port: 9292\n")
    assert config.port == 9292
    assert "holds no settings" in config.warnings[0]


def test_files_that_cannot_be_read_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no configuration file .*--config"):
        load(tmp_path / "missing.yml", HOME)
    with pytest.raises(ConfigError, match=r"is a directory: give --config"):
        load(tmp_path, HOME)
    (tmp_path / "latin.yml").write_bytes(b"host: caf\xe9\n")
    with pytest.raises(ConfigError, match="save it as UTF-8"):
        load(tmp_path / "latin.yml", HOME)
    (tmp_path / "huge.yml").write_bytes(b"#" * (1 << 20) + b"##")
    with pytest.raises(ConfigError, match="not a configuration file"):
        load(tmp_path / "huge.yml", HOME)
    with pytest.raises(ConfigError, match="check the path"):
        load(tmp_path / "broker.yml" / "x\0", HOME)
    (tmp_path / "plain.yml").write_text("port: 1")
    with pytest.raises(ConfigError, match="Not a directory; check the path"):
        load(tmp_path / "plain.yml" / "below", HOME)


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yml"
    path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    message = ""
    try:
        load(path, HOME)
    except ConfigError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1


# --- environment, flags, precedence -------------------------------------------------------------------------


def test_the_environment_works_without_a_file() -> None:
    config = load(None, HOME | {"LIFTBRIDGE_LOGGING_LEVEL": "debug", "LIFTBRIDGE_HOST": "h"})
    assert (config.logging.level, config.host) == ("debug", "h")
    assert config.warnings == ()


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    text = "port: 1\nhost: file\nlogging.level: error\n"
    environ = {"LIFTBRIDGE_PORT": "2", "LIFTBRIDGE_HOST": "variable"}
    config = from_text(tmp_path, text, environ, port=3)
    assert (config.port, config.host, config.logging.level) == (3, "variable", "error")
    assert config.batch.max_messages == 1024


def test_the_name_with_periods_that_the_go_server_reads_works_too() -> None:
    config = load(None, HOME | {"LIFTBRIDGE_LOGGING.LEVEL": "warn"})
    assert config.logging.level == "warn"
    both = load(None, HOME | {"LIFTBRIDGE_LOGGING.LEVEL": "warn", "LIFTBRIDGE_LOGGING_LEVEL": "error"})
    assert both.logging.level == "error"
    assert "set twice" in both.warnings[0]


def test_an_unknown_variable_is_a_warning_with_the_nearest_name_and_without_its_value() -> None:
    config = load(None, HOME | {"LIFTBRIDGE_LOGING_LEVEL": "hunter2", "LIFTBRIDGE_ENCRYPTON_KEY": "hunter2"})
    text = "\n".join(config.warnings)
    assert "did you mean LIFTBRIDGE_LOGGING_LEVEL?" in text
    assert "did you mean LIFTBRIDGE_ENCRYPTION_KEY?" in text
    assert "hunter2" not in text
    assert config.logging.level == "info"


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r'Invalid port setting "x" \(environment variable LIFTBRIDGE_PORT\)'):
        load(None, HOME | {"LIFTBRIDGE_PORT": "x"})


def test_an_empty_variable_is_unset(tmp_path: Path) -> None:
    assert from_text(tmp_path, "port: 1", {"LIFTBRIDGE_PORT": ""}).port == 1


def test_variables_of_a_kubernetes_service_do_no_harm() -> None:
    service = {
        "LIFTBRIDGE_SERVICE_HOST": "10.0.0.1",
        "LIFTBRIDGE_SERVICE_PORT": "9292",
        "LIFTBRIDGE_SERVICE_PORT_GRPC": "9292",
        "LIFTBRIDGE_PORT": "tcp://10.0.0.1:9292",
        "LIFTBRIDGE_PORT_9292_TCP": "tcp://10.0.0.1:9292",
        "LIFTBRIDGE_PORT_9292_TCP_ADDR": "10.0.0.1",
    }
    config = load(None, HOME | service)
    assert config.port == 9292
    assert len(config.warnings) == 1
    assert "Kubernetes" in config.warnings[0]


def test_an_unknown_override_is_refused() -> None:
    with pytest.raises(ConfigError, match='Unknown configuration setting "prot": did you mean "port"'):
        load(None, HOME, {"prot": 1})


# --- secrets ------------------------------------------------------------------------------------------------


def test_secrets_are_never_shown() -> None:
    environ = HOME | {
        "LIFTBRIDGE_NATS_PASSWORD": "hunter2",
        "LIFTBRIDGE_ENCRYPTION_KEY": "hunter2hunter2hu",
        "LIFTBRIDGE_NATS_SERVERS": "nats://me:hunter2@a:1,nats://hunter2@b:2",
    }
    config = load(None, environ)
    assert config.nats.password == "hunter2"
    assert config.encryption_key == b"hunter2hunter2hu"
    assert config.nats.servers == ("nats://me:hunter2@a:1", "nats://hunter2@b:2")
    shown = config.describe()
    assert shown["nats.servers"] == "nats://***@a:1, nats://***@b:2"
    assert shown["nats.password"] == shown["LIFTBRIDGE_ENCRYPTION_KEY"] == "***"
    assert "hunter2" not in str(shown) + repr(config) + str(config.warnings)


@pytest.mark.parametrize(
    "text",
    ["nats.password: [hunter2]", "nats.servers: 'x://u:hunter2@h'", "nats.servers: 'nats://u:hun,hunter2@h:1/x'"],
)
def test_secrets_are_not_in_errors(tmp_path: Path, text: str) -> None:
    assert "hunter2" not in refusal(tmp_path, text)


def test_a_key_of_the_wrong_size_is_a_warning_without_the_key() -> None:
    config = load(None, HOME | {"LIFTBRIDGE_ENCRYPTION_KEY": "short"}, {"streams.encryption": True})
    assert ["short" in warning for warning in config.warnings] == [False]
    assert "16 or 32" in config.warnings[0]


def test_describe_shows_every_setting_as_a_file_would_write_it() -> None:
    shown = load(None, HOME).describe()
    assert list(shown) == [*BY_KEY, "LIFTBRIDGE_ENCRYPTION_KEY"]
    assert shown["streams.retention.max.age"] == "168h"
    assert shown["streams.sync"] == "group"


# --- addresses and folders ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bind", "advertised"),
    [
        ("logging.level: info", "0.0.0.0:9292", "localhost:9292"),
        ("port: 1", "0.0.0.0:1", "localhost:1"),
        ("port: 0", "0.0.0.0:0", "localhost:4444"),
        ("host: h", "h:9292", "h:9292"),
        ("host: h\nport: 0", "h:0", "h:4444"),
        ("host: '::1'", "[::1]:9292", "[::1]:9292"),
        ("listen: l:5", "l:5", "l:5"),
        ("listen: 0.0.0.0:5", "0.0.0.0:5", "localhost:5"),
        ("listen: '[::]:5'", "[::]:5", "localhost:5"),
        ("listen: l:0", "l:0", "l:4444"),
        ("listen: l:5\nhost: h\nport: 6", "l:5", "h:6"),
        ("listen: 0.0.0.0:0\nhost: h\nport: 6", "0.0.0.0:0", "h:6"),
        ("listen: ':5'\nport: 6", "0.0.0.0:6", "localhost:6"),
    ],
)
def test_where_it_listens_and_what_clients_are_told(tmp_path: Path, text: str, bind: str, advertised: str) -> None:
    config = from_text(tmp_path, text)
    assert str(config.bind) == bind
    assert str(config.advertised(config.bind.port or 4444)) == advertised


def test_a_listen_without_host_is_ignored_with_a_warning(tmp_path: Path) -> None:
    config = from_text(tmp_path, "listen: ':5'")
    assert config.listen is None
    assert "listen has no host" in config.warnings[0]
    assert from_text(tmp_path, "listen: 127.0.0.1:5").listen == Address("127.0.0.1", 5)


def test_the_data_folder_is_in_the_users_data_folder_and_named_after_the_namespace() -> None:
    assert load(None, HOME).data_dir == "/home/someone/.local/share/bascule/liftbridge-default"
    assert load(None, HOME | {"XDG_DATA_HOME": "/data"}).data_dir == "/data/bascule/liftbridge-default"
    assert load(None, HOME | {"XDG_DATA_HOME": "relative"}).data_dir.startswith("/home/someone/")
    assert load(None, HOME, {"clustering.namespace": "a/b"}).data_dir.endswith("/bascule/a%2Fb")
    assert load(None, HOME, {"data.dir": "here"}).data_dir == "here"


def test_paths_may_begin_at_home(tmp_path: Path) -> None:
    config = from_text(tmp_path, "data.dir: ~/data\nnats.tls.ca: '~x'")
    assert (config.data_dir, config.nats.tls_ca) == ("/home/someone/data", "~x")


def test_files_named_by_settings_are_checked_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    config = load(None, HOME, {"nats.tls.ca": str(path)})
    with pytest.raises(ConfigError, match=r"ca.pem, the nats.tls.ca setting: No such file"):
        config.check_files()
    path.write_text("")
    config.check_files()


# --- settings that depend on others -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "age_ns"),
    [
        ("streams.retention.max.age: 1h", 3600 * SECOND),
        ("streams: {retention.max.age: 1h, segment.max.age: 5s}", 5 * SECOND),
        ("streams: {retention.max.age: 1h, segment.max.age: 0}", 3600 * SECOND),
        ("streams.segment.max.age: 5ms", SECOND),
        ("streams.retention.max.age: 0", 0),
    ],
)
def test_segments_grow_as_old_as_retention_unless_told(tmp_path: Path, text: str, age_ns: int) -> None:
    assert from_text(tmp_path, text).streams.segment_max_age_ns == age_ns


def test_authorization_is_switched_by_its_own_setting(tmp_path: Path) -> None:
    text = "tls: {key: /k, cert: /c, client.auth: {enabled: true, ca: /a}}"
    config = from_text(tmp_path, text)
    assert config.tls.enabled
    assert config.tls.client_auth_enabled
    assert not config.tls.client_authz_enabled


def test_min_isr_is_at_least_one() -> None:
    assert load(None, HOME, {"clustering.min.insync.replicas": 0}).clustering.min_insync_replicas == 1


@pytest.mark.parametrize(("text", "mode", "interval_ns"), [("os", "os", 0), ("interval:100ms", "interval", 10**8)])
def test_ways_to_sync(text: str, mode: str, interval_ns: int) -> None:
    config = load(None, HOME, {"streams.sync": text})
    assert config.streams.sync == SyncMode(mode, interval_ns)
    assert str(config.streams.sync) == text
    assert config.streams.sync.relaxed


def test_a_lag_time_below_the_idle_wait_is_no_mistake_for_idle_followers_report_anyway() -> None:
    assert load(None, HOME, {"clustering.replica.max.lag.time": "5s"}).warnings == ()


def test_a_duration_without_a_unit_is_warned_of(tmp_path: Path) -> None:
    config = from_text(tmp_path, "clustering.replica.fetch.timeout: 15\n")
    assert config.clustering.replica_fetch_timeout_ns == 15
    assert "write a unit, such as 15s" in config.warnings[0]
    assert from_text(tmp_path, "clustering.replica.fetch.timeout: 3000000000").warnings == ()


@pytest.mark.parametrize(
    ("key", "value", "span"),
    [
        ("clustering.min.insync.replicas", "99999999999", "from 0 to 1024"),
        ("clustering.min.replication.factor", "99999999999", "from 0 to 1024"),
        ("cursors.stream.replication.factor", "99999999999", "from -1 to 1024"),
        ("streams.compact.key.map.bytes", "1", "of at least 1000"),
    ],
)
def test_numbers_that_no_cluster_could_work_with_are_refused(tmp_path: Path, key: str, value: str, span: str) -> None:
    """The first three do not fit a stream's settings; the last one is no room for a single key."""
    expected = f'Invalid {key} setting "{value}" ({tmp_path}/broker.yml, line 1): expected a whole number {span}'
    assert refusal(tmp_path, f"{key}: {value}") == expected
