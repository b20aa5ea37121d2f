"""Which segments expire, and that a partition's start only rises, never above a hold."""

from hypothesis import given
from hypothesis import strategies as st

from bascule.core.retention import RetentionLimits, SegmentSize, retained_from

sizes = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 100), st.integers(0, 20)), min_size=1, max_size=8)


def segments(parts: list[tuple[int, int, int]]) -> list[SegmentSize]:
    """Of these numbers of messages and bytes, each written so long after the one before."""
    found, base, time = [], 0, 0
    for messages, nbytes, later in parts:
        time += later
        found.append(SegmentSize(base, base + messages, messages, nbytes, time))
        base += messages
    return found


def test_without_limits_nothing_expires() -> None:
    assert retained_from(segments([(1, 1, 0)] * 5), RetentionLimits(), 10**18) == 0


def test_age_counts_by_the_last_record_of_a_segment_and_spares_the_active_one() -> None:
    three = segments([(2, 1, 10), (2, 1, 10), (2, 1, 10)])
    for now, start in ((15, 0), (19, 0), (20, 2), (29, 2), (30, 4), (1000, 4)):
        assert retained_from(three, RetentionLimits(max_age_ns=10), now) == start, now


def test_messages_and_bytes_count_from_the_newest_back() -> None:
    three = segments([(2, 10, 0), (2, 20, 0), (2, 30, 0)])
    for most, start in ((6, 0), (5, 2), (4, 2), (3, 4), (1, 4)):
        assert retained_from(three, RetentionLimits(max_messages=most), 0) == start, most
    for most, start in ((60, 0), (59, 2), (50, 2), (49, 4), (1, 4)):
        assert retained_from(three, RetentionLimits(max_bytes=most), 0) == start, most


@given(sizes, st.integers(0, 60), st.integers(0, 20), st.integers(0, 300), st.integers(0, 200))
def test_what_stays_fits_every_limit_and_what_goes_fits_none_of_it(
    parts: list[tuple[int, int, int]], age: int, messages: int, nbytes: int, now: int
) -> None:
    limits = RetentionLimits(nbytes, messages, age)
    found = segments(parts)
    start = retained_from(found, limits, now)
    stays = [each for each in found if each.base >= start]
    assert found[-1] in stays
    sealed = stays[:-1]
    assert not messages or not sealed or sum(each.messages for each in stays) <= messages
    assert not nbytes or not sealed or sum(each.nbytes for each in stays) <= nbytes
    assert not age or all(each.last_timestamp > now - age for each in sealed[:1])
    goes = [each for each in found if each.base < start]
    if goes:  # the newest of them would exceed a limit, or is too old
        more = [goes[-1], *stays]
        assert (
            (messages and sum(each.messages for each in more) > messages)
            or (nbytes and sum(each.nbytes for each in more) > nbytes)
            or (age and goes[-1].last_timestamp <= now - age)
        )
