"""The report of an audit as one page of HTML, which loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from bascule import limits
from bascule.pipelines.auditing.pieces import Finding, PartitionAudit
from bascule.pipelines.auditing.svg import coverage, over_time

STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --soft: #5d6b7e; --line: #d9dfe7; --page: #fff; --card: #f5f7fa;
  --there: #3f83c8; --old: #c6ced9; --compact: #9fc4e8; --fault: #d6373a; --good: #23834b; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e9f0; --soft: #9aa7b8; --line: #344150; --page: #131a22;
  --card: #1c2630; --there: #5b9fe0; --old: #445163; --compact: #35597c; --fault: #f0666a; --good: #55c184; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 1000px;
  margin: 32px auto; padding: 0 20px; }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 32px 0 8px; }
p { margin: 4px 0; color: var(--soft); }
.verdict { display: inline-block; padding: 3px 12px; border-radius: 4px; color: #fff; font-weight: 600; }
.good { background: var(--good); } .bad { background: var(--fault); }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin: 18px 0; }
.facts div { background: var(--card); border-radius: 6px; padding: 10px 18px; min-width: 110px; }
.facts b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
.facts span { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top;
  white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } td.number, th.number { text-align: right; }
td.where { white-space: normal; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 12px; fill: var(--soft); }
.bar, .there { fill: var(--there); } .expired { fill: var(--old); } .compacted { fill: var(--compact); }
.fault { fill: var(--fault); } .grid { stroke: var(--line); }
.key { display: flex; gap: 18px; flex-wrap: wrap; color: var(--soft); font-size: 13px; }
.key i { display: inline-block; width: 11px; height: 11px; margin-right: 6px; border-radius: 2px; }
"""
COLOURS = (("there", "there"), ("compacted", "compact"), ("expired", "old"), ("at fault", "fault"))


def page(summary: Mapping[str, Any], partitions: Sequence[PartitionAudit], findings: Sequence[Finding]) -> str:
    verdict, kind = ("sound", "good") if not findings else (f"{len(findings)} findings", "bad")
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Audit of {escape(summary['what'])}</title><style>{STYLE}</style></head><body>",
            f"<h1>Audit of {escape(summary['what'])}</h1>",
            f'<p><span class="verdict {kind}">{verdict}</span></p><p>{made}, in {summary["seconds"]:.1f} s</p>',
            _facts(summary, partitions),
            _findings(findings),
            *(f"<p>{escape(note)}</p>" for note in summary.get("notes", ())),
            "<h2>Offsets</h2>",
            _key(),
            coverage(partitions),
            "<h2>Records over time</h2>",
            over_time(partitions) or "<p>There are no records.</p>",
            "<h2>Partitions</h2>",
            _partitions(partitions),
            "</body></html>\n",
        ]
    )


def _facts(summary: Mapping[str, Any], partitions: Sequence[PartitionAudit]) -> str:
    facts = (
        (f"{summary['records']:,}", "records"),
        (_size(summary["bytes"]), "read"),
        (f"{len(partitions):,}", "partitions"),
        (f"{sum(each.start for each in partitions):,}", "expired"),
        (f"{sum(each.compacted for each in partitions):,}", "compacted"),
    )
    cards = "".join(f"<div><b>{number}</b><span>{what}</span></div>" for number, what in facts)
    return f'<div class="facts">{cards}</div>'


def _key() -> str:
    items = (f'<span><i style="background: var(--{colour})"></i>{what}</span>' for what, colour in COLOURS)
    return f'<div class="key">{"".join(items)}</div>'


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<p>Every record that neither retention nor compaction removed is there once, in order, undamaged.</p>"
    rows = [
        ("partition", "what", "offsets", "how it was seen"),
        *(
            (f"{each.stream}/{each.partition}", each.kind, stretch(each), each.what)
            for each in findings[: limits.AUDIT_FINDINGS]
        ),
    ]
    more = len(findings) - limits.AUDIT_FINDINGS
    return f"<h2>Findings</h2>{_table(rows, (), (3,))}" + (f"<p>and {more} more</p>" if more > 0 else "")


def stretch(finding: Finding) -> str:
    if finding.first is None:
        return "-"
    return str(finding.first) if finding.first == finding.last else f"{finding.first} to {finding.last}"


def _partitions(partitions: Sequence[PartitionAudit]) -> str:
    heads = (
        "partition",
        "start",
        "end",
        "records",
        "compacted",
        "size",
        "first",
        "last",
        "clock back",
        "findings",
    )
    rows = [
        (
            f"{each.stream}/{each.partition}",
            f"{each.start:,}",
            f"{each.end:,}",
            f"{each.seen.records:,}",
            f"{each.compacted:,}",
            _size(each.seen.bytes),
            _time(each.seen.first_ns),
            _time(each.seen.last_ns),
            f"{each.seen.backwards:,}",
            f"{len(each.findings):,}",
        )
        for each in partitions
    ]
    return _table([heads, *rows], (1, 2, 3, 4, 5, 8, 9))


def _table(rows: Sequence[Sequence[str]], numbers: Sequence[int], texts: Sequence[int] = ()) -> str:
    heads, *body = rows
    kind = dict.fromkeys(numbers, ' class="number"') | dict.fromkeys(texts, ' class="where"')
    lines = ["<tr>" + "".join(f"<th{kind.get(at, '')}>{escape(cell)}</th>" for at, cell in enumerate(heads)) + "</tr>"]
    for row in body:
        cells = (f"<td{kind.get(at, '')}>{escape(cell)}</td>" for at, cell in enumerate(row))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.1f} TiB"


def _time(nanoseconds: int) -> str:
    if not nanoseconds:
        return "-"
    return datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
