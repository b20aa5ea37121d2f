"""Plots as SVG, inside the page: no network, no library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape

from bascule.pipelines.auditing.pieces import PartitionAudit, rebinned

WIDTH, LEFT, RIGHT = 960, 70, 20
BARS = 120
ROW = 26
MIN_MARK = 3.0
"""Pixels: a single lost record must be seen."""


def over_time(partitions: Sequence[PartitionAudit]) -> str:
    """How many records each stretch of time has."""
    counts = [item for each in partitions for item in each.seen.by_time.items()]
    if not counts:
        return ""
    width = max(each.seen.width_s for each in partitions)
    first, last = min(second for second, _ in counts), max(second for second, _ in counts)
    width *= -(-(last - first + width) // (BARS * width))
    bars = rebinned(counts, width)
    height, top = 180, max(bars.values())
    begin = first - first % width
    slots = (last - begin) // width + 1
    step = (WIDTH - LEFT - RIGHT) / slots
    shapes = [_grid(height, top)]
    for second, count in sorted(bars.items()):
        tall = height * count / top
        shapes.append(
            f'<rect class="bar" x="{LEFT + (second - begin) // width * step:.1f}" y="{height - tall + 10:.1f}" '
            f'width="{max(1.0, step - 1):.1f}" height="{tall:.1f}"><title>{_time(second)}: {count:,}</title></rect>'
        )
    shapes += _times(begin, width, slots, step, height + 28)
    return _svg(height + 36, shapes)


def _times(begin: int, width: int, slots: int, step: float, y: int) -> Iterator[str]:
    """Under the edges of bars, five at most; the date where it begins."""
    date = ""
    for slot in sorted({slots * part // 4 for part in range(5)}):
        at = datetime.fromtimestamp(begin + slot * width, UTC)
        anchor = "start" if slot == 0 else "end" if slot == slots else "middle"
        text = f"{at:%H:%M:%S}" if f"{at:%Y-%m-%d}" == date else f"{at:%Y-%m-%d %H:%M:%S}"
        date = f"{at:%Y-%m-%d}"
        yield f'<text x="{LEFT + slot * step:.0f}" y="{y}" text-anchor="{anchor}">{text}</text>'


def _grid(height: int, top: int) -> str:
    lines = []
    for part in (0, 0.5, 1):
        y = 10 + height * (1 - part)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.0f}" y2="{y:.0f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{_short(top * part)}</text>')
    return "".join(lines)


def coverage(partitions: Sequence[PartitionAudit]) -> str:
    """Of each partition, which offsets have expired, are there, were compacted, and are at fault."""
    end = max((each.end for each in partitions), default=0)
    if not end:
        return ""
    scale = (WIDTH - LEFT - RIGHT - 90) / end
    left = LEFT + 90
    shapes: list[str] = []
    for row, each in enumerate(partitions):
        y = row * ROW + 4
        name = f"{each.stream}/{each.partition}"
        shapes.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        shapes.append(_mark("expired", left, y, each.start * scale, f"below {each.start}: expired"))
        shapes.append(
            _mark(
                "there", left + each.start * scale, y, (each.end - each.start) * scale, f"{each.seen.records:,} records"
            )
        )
        if each.compacted:
            offsets = min(each.compacted_end, each.end) - each.start
            share = min(1.0, each.compacted / offsets)  # holes are too small to be seen one by one
            what = f"{each.compacted:,} compacted"
            shapes.append(_mark("compacted", left + each.start * scale, y, offsets * scale, what, share))
        for finding in each.findings:
            if finding.first is not None and finding.last is not None:
                wide = max(MIN_MARK, (finding.last - finding.first + 1) * scale)
                what = f"{finding.kind}: {finding.first} to {finding.last}"
                shapes.append(_mark("fault", min(left + finding.first * scale, WIDTH - RIGHT - wide), y, wide, what))
    height = len(partitions) * ROW + 4
    shapes.append(f'<text x="{left}" y="{height + 14}">0</text>')
    shapes.append(f'<text x="{WIDTH - RIGHT}" y="{height + 14}" text-anchor="end">{end:,}</text>')
    return _svg(height + 22, shapes)


def _mark(kind: str, x: float, y: float, wide: float, what: str, share: float = 1.0) -> str:
    """`share`: of the height, from above."""
    if wide <= 0:
        return ""
    title, tall = f"<title>{escape(what)}</title>", (ROW - 8) * share
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{tall:.1f}">{title}</rect>'


def _svg(height: int, shapes: Iterable[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(shapes)}</svg>'


def _time(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _short(number: float) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"
