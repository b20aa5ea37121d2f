"""What a client is given: exact nanoseconds, the same as a datetime, and a `repr` that says what it is."""

from datetime import UTC, datetime

from bascule.client import Ack, AckPolicy, Stream

SEEN = 1_767_225_600_123_456_789


def test_times_are_exact_and_datetimes_too() -> None:
    ack = Ack("s", 0, 1, "s", AckPolicy.ALL, SEEN, SEEN + 1_000)
    assert ack.reception_time == datetime(2026, 1, 1, 0, 0, 0, 123456, UTC)
    assert ack.commit_time == datetime(2026, 1, 1, 0, 0, 0, 123457, UTC)
    assert Stream("s", "s", {}, SEEN).creation_time == ack.reception_time
