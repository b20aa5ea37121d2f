"""docs/pipelines.md has every key of every pipeline, as the code has them. `--rewrite` writes them."""

import re
from collections.abc import Mapping

import pytest

from bascule.pipelines import aggregate, archive, audit, deadletter, query, restore
from bascule.pipelines.config import Key
from tests.harness.paths import ROOT

DOCUMENT = ROOT / "docs" / "pipelines.md"
KEYS: dict[str, Mapping[str, Key]] = {
    "archive": archive.KEYS,
    "audit": audit.KEYS,
    "query": query.KEYS,
    "aggregate": aggregate.KEYS,
    "dead-letter": deadletter.KEYS,
    "restore": restore.KEYS,
}


@pytest.mark.parametrize("pipeline", KEYS)
def test_the_table_is_what_the_code_has(pipeline: str, request: pytest.FixtureRequest) -> None:
    text = DOCUMENT.read_text()
    table = re.compile(rf"(## {pipeline}\n(?:(?!## ).*\n)*?\| key \| meaning \|\n\|[-|]+\n)((?:\|.*\n)*)")
    found = table.search(text)
    assert found is not None
    wanted = "".join(f"| `{name}` | {key.what} |\n" for name, key in KEYS[pipeline].items())
    if request.config.getoption("--rewrite"):
        DOCUMENT.write_text(text[: found.start(2)] + wanted + text[found.end(2) :])
    else:
        assert found[2] == wanted
