"""Replication without a network: the in-sync set, the history of epochs, and followers that come to agree with a leader
whatever they wrote under older ones.
"""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.core.partition import follower as f
from bascule.core.partition.epochs import EpochHistory
from bascule.core.partition.insync import ASK_AGAIN_FIRST_NS, ASK_AGAIN_MAX_NS, InSync
from bascule.core.replication.progress import divergence
from bascule.types import Epoch
from bascule.wire.kernels import encode_records, record_tail, seek_record
from bascule.wire.record import origin
from bascule.wire.replication import Answer, Kind, Position

LAG = 100


def in_sync(isr: tuple[str, ...] = ("me", "b", "c"), min_isr: int = 1) -> InSync:
    return InSync("me", ("me", "b", "c"), isr, min_isr, 0)


def test_the_high_watermark_is_the_smallest_promise_of_the_set() -> None:
    machine = in_sync()
    assert not machine.promised(10)
    assert not machine.fetched("b", 10, 8, 10, 1)
    assert machine.fetched("c", 9, 9, 10, 1)
    assert machine.hw_end == 8
    assert machine.changed(("me", "c"))
    assert machine.hw_end == 9


def test_what_is_written_but_not_promised_does_not_count() -> None:
    machine = in_sync(("me", "b"))
    machine.promised(10)
    assert not machine.fetched("b", 10, 0, 10, 1)


def test_a_follower_that_claims_more_than_it_has_or_the_leader_has_is_not_believed() -> None:
    machine = in_sync(("me", "b"))
    machine.promised(10)
    machine.fetched("b", 5, 1 << 60, 10, 1)
    assert machine.hw_end == 5, "it promises what it does not have"
    epochs = EpochHistory([(1, 0), (3, 6)])
    for end, last_epoch, cut_to in ((11, 3, (3, 10)), (1 << 60, 3, (3, 10)), (7, 1, (1, 6)), (10, 4, (3, 10))):
        position = Position(7, 0, 3, end, end, last_epoch)
        assert divergence(position, epochs, 0, 10) == cut_to
    assert divergence(Position(7, 0, 3, 10, 1 << 60, 3), epochs, 0, 10) is None


def test_a_wiped_follower_never_pulls_the_high_watermark_down() -> None:
    machine = in_sync(("me", "b"))
    machine.promised(10)
    machine.fetched("b", 10, 10, 10, 1)
    machine.fetched("b", 0, 0, 10, 2)
    assert machine.hw_end == 10


def test_below_min_isr_nothing_commits() -> None:
    machine = in_sync(("me",), min_isr=2)
    assert not machine.promised(5)
    assert machine.below_min_isr


def test_a_silent_member_is_asked_out_once_and_still_counts_until_it_is_out() -> None:
    machine = in_sync(("me", "b"))
    machine.start_watching(0)
    assert machine.lagging(LAG, LAG) == []
    assert machine.lagging(LAG + 1, LAG) == ["b"]
    assert machine.lagging(LAG + 2, LAG) == []
    assert not machine.promised(5)
    machine.shrink_failed("b", LAG + 2)
    assert machine.lagging(LAG + 3, LAG) == [], "not at once"
    assert machine.lagging(LAG + 2 + ASK_AGAIN_FIRST_NS, LAG) == ["b"]
    assert machine.changed(("me",))
    assert machine.hw_end == 5


def test_a_member_that_fetches_but_never_catches_up_is_asked_out() -> None:
    machine = in_sync(("me", "b"))
    machine.start_watching(0)
    for now in range(0, 3 * LAG, 10):
        machine.fetched("b", now, now, 1000 + 10 * now, now)
        late = machine.lagging(now, LAG)
        if late:
            break
    assert late == ["b"]
    assert LAG < now <= LAG + 20


def test_a_member_that_lost_what_it_had_promised_is_asked_out_at_once() -> None:
    machine = in_sync(("me", "b"))
    machine.promised(10)
    machine.fetched("b", 10, 10, 10, 1)
    assert machine.hw_end == 10
    assert machine.lagging(2, LAG) == []
    machine.fetched("b", 10, 4, 10, 3)
    assert machine.lagging(3, LAG) == ["b"]


def test_whoever_is_silent_is_asked_out_also_below_the_minimum() -> None:
    machine = in_sync(("me", "b"), min_isr=2)
    machine.start_watching(0)
    assert machine.lagging(LAG + 1, LAG) == ["b"]


def test_a_member_whose_disk_fails_is_asked_out_at_once_and_believed_no_more_than_before() -> None:
    machine = in_sync(("me", "b"), min_isr=2)
    machine.promised(10)
    machine.fetched("b", 4, 4, 10, 1)
    machine.disk_failing("b", 10, 2)
    assert machine.hw_end == 4, "nobody compared the logs"
    assert machine.lagging(2, LAG) == ["b"]
    assert not machine.lacks("b"), "it has all that is committed, and is eligible"
    assert not machine.changed(("me",), eligible=("b",))
    assert machine.recovered(3, LAG) == []
    machine.fetched("b", 10, 10, 10, 4)
    assert machine.recovered(4, LAG) == ["b"]


def test_an_eligible_replica_that_lost_what_it_promised_is_asked_out_of_that_too() -> None:
    machine = in_sync(("me", "b"), min_isr=2)
    machine.promised(10)
    machine.fetched("b", 10, 10, 10, 1)
    machine.changed(("me",), eligible=("b",))
    machine.fetched("b", 10, 10, 10, 2)
    assert machine.lagging(2, LAG) == []
    machine.fetched("b", 10, 7, 10, 3)
    assert machine.lacks("b")
    assert machine.lagging(3, LAG) == ["b"]


def test_into_the_set_comes_only_who_has_promised_what_the_leader_had_when_it_was_elected() -> None:
    """The last leader may have committed any of it; this one knows of less."""
    machine = InSync("me", ("me", "b", "c"), ("me",), 2, hw_end=3, leadership_end=10)
    machine.promised(10)
    machine.fetched("b", 10, 9, 10, 1)
    assert machine.recovered(1, LAG) == []
    machine.fetched("b", 9, 9, 9, 2)
    assert machine.recovered(2, LAG) == [], "that our own log has become shorter makes none of it less committed"
    machine.fetched("b", 10, 10, 10, 3)
    assert machine.recovered(3, LAG) == ["b"]


def test_a_replica_that_is_refused_is_asked_in_again_after_pauses_that_grow() -> None:
    machine, now, asked = in_sync(("me",)), 0, 0
    end = 60_000_000_000
    while now < end:
        machine.fetched("b", 10, 10, 10, now)
        if machine.recovered(now, end):
            asked += 1
            machine.expand_failed("b", True, now)
            machine.changed(("me",))  # asked out again, to be sure
        now += 1_000_000
    assert 60_000 / (ASK_AGAIN_MAX_NS / 1e6) <= asked < 20
    machine.changed(("me", "b"))
    machine.changed(("me",))
    machine.fetched("b", 10, 10, 10, now)
    assert machine.recovered(now, end) == ["b"], "whoever was in begins anew"


def test_a_replica_nobody_was_asked_about_does_not_count() -> None:
    machine = in_sync(("me",))
    machine.fetched("b", 0, 0, 0, 1)
    assert machine.recovered(1, LAG) == ["b"]
    assert not machine.promised(5), "it may be in"
    machine.expand_failed("b", False, 1)
    assert machine.promised(6)


def test_what_is_committed_without_a_replica_that_counts_no_more_is_committed_at_once() -> None:
    machine = in_sync(("me",))
    machine.fetched("b", 0, 0, 0, 1)
    assert machine.recovered(1, LAG) == ["b"]
    machine.promised(5)
    assert machine.expand_failed("b", False, 1)
    assert machine.hw_end == 5
    machine.heard("b", 5, 2)
    assert machine.hw_end == 5, "who lags is looked at, and nothing is news"


def test_a_member_one_answer_behind_under_load_is_caught_up() -> None:
    machine = in_sync(("me", "b"))
    machine.start_watching(0)
    for now in range(0, 5 * LAG, 10):
        machine.fetched("b", max(0, now - 10), max(0, now - 10), now, now)
        assert machine.lagging(now, LAG) == []


def test_a_member_whose_disk_syncs_less_often_than_it_reports_is_caught_up_under_load() -> None:
    machine = in_sync(("me", "b"))
    machine.start_watching(0)
    for now in range(0, 10 * LAG, 10):
        machine.fetched("b", max(0, now - 10), max(0, (now - 10) // 40 * 40 - 5), now, now)
        assert machine.lagging(now, LAG) == []


def test_a_member_that_receives_everything_and_syncs_nothing_is_asked_out() -> None:
    """Its disk hangs, without an error. The high watermark waits for what it promises."""
    machine = in_sync(("me", "b"))
    machine.start_watching(0)
    machine.fetched("b", 10, 10, 10, 0)
    machine.promised(11)
    assert machine.hw_end == 10
    for now in range(10, LAG, 10):
        machine.fetched("b", 11, 10, 11, now)
        assert machine.lagging(now, LAG) == []
    machine.heard("b", 11, LAG + 20)
    assert machine.lagging(LAG + 20, LAG) == ["b"], "it caught up with what was there at its first report, at 10"
    assert machine.changed(("me",))
    assert machine.hw_end == 11
    machine.fetched("b", 11, 10, 11, LAG + 30)
    assert machine.recovered(LAG + 30, LAG) == []
    machine.fetched("b", 11, 11, 11, LAG + 40)
    assert machine.recovered(LAG + 40, LAG) == ["b"], "its disk answers again"


def test_a_member_is_caught_up_with_a_leader_whose_own_log_failed_and_is_shorter_now() -> None:
    machine = in_sync(("me", "b"))
    machine.start_watching(0)
    for now in range(0, 3 * LAG, 10):
        machine.fetched("b", 10, 10, 20 if now == 0 else 10, now)
        assert machine.lagging(now, LAG) == []


def test_a_replica_comes_back_in_when_it_has_everything_committed_and_counts_from_the_asking() -> None:
    machine = in_sync(("me",))
    machine.promised(10)
    assert machine.hw_end == 10
    machine.fetched("b", 5, 5, 10, 1)
    assert machine.recovered(1, LAG) == []
    machine.fetched("b", 10, 9, 10, 2)
    assert machine.recovered(2, LAG) == []
    machine.fetched("b", 10, 10, 10, 3)
    machine.promised(11)
    assert machine.recovered(3, LAG) == [], "more was committed since its report"
    machine.fetched("b", 11, 11, 11, 4)
    assert machine.recovered(4, LAG) == ["b"]
    assert machine.recovered(4, LAG) == []
    assert not machine.promised(12)
    assert machine.changed(("me",)), "it is out for sure"
    assert machine.promised(13)


def test_replicas_that_come_and_go_count_only_while_they_are_in_sync() -> None:
    group = in_sync(isr=("me", "b", "c"))
    group.fetched("b", 5, 5, 10, 1)
    group.fetched("c", 10, 10, 10, 1)
    assert group.promised(10)
    assert group.hw_end == 5
    assert not group.fetched("d", 10, 10, 10, 1), "no replica yet"
    assert not group.changed(("me", "b", "c"), ("me", "b", "c", "d"), 2)
    assert group.under_replicated
    assert group.lagging(3, 10) == []
    group.fetched("d", 10, 10, 10, 3)
    assert group.recovered(3, 10) == ["d"]
    assert group.changed(("me", "c", "d"), ("me", "c", "d"), 4), "the slow one is gone, and what the others have counts"
    assert (group.hw_end, list(group.followers)) == (10, ["c", "d"])
    group.changed(("me",), ("me",), 5)
    assert group.followers == {}


def test_the_history_answers_with_the_largest_epoch_up_to_the_asked_one() -> None:
    history = EpochHistory([(2, 0), (5, 10), (7, 20)])
    assert history.end_of(1, 30) == (0, 0)
    assert history.end_of(2, 30) == (2, 10)
    assert history.end_of(4, 30) == (2, 10)
    assert history.end_of(5, 30) == (5, 20)
    assert history.end_of(9, 30) == (7, 30)
    history.truncate(15)
    assert history.entries == [(2, 0), (5, 10)]


def test_an_epoch_that_wrote_nothing_leaves_no_trace() -> None:
    history = EpochHistory([(2, 0), (5, 10)])
    history.begin(6, 10)
    assert history.entries == [(2, 0), (6, 10)]


# --- logs that parted --------------------------------------------------------------------------------------


class Log:
    """Records in memory, with their epochs."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.epochs = EpochHistory()

    @property
    def end(self) -> int:
        return len(self.records)

    def write(self, epoch: int, value: bytes) -> None:
        head = struct.pack("<HHI", 1, 0, len(value)) + b"s" + value
        origin_fields = origin("s", 0)
        tail = record_tail(origin_fields, b"s", b"")
        record = encode_records(head, origin_fields, b"s", tail, self.end, epoch, 1, self.end, 1000, False, b"")[0]
        self.epochs.begin(epoch, self.end)
        self.records.append(record)

    def copy(self, end: int) -> "Log":
        other = Log()
        other.records = self.records[:end]
        other.epochs = EpochHistory(self.epochs.entries)
        other.epochs.truncate(end)
        return other

    def answer(self, position: Position, leader_epoch: int, hw_end: int, limit: int) -> Answer:
        parted = divergence(position, self.epochs, 0, self.end)
        if parted is not None:
            return Answer(
                1, 0, Kind.DIVERGED, leader_epoch, hw_end, self.end, position.end, position.last_epoch, *parted, b""
            )
        # One epoch a run: a follower notes where each begins.
        _, stop = self.epochs.end_of(self.epoch_at(position.end), self.end)
        data = b"".join(self.records[position.end : min(stop, position.end + limit)])
        return Answer(1, 0, Kind.DATA, leader_epoch, hw_end, self.end, position.end, position.last_epoch, 0, 0, data)

    def epoch_at(self, offset: int) -> int:
        return max((epoch for epoch, start in self.epochs.entries if start <= offset), default=0)


def catch_up(log: Log, leader: Log, leader_epoch: int, committed: int, limit: int) -> None:
    machine = f.Follower(1, 0, Epoch(leader_epoch), log.epochs, log.end, log.end, committed)
    for _ in range(200):
        if log.end == leader.end and log.records == leader.records:
            return
        for effect in machine.step(f.Answered(leader.answer(machine.position, leader_epoch, committed, limit))):
            match effect:
                case f.Append(records, count, next_offset, _, _, first):
                    assert first == log.end
                    position = 0
                    for _ in range(count):
                        start = position
                        position += 5 + int.from_bytes(records[position + 1 : position + 5], "big")
                        log.records.append(records[start:position])
                    assert log.end == next_offset
                case f.Truncate(end):
                    agreed = next(
                        (
                            n
                            for n, (own, theirs) in enumerate(zip(log.records, leader.records, strict=False))
                            if own != theirs
                        ),
                        min(log.end, leader.end),
                    )
                    assert end >= min(agreed, committed), "a committed record was truncated"
                    del log.records[end:]
                    assert machine.step(f.Truncated(end)) == []
                case f.IgnoreResponse(reason):
                    raise AssertionError(reason)
    raise AssertionError("the logs never came to agree")


@settings(max_examples=200)
@given(st.data())
def test_logs_that_parted_under_several_leaders_agree_again_and_keep_what_was_committed(data: st.DataObject) -> None:
    """Three replicas; in each term one of them leads that has all that is committed, and reaches some of the others."""
    logs = [Log(), Log(), Log()]
    committed = 0
    retained: list[bytes] = []
    for epoch in range(1, data.draw(st.integers(2, 7))):
        able = [number for number, log in enumerate(logs) if log.records[:committed] == retained]
        lead = data.draw(st.sampled_from(able))
        for _ in range(data.draw(st.integers(0, 4))):
            logs[lead].write(epoch, b"%d by %d" % (epoch, lead))
        for number, log in enumerate(logs):
            if number != lead and data.draw(st.booleans()):
                catch_up(log, logs[lead], epoch, committed, data.draw(st.integers(1, 3)))
                committed = logs[lead].end
                retained = logs[lead].records[:committed]
    able = [number for number, log in enumerate(logs) if log.records[:committed] == retained]
    for log in logs:
        if log is not logs[able[0]]:
            catch_up(log, logs[able[0]], 99, committed, 2)
    assert logs[0].records == logs[1].records == logs[2].records
    assert logs[0].records[:committed] == retained
    assert logs[0].epochs.entries == logs[1].epochs.entries == logs[2].epochs.entries


def follower_at(end: int, log: Log) -> f.Follower:
    return f.Follower(1, 0, Epoch(5), log.epochs, end, end, 0)


def test_damaged_stale_or_foreign_answers_are_not_taken() -> None:
    leader = Log()
    for number in range(3):
        leader.write(5, b"%d" % number)
    data = b"".join(leader.records)
    machine = follower_at(0, Log())
    flipped = data[:20] + bytes([data[20] ^ 1]) + data[21:]
    (effect,) = machine.step(f.Answered(Answer(1, 0, Kind.DATA, 5, 0, 3, 0, 0, 0, 0, flipped)))
    assert isinstance(effect, f.IgnoreResponse)
    (effect,) = machine.step(f.Answered(Answer(1, 0, Kind.DATA, 5, 0, 3, 0, 0, 0, 0, data[:-1])))
    assert isinstance(effect, f.IgnoreResponse)
    assert machine.step(f.Answered(Answer(1, 0, Kind.DATA, 4, 0, 3, 0, 0, 0, 0, data))) == []
    assert machine.end == 0
    (effect,) = machine.step(f.Answered(Answer(1, 0, Kind.DATA, 5, 0, 3, 0, 0, 0, 0, data)))
    assert isinstance(effect, f.Append)
    assert machine.step(f.Answered(Answer(1, 0, Kind.DATA, 5, 0, 3, 0, 0, 0, 0, data))) == []
    assert machine.end == 3
    assert seek_record(effect.records, 0, len(effect.records), 0, 2)[1] == 2


def test_readers_of_a_replica_see_what_is_committed_and_promised_here() -> None:
    leader = Log()
    leader.write(5, b"x")
    machine = follower_at(0, Log())
    machine.step(f.Answered(Answer(1, 0, Kind.DATA, 5, 1, 1, 0, 0, 0, 0, leader.records[0])))
    assert machine.step(f.Promised(1)) == [f.Expose(1)]


def test_nothing_committed_is_ever_truncated() -> None:
    log = Log()
    for _ in range(3):
        log.write(2, b"x")
    machine = f.Follower(1, 0, Epoch(5), log.epochs, 3, 3, 3)
    assert machine.step(f.Promised(3)) == [f.Expose(3)]
    (effect,) = machine.step(f.Answered(Answer(1, 0, Kind.DIVERGED, 5, 3, 3, 3, 2, 0, 1, b"")))
    assert isinstance(effect, f.IgnoreResponse)


def test_an_answer_about_an_earlier_log_truncates_nothing() -> None:
    """Delivered twice: the first truncated the log, which has grown with good records since."""
    log = Log()
    for _ in range(3):
        log.write(2, b"ours")
    machine = f.Follower(1, 0, Epoch(5), log.epochs, 3, 3, 0)
    parted = Answer(1, 0, Kind.DIVERGED, 5, 1, 4, 3, 2, 2, 1, b"")
    assert machine.step(f.Answered(parted)) == [f.Truncate(1)]
    machine.step(f.Truncated(1))
    leader = Log()
    leader.write(2, b"ours")
    for _ in range(3):
        leader.write(4, b"theirs")
    news = b"".join(leader.records[1:])
    effect, _ = machine.step(f.Answered(Answer(1, 0, Kind.DATA, 5, 1, 4, 1, 2, 0, 0, news)))
    assert isinstance(effect, f.Append)
    assert machine.step(f.Answered(parted)) == []


def test_who_went_out_has_to_show_itself_again_before_it_is_asked_in() -> None:
    """What it sent before it left says nothing about whether it is alive, nor the end that it was sent then about how
    far it has come."""
    machine = in_sync(("me", "b", "c"))
    machine.promised(10)
    machine.fetched("b", 10, 10, 10, 1)
    machine.fetched("c", 10, 10, 10, 1)
    machine.changed(("me", "c"), now=2)
    assert machine.recovered(3, LAG) == [], "it has sent nothing since"
    machine.promised(20)
    machine.fetched("c", 20, 20, 20, 4)
    assert machine.hw_end == 20
    machine.changed(("me",), now=5)
    machine.fetched("c", 20, 20, 30, 6)
    assert machine.recovered(6, LAG) == [], (
        "it reached the end it was told before it went out, not one it was told since"
    )
    machine.fetched("c", 30, 30, 31, 7)
    assert machine.recovered(7, LAG) == ["c"]
