"""The catalogue of planted bugs fits the code, and `make mutate` tells what was found from what was missed."""

from pathlib import Path

import pytest

from tools.mutate import Bench, Hunt, Mutant, Verdict, catalogue, complaints, score

CATALOGUE = catalogue()


def test_names_are_unique_and_every_mutant_says_what_it_does() -> None:
    names = [f"{mutant.area}/{mutant.name}" for mutant in CATALOGUE]
    assert len(set(names)) == len(names)
    assert all(mutant.what for mutant in CATALOGUE)


@pytest.mark.parametrize("mutant", CATALOGUE, ids=lambda mutant: f"{mutant.area}/{mutant.name}")
def test_a_mutant_applies_to_the_code_and_its_finder_exists(mutant: Mutant) -> None:
    """After a change of the code, bring `before` and `after` up to date: the bug is still worth finding."""
    assert list(complaints(mutant)) == []


def made_up(before: str, after: str, finder: str | list[str]) -> Mutant:
    return Mutant("test", "made-up", "", "src/bascule/core/partition/epochs.py", before, after, finder)


def test_a_patch_that_does_not_apply_is_missed(tmp_path: Path) -> None:
    mutant = made_up("no such text", "x", "simulate")
    assert list(complaints(mutant))
    (verdict,) = Hunt([mutant], jobs=1, first_seed=1, seeds=1).run()
    assert verdict.found_by == ""
    assert "0 times" in verdict.detail


def test_a_mutant_is_found_by_the_test_that_it_breaks_and_missed_by_one_that_it_does_not() -> None:
    test = "tests/unit/core/test_replication.py::test_the_history_answers_with_the_largest_epoch_up_to_the_asked_one"
    before = "return (self._epochs[number - 1] if number else 0), end\n\n    def run_at"
    noticed = made_up(before, before.replace("number - 1", "0"), [test])
    harmless = made_up(before, before.replace("end\n", "end  # as it was\n"), [test])
    hunt = Hunt([noticed, harmless], jobs=1, first_seed=1, seeds=1)
    assert hunt.baseline() == ""
    found, missed = hunt.run()
    assert found.found_by == test
    assert missed.found_by == ""
    assert "MISSED" in str(missed)
    assert score([found, missed], 60.0) == "mutants=2 found=1 simulated=0 missed=1 minutes=1.0"


def test_the_tree_is_as_it_was_when_a_mutant_is_taken_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "copy")
    mutant = made_up("class EpochHistory:", "class Other:", "simulate")
    path = bench.root / mutant.file
    before = path.read_text()
    original = bench.plant(mutant)
    assert original == before
    assert "class Other:" in path.read_text()
    bench.take_back(mutant, original)
    assert path.read_text() == before


def test_the_score_counts_what_the_simulator_found_alone() -> None:
    mutant = made_up("a", "b", "simulate")
    found, missed = Verdict(mutant, "seed 7", "I1", 1.0), Verdict(mutant, "", "", 1.0)
    assert score([found, missed], 30.0) == "mutants=2 found=1 simulated=1 missed=1 minutes=0.5"
