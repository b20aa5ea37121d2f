"""Processes on the virtual loop: killed ones take no further step, paused ones take theirs later."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from bascule.testing.loop import Deadlock, SimulatedProcess, VirtualLoop, run


def process() -> SimulatedProcess:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return SimulatedProcess(loop)


async def tick(heard: list[float]) -> None:
    while True:
        await asyncio.sleep(1)
        heard.append(asyncio.get_running_loop().time())


def test_a_killed_process_takes_no_step_not_even_those_of_its_children() -> None:
    async def main() -> None:
        heard: list[float] = []
        one = process()

        async def parent() -> None:
            asyncio.get_running_loop().create_task(tick(heard))
            asyncio.get_running_loop().call_later(1.5, heard.append, -1.0)
            await tick(heard)

        one.start(parent())
        await asyncio.sleep(1.2)
        assert heard == [1.0, 1.0]
        one.kill()
        one.call(heard.append, 0.0)
        await asyncio.sleep(5)
        assert heard == [1.0, 1.0]

    run(main())


def test_a_task_outside_that_waits_for_a_process_is_not_stepped_by_its_death() -> None:
    async def main() -> None:
        one = process()
        event = asyncio.Event()

        async def inside() -> None:
            event.set()
            await asyncio.sleep(100)

        one.start(inside())
        await event.wait()
        one.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        assert asyncio.get_running_loop().time() == pytest.approx(1)

    run(main())


def test_a_paused_process_goes_on_where_it_stopped_with_all_that_came_due() -> None:
    async def main() -> None:
        heard: list[float] = []
        one = process()
        one.start(tick(heard))
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1.5)
        one.pause()
        one.call(heard.append, -1.0)
        await asyncio.sleep(3)
        assert heard == [1.0]
        one.resume()
        await asyncio.sleep(0.1)
        assert heard == [1.0, -1.0, pytest.approx(4.5)]
        await asyncio.sleep(1)
        assert heard[-1] == pytest.approx(5.5)
        assert loop.time() == pytest.approx(5.6)

    run(main())


def test_a_timer_that_came_due_in_a_pause_can_still_be_cancelled_by_what_runs_before_it() -> None:
    async def main() -> None:
        heard: list[str] = []
        one = process()

        async def inside() -> None:
            loop = asyncio.get_running_loop()
            later = loop.call_later(2, heard.append, "later")
            loop.call_later(1, later.cancel)

        one.start(inside())
        await asyncio.sleep(0.5)
        one.pause()
        await asyncio.sleep(5)
        one.resume()
        await asyncio.sleep(1)
        assert heard == []

    run(main())


def test_a_program_that_never_lets_time_pass_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.testing.loop._MAX_TURNS_WITHOUT_TIME", 1000)

    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Deadlock, match="without letting time pass"):
        run(main())


def test_a_generator_of_a_dead_process_is_released_quietly() -> None:
    async def main() -> None:
        one = process()

        async def numbers() -> AsyncIterator[int]:
            yield 1
            await asyncio.sleep(10)

        async def inside() -> None:
            try:
                async for _ in numbers():
                    pass
            finally:
                await asyncio.sleep(1)

        one.start(inside())
        await asyncio.sleep(1)
        one.kill()
        await asyncio.sleep(20)

    run(main())
