"""Requests of other brokers whose answer takes a while: a bounded number is under way, and what exceeds it is dropped
and not logged, for the caller asks again."""

import asyncio
import gc

import pytest

from bascule.errors import DeadlineExceeded, LogError
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import CHANGE, OTHER_LOG
from bascule.node.calls.subjects import Subjects
from bascule.node.partition import peerlogs
from bascule.node.partition.peerlogs import PeerLogs
from bascule.node.runtime.jobs import Jobs
from bascule.node.runtime.metrics import Metrics
from bascule.sim.host import SeededRandom
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.repair import LogAnswer, LogEnd, Question
from tests.harness.broker import Node

ANSWER = LogAnswer(True, True, LogEnd(4, 9), 3, b"", True)


class SlowLogs(PeerLogs):
    """Reads a log for half a second."""

    def __init__(self, calls: Calls, jobs: Jobs) -> None:
        super().__init__("b", calls, lambda key: None, lambda: ("a", "b"), lambda: ["a"], jobs)
        self.begun: list[int] = []

    async def _look(self, question: Question) -> LogAnswer:
        self.begun.append(question.partition)
        await asyncio.sleep(0.5)
        if question.partition == 100:
            raise LogError("this log cannot be read")
        return ANSWER


def calls_of(nats: MemoryNats, name: str) -> Calls:
    return Calls(name, Subjects("ns", "x"), nats.connect(name), SeededRandom(name), Metrics())


def made() -> tuple[Calls, SlowLogs, Jobs]:
    """Who asks, who answers, and the jobs of the latter."""
    nats, jobs = MemoryNats(), Jobs(lambda reason: None, Metrics())
    asker, logs = calls_of(nats, "a"), SlowLogs(calls_of(nats, "b"), jobs)
    asker.listen()
    logs.listen()
    return asker, logs, jobs


async def ask(calls: Calls, partition: int, name: str = "a") -> bool:
    question = Question(7, partition, 3, 9, 0, name)
    return await calls.ask(calls.subjects.repair("b"), OTHER_LOG, question, 1.0) == ANSWER


def test_answers_about_logs_are_bounded_and_end_with_the_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peerlogs, "ANSWERED_AT_ONCE", 2)

    async def main() -> None:
        asker, logs, jobs = made()
        outcomes = await asyncio.gather(*(ask(asker, number) for number in range(5)), return_exceptions=True)
        assert logs.begun == [0, 1], "the others were too many"
        assert [outcome for outcome in outcomes if outcome is True] == [True, True]
        assert await ask(asker, 7)
        late = asyncio.ensure_future(ask(asker, 8))
        await asyncio.sleep(0.1)
        await jobs.close()
        with pytest.raises(DeadlineExceeded):
            await late

    run(main())
    assert caplog.records == [], "too many questions are no error of ours"


def test_nobody_but_a_member_is_answered_and_no_answer_is_given_about_a_log_that_cannot_be_read() -> None:
    async def main() -> None:
        asker, logs, _ = made()
        for partition, name in ((3, "unknown"), (100, "a")):
            with pytest.raises(DeadlineExceeded):
                await ask(asker, partition, name)
        assert logs.begun == [100]
        assert await ask(asker, 4)

    run(main())


def test_an_answer_is_not_begun_by_a_broker_that_has_closed() -> None:
    """Nor left behind half made: a coroutine that nobody awaits is a warning, which is an error here."""

    async def main() -> None:
        asker, logs, jobs = made()
        await jobs.close()
        with pytest.raises(DeadlineExceeded):
            await ask(asker, 1)
        assert logs.begun == []

    run(main())
    gc.collect()


def test_changes_that_other_brokers_ask_for_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        nats = MemoryNats()
        node = await Node(MemoryDisk(), nats).start()
        controller = node.broker.controller
        monkeypatch.setattr(controller._requests, "_most", 2)
        begun: list[str] = []

        async def carry_out(request: pb.PropagatedRequest) -> int:
            begun.append(request.operation.id)
            await asyncio.sleep(0.5)
            return 7

        monkeypatch.setattr(controller.executor, "carry_out", carry_out)
        subjects = node.broker.cluster.raft._calls.subjects
        asker = Calls("other", subjects, nats.connect("other"), SeededRandom("other"), Metrics())
        asker.listen()
        requests = [pb.PropagatedRequest(op=pb.BARRIER, operation=pb.Operation(id=f"{number}")) for number in range(5)]
        asked = (asker.ask(subjects.changes, CHANGE, request, 1.0) for request in requests)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert begun == ["0", "1"]
        assert [outcome.index for outcome in outcomes if isinstance(outcome, pb.PropagatedResponse)] == [7, 7]
        assert (await asker.ask(subjects.changes, CHANGE, requests[4], 1.0)).index == 7

    caplog.set_level("WARNING")
    run(main())
    assert [record for record in caplog.records if record.exc_info] == []
