"""Idempotent producers of real brokers, whose leaders are killed. `make producers` does the same for longer."""

import asyncio
from pathlib import Path

import pytest

from tests.harness.numbered_load import repeat_over_kills


@pytest.mark.slow
def test_each_sequence_is_stored_once_over_leader_kills(tmp_path: Path) -> None:
    outcome = asyncio.run(repeat_over_kills(tmp_path, kills=2, others=50, messages=2000))
    print(outcome)
    assert not outcome.wrong, str(outcome)
    assert outcome.acked > 2000
    assert outcome.by_client > 100
