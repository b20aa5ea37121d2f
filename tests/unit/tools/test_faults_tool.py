"""`make faults` says what happened, and fails when something did."""

import json
from pathlib import Path

import pytest

from tests.harness.cluster_load import Report
from tests.harness.cluster_scenarios import OnRound
from tools import faults


def given(monkeypatch: pytest.MonkeyPatch, report: Report | Exception) -> None:
    async def scenario(folder: Path, rounds: int, on_round: OnRound) -> Report:
        (folder / "broker.log").write_text("last words")
        if isinstance(report, Exception):
            raise report
        for _ in range(rounds):
            on_round(0.5)
        return report

    monkeypatch.setattr(faults, "SCENARIOS", {"made_up": (scenario, 3)})


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["faults", *arguments])
    return faults.main()


def test_a_clean_run_ends_with_0_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given(monkeypatch, Report("made up", acked=10, read=12, controllers=1, stalls_s=[0.5, 1.5]))
    assert run(monkeypatch) == 0
    assert "PASS" in capsys.readouterr().out
    assert run(monkeypatch, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["scenario"], row["acked"], row["lost"], row["stalls_s"], row["clean"]) == (
        "made_up",
        10,
        0,
        [0.5, 1.5],
        True,
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "report",
    [
        Report("loses", acked=10, lost=1),
        Report("stores twice", acked=10, duplicated=1),
        Report("mixes up", acked=10, disordered=1),
        Report("takes back", acked=10, withdrawn=1),
        Report("does nothing"),
        AssertionError("writes did not resume"),
    ],
)
def test_anything_wrong_ends_with_1_and_keeps_the_evidence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], report: Report | Exception
) -> None:
    monkeypatch.chdir(tmp_path)
    given(monkeypatch, report)
    assert run(monkeypatch) == 1
    said = capsys.readouterr()
    assert "FAIL" in said.out
    (retained,) = tmp_path.glob("build/faults/*/broker.log")
    assert str(retained.parent.relative_to(tmp_path)) in said.err.replace("\n", "")


def test_a_name_that_fits_no_run_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--only", "nothing_like_that")
    assert "kill_leaders" in capsys.readouterr().err
