"""A configuration that cannot be used is told before Spark starts: the file, the key, and what would be right."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from bascule.cli.main import cli
from bascule.errors import ConfigError
from bascule.pipelines.archive import configured
from bascule.pipelines.config import duration, texts_by_name

GOOD: dict[str, object] = {"servers": "localhost:9292", "streams": "orders", "table": "lake"}


def written(folder: Path, text: str) -> Path:
    path = folder / "archive.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tabel": "lake"}, "the pipeline archive has no key 'tabel': did you mean table?"),
        ({"maxOffsetPerTrigger": 5}, "did you mean maxOffsetsPerTrigger?"),
        ({"colour": 1}, "no key 'colour': there are servers, streams"),
        ({"table": None}, "table is a text, not None"),
        ({"table": "s3://bucket/lake"}, "table is a folder of this machine"),
        ({"trigger": "often"}, "trigger is once or continuous, not 'often'"),
        ({"interval": "soon"}, "interval is a time such as 10s or 5m, not 'soon'"),
        ({"maxOffsetsPerTrigger": 0}, "maxOffsetsPerTrigger is a number from 1 on, not 0"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss is true or false"),
        ({"pausedPartitions": "wait"}, "pausedPartitions is fail or resume or skip, not 'wait'"),
        ({"quarantine": "here"}, 'the option "quarantine" is a whole path'),
        ({"readFromReplicas": "yes"}, "readFromReplicas is true or false"),
        ({"hold": True}, "hold is the name of a hold, or false for none, not True"),
        ({"streamPattern": "o.*"}, 'give either the option "streams" or "streamPattern"'),
        ({"spark": ["master"]}, "spark has names and values"),
    ],
)
def test_a_key_or_value_that_cannot_be_used_is_named(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    path = written(tmp_path, yaml.safe_dump({**GOOD, **changes}))
    with pytest.raises(ConfigError) as told:
        configured(path)
    assert said in str(told.value)
    assert str(path) in str(told.value)


@pytest.mark.parametrize("missing", ["servers", "table"])
def test_a_key_that_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    path = written(tmp_path, yaml.safe_dump({name: value for name, value in GOOD.items() if name != missing}))
    with pytest.raises(ConfigError, match=f"the key {missing} is missing"):
        configured(path)


@pytest.mark.parametrize(("text", "said"), [("servers: [", "is no YAML"), ("- a", "has keys and values")])
def test_a_file_that_is_no_configuration_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configured(written(tmp_path, text))


@pytest.mark.parametrize("name", ["007", "1.10", "1_000", "0x10", "12:30", "2026-01-31", "7", "1.5", "1e3"])
def test_a_name_stays_as_it_is_written_though_yaml_takes_it_for_a_number(tmp_path: Path, name: str) -> None:
    """`007` was stream 7, which may be there, too: that one was archived, and its hold raised."""
    text = f"servers: a:1\nstreams: [{name}, x]\ntable: {name}\nhold: {name}\nspark: {{a.b: {name}}}"
    config = configured(written(tmp_path, text))
    assert config.source_options().streams == (name, "x")
    assert (config.text("table"), config.text("hold"), config.by_name("spark")) == (name, name, {"a.b": name})


def test_numbers_may_be_written_as_yaml_has_them(tmp_path: Path) -> None:
    text = yaml.safe_dump(GOOD) + "maxOffsetsPerTrigger: 1_000\nminPartitions: 0x10"
    config = configured(written(tmp_path, text))
    assert repr(config.number("maxOffsetsPerTrigger")) == "1000"
    assert config.source()["minPartitions"] == "16"


@pytest.mark.parametrize("twice", ["hold: a\nhold: false", "spark: {a.b: 1, a.b: 2}"])
def test_a_key_that_is_given_twice_is_told(tmp_path: Path, twice: str) -> None:
    with pytest.raises(ConfigError, match="is given twice"):
        configured(written(tmp_path, f"servers: a:1\nstreams: x\ntable: lake\n{twice}"))


def test_a_file_that_is_nested_too_deeply_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        configured(written(tmp_path, "[" * 5000))


def test_lists_and_defaults_are_read(tmp_path: Path) -> None:
    config = configured(written(tmp_path, "servers: [a:1, b:2]\nstreams: [x, y]\ntable: lake\nfailOnDataLoss: false"))
    assert config.source() == {"servers": "a:1,b:2", "streams": "x,y", "failOnDataLoss": "false"}
    assert config.source_options().streams == ("x", "y")
    assert (config.number("maxOffsetsPerTrigger"), config.seconds("interval")) == (1_000_000, 10.0)
    often = {"delta": 60.0, "delta\ninterval: 5s": 5.0, "parquet": 10.0}
    for form, seconds in often.items():
        text = f"servers: a:1\nstreams: x\ntable: lake\nformat: {form}"
        assert configured(written(tmp_path, text)).seconds("interval") == seconds
    assert [duration(text) for text in ("250ms", "1.5 s", "2m", "1h")] == [0.25, 1.5, 120.0, 3600.0]
    assert texts_by_name({"a.b": 1, "c": True}) == {"a.b": "1", "c": "true"}


def test_the_command_says_it_in_one_line_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no Java
    monkeypatch.delenv("JAVA_HOME", raising=False)
    path = written(tmp_path, yaml.safe_dump({**GOOD, "tabel": "lake"}))
    told = CliRunner().invoke(cli, ["pipeline", "archive", "--config", str(path)])
    assert told.exit_code == 1
    assert len(told.stderr.splitlines()) == 1
    assert "did you mean table?" in told.stderr
