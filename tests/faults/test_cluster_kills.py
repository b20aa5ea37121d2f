"""Three loaded brokers, killed and stopped. `make faults` does the same many more times."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.harness import cluster_scenarios as scenarios
from tests.harness.cluster_load import Report

FAIL_OVER_S = 3.0
SLOW_MACHINE_S = 3.0
"""On top of every bound: tests share their cores."""

Scenario = Callable[[Path, int], Coroutine[Any, Any, Report]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "rounds", "bound_s"),
    [
        (scenarios.kill_leaders, 3, FAIL_OVER_S),
        (scenarios.kill_controllers, 2, FAIL_OVER_S),
        (scenarios.kill_all, 1, 10.0),
        (scenarios.pause_leaders, 1, FAIL_OVER_S),
        (scenarios.restart_nats, 1, FAIL_OVER_S),
        (scenarios.wipe_each, 2, FAIL_OVER_S),
        (scenarios.wiped_founders, 2, 40.0),
        (scenarios.recreate_while_down, 1, FAIL_OVER_S),
        (scenarios.rolling_restart, 1, 1.0),
    ],
)
def test_nothing_acked_is_lost(tmp_path: Path, scenario: Scenario, rounds: int, bound_s: float) -> None:
    report = asyncio.run(scenario(tmp_path, rounds))
    print(report)
    assert report.clean, str(report)
    assert max(report.stalls_s) < bound_s + SLOW_MACHINE_S, str(report)


@pytest.mark.slow
# Connections of the proxies, which brokers open while they are ended, end with the event loop of their proxy.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_leader_that_cannot_receive_or_send_is_replaced(tmp_path: Path) -> None:
    report = asyncio.run(scenarios.cut_off(tmp_path, 3))
    print(report)
    assert report.clean, str(report)
    assert max(report.stalls_s) < FAIL_OVER_S + SLOW_MACHINE_S, str(report)
