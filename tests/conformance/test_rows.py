"""Every row of the protocol has a test here, every test names its rows, and every deviation is on record.

`rows.txt` is the list. The numbers are those of the facts about Liftbridge that Bascule is built to: 1 the gRPC API,
2 envelopes and acks, 3 behaviours, 4 settings, 7 the tests of the Go server, 10 what clients rely on, 11 its defects.
"""

import ast
import gc
import re
from collections.abc import Iterator
from pathlib import Path

from tests.harness.paths import ROOT

NOT_THERE_YET = "encryption at rest and authorization are refused at start"
DEFECTS = {
    1: NOT_THERE_YET,
    2: "negative or absurd number of partitions",
    3: "an envelope whose header length points past the message",
    4: "stream names",
    5: "`paused` in the metadata after a resumption",
    6: "`streams.concurrency.control`",
    7: NOT_THERE_YET,
    8: "`nats.embedded: false`",
    9: "SIGHUP without authorization",
    10: "environment variables",
    11: "after kill -9, one replica",
    12: "STOP_OFFSET of a message that is missing",
    13: "reverse subscription at its end",
    14: "reports about a leader that was replaced",
    15: "a message just below `clustering.replication.max.bytes`",
    16: "where a leader epoch begins",
    17: "last published event of the activity stream",
    18: "readISRReplica on a broker without the partition",
    19: "on a stream with optimistic concurrency a publisher that sends no expected offset expects offset 0",
    20: "answers of one PublishAsync call",
    21: "damaged records",
    22: "a consumer group that several requests change at once",
    23: "partitions of one stream on several brokers",
    24: "Publish with a wrong expected offset",
    25: NOT_THERE_YET,
    26: "a message of PublishAsync that NATS does not take",
}
"""By number, the defect as docs/compatibility.md has it."""

HERE = Path(__file__).parent
COMPATIBILITY = (ROOT / "docs" / "compatibility.md").read_text()
_ROW = re.compile(r"(\d+(\.\d+)*): \S|\d+\.\d+ [A-Z]|11\.\d+$")


def cases() -> Iterator[ast.FunctionDef]:
    for path in HERE.glob("test_*.py"):
        if path.name != Path(__file__).name:
            for node in parsed(path.read_text()).body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    yield node


def parsed(text: str) -> ast.Module:
    """CPython 3.11 fails with a SystemError if the garbage of earlier tests is collected, with code of its own, while a
    tree is made."""
    gc.collect()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()


def rows_of(test: ast.FunctionDef) -> set[str]:
    """Those in its docstring, and in the ids of its parameters."""
    texts = [ast.get_docstring(test) or ""]
    for decorator in test.decorator_list:
        texts += [
            str(node.value.value)
            for node in ast.walk(decorator)
            if isinstance(node, ast.keyword) and node.arg == "id" and isinstance(node.value, ast.Constant)
        ]
    parts = [part.strip().removesuffix(".") for text in texts for part in " ".join(text.split()).split("; ")]
    return {part for part in parts if _ROW.match(part)}


def listed() -> dict[str, str]:
    """Each row, and why it has no test here if it has none."""
    lines = (line for line in (HERE / "rows.txt").read_text().splitlines() if line)
    pairs = [line.partition(" -- ")[::2] for line in lines]
    assert len({row for row, _ in pairs}) == len(pairs)
    return dict(pairs)


def test_every_row_has_a_test_or_a_reason() -> None:
    named = set().union(*map(rows_of, cases()))
    assert named == {row for row, reason in listed().items() if not reason}


def test_every_test_names_its_row() -> None:
    assert [test.name for test in cases() if not rows_of(test)] == []


def test_every_defect_of_the_go_server_is_dealt_with() -> None:
    numbers = {row.split(".")[1].partition(":")[0].partition(" ")[0] for row in listed() if row.startswith("11.")}
    assert numbers == set(map(str, DEFECTS))
    text = " ".join(COMPATIBILITY.split())
    assert [number for number, subject in DEFECTS.items() if subject not in text] == []


def test_reasons_name_tests_that_exist() -> None:
    paths = [path for reason in listed().values() for path in re.findall(r"tests/[\w/.]+", reason)]
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_deviation_is_in_the_documents() -> None:
    rows = [line.split(" | ")[0].removeprefix("| ") for line in COMPATIBILITY.splitlines() if line.startswith("| ")]
    marks = [
        str(node.args[0].value)
        for test in cases()
        for node in test.decorator_list
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "pytest.mark.differs"
        and isinstance(node.args[0], ast.Constant)
    ]
    assert len(marks) > 15
    assert [mark for mark in marks if mark not in rows] == []
