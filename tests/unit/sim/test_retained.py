"""How much a log may have had by the time that something of it expired."""

from bascule.sim.history import Sent
from bascule.sim.retained import RECORD_BYTES, Size, largest
from bascule.sim.trace import Part

PART = Part("expiring", 1, 0)


def test_a_log_that_lags_may_catch_up_with_what_others_have_removed_at_its_front() -> None:
    assert largest([]) == Size()
    assert largest([Size(4, 400, 20), Size(5, 600, 20)]) == Size(5, 600, 20)
    assert largest([Size(4, 400, 20), Size(6, 700, 12)]) == Size(14, 1_100, 20)


def test_what_was_sent_may_be_there() -> None:
    sent = Sent(b"m1", b"value", PART, "", 1, 0, key=b"k")
    assert Size(2, 100, 7).and_sent([sent, sent]) == Size(4, 100 + 2 * (RECORD_BYTES + 6), 9)
    assert Size(2, 100, 7).and_sent([]) == Size(2, 100, 7)
