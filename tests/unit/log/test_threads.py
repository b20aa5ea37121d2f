"""Hops to a thread and back: results, errors, several loops, and the end."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.limits import HOPS_SLICE
from bascule.log import threads
from bascule.log.threads import Threads


@pytest.fixture(params=["eventfd", "the loop's own way"])
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    if request.param != "eventfd":
        monkeypatch.setattr(threads, "_ring", None)
    else:
        assert threads._ring is not None
    made = Threads("test", 2)
    yield made
    made.close()


def fail(text: str) -> None:
    raise ValueError(text)


def test_results_and_errors_come_back_from_another_thread(pool: Threads) -> None:
    async def run() -> None:
        assert await pool.run(threading.get_ident) != threading.get_ident()
        with pytest.raises(ValueError, match="why"):
            await pool.run(fail, "why")

    asyncio.run(run())


def test_many_hops_at_once_each_get_their_own_result(pool: Threads) -> None:
    async def run() -> list[int]:
        return await asyncio.gather(*(pool.run(pow, number, 2) for number in range(500)))

    assert asyncio.run(run()) == [number**2 for number in range(500)]


def test_the_same_threads_serve_one_loop_after_another(pool: Threads) -> None:
    async def run() -> int:
        return await pool.run(len, "four")

    assert [asyncio.run(run()) for _ in range(3)] == [4, 4, 4]


def test_a_hop_that_its_loop_did_not_wait_for_harms_no_later_loop(pool: Threads) -> None:
    go_on = threading.Event()

    async def leave() -> None:
        task = asyncio.create_task(pool.run(go_on.wait, 10.0))
        await asyncio.sleep(0)
        task.cancel()

    async def run() -> int:
        go_on.set()
        return await pool.run(len, "four")

    asyncio.run(leave())
    assert asyncio.run(run()) == 4


def test_whoever_waits_while_the_threads_end_gets_the_result(pool: Threads) -> None:
    async def run() -> int:
        waiting = asyncio.create_task(pool.run(len, "four"))
        await asyncio.sleep(0)
        pool.close()
        async with asyncio.timeout(5.0):
            return await waiting

    assert asyncio.run(run()) == 4


def test_ended_threads_leave_no_descriptor_behind(pool: Threads) -> None:
    async def run() -> None:
        before = len(os.listdir(descriptors))
        await pool.run(len, "four")
        pool.close()
        assert len(os.listdir(descriptors)) == before

    descriptors = Path("/proc/self/fd")
    asyncio.run(run())


def test_hops_that_end_together_go_on_some_at_a_time_in_their_order() -> None:
    """As those of a thousand partitions that are opened: others have their turns in between."""
    count, pool = 5 * HOPS_SLICE, Threads("test", 1)
    over: list[int] = []
    in_one_turn: list[int] = []

    async def hop(number: int) -> None:
        await pool.run(int)
        over.append(number)

    async def run() -> None:
        go_on = threading.Event()
        blocked = asyncio.create_task(pool.run(go_on.wait, 10.0))
        tasks = [asyncio.create_task(hop(number)) for number in range(count)]
        await asyncio.sleep(0)
        go_on.set()
        pool._jobs.put(None)  # the only thread ends behind them: all are over, and the loop knows of none
        pool._threads[0].join()
        async with asyncio.timeout(5.0):
            while len(over) < count:
                before = len(over)
                await asyncio.sleep(0)
                in_one_turn.append(len(over) - before)
            await asyncio.gather(blocked, *tasks)

    asyncio.run(run())
    pool.close()
    assert over == list(range(count))
    assert max(in_one_turn) <= HOPS_SLICE


def test_hops_that_are_over_when_the_threads_end_all_get_their_results() -> None:
    count, pool = 5 * HOPS_SLICE, Threads("test", 1)

    async def run() -> list[int]:
        tasks = [asyncio.create_task(pool.run(pow, number, 2)) for number in range(count)]
        while not any(task.done() for task in tasks):
            await asyncio.sleep(0)
        pool.close()
        async with asyncio.timeout(5.0):
            return await asyncio.gather(*tasks)

    assert asyncio.run(run()) == [number**2 for number in range(count)]


def test_hops_that_a_loop_left_behind_do_not_keep_the_next_one_waiting() -> None:
    count, pool = 5 * HOPS_SLICE, Threads("test", 1)

    async def leave() -> None:
        tasks = [asyncio.create_task(pool.run(pow, number, 2)) for number in range(count)]
        while not any(task.done() for task in tasks):
            await asyncio.sleep(0)

    async def run() -> int:
        async with asyncio.timeout(5.0):
            return await pool.run(len, "four")

    asyncio.run(leave())
    assert asyncio.run(run()) == 4
    pool.close()
