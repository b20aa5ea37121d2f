"""The documents name what exists: every file of the source has its place on the map, and tests that are named as
evidence are there.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from bascule.sim.faults.every import families
from bascule.wire import kernels
from bascule.wire.pb import admin_pb2, api_pb2, log_pb2, producer_pb2
from tests.harness.diagrams import rows, section
from tests.harness.documents import DOCUMENTS, name_of, prose
from tests.harness.paths import ROOT
from tools.faults import SCENARIOS

SOURCE = ROOT / "src" / "bascule"
GUARANTEES = ROOT / "docs" / "guarantees.md"
_CODE = re.compile(r"`([^`\n]+)`")
_OWN_FILE = re.compile(r"(?:wire|core|log|net|node|client|spark|pipelines|cli|testing|sim)(?:/\w+)+(?:\.\w+)?")


def named_files() -> list[str]:
    """The files of the map, below src/bascule. A package whose files are not listed one by one is `package/*`."""
    found = []
    for package, files, _ in rows("Where each file is"):
        folder = package.strip("`").rstrip("/")
        prefix = "" if folder == "." else f"{folder}/"
        found += [f"{prefix}*"] if files == "*" else [f"{prefix}{name}" for name in _CODE.findall(files)]
    return found


def test_every_file_is_on_the_map_once() -> None:
    named = named_files()
    whole_packages = tuple(name.removesuffix("*") for name in named if name.endswith("*"))
    there = {
        path.relative_to(SOURCE).as_posix()
        for kind in ("*.py", "*.pyx", "*.pxi")
        for path in SOURCE.rglob(kind)
        if path.name != "__init__.py"
    }
    listed = [name for name in named if not name.endswith("*")]
    assert len(set(listed)) == len(listed)
    assert {name for name in there if not name.startswith(whole_packages)} == set(listed)
    assert all((SOURCE / package).is_dir() for package in whole_packages)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_files_of_the_source_that_are_named_exist(document: Path) -> None:
    """Such as node/replication/feeds.py; without its suffix a file or a package, as in core/partition/leader."""
    named = [code for code in _CODE.findall(prose(document)) if _OWN_FILE.fullmatch(code)]
    missing = [name for name in named if not (SOURCE / name).exists() and not (SOURCE / f"{name}.py").exists()]
    assert missing == []


def text_of_the_source() -> str:
    """Every piece of text in the source, each joined as Python joins it."""
    nodes = (node for path in SOURCE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_what_operators_may_see_is_what_brokers_say() -> None:
    said = text_of_the_source()
    pieces = [
        piece.strip(" .:;,/")
        for row in rows("When something goes wrong", ROOT / "docs" / "operations.md")
        for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", row[0])
        for piece in code.split("…")
    ]
    assert len(pieces) > 20
    assert [piece for piece in pieces if piece.removesuffix(" quarantine") not in said] == []


def test_every_kernel_is_in_the_table() -> None:
    named = {name for row in rows("The kernels") for name in _CODE.findall(row[0])}
    assert named == {name for name in kernels.__all__ if name not in ("TWIN", "crc32c", "record_tail")}


def test_every_rpc_is_in_the_table_of_authorization() -> None:
    named = [name.strip() for row in rows("Authorization") for name in row[0].split(",")]
    services = [
        service
        for file in (api_pb2, admin_pb2, log_pb2, producer_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
    ]
    assert sorted(named) == sorted(method.name for service in services for method in service.methods)


# --- evidence ------------------------------------------------------------------------------------------------------


@cache
def functions_of(path: Path) -> list[str]:
    return [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]


def evidence(cell: str) -> list[str]:
    return [code for code in _CODE.findall(cell) if code.startswith(("tests/", "make "))]


def problem(code: str) -> str:
    """Why this is no evidence; empty if it is."""
    if code.startswith("make "):
        only = "".join(re.findall(r"ONLY=(\w+)", code))
        return "" if any(only in name for name in SCENARIOS) else f"{code}: no such run"
    file, _, test = code.partition("::")
    path = ROOT / file
    if not path.exists():
        return f"{file} is not there"
    return "" if not test or test in functions_of(path) else f"{code}: no such test"


@pytest.mark.parametrize("heading", ["What is promised", "Faults"])
def test_what_is_promised_names_its_evidence(heading: str) -> None:
    for row in rows(heading, GUARANTEES):
        found = evidence(row[-1])
        assert found, f"nothing shows: {row[0]}"
        assert [why for code in found if (why := problem(code))] == []


def test_evidence_that_is_not_there_is_noticed() -> None:
    for code in (
        "tests/unit/test_gone.py",
        "tests/unit/node/membership/test_cluster.py::test_gone",
        "make faults ONLY=gone",
    ):
        assert problem(code)
    assert not problem("tests/unit/node/membership/test_cluster.py::test_a_wiped_broker_refills")


def test_the_contract_is_the_same_in_the_readme() -> None:
    assert rows("The contract", GUARANTEES) == rows("What it promises", ROOT / "README.md")


def test_every_invariant_that_is_checked_is_explained() -> None:
    named = set(re.findall(r"^\| (I\d+) \|", section("Invariants", GUARANTEES), re.MULTILINE))
    checked = {each for path in (SOURCE / "sim").glob("*.py") for each in re.findall(r"\bI\d+\b", path.read_text())}
    assert checked == named


def test_every_family_of_faults_is_one_of_the_simulators() -> None:
    known = {"control", "harsh network", "–", *{family.name for family in families(3)}}
    assert {row[2] for row in rows("Faults", GUARANTEES)} <= known


def test_each_bug_says_what_it_cost_and_what_shows_it() -> None:
    table = rows("Track record", ROOT / "docs" / "track-record.md")
    assert len(table) > 200
    assert [row for row in table if len(row) != 6 or not all(row)] == []
    assert [row[0] for row in table] == sorted((row[0] for row in table), reverse=True), "the newest is first"


def selects(path: Path, words: str) -> bool:
    """Whether `pytest path -k words` runs a test for each of the alternatives: by the name of a test, by a case that
    stands at its head, or by a scenario."""
    scenarios = SCENARIOS_OF_MACHINES if path.stem.endswith("_scenarios") else []
    names = [f"{path.stem} {head}" for head in heads_of(path)] + scenarios
    return all(
        any(all(word in name for word in choice.split(" and ")) for name in names)
        for choice in words.strip('"').split(" or ")
    )


@cache
def heads_of(path: Path) -> list[str]:
    """Each test: its name, and its decorators, which have its cases."""
    return [
        " ".join([node.name, *map(ast.unparse, node.decorator_list)])
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


SCENARIOS_OF_MACHINES = [path.stem for path in (ROOT / "tests" / "scenarios").rglob("*.txt")]


def test_what_shows_a_bug_again_is_there() -> None:
    record = (ROOT / "docs" / "track-record.md").read_text()
    commands = re.findall(r"`pytest (tests/\S+\.py)(?: -k ([^`]+))?`", record)
    assert len(commands) > 50
    assert [(file, words) for file, words in commands if words and not selects(ROOT / file, words)] == []
    assert [file for file, _ in commands if not (ROOT / file).exists()] == []


def test_words_that_select_no_test_are_noticed() -> None:
    candidates = ROOT / "tests" / "unit" / "node" / "partition" / "test_candidate.py"
    assert "cut" in candidates.read_text()
    assert not selects(candidates, "cut")
    assert not selects(candidates, '"last_record or cut"')
    assert selects(candidates, "last_record")


# --- figures -------------------------------------------------------------------------------------------------------


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    readme, benchmarks = (ROOT / "README.md").read_text(), ROOT / "docs" / "benchmarks.md"
    rates = {row[0]: int(row[1].replace(",", "")) for row in rows("Rates", benchmarks)}
    times = {row[0]: float(row[1].split()[0]) / 1000 for row in rows("Against the bars", benchmarks) if " us" in row[1]}
    for name in ("envelopes, group", "JetStream async", "ack ALL, three brokers", "JetStream R3, async"):
        assert f"{round(rates[name], -3):,}" in readme, name
    for name, at in (("group", "5 000"), ("JetStream", "5 000"), ("ack ALL", "2 000"), ("JetStream R3", "2 000")):
        p50, p99 = (times[f"latency, {name}, {each} at {at} msgs/s"] for each in ("p50", "p99"))
        assert f"{p50:.1f} / {p99:.1f} ms" in readme, name
    for row in rows("Against the bars", benchmarks):
        if row[3] == "MISS":
            assert row[1].removesuffix(" x") in readme, f"a bar was missed: {row[0]}"
