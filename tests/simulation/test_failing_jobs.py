"""A background job that fails by anything but the faults of a run is a violation, and so is a failed assertion."""

import pytest

from bascule.node.partition.lagwatch import LagWatch
from bascule.sim.run import run_seed


@pytest.mark.parametrize("error", [AssertionError("an offset went back"), ValueError("an error of ours")])
def test_a_job_that_fails_by_a_bug_is_found(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def fails(watch: LagWatch) -> None:
        raise error

    monkeypatch.setattr(LagWatch, "look", fails)
    found = [str(violation) for violation in run_seed(3).violations]
    assert any("the check for lag failed" in text for text in found)


def test_a_job_that_fails_by_a_fault_of_the_run_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = LagWatch.look, [True] * 3

    async def fails_at_first(watch: LagWatch) -> None:
        if left:
            left.pop()
            raise OSError("the disk is away")
        await real(watch)

    monkeypatch.setattr(LagWatch, "look", fails_at_first)
    assert run_seed(3).violations == []
    assert not left
