"""Garbage on the cluster's subjects is said once and counted: it cannot fill the log."""

import asyncio
import logging

import pytest

from bascule.node.membership.garbage import GarbageLog
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from tests.harness.members import three, within


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]


def test_a_flood_of_garbage_is_one_line_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        garbage = GarbageLog(logging.getLogger("bascule.test"), "a test message")
        for _ in range(21):
            for _ in range(1000):
                garbage.say(ValueError("odd"))
            await asyncio.sleep(1)

    run(main())
    assert lines(caplog) == [
        "a test message that cannot be understood is passed over: odd",
        "a test message that cannot be understood is passed over: odd (9999 more since the last such line)",
        "a test message that cannot be understood is passed over: odd (9999 more since the last such line)",
    ]


def test_garbage_for_raft_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        nats = MemoryNats()
        subject = within(await three(nats), "raft.metadata.a")
        for _ in range(500):
            nats.publish(subject, b"garbage")
        await asyncio.sleep(1)

    run(main())
    assert len(lines(caplog)) == 1
