"""A session has Delta by itself where its jars were fetched before, unless somebody else says which jars there are."""

import hashlib
from pathlib import Path

import pytest

from bascule.spark import delta
from bascule.spark.jars import Jar

JAR = Jar("org/example/delta-1.0.jar", hashlib.sha256(b"classes").hexdigest())


@pytest.fixture
def jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the jars, which is that of Spark's settings, too."""
    monkeypatch.setattr(delta, "JARS", (JAR,))
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / JAR.name).write_bytes(b"classes")
    return tmp_path


def test_delta_is_there_once_its_jars_were_fetched(jars: Path) -> None:
    found = delta.delta_if_there({"spark.driver.memory": "1g"}, jars)
    assert found == {"spark.jars": str(jars / JAR.name), **delta.CLASSES}
    assert delta.delta_if_there({}, jars / "elsewhere") == {}


@pytest.mark.parametrize("key", ["spark.jars", "spark.jars.packages", "spark.sql.extensions"])
def test_jars_and_extensions_of_the_callers_own_are_left_alone(jars: Path, key: str) -> None:
    assert delta.delta_if_there({key: "others"}, jars) == {}


def test_jars_that_spark_itself_is_told_of_are_left_alone(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("PYSPARK_SUBMIT_ARGS", "--packages org.example:thing:1.0 pyspark-shell")
        assert delta.delta_if_there({}, jars) == {}
    (jars / "spark-defaults.conf").write_text("spark.jars /jars/others.jar")
    assert delta.delta_if_there({}, jars) == {}


def test_a_session_that_runs_is_left_as_it_is(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", object())
    assert delta.delta_if_there({}, jars) == {}
