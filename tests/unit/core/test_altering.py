"""Settings of streams that are altered, in the metadata."""

from typing import Any

import pytest

from bascule.core.metadata.altering import SETTINGS
from bascule.core.metadata.codec import decode, encode
from bascule.core.metadata.commands import AlterStream, BrokerDied, CreateStream, PauseStream
from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Metadata, Rejected
from bascule.core.metadata.streams import Partition, Stream, StreamConfig
from bascule.errors import BasculeError, FailedPrecondition, InvalidArgument, NotFound


def made(min_isr: int = 1) -> Metadata:
    """One partition on a, b and c, led by a."""
    metadata = Metadata()
    config = StreamConfig(segment_max_bytes=7, min_isr=min_isr)
    metadata.apply(1, CreateStream(Stream("s", "s", "", place(1, 3, ("a", "b", "c"), []), config)))
    return metadata


def alter(metadata: Metadata, *reset: str, **settings: Any) -> Partition:
    command = AlterStream("s", StreamConfig(**settings), reset)
    changes = metadata.apply(metadata.index + 1, decode(encode(command)))
    assert not any(isinstance(change, Rejected) for change in changes), changes
    assert Metadata.restore(metadata.snapshot()).streams == metadata.streams
    return metadata.streams["s"].partitions[0]


def negative(name: str) -> StreamConfig:
    settings: dict[str, Any] = {name: -1}
    return StreamConfig(**settings)


def test_what_is_named_changes_and_nothing_else() -> None:
    metadata = made()
    alter(metadata, retention_max_age=5, compact_enabled=False, auto_pause_time=0)
    expected = StreamConfig(
        segment_max_bytes=7, min_isr=1, retention_max_age=5, compact_enabled=False, auto_pause_time=0
    )
    assert metadata.streams["s"].config == expected, "false and 0 are values, too"
    alter(metadata, "segment_max_bytes", "compact_enabled", retention_max_age=6)
    assert metadata.streams["s"].config == StreamConfig(min_isr=1, retention_max_age=6, auto_pause_time=0)


@pytest.mark.parametrize(
    ("settings", "begins"),
    [
        ({"min_isr": 2}, True),
        ({"optimistic_concurrency_control": True}, True),
        ({"min_isr": 1}, False),
        ({"retention_max_age": 5, "segment_max_bytes": 9, "auto_pause_time": 1}, False),
    ],
)
def test_a_leader_epoch_has_one_min_isr_and_one_way_to_check_offsets(settings: dict[str, Any], begins: bool) -> None:
    metadata = made()
    item = alter(metadata, **settings)
    assert (item.leader, item.leader_epoch, item.epoch) == ("a", 2 if begins else 1, 2)


def test_who_was_eligible_is_not_once_fewer_can_commit_without_it() -> None:
    metadata = made(min_isr=3)
    metadata.apply(2, BrokerDied("c", ("a", "b")))
    assert alter(metadata, retention_max_bytes=1).eligible == ("c",), "two cannot commit anything without it"
    assert alter(metadata, min_isr=2).eligible == (), "now they can"
    assert alter(metadata, min_isr=3).eligible == (), "and it may lack what they did"


def test_a_paused_partition_stays_paused() -> None:
    metadata = made()
    metadata.apply(2, PauseStream("s", (0,)))
    assert alter(metadata, min_isr=2).paused


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        (AlterStream("t", StreamConfig(min_isr=1)), NotFound, "stream does not exist"),
        (AlterStream("s", StreamConfig()), InvalidArgument, "nothing to alter"),
        (AlterStream("s", StreamConfig(), ("colour",)), InvalidArgument, "no stream setting is called colour"),
        (AlterStream("s", StreamConfig(min_isr=1), ("min_isr",)), InvalidArgument, "both set and reset"),
        (AlterStream("s", StreamConfig(encryption=False)), FailedPrecondition, "encryption of a stream cannot"),
        (AlterStream("s", StreamConfig(), ("encryption",)), FailedPrecondition, "encryption of a stream cannot"),
        (AlterStream("s", StreamConfig(min_isr=4)), FailedPrecondition, "a partition has 3 replicas"),
        *(
            (AlterStream("s", negative(name)), InvalidArgument, f"{name} cannot be negative")
            for name in SETTINGS
            if name != "encryption"
        ),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    command: AlterStream, error: type[BasculeError], text: str
) -> None:
    metadata = made()
    before = dict(metadata.streams)
    with pytest.raises(error, match=text):
        metadata.check(command)
    (change,) = metadata.apply(2, command)
    assert isinstance(change, Rejected)
    assert metadata.streams == before


def test_a_min_isr_that_was_too_high_already_does_not_stop_other_changes() -> None:
    metadata = made(min_isr=5)
    assert alter(metadata, retention_max_age=5)
    assert alter(metadata, min_isr=4), "it is less impossible than before"
    assert alter(metadata, min_isr=2)
