"""The background work of a broker: what fails runs again or ends the process, and nothing outlives its broker."""

import ast
import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

import pytest

import bascule
from bascule.errors import LogError
from bascule.limits import JOB_FIRST_PAUSE_S, JOB_MAX_PAUSE_S, JOB_STEADY_S
from bascule.node.runtime.jobs import Jobs
from bascule.node.runtime.metrics import Metrics
from bascule.testing.loop import run
from tests.harness.paths import ROOT

SOURCE = Path(bascule.__file__).parent
STARTS_TASKS = {"create_task", "ensure_future", "TaskGroup", "run_coroutine_threadsafe"}
ELSEWHERE = {
    # Who may start a task beside `Jobs`, who ends it, and what happens when it fails.
    "log/disk.py": "one sync of a folder, shared by those who wait for it, who are told the error",
    "log/promised.py": "one write of the promised ends, tried again when it fails; PromisedEnds.close waits for it",
    "log/filecopy.py": "a replaced file, finished before whoever waits is cancelled; the waiter is told the error",
    "log/sync.py": "rounds of the group commit: when one fails the process ends; SyncScheduler.close waits for them",
    "net/grpc.py": "one gRPC call; the server cancels it at its close and answers an error with a status",
    "net/supervised.py": "a restart of the embedded NATS server, tried until it runs; SupervisedNats.stop ends it",
    "net/nats.py": "the reconnecting of one connection, tried until there is one; Connection.close ends it",
    "node/api/bulkwrite.py": "the reading of one bulk write, which its call ends and is told the error of",
    "node/partition/awaited.py": "a write of a small file, tried until it is done; AwaitedReplicas.close waits for it",
    "node/partition/pausedlogs.py": "a paused log that is open for a moment; PausedLogs.close ends and awaits it",
    "node/partition/replica.py": "work that ends with its replica: Replica.close cancels it; truncations are awaited",
    "node/membership/raft.py": "Raft itself: when it fails the process ends; RaftDriver.stop ends it",
    "node/process/server.py": "the start of the process, which `run` waits for",
}


class Failing:
    """Work that fails as often as it is told to, and then goes on."""

    def __init__(self, *errors: Exception, runs_s: float = 0.0) -> None:
        self.errors = list(errors)
        self.runs_s = runs_s
        self.began_at: list[float] = []

    async def work(self) -> None:
        self.began_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.runs_s)
        if self.errors:
            raise self.errors.pop(0)
        await asyncio.Event().wait()

    def call(self) -> None:
        self.began_at.append(asyncio.get_running_loop().time())
        if self.errors:
            raise self.errors.pop(0)

    @property
    def pauses(self) -> list[float]:
        pairs = zip(self.began_at, self.began_at[1:], strict=False)
        return [round(after - before - self.runs_s, 6) for before, after in pairs]


Test = Callable[[Jobs], Awaitable[None]]


def with_jobs(test: Test) -> list[str]:
    """Why the process was to end, if it was."""
    reasons: list[str] = []

    async def main() -> None:
        jobs = Jobs(reasons.append, Metrics())
        await test(jobs)
        await jobs.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing outlives the broker"

    run(main())
    return reasons


def test_a_job_that_raises_runs_again_and_its_failure_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing(LogError("the disk is full"))

    async def test(jobs: Jobs) -> None:
        jobs.run("the cleaner", failing.work, "nothing is cleaned")
        await asyncio.sleep(1.0)
        assert len(failing.began_at) == 2
        assert jobs.failures.values == {"the cleaner": 1}

    assert with_jobs(test) == []
    (record,) = caplog.records
    assert record.getMessage() == f"the cleaner failed: the disk is full; it starts again in {JOB_FIRST_PAUSE_S} s"
    assert record.exc_info is None, "an error of the disk explains itself"


def test_an_error_of_ours_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing(ValueError("99 is not a valid Status"))

    async def test(jobs: Jobs) -> None:
        jobs.run("the cleaner", failing.work, "nothing is cleaned")
        await asyncio.sleep(1.0)

    with_jobs(test)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert len(failing.began_at) == 2


def test_pauses_double_up_to_a_bound() -> None:
    failing = Failing(*[RuntimeError("again")] * 20)

    async def test(jobs: Jobs) -> None:
        jobs.run("the cleaner", failing.work, "nothing is cleaned")
        await asyncio.sleep(20 * JOB_MAX_PAUSE_S)

    with_jobs(test)
    expected = [min(JOB_FIRST_PAUSE_S * 2**number, JOB_MAX_PAUSE_S) for number in range(20)]
    assert failing.pauses == pytest.approx(expected)
    assert JOB_MAX_PAUSE_S in expected


def test_a_job_that_ran_well_for_a_while_starts_again_after_the_first_pause() -> None:
    failing = Failing(*[RuntimeError("again")] * 10)

    async def test(jobs: Jobs) -> None:
        jobs.run("the cleaner", failing.work, "nothing is cleaned")
        while len(failing.began_at) < 8:
            await asyncio.sleep(0.01)
        failing.runs_s = JOB_STEADY_S
        failing.began_at.clear()
        await asyncio.sleep(3 * JOB_STEADY_S)

    with_jobs(test)
    assert failing.pauses[0] == pytest.approx(JOB_FIRST_PAUSE_S)


def test_a_failed_assertion_is_never_retried_and_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing(AssertionError("an offset went back"))

    async def test(jobs: Jobs) -> None:
        jobs.run("the cleaner", failing.work, "old messages are not deleted")
        await asyncio.sleep(10 * JOB_MAX_PAUSE_S)
        assert len(failing.began_at) == 1
        assert jobs.failures.values == {"the cleaner": 1}

    assert with_jobs(test) == [], "the other jobs go on"
    (record,) = caplog.records
    assert (
        "Without it old messages are not deleted; a failed assertion is never retried: restart" in record.getMessage()
    )
    assert record.exc_info is not None, "the simulator takes it for a finding"


def test_a_job_whose_work_is_done_is_not_started_again() -> None:
    runs = []

    async def once() -> None:
        runs.append(1)

    async def test(jobs: Jobs) -> None:
        jobs.run("the move of old files", once, "they stay")
        await asyncio.sleep(1.0)
        assert runs == [1]

    with_jobs(test)


def test_a_job_that_waited_for_something_that_was_cancelled_runs_again() -> None:
    """Else it would end silently: asyncio takes the task for one that somebody cancelled."""
    runs = []

    async def waits() -> None:
        runs.append(1)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(runs) == 1:
            future.cancel()
        await future

    async def test(jobs: Jobs) -> None:
        jobs.run("the cleaner", waits, "nothing is cleaned")
        await asyncio.sleep(1.0)
        assert runs == [1, 1]

    with_jobs(test)


def test_vital_work_that_fails_ends_the_process_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing(RuntimeError("an error of ours"))

    async def test(jobs: Jobs) -> None:
        task = jobs.vital("the taking of roles", failing.work())
        with pytest.raises(RuntimeError, match="of ours"):
            await task
        await asyncio.sleep(10.0)
        assert len(failing.began_at) == 1

    (reason,) = with_jobs(test)
    assert reason.startswith("the taking of roles ended unexpectedly: RuntimeError('an error of ours')")
    assert "an error of ours" in caplog.text


def test_vital_work_that_is_done_or_cancelled_ends_nothing() -> None:
    async def done() -> None:
        await asyncio.sleep(0.1)

    async def test(jobs: Jobs) -> None:
        await jobs.vital("the end of the start", done())
        task = jobs.vital("the end of the start", Failing().work())
        await asyncio.sleep(0)
        task.cancel()  # as the start is that waits for it

    assert with_jobs(test) == []


def test_a_timer_that_raises_is_set_again(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing(RuntimeError("an error of ours"))

    async def test(jobs: Jobs) -> None:
        timer = jobs.every("heartbeats", 0.25, failing.call, "others take this broker for dead")
        await asyncio.sleep(1.1)
        assert failing.began_at == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
        timer.stop()
        await asyncio.sleep(1.0)
        assert len(failing.began_at) == 5
        jobs.every("heartbeats", 0.25, failing.call, "others take this broker for dead")
        await asyncio.sleep(0.3)
        assert len(failing.began_at) == 7
        assert jobs.failures.values == {"heartbeats": 1}

    assert with_jobs(test) == []
    assert "heartbeats failed: RuntimeError('an error of ours'); it runs again in 0.25 s" in caplog.text


def test_a_timer_that_keeps_raising_slows_down_and_one_that_asserts_stays_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = Failing(*[RuntimeError("again")] * 12, AssertionError("an offset went back"))

    async def test(jobs: Jobs) -> None:
        jobs.every("heartbeats", 0.25, failing.call, "others take this broker for dead")
        await asyncio.sleep(20 * JOB_MAX_PAUSE_S)
        assert jobs.failures.values == {"heartbeats": 13}

    with_jobs(test)
    growing = [min(JOB_FIRST_PAUSE_S * 2**number, JOB_MAX_PAUSE_S) for number in range(12)]
    assert failing.pauses == pytest.approx([max(0.25, pause_s) for pause_s in growing])
    assert "Without it others take this broker for dead" in caplog.records[-1].getMessage()


def test_work_of_single_calls_is_bounded_counted_and_never_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing(RuntimeError("an error of ours"))

    async def test(jobs: Jobs) -> None:
        answers = jobs.tasks("an answer", 2)
        answers.start(failing.work())
        answers.start(Failing().work())
        assert answers.full
        await asyncio.sleep(1.0)
        answers.start(Failing().work())  # the one that failed is over
        assert len(failing.began_at) == 1
        assert jobs.failures.values == {"an answer": 1}

    with_jobs(test)
    assert "an answer failed" in caplog.text


def test_who_waits_for_work_is_told_its_error_and_the_log_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async def test(jobs: Jobs) -> None:
        task = jobs.tasks("a change", 2, answered=True).start(Failing(RuntimeError("refused")).work())
        with pytest.raises(RuntimeError, match="refused"):
            await task
        assert not jobs.failures.values

    with_jobs(test)
    assert not caplog.records


def test_a_close_ends_everything_and_nothing_begins_after_it() -> None:
    steps: list[str] = []

    def note(name: str) -> Coroutine[object, object, None]:
        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.5)  # as one that ends a file first
                steps.append(name)

        return work()

    async def main() -> None:
        jobs = Jobs(steps.append, Metrics())
        jobs.run("job", lambda: note("job"), "nothing")
        jobs.run("pausing", Failing(*[RuntimeError("again")] * 9).work, "nothing")
        jobs.vital("vital", note("vital"))
        answers = jobs.tasks("answers", 10)
        answers.start(note("answer"))
        ticks = Failing()
        jobs.every("timer", 0.1, ticks.call, "nothing")
        await asyncio.sleep(1.0)
        await jobs.close()
        assert sorted(steps) == ["answer", "job", "vital"]
        late = answers.start(note("late"))
        count = len(ticks.began_at)
        await asyncio.sleep(10.0)
        assert late.cancelled()
        assert len(ticks.began_at) == count
        assert sorted(steps) == ["answer", "job", "vital"]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(AssertionError, match="closed"):
            jobs.run("job", lambda: note("job"), "nothing")

    run(main())


def registered(path: Path) -> list[tuple[str, str]]:
    """Kind and name of the work that a file registers."""
    kinds = {"run": "job", "every": "timer", "vital": "vital work", "tasks": "work of one call"}
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            method = ast.unparse(node.func).rpartition(".")[2]
            if method in kinds and isinstance(node.args[0].value, str):
                found.append((kinds[method], node.args[0].value))
    return found


def test_the_table_of_background_work_is_what_is_registered() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    (table,) = re.findall(r"\| kind \| work \| when it fails \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", text)
    rows = [line.strip("|").split("|") for line in table.splitlines()]
    listed = [(kind.strip(), name) for kind, names, _ in rows for name in re.findall(r"`([^`]+)`", names)]
    found = [each for path in sorted((SOURCE / "node").rglob("*.py")) for each in registered(path)]
    assert sorted(listed) == sorted(found)


def starts_tasks(path: Path) -> bool:
    names = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name | ast.Attribute))
    return any((node.id if isinstance(node, ast.Name) else node.attr) in STARTS_TASKS for node in names)


def test_tasks_are_started_by_the_supervisor_or_listed_with_a_reason() -> None:
    files = [path for part in ("node", "log", "net") for path in sorted((SOURCE / part).rglob("*.py"))]
    found = {path.relative_to(SOURCE).as_posix() for path in files if starts_tasks(path)}
    assert found - {"node/runtime/jobs.py"} == set(ELSEWHERE), "register it with `Jobs`, or say here who ends it"


@pytest.mark.parametrize("text", ["loop.create_task(f())", "asyncio.TaskGroup()", "ensure_future(f())"])
def test_the_check_sees_who_starts_tasks(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.py").write_text(f"def g(loop):\n    return {text}\n")
    assert starts_tasks(tmp_path / "x.py")
