"""Compaction by a real broker, beside publishing and over kill -9. `make compaction` does the same for longer."""

import asyncio
from pathlib import Path

import pytest

from tests.harness.keyed_load import compact_beside_publishing, kill_amid_compaction


@pytest.mark.slow
def test_the_newest_of_each_key_is_left_though_the_map_has_room_for_a_quarter_of_them(tmp_path: Path) -> None:
    outcome = asyncio.run(compact_beside_publishing(tmp_path, records=20_000, keys=8_000, seed=3, seconds=0.5))
    print(outcome)
    assert not outcome.wrong, str(outcome)
    assert outcome.left < 0.6 * outcome.sent
    assert len(outcome.p99_ms) == 3


@pytest.mark.slow
def test_the_newest_of_each_key_is_left_whenever_the_process_is_killed(tmp_path: Path) -> None:
    outcome = asyncio.run(kill_amid_compaction(tmp_path, records=20_000, keys=8_000, seed=5, kills=3))
    print(outcome)
    assert not outcome.wrong, str(outcome)
    assert outcome.kills == 3
    assert outcome.left < 0.7 * outcome.sent
