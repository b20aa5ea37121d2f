"""Raft told as stories: tests/scenarios/raft/*.txt (see `tests.harness.raft_scenario`). `pytest --rewrite` writes the
outputs anew; read the difference before you commit it.
"""

from pathlib import Path

import pytest

from tests.harness.paths import SCENARIOS
from tests.harness.raft_scenario import RaftScenario
from tests.harness.scenario_text import replay

FOLDER = SCENARIOS / "raft"
FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_story_goes_as_written(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    told = replay(RaftScenario(), text)
    if request.config.getoption("--rewrite"):
        path.write_text(told)
        return
    assert told == text


def test_every_subject_has_its_story() -> None:
    assert len(FILES) >= 12
