"""Jars that are fetched: once, whole, and only those that were meant."""

import hashlib
from pathlib import Path
from urllib.error import URLError

import pytest

from bascule.errors import StartError
from bascule.spark.jars import Jar, cache_folder, cached, fetched, listed

CONTENT = b"classes"
JAR = Jar("org/example/thing/1.0/thing-1.0.jar", hashlib.sha256(CONTENT).hexdigest())


def refuse(url: str) -> bytes:
    raise AssertionError(f"{url} is not asked for")


def test_a_jar_is_fetched_once_and_then_taken_from_the_folder(tmp_path: Path) -> None:
    urls: list[str] = []

    def give(url: str) -> bytes:
        urls.append(url)
        return CONTENT

    (path,) = fetched([JAR], tmp_path / "jars", give)
    assert (path.name, path.read_bytes()) == ("thing-1.0.jar", CONTENT)
    assert urls == ["https://repo1.maven.org/maven2/org/example/thing/1.0/thing-1.0.jar"]
    assert fetched([JAR], tmp_path / "jars", refuse) == [path]


def test_a_jar_that_was_cut_short_in_the_folder_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / JAR.name).write_bytes(CONTENT[:3])
    (path,) = fetched([JAR], tmp_path, lambda _: CONTENT)
    assert path.read_bytes() == CONTENT


def test_jars_that_were_fetched_before_are_found_if_all_are_there_and_whole(tmp_path: Path) -> None:
    other = Jar("org/example/other/1.0/other-1.0.jar", JAR.sha256)
    (tmp_path / JAR.name).write_bytes(CONTENT)
    assert cached([JAR], tmp_path) == [tmp_path / JAR.name]
    assert cached([JAR, other], tmp_path) == []
    (tmp_path / other.name).write_bytes(CONTENT[:3])
    assert cached([JAR, other], tmp_path) == []
    assert cached([JAR], tmp_path / "not-there") == []


def test_a_jar_that_is_not_what_was_written_down_is_refused_and_not_stored(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"thing-1\.0\.jar is not the file it was"):
        fetched([JAR], tmp_path, lambda _: b"other classes")
    assert list(tmp_path.iterdir()) == []


def test_a_registry_that_is_not_reached_is_told_with_what_to_do(tmp_path: Path) -> None:
    def fail(_: str) -> bytes:
        raise URLError("no route to host")

    with pytest.raises(StartError, match=r"cannot be fetched from https://.*no route to host.*Put it there by hand"):
        fetched([JAR], tmp_path, fail)


def test_the_folder_is_that_of_the_environment_or_the_users_cache() -> None:
    assert cache_folder({"BASCULE_JARS": "/jars", "XDG_CACHE_HOME": "/cache"}) == Path("/jars")
    assert cache_folder({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/bascule/jars")
    assert cache_folder({}) == Path.home() / ".cache" / "bascule" / "jars"


def test_a_list_has_a_path_and_a_checksum_a_line() -> None:
    assert listed("# remark\n\na/b.jar 00ff # why\n") == [Jar("a/b.jar", "00ff")]
