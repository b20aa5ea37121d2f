"""The loop of the simulator: what a killed process does not do any more."""

import asyncio
import logging

import pytest

from bascule.testing.loop import SimulatedProcess, VirtualLoop

logger = logging.getLogger("bascule.test")


def test_a_killed_process_logs_nothing_though_it_handles_exceptions_and_waits_in_a_finally(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its coroutines are closed, and the inner one does not let itself be closed: the outer one takes that for an
    error."""
    loop = VirtualLoop()

    async def waits_at_its_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(60)

    async def handles_errors() -> None:
        try:
            await waits_at_its_end()
        except Exception:
            logger.exception("failed")

    async def main() -> None:
        process = SimulatedProcess(loop)
        process.start(handles_errors())
        await asyncio.sleep(1)
        process.kill()

    loop.run_until_complete(main())
    loop.close()
    assert caplog.text == ""
    logger.warning("others do")
    assert "others do" in caplog.text
