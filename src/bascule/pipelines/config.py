"""The configuration of a pipeline: a YAML file of plain keys, checked whole before Spark starts.

A key that is unknown is named with the nearest that there is, a value that cannot be used with what would be right.
Keys of the source are options of `format("liftbridge")` under the same names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bascule import limits
from bascule.errors import ConfigError, InvalidArgument
from bascule.spark.options import OPTIONS, ReadOptions, read_options

Value = str | int | float | bool | dict[str, str] | tuple[str, ...]
Check = Callable[[object], Value]
"""Gives the value as it is used, or raises ValueError that says what it should be."""

_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Key(NamedTuple):
    check: Check
    what: str
    default: Value | None = None
    required: bool = False


# --- what values may be -------------------------------------------------------------------------------------------


def text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise ValueError("is a text")
    return str(value).strip()


def listed(value: object) -> str:
    """A list, or its items separated by commas."""
    if isinstance(value, list):
        return ",".join(text(item) for item in value)
    return text(value)


def count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("is a number from 1 on")
    return int(value)


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is true or false")
    return value


def duration(value: object) -> float:
    found = _TIME.fullmatch(str(value).strip().lower())
    if found is None:
        raise ValueError("is a time such as 10s or 5m")
    return float(found[1]) * _SECONDS[found[2]]


def one_of(*choices: str) -> Check:
    def check(value: object) -> str:
        if value not in choices:
            raise ValueError(f"is {' or '.join(choices)}")
        return str(value)

    return check


def texts_by_name(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str | int | float | bool) for each in value.values()):
        raise ValueError("has names and values, one a line")
    return {str(name): str(each).lower() if isinstance(each, bool) else str(each) for name, each in value.items()}


def local_path(value: object) -> str:
    """Of this machine, or of a disk that it shares with the executors."""
    path = text(value).removeprefix("file://")
    if "://" in path:
        raise ValueError("is a folder of this machine, or of a disk that it shares with the executors of Spark")
    return path


def name_or_false(value: object) -> str | bool:
    if value is True:
        raise ValueError("is the name of a hold, or false for none")
    return False if value is False else text(value)


_SOURCE_CHECKS: dict[str, Check] = {
    "servers": listed,
    "streams": listed,
    "minPartitions": count,
    "failOnDataLoss": flag,
    "pausedPartitions": one_of("fail", "resume", "skip"),
    "readFromReplicas": flag,
}
_SOURCE_NAMES = (
    "servers",
    "streams",
    "streamPattern",
    "minPartitions",
    "failOnDataLoss",
    "quarantine",
    "pausedPartitions",
    "readFromReplicas",
    "tlsCa",
    "tlsCert",
    "tlsKey",
)
SOURCE_KEYS = {name: Key(_SOURCE_CHECKS.get(name, text), OPTIONS[name]) for name in _SOURCE_NAMES}
"""Which streams are read, and how."""
SPARK_KEY = Key(
    texts_by_name, "Settings of Spark, such as spark.driver.memory; `master` is where it runs. Default: local[*].", {}
)


# --- a file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """A file whose keys were checked. Keys that are missing have their defaults."""

    where: str
    """The file, for errors."""
    values: Mapping[str, Value | None]

    def text(self, name: str) -> str:
        return str(self.values[name] or "")

    def number(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def seconds(self, name: str) -> float:
        value = self.values[name]
        assert isinstance(value, float)
        return value

    def by_name(self, name: str) -> dict[str, str]:
        value = self.values[name]
        assert isinstance(value, dict)
        return value

    def wrong(self, name: str, why: str) -> ConfigError:
        return ConfigError(f"{self.where}: {name} {why}, not {self.values[name]!r}")

    def source(self) -> dict[str, str]:
        """Options of `format("liftbridge")`."""
        given = {name: self.values[name] for name in SOURCE_KEYS if self.values.get(name) is not None}
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}

    def source_options(self) -> ReadOptions:
        """The same, checked as the source checks them."""
        try:
            return read_options(self.source())
        except InvalidArgument as error:
            raise ConfigError(f"{self.where}: {error}") from None


def load(path: Path, pipeline: str, keys: Mapping[str, Key]) -> Config:
    """ConfigError names the file, the key, and what would be right."""
    return checked(_parsed(path), pipeline, keys, str(path))


def checked(given: Mapping[str, object], pipeline: str, keys: Mapping[str, Key], where: str) -> Config:
    values: dict[str, Value | None] = {name: key.default for name, key in keys.items()}
    for name, value in given.items():
        if name not in keys:
            raise ConfigError(f"{where}: the pipeline {pipeline} has no key {name!r}: {_nearest(name, keys)}")
        try:
            values[name] = keys[name].check(value)
        except ValueError as error:
            raise ConfigError(f"{where}: {name} {error}, not {value!r}") from None
    for name, key in keys.items():
        if key.required and values[name] is None:
            raise ConfigError(f"{where}: the key {name} is missing: {key.what}")
    return Config(where, values)


def _nearest(name: str, keys: Mapping[str, Key]) -> str:
    known = {each.lower(): each for each in keys}
    near = get_close_matches(str(name).lower(), known, 1, 0.5)
    return f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(keys)}"


class _Written(int):
    """A number whose text is the one that was written."""

    text: str

    def __str__(self) -> str:
        return self.text


class _Loader(yaml.SafeLoader):
    """YAML in which a key is given once, and what looks like a number or a day keeps its text: `007`, `1.10`, `1_000`
    and `2026-01-31` may be names of streams, holds and folders."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := next((key for number, key in enumerate(keys) if key in keys[:number]), None):
            raise yaml.constructor.ConstructorError(None, None, f"{twice} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number = _Written(super().construct_yaml_int(node))
        number.text = node.value
        return number

    def construct_text(self, node: yaml.ScalarNode) -> str:
        return str(node.value)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
for _kind in ("float", "timestamp"):  # no key takes one of these
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_text)


def _parsed(path: Path) -> Mapping[str, object]:
    with path.open("rb") as file:
        data = file.read(limits.CONFIG_MAX_BYTES + 1)
    if len(data) > limits.CONFIG_MAX_BYTES:
        raise ConfigError(f"{path} has more than {limits.CONFIG_MAX_BYTES} bytes: it is no configuration of a pipeline")
    try:
        found = yaml.load(data, Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply: it has keys and values, one a line") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} has keys and values, one a line, such as servers: localhost:9292")
    return found
