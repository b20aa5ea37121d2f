"""Requests that are tried again: for how long, who is told meanwhile, and which reason the caller gets at the end."""

import asyncio

import pytest

from bascule.client.failures import Deadline, persist
from bascule.errors import BasculeError, DeadlineExceeded, NotFound, Unavailable
from bascule.testing.loop import run


def test_whoever_wants_to_know_is_told_why_and_for_how_long_it_has_been_tried() -> None:
    async def main() -> None:
        told: list[tuple[str, float]] = []
        left = 4

        async def attempt() -> str:
            nonlocal left
            left -= 1
            if left:
                raise Unavailable(f"{left} more")
            return "done"

        def on_wait(error: BasculeError, seconds: float) -> None:
            told.append((str(error), seconds))

        assert await persist(attempt, Deadline(10.0), on_wait=on_wait) == "done"
        assert [text for text, _ in told] == ["3 more", "2 more", "1 more"]
        times = [seconds for _, seconds in told]
        assert times[0] == 0.0
        assert times == sorted(set(times)), "the time goes on from try to try"

    run(main())


def test_a_last_try_that_the_deadline_ended_does_not_hide_the_errors_of_the_others() -> None:
    async def main() -> None:
        deadline = Deadline(1.0)
        tries = 0

        async def attempt() -> None:
            nonlocal tries
            tries += 1
            await asyncio.sleep(0.4)
            if deadline.remaining() < 0.5:
                raise DeadlineExceeded("the deadline passed")
            raise Unavailable("too few replicas are in sync")

        with pytest.raises(DeadlineExceeded, match=r"too few replicas are in sync \(the deadline passed\)"):
            await persist(attempt, deadline)
        assert tries > 1

    run(main())


def test_a_final_error_is_told_as_it_is() -> None:
    async def main() -> None:
        errors: list[BasculeError] = [NotFound("no such stream"), Unavailable("starting")]

        async def attempt() -> None:
            raise errors.pop()

        with pytest.raises(NotFound, match=r"^no such stream$"):
            await persist(attempt, Deadline(10.0))

        async def at_once() -> None:
            raise DeadlineExceeded("the deadline passed")

        with pytest.raises(DeadlineExceeded, match=r"^the deadline passed$"):
            await persist(at_once, Deadline(10.0))

    run(main())
