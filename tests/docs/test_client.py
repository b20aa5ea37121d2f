"""docs/client.md has the reference of the client, as its docstrings have it. `--rewrite` writes it."""

import pytest

from tests.harness.paths import ROOT
from tests.harness.reference import reference

DOCUMENT = ROOT / "docs" / "client.md"
BEGIN, END = "<!-- reference -->\n", "<!-- end of reference -->\n"


def test_the_reference_is_what_the_docstrings_say(request: pytest.FixtureRequest) -> None:
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    shown, _, after = rest.partition(END)
    assert rest, "the document has the marks between which it is"
    if request.config.getoption("--rewrite"):
        DOCUMENT.write_text(f"{before}{BEGIN}\n{reference()}\n{END}{after}")
    else:
        assert shown == f"\n{reference()}\n"
