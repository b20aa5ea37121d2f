"""Replication told as stories: tests/scenarios/feed/*.txt, the leading side, and fetcher/*.txt, the following
one. `pytest --rewrite` writes the outputs anew; read the difference before you commit it.
"""

from pathlib import Path

import pytest

from tests.harness.feed_scenario import FeedScenario
from tests.harness.fetcher_scenario import FetcherScenario
from tests.harness.paths import SCENARIOS
from tests.harness.scenario_text import CommandRunner, replay

MACHINES: dict[str, type[CommandRunner]] = {"feed": FeedScenario, "fetcher": FetcherScenario}
FILES = [path for machine in MACHINES for path in sorted((SCENARIOS / machine).glob("*.txt"))]


@pytest.mark.parametrize("path", FILES, ids=[f"{path.parent.name}-{path.stem}" for path in FILES])
def test_the_story_goes_as_written(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    told = replay(MACHINES[path.parent.name](), text)
    if request.config.getoption("--rewrite"):
        path.write_text(told)
        return
    assert told == text


def test_every_rule_has_its_story() -> None:
    assert [sum(path.parent.name == machine for path in FILES) for machine in MACHINES] >= [15, 12]
