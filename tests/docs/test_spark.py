"""docs/spark.md has every option and column, as the code has them. `--rewrite` writes them."""

import re

import pytest

from bascule.client.columns import COLUMNS
from bascule.spark.envelopes import ENVELOPE_FIELDS
from bascule.spark.options import OPTIONS
from bascule.spark.rows import SINK_COLUMNS
from bascule.spark.writeoptions import WRITE_OPTIONS
from tests.harness.paths import ROOT

DOCUMENT = ROOT / "docs" / "spark.md"
TABLES = {
    "Options": [f"| `{name}` | {text} |" for name, text in OPTIONS.items()],
    "Columns": [f"| `{name}` | {column.spark} | {column.what} |" for name, column in COLUMNS.items()],
    "Fields of an envelope": [f"| `{name}` | {kind} | {what} |" for name, (kind, what) in ENVELOPE_FIELDS.items()],
    "Options of a write": [f"| `{name}` | {text} |" for name, text in WRITE_OPTIONS.items()],
    "Columns that are written": [
        f"| `{name}` | {' or '.join(column.types)} | {column.what} |" for name, column in SINK_COLUMNS.items()
    ],
}


@pytest.mark.parametrize("title", TABLES)
def test_the_table_is_what_the_code_has(title: str, request: pytest.FixtureRequest) -> None:
    text = DOCUMENT.read_text()
    table = re.compile(rf"(## {title}\n\n\|.*\n\|[-|]+\n)((?:\|.*\n)*)")
    found = table.search(text)
    assert found is not None
    wanted = "".join(f"{row}\n" for row in TABLES[title])
    if request.config.getoption("--rewrite"):
        DOCUMENT.write_text(text[: found.start(2)] + wanted + text[found.end(2) :])
    else:
        assert found[2] == wanted
