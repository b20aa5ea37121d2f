"""A fixed set of seeds keeps the contract, the same seed is the same run, and planted bugs are found."""

import os
import re
import subprocess
import sys
from functools import cache

import pytest

from bascule.sim.bugs import BUGS
from bascule.sim.run import run_seed
from bascule.sim.scenario import scenario

SEEDS = range(1, 21)
ALONE_SEEDS = range(1, 11)
LAST_LINE = re.compile(
    r"seeds=\d+ commits=\d+ crashes=\d+ splits=\d+ elections=\d+ tombstones=\d+ violations=\d+ digest=[0-9a-f]{32}"
)


result_of = cache(run_seed)
"""Each seed is run in the time of the test that needs it first."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_keeps_the_contract(seed: int) -> None:
    result = result_of(seed)
    assert result.violations == [], "\n".join(map(str, [*result.violations, *result.timeline]))


@pytest.mark.parametrize("seed", ALONE_SEEDS)
def test_a_broker_alone_keeps_the_contract(seed: int) -> None:
    result = run_seed(seed, brokers=1)
    assert result.violations == [], "\n".join(map(str, [*result.violations, *result.timeline]))


def test_the_runs_are_worth_checking() -> None:
    results = {seed: result_of(seed) for seed in SEEDS}
    count = len(results)
    assert sum(result.commits for result in results.values()) >= 200 * count
    assert sum(result.faults for result in results.values()) >= 2 * count
    assert results[10].faults == 0, "the control run"
    assert all(sum(getattr(result, what) for result in results.values()) for what in ("crashes", "splits", "elections"))


def test_no_two_seeds_are_alike_and_one_seed_is_always_alike() -> None:
    assert len({result_of(seed).digest for seed in SEEDS}) == len(SEEDS)
    for seed in (3, 12):
        assert run_seed(seed).digest == result_of(seed).digest


@pytest.mark.parametrize(
    ("bug", "fault", "first_seed"),
    [
        ("no-truncate", "isolate", 1),
        ("vote-not-persisted", "contest", 56),  # none of the first ones shows it
        ("ack-before-sync", "blackout", 1),
        ("expose-before-sync", "power", 1),
        ("reuse-offset-after-damage", "flip", 56),
        ("forget-folder-sync", "power", 1),
        ("ack-lost-write", "eio", 1),
    ],
)
def test_a_planted_bug_is_found_where_the_fault_it_fears_may_strike(bug: str, fault: str, first_seed: int) -> None:
    brokers = 0 if bug in ("no-truncate", "vote-not-persisted", "ack-before-sync") else 1  # several heal each other
    seeds = [seed for seed in range(first_seed, first_seed + 200) if fault in scenario(seed, brokers).faults]
    assert any(run_seed(seed, bug, brokers).violations for seed in seeds)


def test_every_bug_there_is_to_plant_is_tried() -> None:
    assert list(BUGS) == [
        "no-truncate",
        "vote-not-persisted",
        "ack-before-sync",
        "expose-before-sync",
        "reuse-offset-after-damage",
        "forget-folder-sync",
        "ack-lost-write",
    ]


def simulate(*arguments: str, hash_seed: str = "0") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bascule.sim", *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_digest_does_not_depend_on_the_hash_seed_nor_on_the_number_of_processes() -> None:
    first = simulate("--seeds", "2", "--first-seed", "1", hash_seed="1")
    second = simulate("--seeds", "2", "--first-seed", "1", "--jobs", "2", hash_seed="2")
    assert first.returncode == 0, first.stdout
    assert LAST_LINE.fullmatch(first.stdout.splitlines()[-1])
    assert first.stdout == second.stdout


def test_a_violation_ends_the_run_with_a_timeline_and_the_command_that_shows_it_again() -> None:
    found = simulate("--seeds", "60", "--bug", "ack-before-sync")
    assert found.returncode == 1
    lines = found.stdout.splitlines()
    again = next(line for line in lines if line.startswith("see it again: "))
    match = re.fullmatch(r"see it again: make simulate SEEDS=1 FIRST_SEED=(\d+) BUG=ack-before-sync", again)
    assert match
    assert any(re.match(r" *[0-9.]+  fault ", line) for line in lines)
    assert LAST_LINE.fullmatch(lines[-1])
    repeated = simulate("--seeds", "1", "--first-seed", match[1], "--bug", "ack-before-sync").stdout
    assert repeated.splitlines()[:-1] == lines[:-1]
