"""What a broker waits for, in its log: an information first, a warning if it lasts."""

import logging

import pytest

from bascule.node.membership.waiting import SAY_EVERY_S, SAY_FROM_S, WARN_FROM_S, Waiting
from bascule.ports import Clock


class SetClock(Clock):
    def __init__(self) -> None:
        self.now_s = 5.0

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def time_ns(self) -> int:
        return self.monotonic_ns()


def test_it_is_a_warning_only_if_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = SetClock()
    began = clock.now_s
    waiting = Waiting(clock, "waiting to found a cluster")
    while clock.now_s - began < 3 * SAY_EVERY_S:
        waiting.say("start b")
        clock.now_s += 0.1
    levels = [record.levelno for record in caplog.records]
    assert levels[0] == logging.INFO, "brokers that are started together wait for each other for a moment"
    assert levels[1:] == [logging.WARNING] * len(levels[1:])
    assert len(levels) == 3
    assert caplog.messages[0] == f"waiting to found a cluster for {SAY_FROM_S:.0f} s: start b"
    assert WARN_FROM_S <= SAY_FROM_S + SAY_EVERY_S, "the second line must be a warning"
