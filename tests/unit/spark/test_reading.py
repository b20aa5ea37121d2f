"""A task: what it does about followers, damage, pauses and removed messages, over a client that is made up."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bascule import limits
from bascule.client import LogRange, Message
from bascule.errors import BasculeError, CorruptError, FailedPrecondition, NotFound, OutOfRange, TimedOut, Unavailable
from bascule.spark import reading
from bascule.spark.options import read_options
from bascule.spark.planning import StreamRange
from tests.harness.log_ranges import given

Given = tuple[int, int, list[int]]
"""A range, and the offsets that it has."""


class FakeClient:
    """`answers`: for each read, of the leader ("") and of followers, ranges and maybe an error at last."""

    def __init__(self, answers: Mapping[str, list[list[LogRange | BasculeError]]], start: int = 0) -> None:
        self.answers = {replica: list(each) for replica, each in answers.items()}
        self.asked: list[tuple[str, int]] = []
        self.resumed = 0
        self.start = start

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *exc: object) -> None: ...

    def read_range(self, stream: str, partition: int, start: int, end: int, **how: Any) -> Iterator[LogRange]:
        self.asked.append((how["replica"], start))
        for each in self.answers[how["replica"]].pop(0):
            if isinstance(each, BasculeError):
                raise each
            yield each

    def fetch_metadata(self, streams: list[str]) -> Any:
        partition = SimpleNamespace(leader="a", isr=("a", "b"))
        return SimpleNamespace(streams={streams[0]: SimpleNamespace(partitions={0: partition})})

    def log_bounds(self, stream: str, partition: int) -> Any:
        return SimpleNamespace(start=self.start)

    def resume_stream(self, stream: str, partitions: list[int]) -> None:
        self.resumed += 1


def read(
    client: "FakeClient | OtherServer",
    monkeypatch: pytest.MonkeyPatch,
    wanted: StreamRange | None = None,
    **options: str,
) -> list[int]:
    monkeypatch.setattr(reading, "connected", lambda *_: client)
    wanted = wanted or StreamRange("s", 0, 0, 10, 7)
    chosen = read_options({"servers": "nowhere:1", "streams": "s", **options})
    return [offset for batch in reading.read(chosen, ["offset"], wanted) for offset in batch.column(0).to_pylist()]


ALL = list(range(10))


def test_a_follower_gives_what_it_has_and_the_leader_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient({"b": [[given(0, 4, ALL[:4])]], "": [[given(4, 10, ALL[4:])]]})
    assert read(client, monkeypatch, readFromReplicas="true") == ALL
    assert client.asked == [("b", 0), ("", 4)]
    plain = FakeClient({"": [[given(0, 10, ALL)]]})
    assert read(plain, monkeypatch) == ALL
    assert plain.asked == [("", 0)]


@pytest.mark.parametrize(
    "answer",
    [
        Unavailable("it is down"),
        FailedPrecondition("it is another stream"),
        CorruptError("a bit"),
        OutOfRange("it begins later"),
        given(0, 10, [0, 1, *range(3, 10)]),
        given(0, 10, [0, 5], compacted_end=10),
    ],
)
def test_what_a_follower_cannot_give_as_the_leader_has_it_is_read_from_the_leader(
    monkeypatch: pytest.MonkeyPatch, answer: LogRange | BasculeError
) -> None:
    client = FakeClient({"b": [[answer]], "": [[given(0, 10, ALL)]]})
    assert read(client, monkeypatch, readFromReplicas="true") == ALL


def test_a_leader_that_does_not_answer_is_asked_again_from_where_the_task_is(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, rest = Unavailable("nobody answers"), [given(4, 10, ALL[4:])]
    client = FakeClient({"": [[given(0, 4, ALL[:4]), gone], [gone], [TimedOut("no answer")], list(rest)]})
    assert read(client, monkeypatch) == ALL
    assert client.asked == [("", 0), ("", 4), ("", 4), ("", 4)]
    monkeypatch.setattr(limits, "SPARK_RETRY_S", 0.0)
    with pytest.raises(Unavailable, match="nobody answers"):
        read(FakeClient({"": [[gone]]}), monkeypatch)


def test_a_record_that_is_not_served_fails_the_task_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for offsets, text in (
        ([0, 1, *range(3, 10)], "offset 2 is damaged"),
        (ALL[4:], "offsets 0 to 3 are damaged"),
        (ALL[:-1], "offset 9 is damaged"),
        ([], "offsets 0 to 9 are damaged"),
    ):
        client = FakeClient({"": [[given(0, 10, offsets)]]})
        with pytest.raises(CorruptError, match=f"partition 0 of stream s: {text} on the broker's disk"):
            read(client, monkeypatch)


def test_damage_is_noted_once_in_the_quarantine_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holed = [0, 1, *range(4, 10)]
    for _ in range(2):  # a task that is run again
        client = FakeClient({"": [[given(0, 10, holed)]]})
        assert read(client, monkeypatch, quarantine=str(tmp_path / "q")) == holed
    (noted,) = (tmp_path / "q").iterdir()
    found = json.loads(noted.read_text())
    assert (found["stream"], found["creation"], found["partition"], found["start"], found["end"]) == ("s", 7, 0, 2, 4)
    (tmp_path / "file").touch()
    with pytest.raises(BasculeError, match='the option "quarantine" cannot be written'):
        read(FakeClient({"": [[given(0, 10, holed)]]}), monkeypatch, quarantine=str(tmp_path / "file"))
    assert read(FakeClient({"": [[given(0, 10, holed)]]}), monkeypatch, failOnDataLoss="false") == holed


def test_what_compaction_removed_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(FakeClient({"": [[given(0, 10, [3, 8, 9], compacted_end=8)]]}), monkeypatch) == [3, 8, 9]
    with pytest.raises(CorruptError, match="offset 9 is damaged"):
        read(FakeClient({"": [[given(0, 10, [3, 8], compacted_end=8)]]}), monkeypatch)


def test_what_the_broker_says_is_damaged_is_so_also_where_compaction_has_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the compacted end nothing can be told from the offsets that are missing."""
    holed = given(0, 10, [0, 5, 8, 9], compacted_end=10, damaged=(range(1, 5),))
    with pytest.raises(CorruptError, match="offsets 1 to 4 are damaged on the broker's disk"):
        read(FakeClient({"": [[holed]]}), monkeypatch)
    assert read(FakeClient({"": [[holed]]}), monkeypatch, quarantine=str(tmp_path)) == [0, 5, 8, 9]
    (noted,) = (json.loads(each.read_text()) for each in tmp_path.iterdir())
    assert (noted["start"], noted["end"]) == (1, 5)
    follower = FakeClient({"b": [[given(0, 10, [0, 5, 8, 9], damaged=(range(1, 5),))]], "": [[given(0, 10, ALL)]]})
    assert read(follower, monkeypatch, readFromReplicas="true") == ALL


@pytest.mark.parametrize(
    ("offsets", "compacted_end", "damaged", "missing"),
    [
        ([0, 1, 3, *range(4, 10)], 0, (range(2, 3),), [range(2, 3)]),
        ([0, 1, *range(4, 10)], 3, (range(2, 4),), [range(2, 4)]),
        ([0, 3, 8, 9], 4, (range(1, 3),), [range(1, 3), range(4, 8)]),
        ([], 10, (range(10),), [range(10)]),
        (ALL, 0, (), []),
    ],
)
def test_what_is_missing_is_what_is_damaged_and_what_compaction_did_not_remove(
    offsets: list[int], compacted_end: int, damaged: tuple[range, ...], missing: list[range]
) -> None:
    assert given(0, 10, offsets, compacted_end, damaged).missing() == missing


def test_a_partition_that_is_paused_meanwhile_is_resumed_if_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    pause = FailedPrecondition("The partition is paused; resume it to read it")
    with pytest.raises(FailedPrecondition, match="partition 0 of stream s is paused: resume it"):
        read(FakeClient({"": [[pause]]}), monkeypatch, pausedPartitions="skip")
    client = FakeClient({"": [[given(0, 4, ALL[:4]), pause], [pause], [given(4, 10, ALL[4:])]]})
    assert read(client, monkeypatch, pausedPartitions="resume") == ALL
    assert client.resumed == 2
    with pytest.raises(FailedPrecondition, match="is paused"):
        read(FakeClient({"": [[pause]] * 9}), monkeypatch, pausedPartitions="resume")


def test_removed_messages_fail_the_task_or_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = OutOfRange("Offset 0 was removed")
    with pytest.raises(OutOfRange, match='set the option "failOnDataLoss" to false'):
        read(FakeClient({"": [[removed]]}), monkeypatch)
    client = FakeClient({"": [[removed], [given(6, 10, ALL[6:])]]}, start=6)
    assert read(client, monkeypatch, failOnDataLoss="false") == ALL[6:]
    with pytest.raises(Unavailable, match="ended at offset 4, and 10 was committed"):
        read(FakeClient({"": [[given(0, 4, ALL[:4])], []]}), monkeypatch)


def test_a_stream_that_is_deleted_in_the_middle_of_a_task_fails_it_or_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for deleted in (NotFound("no such stream: s"), FailedPrecondition("Stream s was deleted and made again")):
        with pytest.raises(type(deleted), match='set the option "failOnDataLoss" to false'):
            read(FakeClient({"": [[given(0, 4, ALL[:4]), deleted]]}), monkeypatch)
        client = FakeClient({"": [[given(0, 4, ALL[:4]), deleted]]})
        assert read(client, monkeypatch, failOnDataLoss="false") == ALL[:4]


def test_a_stream_that_is_gone_when_a_follower_is_looked_for_is_told_by_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for streams in ({}, {"s": SimpleNamespace(partitions={})}):
        for lenient in (False, True):
            client = FakeClient({"": [[NotFound("no such stream: s")]]})
            monkeypatch.setattr(client, "fetch_metadata", lambda _, known=streams: SimpleNamespace(streams=known))
            options = {"readFromReplicas": "true", "failOnDataLoss": str(not lenient).lower()}
            if lenient:
                assert read(client, monkeypatch, None, **options) == []
            else:
                with pytest.raises(NotFound, match='set the option "failOnDataLoss" to false'):
                    read(client, monkeypatch, None, **options)


# --- servers without bulk reads ---------------------------------------------------------------------------------------


class OtherServer:
    """Gives these offsets to a subscription, in batches, and an error at last if there is one."""

    def __init__(self, *batches: list[int], error: BasculeError | None = None, made: int | None = 1000) -> None:
        self.given = batches
        self.error = error
        self.streams = {} if made is None else {"s": SimpleNamespace(creation_timestamp=made)}

    def __enter__(self) -> "OtherServer":
        return self

    def __exit__(self, *exc: object) -> None: ...

    def fetch_metadata(self, streams: list[str]) -> Any:
        return SimpleNamespace(streams=self.streams)

    def batches(self, *_: object, **how: Any) -> Iterator[list[Message]]:
        for offsets in self.given:
            yield [Message(offset, None, b"v", 1, "s", 0, "s", "", {}) for offset in offsets]
        if self.error is not None:
            raise self.error


OTHER = StreamRange("s", 0, 2, 10, -1000)


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ([[8, 9]], "offsets 2 to 7"),
        ([[2, 3, 4], [6, 7, 8, 9]], "offsets 5 to 5"),
        ([[2, 3, 5, 6, 7, 8, 9]], "offsets 4 to 4"),
        ([[2, 3, 4], [12, 13]], "offsets 5 to 9"),
    ],
)
def test_a_gap_of_another_server_is_told_or_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: list[list[int]], lost: str
) -> None:
    with pytest.raises(OutOfRange, match=f"{lost} of s/0 are not there.*failOnDataLoss"):
        read(OtherServer(*given), monkeypatch, OTHER)
    there = [offset for batch in given for offset in batch if offset < 10]
    assert read(OtherServer(*given), monkeypatch, OTHER, failOnDataLoss="false") == there
    assert f"{lost} of s/0 are not there" in caplog.text


def test_a_whole_range_of_another_server_is_read_however_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    for batches in ([ALL[2:]], [[2], [3, 4], ALL[5:]], [ALL[2:9], [9, 10, 11]]):
        assert read(OtherServer(*batches), monkeypatch, OTHER) == ALL[2:]


def test_another_server_that_ends_too_early_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="ended at offset 4, and 10 was committed"):
        read(OtherServer([2, 3]), monkeypatch, OTHER)
    assert read(OtherServer([2, 3]), monkeypatch, OTHER, failOnDataLoss="false") == [2, 3]


def test_a_stream_of_another_server_that_is_another_one_by_now_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for made, said in ((2000, "deleted and made again"), (None, "was deleted")):
        with pytest.raises(FailedPrecondition, match=said):
            read(OtherServer(ALL[2:], made=made), monkeypatch, OTHER)
        assert read(OtherServer(ALL[2:], made=made), monkeypatch, OTHER, failOnDataLoss="false") == []
    for creation in (0, -1000):
        assert read(OtherServer(ALL[2:]), monkeypatch, StreamRange("s", 0, 2, 10, creation)) == ALL[2:]
    deleted = NotFound("commit log was deleted")
    with pytest.raises(NotFound, match="failOnDataLoss"):
        read(OtherServer([2, 3], error=deleted), monkeypatch, OTHER)
    assert read(OtherServer([2, 3], error=deleted), monkeypatch, OTHER, failOnDataLoss="false") == [2, 3]
