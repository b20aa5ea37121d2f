"""A machine of replication in a state that cannot be is a bug: its conversation ends, and nothing else does."""

import asyncio
import logging

import pytest

from bascule.core.replication.feed import Feed
from bascule.core.replication.fetcher import Fetcher
from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.led import make_stream
from tests.harness.members import isr, leader_of, three, until


def broken(*_: object) -> list[object]:
    raise AssertionError("cannot be")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.exc_info and "please report" in record.message]


@pytest.mark.parametrize("side", ["leading", "following"])
def test_it_ends_and_the_other_follower_goes_on(
    side: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await make_stream(members)
        await members["a"].publish("s", b"first")
        leader = leader_of(members, "s")
        follower = next(member for member in members.values() if member is not leader)
        if side == "leading":
            feed = leader.broker.manager.feeds._feeds[follower.name].machine
            assert isinstance(feed, Feed)
            monkeypatch.setattr(feed, "appended", broken)
        else:
            fetcher = follower.broker.manager.fetchers._fetchers[leader.name]._machine
            assert isinstance(fetcher, Fetcher)
            monkeypatch.setattr(fetcher, "received", broken)
        request = api.PublishRequest(stream="s", value=b"v", ackPolicy=api.LEADER)
        assert (await leader.call("Publish", request))[0] is Status.OK
        await asyncio.sleep(2)
        assert len(told(caplog)) == 1, "it is said once, and not tried again"
        await until(lambda: len(isr(members)) == 2, 60.0)
        await leader.publish("s", b"to whom is left")
        assert await leader.read("s") == [b"first", b"v", b"to whom is left"]

    with caplog.at_level(logging.ERROR):
        run(main())
