"""How the benchmarks judge: medians of paired ratios against bars."""

from pathlib import Path

import pytest

from bench.__main__ import needed
from bench.bars import BARS, ratio, verdict
from bench.measures import MEASURES, Sample
from bench.report import Report, findings, middle, rate_rows, write_page


def sample(rate: float, **more: float) -> Sample:
    return Sample(rate=rate, driver_us=1.0, broker_us=2.0, server_us=3.0, **more)


def test_the_median_ratio_is_paired_by_round() -> None:
    rounds = [{"ours": sample(100), "theirs": sample(50)}, {"ours": sample(10), "theirs": sample(5)}]
    rounds.append({"ours": sample(1000), "theirs": sample(10)})
    assert ratio("a", "ours", "theirs", 1.5).over(rounds) == 2.0


@pytest.mark.parametrize(
    ("value", "least", "most", "expected"),
    [
        (1.5, 1.5, None, "PASS"),
        (1.49, 1.5, None, "MISS"),
        (1.0, None, 1.0, "PASS"),
        (1.1, None, 1.0, "MISS"),
        (9, None, None, ""),
    ],
)
def test_a_bar_is_reached_or_missed(value: float, least: float | None, most: float | None, expected: str) -> None:
    assert verdict(value, least, most) == expected


def test_the_time_without_a_leader_is_the_worst_of_all_rounds() -> None:
    (bar,) = (bar for bar in BARS if bar.measures == ("kill -9 of the leader",))
    rounds = [{"kill -9 of the leader": sample(0.0, stall_s=stall_s)} for stall_s in (1.0, 4.5, 1.5)]
    assert bar.over(rounds) == 4.5
    assert verdict(bar.over(rounds), bar.least, bar.most) == "MISS"
    assert verdict(bar.over(rounds[:1]), bar.least, bar.most) == "PASS"


def test_three_brokers_with_ack_all_are_held_against_three_replicas_of_jetstream() -> None:
    names = {measure.name for measure in needed("h")}
    assert {"ack ALL, three brokers", "JetStream R3, async", "latency, ack ALL", "latency, JetStream R3"} <= names
    rounds = [{"ack ALL, three brokers": sample(99), "JetStream R3, async": sample(100)}]
    (bar,) = (bar for bar in BARS if bar.measures == ("ack ALL, three brokers", "JetStream R3, async"))
    assert verdict(bar.over(rounds), bar.least, bar.most) == "MISS"


def test_a_measure_without_a_rate_is_no_row_among_the_rates() -> None:
    report = Report("a machine", "ext4", [{"fast": sample(1.0), "kill": sample(0.0, stall_s=1.0)}], [])
    assert [name for name, *_ in rate_rows(report)] == ["fast"]


def test_every_bar_looks_at_measures_that_exist() -> None:
    assert {name for bar in BARS for name in bar.measures} == set(MEASURES)


def test_a_chosen_group_runs_only_what_its_bars_need() -> None:
    names = ["envelopes, group", "100 publishers, 10 in flight each", "100 publishers, 1 000 in flight each"]
    assert [measure.name for measure in needed("e")] == names
    assert needed("g") == []


def test_the_page_shows_medians_and_verdicts(tmp_path: Path) -> None:
    rounds = [{name: sample(1000.0 * n + rate) for n, name in enumerate(MEASURES, 1)} for rate in (0.0, 1.0, 2.0)]
    report = Report("a machine", "ext4", rounds, findings(rounds, "abcdefh"))
    assert report.medians["envelopes, group"] == sample(1001.0)
    assert any(found.verdict == "MISS" for found in report.missed)
    write_page(report, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| envelopes, group | 1,001 |" in page
    assert "| broker CPU of a subscribed message | 2.00 us | <= 1 us | MISS |" in page


def test_the_middle_is_taken_number_by_number() -> None:
    assert middle([sample(1, p99_us=9), sample(3, p99_us=7), sample(2, p99_us=8)]) == sample(2, p99_us=8)
