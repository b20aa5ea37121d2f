"""What partitions hold is asked after which there are: streams come and go in between."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from bascule.client import LogBounds, Stream
from bascule.errors import BasculeError, FailedPrecondition, NotFound, OutOfRange, Unavailable, Unimplemented
from bascule.spark import planning
from bascule.spark.options import read_options
from bascule.spark.planning import Planner, matching


class Changing:
    """A client of a cluster: `metadata` is the number of partitions that it says, each time that it is asked; there is
    one in fact."""

    def __init__(self, metadata: list[int]) -> None:
        self.metadata = metadata

    async def __aenter__(self) -> "Changing":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def fetch_metadata(self, _: object) -> Any:
        count = self.metadata.pop(0) if len(self.metadata) > 1 else self.metadata[0]
        streams = {"s": SimpleNamespace(partitions=dict.fromkeys(range(count)))} if count else {}
        return SimpleNamespace(streams=streams)

    async def log_bounds(self, stream: str, partition: int) -> LogBounds:
        if partition:
            raise NotFound("No such partition")
        return LogBounds(0, 7, 3, 0)


def planner(monkeypatch: pytest.MonkeyPatch, *metadata: int, **options: str) -> Planner:
    async def connect(_: object) -> Changing:
        return Changing(list(metadata))

    monkeypatch.setattr(planning, "connect", connect)
    monkeypatch.setattr(planning, "LOOK_AGAIN_S", 0.0)
    return Planner(read_options({"servers": "nowhere:1", "streams": "s", **options}))


def test_a_partition_that_went_in_between_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planner(monkeypatch, 2, 1).bounds() == {("s", 0): LogBounds(0, 7, 3, 0)}
    assert planner(monkeypatch, 2, 0, failOnDataLoss="false").bounds(frozenset("s")) == {}


def test_a_partition_that_is_never_there_is_told_as_the_broker_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match="No such partition"):
        planner(monkeypatch, 2).bounds()


class OtherServer(Changing):
    """Without bulk reads: a subscription gives offsets from `start` on, if it gives any."""

    def __init__(self, start: int | None, high_watermark: int = 9, paused: bool = False) -> None:
        super().__init__([1])
        self.start, self.high_watermark, self.paused = start, high_watermark, paused
        self.subscribed = 0

    async def fetch_metadata(self, _: object) -> Any:
        return SimpleNamespace(streams={"s": SimpleNamespace(partitions={0: None}, creation_timestamp=1000)})

    async def log_bounds(self, stream: str, partition: int) -> LogBounds:
        raise Unimplemented("unknown service bascule.v1.Log")

    async def fetch_partition_metadata(self, stream: str, partition: int) -> Any:
        return SimpleNamespace(high_watermark=self.high_watermark, paused=self.paused)

    def subscribe(self, *_: object, stop: int, resume_paused: bool) -> "OtherServer":
        self.subscribed += 1
        self.resumed = resume_paused
        return self

    async def __aiter__(self) -> AsyncIterator[Any]:
        if self.start is None:
            await asyncio.sleep(60)
        elif self.start <= self.high_watermark:
            yield SimpleNamespace(offset=self.start)


def of(monkeypatch: pytest.MonkeyPatch, server: OtherServer, **options: str) -> Planner:
    async def connect(_: object) -> OtherServer:
        return server

    monkeypatch.setattr(planning, "connect", connect)
    return Planner(read_options({"servers": "nowhere:1", "streams": "s", **options}))


def test_where_a_partition_of_another_server_begins_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server = OtherServer(4)
    found = of(monkeypatch, server)
    assert found.bounds() == {("s", 0): LogBounds(4, 10, -1000, 0)}
    server.high_watermark = 20
    assert found.bounds() == {("s", 0): LogBounds(4, 21, -1000, 0)}
    assert server.subscribed == 1
    empty = OtherServer(None, high_watermark=-1)
    assert of(monkeypatch, empty).bounds() == {("s", 0): LogBounds(0, 0, -1000, 0)}
    assert of(monkeypatch, OtherServer(10)).bounds() == {("s", 0): LogBounds(10, 10, -1000, 0)}


def test_another_server_that_gives_no_message_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "FIRST_S", 0.01)
    with pytest.raises(Unavailable, match="offsets up to 9, and its server gave no message"):
        of(monkeypatch, OtherServer(None)).bounds()


def test_a_paused_partition_of_another_server_is_treated_as_the_option_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FailedPrecondition, match="partition 0 of stream s is paused: resume it"):
        of(monkeypatch, OtherServer(4, paused=True)).bounds()
    skipping = of(monkeypatch, OtherServer(4, paused=True), pausedPartitions="skip")
    assert (skipping.bounds(), skipping.paused) == ({}, {("s", 0)})
    server = OtherServer(4, paused=True)
    assert of(monkeypatch, server, pausedPartitions="resume").bounds() == {("s", 0): LogBounds(4, 10, -1000, 0)}
    assert server.resumed


@pytest.mark.parametrize(
    "error",
    [
        NotFound("no such stream: s"),
        FailedPrecondition("Stream s was deleted and made again"),
        FailedPrecondition("The partition is paused; resume it to read it"),
        OutOfRange("Offset 0 was removed"),
    ],
)
def test_how_large_messages_are_that_are_gone_is_left_to_the_task(
    monkeypatch: pytest.MonkeyPatch, error: BasculeError
) -> None:
    class Gone(Changing):
        def read_range(self, *_: object, **how: object) -> "Gone":
            return self

        async def ranges(self) -> AsyncIterator[Any]:
            for each in (error,):
                raise each
            yield

    async def connect(_: object) -> Gone:
        return Gone([1])

    monkeypatch.setattr(planning, "connect", connect)
    found = Planner(read_options({"servers": "nowhere:1", "streams": "s"})).sizes({("s", 0): (7, 0, 10)})
    assert found == {("s", 0): 1}


def test_a_pattern_does_not_match_what_brokers_and_writes_keep_for_themselves() -> None:
    names = ["orders", "__cursors", "spark-writes", "spark-writes-2"]
    streams = {name: Stream(name, name, {}, 0) for name in names}
    assert sorted(matching(streams, ".*")) == ["orders", "spark-writes-2"]
    assert sorted(matching(streams, "spark-writes.*")) == ["spark-writes-2"]
