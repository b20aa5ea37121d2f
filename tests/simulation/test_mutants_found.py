"""A few mutants of the catalogue are really planted, and the simulator finds them: `make mutate` tries them all."""

import pytest

from tools.mutate import Hunt, catalogue

FIRST_SEED, SEEDS = 7001, 40


@pytest.mark.slow
@pytest.mark.parametrize("name", ["follower-reports-received-as-synced", "vote-not-persisted"])
def test_the_simulator_finds_it(name: str) -> None:
    mutants = [mutant for mutant in catalogue() if mutant.name == name and mutant.simulated]
    (verdict,) = Hunt(mutants, jobs=1, first_seed=FIRST_SEED, seeds=SEEDS).run()
    assert verdict.found_by, str(verdict)
