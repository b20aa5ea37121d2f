"""A partition told as stories: its in-sync set in the metadata (tests/scenarios/isr), its leader (leader) and a
follower (follower). `pytest --rewrite` writes the outputs anew; read the difference before you commit it.
"""

from pathlib import Path

import pytest

from tests.harness.follower_scenario import FollowerScenario
from tests.harness.isr_scenario import IsrScenario
from tests.harness.leader_scenario import LeaderScenario
from tests.harness.paths import SCENARIOS
from tests.harness.scenario_text import CommandRunner, replay

MACHINES: dict[str, type[CommandRunner]] = {"isr": IsrScenario, "leader": LeaderScenario, "follower": FollowerScenario}
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
    told = {machine: sum(path.parent.name == machine for path in FILES) for machine in MACHINES}
    assert all(told[machine] >= least for machine, least in (("isr", 12), ("leader", 10), ("follower", 8))), told
