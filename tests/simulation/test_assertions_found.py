"""A failed assertion is a violation, wherever it is raised and whoever catches it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bascule.core.metadata.state import Metadata
from bascule.core.partition.epochs import EpochHistory
from bascule.core.partition.follower import Follower
from bascule.core.partition.insync import InSync
from bascule.core.partition.leader import Leader
from bascule.core.raft.machine import Raft
from bascule.log.appender import Appender
from bascule.log.commitlog import CommitLog
from bascule.node.partition.following import Following
from bascule.node.partition.leading import Leading
from bascule.node.partition.repair import Repair
from bascule.node.partition.replica import Replica
from bascule.sim.run import run_seed

PLANTED = "planted: this holds, but for once"
AFTER = 40
"""Calls that go well, so that there is something to fail in the middle of."""


@contextmanager
def failing_once(owner: type, name: str, after: int) -> Iterator[list[int]]:
    real = getattr(owner, name)
    calls = [0]

    def fails(*args: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == after + 1:
            raise AssertionError(PLANTED)
        return real(*args, **named)

    setattr(owner, name, fails)
    try:
        yield calls
    finally:
        setattr(owner, name, real)


PLACES: list[tuple[type, str]] = [
    (Leader, "arrived"),
    (InSync, "fetched"),
    (Leading, "_send_acks"),
    (Follower, "_answered"),
    (Following, "_execute"),
    (EpochHistory, "begin"),
    (Replica, "_promised"),
    (Raft, "step"),
    (Metadata, "_carry_out"),
    (Appender, "_queue"),
    (CommitLog, "take"),
    (CommitLog, "finish"),
]


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[f"{owner.__name__}.{name}" for owner, name in PLACES])
def test_an_assertion_that_fails_once_is_a_violation(owner: type, name: str) -> None:
    with failing_once(owner, name, AFTER) as calls:
        result = run_seed(10)  # the one without faults
    assert calls[0] > AFTER
    assert [violation for violation in result.violations if violation.invariant == "assertion"]


def test_an_assertion_of_a_repair_is_a_violation() -> None:
    with failing_once(Repair, "ahead", 0) as calls:
        result = run_seed(10)
    assert calls[0]
    assert [violation for violation in result.violations if violation.invariant == "assertion"]
