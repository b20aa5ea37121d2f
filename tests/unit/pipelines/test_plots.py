"""The plots of an audit say what was seen, without repeating themselves."""

import re
from collections import Counter

from bascule.pipelines.auditing.pieces import PartitionAudit, Piece
from bascule.pipelines.auditing.svg import coverage, over_time

NOON = 1_767_268_800  # 2026-01-01 12:00:00 UTC


def seen(*seconds: int, compacted: int = 0, compacted_end: int = 0) -> PartitionAudit:
    piece = Piece(("s", 0), records=1, by_time=Counter({NOON + each: 7 for each in seconds}))
    return PartitionAudit("s", 0, 0, 100, compacted_end, piece, compacted)


def labels(plot: str) -> list[str]:
    return re.findall(r"<text [^>]*>([-\d: ]*:\d\d)</text>", plot)


def test_times_stand_under_edges_of_bars_once_each_and_the_date_where_it_begins() -> None:
    assert labels(over_time([seen(0)])) == ["2026-01-01 12:00:00", "12:00:01"]
    assert labels(over_time([seen(0, 2)])) == ["2026-01-01 12:00:00", "12:00:01", "12:00:02", "12:00:03"]
    night = labels(over_time([seen(0, 86_400)]))
    assert len(night) == 5
    assert [each[:10] for each in night if each.startswith("2026")] == ["2026-01-01", "2026-01-02"]


def test_a_compacted_stretch_shows_how_much_of_it_is_left() -> None:
    height = r'class="compacted" x="[\d.]+" y="4" width="[\d.]+" height="([\d.]+)"'
    (half,) = re.findall(height, coverage([seen(0, compacted=50, compacted_end=100)]))
    (most,) = re.findall(height, coverage([seen(0, compacted=45, compacted_end=50)]))
    assert (float(half), float(most)) == (9.0, 16.2)
    assert "compacted" not in coverage([seen(0)])
