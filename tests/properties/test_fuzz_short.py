"""A short run of the fuzzer with fixed seeds; and that it can fail, names its case and replays it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.paths import ROOT
from tools import fuzz
from tools.fuzzing import sanitizers, twins
from tools.fuzzing.hunt import MAX_FINDINGS
from tools.fuzzing.targets import TARGETS

KERNEL_EXECUTIONS = 3_000
OTHER_EXECUTIONS = 800


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_finds_nothing(name: str) -> None:
    executions = KERNEL_EXECUTIONS if TARGETS[name].kernels_only else OTHER_EXECUTIONS
    assert fuzz.count_on([name], "short", executions) == (executions, [])


def test_every_kernel_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from bascule.wire import kernels

    asked = set[str]()
    answer = twins._answer

    def noted(function: Any, arguments: Any) -> Any:
        asked.add(function.__name__)
        return answer(function, arguments)

    monkeypatch.setattr(twins, "_answer", noted)
    fuzz.count_on([name for name, target in TARGETS.items() if target.kernels_only], "asked", 20)
    # What these read are Arrow's own buffers, never bytes of a peer: test_rows.py, test_envelopes.py compare the twins.
    assert set(kernels.__all__) - {"TWIN", "frame_rows", "envelope_rows"} <= asked


def test_a_planted_difference_is_found_and_its_case_replays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if twins.COMPILED is None:
        pytest.skip("the compiled kernels were not built here")
    monkeypatch.chdir(tmp_path)
    right = twins.COMPILED.split_nats

    def wrong(*arguments: Any) -> Any:
        consumed, needed, batches, controls = right(*arguments)
        return consumed, needed, batches, [line for line in controls if line[0] != b"PONG"]

    monkeypatch.setattr(twins.COMPILED, "split_nats", wrong)
    executions, findings = fuzz.count_on(["split_nats"], "planted", 5_000)
    assert len(findings) == MAX_FINDINGS
    assert executions < 5_000
    replay = re.search(r"replay: \S+ -m tools.fuzz --target split_nats --seed (\d+) --input (\S+)$", findings[0])
    assert replay is not None
    assert fuzz.replay("split_nats", int(replay[1]), Path(replay[2])) == 1
    assert "the twins differ" in capsys.readouterr().out
    monkeypatch.undo()
    assert fuzz.replay("split_nats", int(replay[1]), tmp_path / replay[2]) == 0


def test_an_error_that_must_not_come_out_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    def broken(*_: object) -> None:
        raise IndexError("planted")

    monkeypatch.setattr("bascule.wire.http2.connection.Connection._on_ping", broken)
    _, findings = fuzz.count_on(["http2_server"], "planted", 300)
    assert findings
    assert "IndexError: planted" in findings[0]


def test_a_record_that_recovery_makes_up_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    async def any_find_counts(*_: object) -> bool:
        return True

    monkeypatch.setattr("bascule.log.chunk._is_followed", any_find_counts)
    _, findings = fuzz.count_on(["log_recovery"], "planted", 800)
    assert findings
    assert "recovery invented a record" in findings[0]


def test_a_crash_and_its_case_are_brought_home(tmp_path: Path) -> None:
    """A worker dies in the middle of a case; the run says which, keeps the input and ends with 1."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, os\n"
        "if '--worker' in sys.argv:\n"
        "    import bascule.wire.nats as nats\n"
        "    nats.Info.parse = classmethod(lambda *_: os.abort())\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    run = subprocess.run(
        [sys.executable, "-m", "tools.fuzz", "--seconds", "3", "--seed", "1", "--target", "nats_info"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1, run.stderr
    found = re.search(
        r"FOUND target=nats_info seed=(\d+) bytes=\d+\n  the worker plain died with status -6", run.stdout
    )
    assert found is not None, run.stdout
    assert (tmp_path / "build" / "fuzz" / f"nats_info-{found[1]}.input").exists()
    assert re.search(r"^fuzz: targets=1 executions=\d+ seconds=\d findings=[1-9]\d*$", run.stdout, re.MULTILINE)


def test_without_sanitizers_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(sanitizers.NoSanitizersError, match="gcc is missing"):
        sanitizers.environment()
