"""How `make bench-spark` judges: ratios within a round, medians over the rounds."""

import pytest

from bench.spark.kafka import jars_of
from bench.spark.measures import MEASURES, Sample, measures
from bench.spark.report import BARS, Report, Round, number

ROUND: Round = {
    "stream to noop": Sample(2_000_000, 0.8, 0.1),
    "Parquet to noop": Sample(4_000_000, 0.5, 0.0),
    "Kafka to noop": Sample(800_000, 2.0, 0.5),
    "stream to Parquet archive": Sample(300_000, 3.0, 0.1),
    "Parquet to Parquet": Sample(600_000, 3.0, 0.0),
    "Parquet to stream": Sample(149_000, 1.0, 0.1),
}


def test_every_bar_looks_at_measures_that_exist() -> None:
    assert {name for bar in BARS for name in bar.measures} == set(MEASURES) == set(ROUND)


def test_each_bar_is_held_against_its_side_of_the_ratio() -> None:
    findings = {each.text: each for each in Report(1, "ext4", 1.0, [ROUND]).findings}
    assert {text: (round(each.value, 3), each.verdict) for text, each in findings.items()} == {
        "processor time of Spark a row, stream to noop / Parquet to noop": (1.6, "PASS"),
        "rows a second, stream to noop": (2_000_000, "PASS"),
        "rows a second, stream to noop / Kafka to noop": (2.5, "PASS"),
        "time, stream to Parquet archive / Parquet to Parquet": (2.0, "MISS"),
        "rows a second, Parquet to stream": (149_000, "MISS"),
    }


def test_a_slow_round_does_not_count_against_a_median() -> None:
    slow = {name: Sample(each.rate / 9, each.spark_us * 9, 0.0) for name, each in ROUND.items()}
    report = Report(1, "ext4", 1.0, [ROUND, slow, ROUND])
    assert report.medians["stream to noop"].rate == 2_000_000
    assert {each.text for each in report.missed} == {each.text for each in Report(1, "x", 1.0, [ROUND]).missed}


def test_without_kafka_the_run_says_so_and_has_no_row_of_it() -> None:
    assert "Kafka to noop" not in measures(with_kafka=False)
    report = Report(1, "ext4", 1.0, [{name: ROUND[name] for name in measures(with_kafka=False)}])
    assert report.as_dict()["kafka"] is False
    assert not any("Kafka" in each.text for each in report.findings)


@pytest.mark.parametrize("name", ["broker", "source"])
def test_every_jar_of_kafka_has_a_checksum(name: str) -> None:
    jars = jars_of(name)
    assert jars
    assert all(each.path.endswith(".jar") and len(bytes.fromhex(each.sha256)) == 32 for each in jars)
    assert len({each.name for each in jars}) == len(jars)


def test_numbers_are_written_as_they_are_read() -> None:
    assert (number(1_000_000), number(1.6), number(2)) == ("1,000,000", "1.60", "2.00")
