"""The machine of a member of a consumer group: what it does next, told by what came of it."""

import pytest

from bascule import limits
from bascule.client.membership import (
    NO_CHANGE,
    NOTHING,
    Action,
    AlreadyMember,
    Assigned,
    Change,
    Describe,
    Described,
    Done,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Membership,
    NoGroup,
    NoMember,
    Outcome,
    Refused,
    Report,
    Unreachable,
    Wait,
    by_stream,
)

A = frozenset({("s", 0), ("s", 1)})
B = frozenset({("s", 1), ("s", 2)})
JOINED = Joined("a", 7, consumer_timeout_s=15.0, coordinator_timeout_s=3.0)


class Play:
    """The machine with a clock of its own: each call takes 10 ms."""

    def __init__(self, chosen_id: bool = False) -> None:
        self.machine = Membership(chosen_id)
        self.now = 100.0

    def expect(self, action: Action, outcome: Outcome, took_s: float = 0.01) -> Change:
        found = self.machine.next(self.now)
        assert found == action
        sent, self.now = self.now, self.now + took_s
        return self.machine.step(found, outcome, sent, self.now)

    def wait(self) -> float:
        """How long it waits; until then time passes."""
        found = self.machine.next(self.now)
        assert isinstance(found, Wait), found
        waited, self.now = found.until - self.now, found.until
        return waited

    def member(self) -> "Play":
        self.expect(Join(), JOINED)
        assert self.expect(Heartbeat("a", 7), Assigned(7, A)) == Change(NOTHING, A)
        return self


def test_a_member_joins_and_is_heard_again_and_again() -> None:
    play = Play().member()
    for _ in range(3):
        assert play.wait() == pytest.approx(limits.CLIENT_GROUP_HEARTBEAT_S - 0.01)
        assert play.expect(Heartbeat("a", 7), Assigned(7, A)) == NO_CHANGE


def test_a_short_timeout_is_met_with_more_heartbeats() -> None:
    play = Play()
    play.expect(Join(), JOINED._replace(consumer_timeout_s=1.0))
    play.expect(Heartbeat("a", 7), Assigned(7, A))
    assert play.wait() == pytest.approx(0.4 - 0.01)


def test_another_epoch_is_asked_for_and_what_was_lost_is_revoked() -> None:
    play = Play().member()
    play.wait()
    assert play.expect(Heartbeat("a", 7), Refused()) == NO_CHANGE
    play.expect(Describe(), Described("a", 9))
    assert play.expect(Heartbeat("a", 9), Assigned(9, B)) == Change(A - B, B - A)


def test_a_broker_that_is_behind_is_not_asked_in_a_hot_loop() -> None:
    play = Play().member()
    play.wait()
    waited = 0.0
    play.expect(Heartbeat("a", 7), Refused())
    for _ in range(4):
        play.expect(Describe(), Described("a", 7))
        play.expect(Heartbeat("a", 7), Refused())
        waited += play.wait()
    assert waited > limits.CLIENT_RETRY_MAX_S


def test_the_coordinator_moves() -> None:
    play = Play().member()
    play.wait()
    play.expect(Heartbeat("a", 7), Unreachable())
    play.wait()
    play.expect(Describe(), Described("b", 12))
    assert play.expect(Heartbeat("b", 12), Assigned(12, A)) == NO_CHANGE


def test_a_silent_coordinator_is_reported_once_in_its_timeout() -> None:
    play = Play().member()
    play.wait()
    reported = 0
    begin = play.now
    while play.now < begin + 7.0:
        match play.machine.next(play.now):
            case Wait():
                play.wait()
            case Heartbeat() as heartbeat:
                play.expect(heartbeat, Unreachable(), took_s=0.5)
            case Describe() as describe:
                play.expect(describe, Described("a", 7))
            case Report() as report:
                assert report == ("a", 7)
                play.expect(report, Done())
                reported += 1
    assert reported == 2


def test_a_coordinator_that_answers_is_not_reported_however_short_its_timeout() -> None:
    play = Play()
    play.expect(Join(), JOINED._replace(coordinator_timeout_s=0.1))
    for _ in range(3):
        play.expect(Heartbeat("a", 7), Assigned(7, A))
        play.wait()


def test_without_a_heartbeat_for_its_timeout_it_has_nothing_until_one_is_answered() -> None:
    play = Play().member()
    revoked = NO_CHANGE
    while play.now < play.machine.expires_at():
        if isinstance(play.machine.next(play.now), Wait):
            play.wait()
            continue
        assert revoked == NO_CHANGE
        revoked = play.machine.step(play.machine.next(play.now), Unreachable(), play.now, play.now + 1.0)
        play.now += 1.0
    assert revoked == Change(A, NOTHING)
    assert play.machine.tick(play.now) == NO_CHANGE
    while not isinstance(play.machine.next(play.now), Heartbeat):
        match play.machine.next(play.now):
            case Wait():
                play.wait()
            case Report() as report:
                play.expect(report, Done())
            case action:
                play.expect(action, Described("b", 9))
    assert play.expect(Heartbeat("b", 9), Assigned(9, A)) == Change(NOTHING, A)


def test_one_that_was_removed_has_nothing_and_joins_again() -> None:
    play = Play().member()
    play.wait()
    assert play.expect(Heartbeat("a", 7), NoMember()) == Change(A, NOTHING)
    play.expect(Join(), JOINED._replace(epoch=20))
    assert play.expect(Heartbeat("a", 20), Assigned(20, B)) == Change(NOTHING, B)


def test_a_group_that_is_gone_for_its_coordinator_is_joined_again() -> None:
    play = Play().member()
    play.wait()
    assert play.expect(Heartbeat("a", 7), NoGroup()) == Change(A, NOTHING)
    assert play.machine.next(play.now) == Join()


def test_a_broker_that_does_not_know_the_group_is_not_believed_at_once() -> None:
    play = Play().member()
    play.wait()
    play.expect(Heartbeat("a", 7), Unreachable())
    play.wait()
    assert play.expect(Describe(), NoGroup()) == NO_CHANGE
    play.wait()
    assert play.expect(Describe(), NoGroup()) == Change(A, NOTHING)
    assert play.machine.next(play.now) == Join()


def test_a_join_whose_answer_was_lost_is_taken_back_first() -> None:
    play = Play()
    play.expect(Join(), Unreachable())
    play.wait()
    play.expect(Join(), AlreadyMember())
    play.wait()
    play.expect(Leave(), Done())
    play.member()


def test_an_id_that_its_user_chose_is_waited_for() -> None:
    play = Play(chosen_id=True)
    for _ in range(5):
        play.expect(Join(), AlreadyMember())
        play.wait()
    play.member()


def test_a_heartbeat_counts_from_when_it_was_sent() -> None:
    play = Play()
    play.expect(Join(), JOINED)
    play.expect(Heartbeat("a", 7), Assigned(7, A), took_s=14.0)
    assert play.machine.expires_at() == pytest.approx(play.now + 1.0)


def test_partitions_as_users_see_them() -> None:
    assert by_stream(frozenset({("b", 1), ("a", 2), ("a", 0)})) == {"a": [0, 2], "b": [1]}
