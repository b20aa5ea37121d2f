"""What `make spark-faults` calls wrong, and what it says of a driver that ended by itself."""

from pathlib import Path

from bascule.client import Message
from tools.spark_faults import by_key, reason_of, wrong_of

PUBLISHED = {b"a": [b"1", b"2", b"3"], b"b": [b"9"]}


def test_rows_that_are_lost_twice_foreign_or_out_of_order_are_told_of_their_key() -> None:
    assert wrong_of(PUBLISHED, dict(PUBLISHED)) == []
    assert wrong_of(PUBLISHED, {**PUBLISHED, b"a": [b"1", b"3"]}) == ["key b'a': 1 lost, 0 twice or foreign"]
    assert wrong_of(PUBLISHED, {**PUBLISHED, b"a": [b"1", b"2", b"2", b"3"]}) == [
        "key b'a': 0 lost, 1 twice or foreign"
    ]
    assert wrong_of(PUBLISHED, {**PUBLISHED, b"c": [b"7"]}) == ["key b'c': 0 lost, 1 twice or foreign"]
    assert wrong_of(PUBLISHED, {**PUBLISHED, b"a": [b"1", b"3", b"2"]}) == ["key b'a': out of order from row 1 on"]


def test_values_are_gathered_by_their_keys_in_the_order_of_the_log() -> None:
    pairs = [(b"a", b"2"), (b"b", b"9"), (None, b"0"), (b"a", b"1")]
    messages = [Message(number, key, value, 0, "s", 0, "s", "", {}) for number, (key, value) in enumerate(pairs)]
    assert by_key(messages) == {b"a": [b"2", b"1"], b"b": [b"9"], b"": [b"0"]}


def test_the_last_error_of_a_driver_is_its_reason(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_text("starting\nbascule.errors.Unavailable: nobody\nbascule.errors.OutOfRange: it is gone\n  at x.y.Z\n")
    assert reason_of(log) == "bascule.errors.OutOfRange: it is gone"
    log.write_text("killed\n")
    assert reason_of(log) == "killed"
    log.write_text("")
    assert reason_of(log) == "it wrote nothing"
