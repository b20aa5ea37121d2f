"""What a task of an audit sees of a stream that changes under it, over a client that is made up."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bascule.client import LogRange
from bascule.errors import BasculeError, CorruptError, FailedPrecondition, NotFound, OutOfRange, Unavailable
from bascule.pipelines.auditing import streams
from bascule.pipelines.auditing.pieces import PartitionAudit
from bascule.pipelines.auditing.streams import Wish, look
from bascule.spark.options import read_options
from tests.harness.log_ranges import given

Answer = LogRange | BasculeError


class FakeClient:
    def __init__(self, answers: list[list[Answer]], start: int = 0) -> None:
        self.answers = answers
        self.asked: list[int] = []
        self.start = start

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *exc: object) -> None: ...

    def read_range(self, stream: str, partition: int, start: int, end: int, **how: Any) -> Iterator[LogRange]:
        self.asked.append(start)
        for each in self.answers.pop(0) if self.answers else []:
            if isinstance(each, BasculeError):
                raise each
            yield each

    def log_bounds(self, stream: str, partition: int) -> Any:
        return SimpleNamespace(start=self.start)


def audited(monkeypatch: pytest.MonkeyPatch, client: FakeClient, compacted_end: int = 0) -> PartitionAudit:
    monkeypatch.setattr(streams, "connected", lambda _: client)
    options = read_options({"servers": "nowhere:1", "streams": "s"})
    piece = look(Wish(options, "s", 0, 0, 10, 7, compacted_end))
    audit = PartitionAudit("s", 0, piece.start, 10, compacted_end, piece)
    audit.judge()
    return audit


def kinds(audit: PartitionAudit) -> list[tuple[str, int | None, int | None]]:
    return [(each.kind, each.first, each.last) for each in audit.findings]


def test_what_expires_while_it_is_read_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = OutOfRange("Offset 3 was removed")
    client = FakeClient([[given(0, 3, [0, 1, 2]), removed], [given(6, 10, [6, 7, 8, 9])]], start=6)
    audit = audited(monkeypatch, client)
    assert client.asked == [0, 6]
    assert (kinds(audit), audit.start, audit.seen.records) == ([], 6, 7)
    gone = audited(monkeypatch, FakeClient([[removed]], start=15))
    assert (kinds(gone), gone.seen.records) == ([], 0)


def test_what_is_missing_behind_a_start_that_moved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = OutOfRange("Offset 0 was removed")
    client = FakeClient([[removed], [given(4, 10, [4, 5, 8, 9])]], start=4)
    assert kinds(audited(monkeypatch, client)) == [("missing", 6, 7)]


def test_a_broker_that_says_no_other_start_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient([[OutOfRange("Offset 0 was removed")]] * 9)
    assert kinds(audited(monkeypatch, client)) == [("not read", 0, 9)]
    assert client.asked == [0]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unavailable("nobody leads"), "not read"),
        (NotFound("no such stream: s"), "not read"),
        (FailedPrecondition("Stream s was deleted and made again"), "not read"),
        (CorruptError("records that are not what its log holds"), "damaged"),
    ],
)
def test_what_could_not_be_read_is_not_called_damaged(
    monkeypatch: pytest.MonkeyPatch, error: BasculeError, kind: str
) -> None:
    assert kinds(audited(monkeypatch, FakeClient([[given(0, 4, [0, 1, 2, 3]), error]]))) == [(kind, 4, 9)]


def test_damage_where_compaction_has_been_is_found_and_not_counted_as_compacted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holed = given(0, 10, [0, 3, 8, 9], compacted_end=10, damaged=(range(4, 8),))
    audit = audited(monkeypatch, FakeClient([[holed]]), compacted_end=10)
    assert kinds(audit) == [("damaged", 4, 7)]
    assert audit.compacted == 2


def test_a_log_that_ends_before_its_high_watermark_misses_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds(audited(monkeypatch, FakeClient([[given(0, 7, list(range(7)))]]))) == [("missing", 7, 9)]
