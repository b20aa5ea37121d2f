"""Which requests are made again while no broker answers, and how it is told."""

import asyncio
import logging
import math
from threading import Event

import pytest

from bascule import limits
from bascule.errors import InvalidArgument, TimedOut, Unavailable
from bascule.spark.retrying import Retrying, asked_again, has_no_answer


class Broker:
    """Answers with these, one after the other."""

    def __init__(self, *answers: Exception | int) -> None:
        self.answers = list(answers)

    async def ask(self) -> int:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_the_first_request_fails_at_once_and_later_ones_are_made_again(caplog: pytest.LogCaptureFixture) -> None:
    retrying = Retrying(60.0)
    broker = Broker(Unavailable("gone"), 1, Unavailable("gone"), TimedOut("late"), 2)
    with pytest.raises(Unavailable, match="gone"):
        retrying.ask(broker.ask)
    assert [retrying.ask(broker.ask), retrying.ask(broker.ask)] == [1, 2]
    assert caplog.messages == ["gone. It is tried again until a broker answers, for up to 60 s"]


def test_other_errors_are_not_tried_again() -> None:
    retrying = Retrying(60.0)
    broker = Broker(1, InvalidArgument("wrong"), 2)
    retrying.ask(broker.ask)
    with pytest.raises(InvalidArgument):
        retrying.ask(broker.ask)


def test_who_waits_without_end_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    over = Event()
    retrying = Retrying(math.inf, over)
    retrying.ask(Broker(1).ask)
    over.set()
    with caplog.at_level(logging.WARNING), pytest.raises(Unavailable):
        retrying.ask(Broker(Unavailable("gone"), 2).ask)
    assert caplog.messages == ["gone. It is tried again until a broker answers"]


@pytest.mark.parametrize("for_s", [0.0, limits.SPARK_RETRY_S])
def test_a_task_asks_again_for_so_long(for_s: float) -> None:

    broker = Broker(Unavailable("gone"), 2)
    if for_s:
        assert asyncio.run(asked_again(broker.ask, for_s)) == 2
    else:
        with pytest.raises(Unavailable):
            asyncio.run(asked_again(broker.ask, for_s))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("org.apache.spark.SparkException: ... bascule.errors.Unavailable: no broker can be reached", True),
        ("bascule.errors.TimedOut: no answer", True),
        ("bascule.errors.Unavailable: gone\n the cause\nbascule.errors.OutOfRange: removed", False),
        ("org.apache.spark.SparkException: task lost", False),
    ],
)
def test_a_trace_of_spark_tells_what_it_was(text: str, said: bool) -> None:
    assert has_no_answer(text) is said
