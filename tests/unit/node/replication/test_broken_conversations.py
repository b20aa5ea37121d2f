"""A failed assertion in a conversation of replication, in its machine or in what carries out the effects, is a bug: the
conversation ends, and nothing else does."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from bascule.errors import Status
from bascule.node.replication.feeds import FeedDriver
from bascule.node.replication.fetchers import FetcherDriver
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.led import make_stream
from tests.harness.members import isr, leader_of, three, until


def broken(*_: object) -> list[object]:
    raise AssertionError("cannot be")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.exc_info and "please report" in record.message]


def breaks_a_machine(monkeypatch: pytest.MonkeyPatch, feed: FeedDriver, fetcher: FetcherDriver, side: str) -> None:
    if side == "leading":
        monkeypatch.setattr(feed.machine, "appended", broken)
    else:
        monkeypatch.setattr(fetcher._machine, "received", broken)


def breaks_an_effect(monkeypatch: pytest.MonkeyPatch, feed: FeedDriver, fetcher: FetcherDriver, side: str) -> None:
    """What a machine decided fails an assertion while it is carried out."""
    if side == "leading":
        monkeypatch.setattr(feed, "_send", broken)
    else:
        monkeypatch.setattr(fetcher, "_deliver", broken)


def breaks_a_response(monkeypatch: pytest.MonkeyPatch, feed: FeedDriver, fetcher: FetcherDriver, side: str) -> None:
    monkeypatch.setattr(feed, "respond", broken)


def breaks_a_read(monkeypatch: pytest.MonkeyPatch, feed: FeedDriver, fetcher: FetcherDriver, side: str) -> None:
    """Nothing is buffered for the follower, so its records are read from the log."""
    monkeypatch.setattr("bascule.node.replication.feeds.read_records", broken)
    monkeypatch.setattr(feed.machine, "appended", lambda key, *_: feed.machine.advanced(key))


@pytest.mark.parametrize(
    ("side", "breaks"),
    [
        ("leading", breaks_a_machine),
        ("following", breaks_a_machine),
        ("leading", breaks_an_effect),
        ("following", breaks_an_effect),
        ("leading", breaks_a_response),
        ("leading", breaks_a_read),
    ],
)
def test_it_ends_and_the_other_follower_goes_on(
    side: str,
    breaks: Callable[[pytest.MonkeyPatch, FeedDriver, FetcherDriver, str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await make_stream(members)
        await members["a"].publish("s", b"first")
        leader = leader_of(members, "s")
        follower = next(member for member in members.values() if member is not leader)
        feed = leader.broker.manager.feeds._feeds[follower.name]
        fetcher = follower.broker.manager.fetchers._fetchers[leader.name]
        breaks(monkeypatch, feed, fetcher, side)
        request = api.PublishRequest(stream="s", value=b"v", ackPolicy=api.LEADER)
        assert (await leader.call("Publish", request))[0] is Status.OK
        await asyncio.sleep(2)
        assert len(told(caplog)) == 1, "it is said once, and not tried again"
        await until(lambda: len(isr(members)) == 2, 60.0)
        await leader.publish("s", b"to whom is left")
        assert await leader.read("s") == [b"first", b"v", b"to whom is left"]

    with caplog.at_level(logging.ERROR):
        run(main())
