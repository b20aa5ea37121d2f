"""The Raft machine's corners: what comes while a Ready is being persisted, what is refused, what is bounded."""

import random

import pytest

from bascule import limits
from bascule.core.raft.machine import NotLeaderError, Raft, RaftConfig, Role
from bascule.core.raft.progress import Progress, Stage
from bascule.errors import FailedPrecondition, PeerError, ResourceExhausted, Unavailable
from bascule.wire.raft import decode_message, encode_message
from bascule.wire.raft_messages import (
    AppendReply,
    AppendRequest,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Membership,
    Message,
    Snapshot,
    SnapshotReply,
    SnapshotRequest,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from tests.harness.raft_machine import VOTERS, drain, lead, machine, terms_of


def leader_of_three() -> Raft:
    raft = machine()
    lead(raft)
    raft.step(AppendReply("b", "a", 1, 1))
    drain(raft)
    assert raft.committed_in_own_term
    return raft


def sent(messages: list[Message], kind: type[Message], target: str) -> list[Message]:
    return [message for message in messages if isinstance(message, kind) and message.target == target]


# --- while a Ready is under way ---------------------------------------------------------------------------------


def test_entries_replaced_while_they_are_persisted_do_not_count_as_persisted() -> None:
    follower = machine(name="b")
    follower.step(AppendRequest("a", "b", 1, 0, 0, 0, (Entry(1, 1), Entry(2, 1))))
    ready = follower.ready()
    follower.step(AppendRequest("c", "b", 2, 1, 1, 0, (Entry(2, 2),)))
    follower.advance(ready)
    assert follower.log.stable < 2
    after = follower.ready()
    assert after.entries[-1] == Entry(2, 2)
    assert after.messages == [AppendReply("b", "c", 2, 2)]
    follower.advance(after)
    assert follower.log.stable == 2


def test_a_snapshot_that_comes_while_older_entries_are_applied_is_not_undone_by_them() -> None:
    follower = machine(name="b")
    follower.step(AppendRequest("a", "b", 1, 0, 0, 2, (Entry(1, 1), Entry(2, 1))))
    ready = follower.ready()
    assert [entry.index for entry in ready.committed] == [1, 2]
    grown = VOTERS.with_voter("d")
    follower.step(SnapshotRequest("a", "b", 1, Snapshot(9, 1, grown, b"state"), 0, 5))
    follower.advance(ready)
    assert follower.log.applied == 2, "the snapshot is not applied yet"
    assert follower.membership == grown
    after = follower.ready()
    assert after.snapshot == Snapshot(9, 1, grown, b"state")
    assert after.committed == []
    assert after.messages == [AppendReply("b", "a", 1, 9)]
    follower.advance(after)
    assert follower.log.applied == 9
    assert not follower.ready()


def test_only_one_ready_is_under_way_and_an_empty_one_is_none() -> None:
    raft = machine()
    empty = raft.ready()
    assert not empty
    assert not raft.ready()
    raft.campaign()
    ready = raft.ready()
    with pytest.raises(AssertionError):
        raft.ready()
    with pytest.raises(AssertionError):
        raft.advance(empty)
    raft.advance(ready)


def test_a_commit_index_alone_is_not_worth_a_write() -> None:
    raft = leader_of_three()
    index = raft.propose(b"x")
    drain(raft)
    raft.step(AppendReply("b", "a", 1, index))
    ready = raft.ready()
    assert [entry.index for entry in ready.committed] == [index]
    assert not ready.must_persist
    raft.advance(ready)
    raft.propose(b"y")
    ready = raft.ready()
    assert ready.hard_state == HardState(1, "a", index), "it goes along with the next entries"


# --- batches and bounds -----------------------------------------------------------------------------------------


def test_a_thousand_commands_are_one_append_and_one_write() -> None:
    raft = leader_of_three()
    raft.step(AppendReply("c", "a", 1, 1))
    drain(raft)
    first = raft.propose_many([b"%d" % number for number in range(1000)])
    ready = raft.ready()
    assert [entry.index for entry in ready.entries] == list(range(first, first + 1000))
    for target in ("b", "c"):
        (request,) = sent(ready.messages, AppendRequest, target)
        assert isinstance(request, AppendRequest)
        assert len(request.entries) == 1000
    assert decode_message(encode_message(ready.messages[0])) == ready.messages[0]
    raft.advance(ready)
    raft.step(AppendReply("b", "a", 1, first + 999))
    assert len(raft.ready().committed) == 1000


def test_a_leader_without_a_majority_takes_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RAFT_UNCOMMITTED_ENTRIES", 10)
    monkeypatch.setattr(limits, "RAFT_PENDING_READS", 2)
    raft = leader_of_three()
    raft.propose_many([b"x"] * 10)
    with pytest.raises(Unavailable, match="too many commands"):
        raft.propose(b"y")
    raft.read(1)
    raft.read(2)
    with pytest.raises(Unavailable, match="too many reads"):
        raft.read(3)


def test_a_window_full_of_lost_requests_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RAFT_INFLIGHT_APPENDS", 3)
    raft = leader_of_three()
    for number in range(9):
        raft.propose(b"%d" % number)
        drain(raft)
    assert raft.progress["b"].paused
    for number in (2, 3):
        raft.tick()
        raft.tick()
        drain(raft)
        raft.step(HeartbeatReply("b", "a", 1, number))
    (request,) = sent(drain(raft), AppendRequest, "b")
    assert isinstance(request, AppendRequest)
    assert (request.prev_index, request.entries) == (4, ())
    raft.step(AppendReply("b", "a", 1, 1, rejected=True, hint_term=1, prev_index=4))
    (request,) = sent(drain(raft), AppendRequest, "b")
    assert isinstance(request, AppendRequest)
    assert [entry.index for entry in request.entries] == list(range(2, 11))


def test_what_is_committed_is_handed_out_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RAFT_APPLY_ENTRIES", 4)
    raft = machine((1,) * 10, commit=10)
    portions = []
    while ready := raft.ready():
        portions.append(len(ready.committed))
        raft.advance(ready)
    assert portions == [4, 4, 2]


def test_time_costs_the_same_however_long_the_log_is() -> None:
    class Counting(list[Entry]):
        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("the whole log is walked")

    raft = leader_of_three()
    raft.propose_many([b"x"] * 1000)
    drain(raft)
    raft.log._entries = Counting(raft.log._entries)
    for _ in range(9):
        raft.tick()
        drain(raft)
        raft.step(HeartbeatReply("b", "a", 1, 1))
    assert raft.is_leader


# --- memberships ------------------------------------------------------------------------------------------------


def test_a_membership_change_is_refused_when_it_could_split_the_cluster() -> None:
    raft = leader_of_three()
    for membership in (
        VOTERS.with_voter("d").with_voter("e"),
        VOTERS.without("b").without("c"),
        VOTERS.with_voter("b", "reborn"),
        VOTERS.without("b").with_voter("d"),
    ):
        with pytest.raises(FailedPrecondition, match="one voter at a time"):
            raft.propose_membership(membership)
    for membership in (Membership(), Membership(("a", "b", "c", "c")), Membership(("a", "b", "c"), ("x y",))):
        with pytest.raises(FailedPrecondition, match="is no membership"):
            raft.propose_membership(membership)
    with pytest.raises(FailedPrecondition, match="cannot take another incarnation"):
        raft.propose_membership(VOTERS.with_learner("a", "reborn"))
    assert raft.log.last_index == 1
    with pytest.raises(NotLeaderError):
        machine().propose_membership(VOTERS)


def test_a_membership_that_is_truncated_from_the_log_is_in_force_no_more() -> None:
    raft = leader_of_three()
    raft.propose_membership(VOTERS.with_voter("d"))
    drain(raft)
    assert raft.membership.voters == ("a", "b", "c", "d")
    raft.step(AppendRequest("b", "a", 2, 1, 1, 1, (Entry(2, 2),)))
    assert raft.membership == VOTERS


def test_a_snapshot_carries_the_membership_of_its_index_not_the_newest() -> None:
    raft = leader_of_three()
    raft.propose_membership(VOTERS.with_learner("d"))
    drain(raft)
    raft.step(AppendReply("b", "a", 1, 2))
    drain(raft)
    assert raft.compact(1, b"").membership == VOTERS
    assert raft.compact(2, b"").membership == VOTERS.with_learner("d")


def test_replies_of_another_incarnation_do_not_count() -> None:
    raft = leader_of_three()
    index = raft.propose(b"x")
    drain(raft)
    raft.step(AppendReply("b", "a", 1, index, incarnation="reborn"))
    raft.step(HeartbeatReply("b", "a", 1, 1, incarnation="reborn"))
    assert raft.log.commit < index
    raft.step(AppendReply("c", "a", 1, index))
    assert raft.log.commit == index


def test_a_server_in_a_new_incarnation_gives_only_the_vote_of_that_incarnation() -> None:
    amnesiac = Raft(
        RaftConfig("b"), HardState(incarnation="reborn"), Snapshot(0, 0, Membership()), [], lambda low, high: low
    )
    amnesiac.step(VoteRequest("a", "b", 3, 5, 2))
    amnesiac.step(VoteRequest("c", "b", 3, 5, 2, incarnation="reborn"))
    assert [(reply.target, reply.granted) for reply in drain(amnesiac) if isinstance(reply, VoteReply)] == [
        ("a", False),
        ("c", True),
    ]
    assert amnesiac.hard_state == HardState(3, "c", 0, "reborn")
    for _ in range(100):
        amnesiac.tick()
    assert amnesiac.role is Role.FOLLOWER


def test_a_learner_that_others_count_on_campaigns_when_its_log_is_ahead_of_theirs() -> None:
    """The last leader, lost for good, had told only the learner of an entry; who made it a voter told only itself."""
    members = Membership(("a", "c"), ("e",))
    learner = Raft(
        RaftConfig("e"), HardState(5), Snapshot(0, 0, members), [Entry(1, 4), Entry(2, 5)], lambda low, high: low
    )
    for _ in range(50):
        learner.tick()
    assert not learner.ready(), "of itself it never does"
    learner.step(VoteRequest("a", "e", 6, 9, 4, pre=True))
    assert drain(learner) == [VoteReply("e", "a", 5, granted=False, pre=True)]
    learner.tick()
    assert learner.role is Role.PRE_CANDIDATE
    drain(learner)
    learner.step(VoteReply("a", "e", 6, granted=True, pre=True))
    assert learner.term == 5, "its own vote does not count"
    learner.step(VoteReply("c", "e", 6, granted=True, pre=True))
    for voter in "ac":
        learner.step(VoteReply(voter, "e", 6, granted=True))
    assert learner.is_leader
    drain(learner)
    for voter in "ac":
        learner.step(AppendReply(voter, "e", 6, 3))
    assert TimeoutNow("e", "a", 6) in drain(learner), "and it hands over when that is done"
    assert not learner.is_leader


# --- what peers say ---------------------------------------------------------------------------------------------


def test_a_heartbeat_commits_only_the_very_entry_it_names() -> None:
    follower = machine((1, 1), term=1, name="b")
    follower.step(Heartbeat("a", "b", 2, 2, 2, 1))
    assert follower.log.commit == 0
    follower.step(Heartbeat("a", "b", 2, 9, 2, 1))
    assert follower.log.commit == 0
    follower.step(Heartbeat("a", "b", 2, 2, 1, 1))
    assert follower.log.commit == 2


def test_a_snapshot_that_the_log_already_holds_keeps_what_comes_after_it() -> None:
    follower = machine((1, 1, 1), term=1, name="b")
    follower.step(SnapshotRequest("a", "b", 1, Snapshot(2, 1, VOTERS, b"stat"), 0, 5))
    assert terms_of(follower) == [1, 1, 1]
    assert follower.log.commit == 2
    assert drain(follower) == [AppendReply("b", "a", 1, 2)]


def test_a_snapshot_replaces_a_log_that_conflicts_with_it() -> None:
    follower = machine((1, 1, 1), term=1, name="b")
    follower.step(SnapshotRequest("a", "b", 2, Snapshot(2, 2, VOTERS, b"state"), 0, 5))
    assert (follower.log.base_index, follower.log.last_index, follower.log.last_term) == (2, 2, 2)


def test_chunks_of_two_leaders_are_never_mixed() -> None:
    follower = machine(name="b")
    follower.step(SnapshotRequest("a", "b", 1, Snapshot(5, 1, VOTERS, b"one"), 0, 6))
    follower.step(SnapshotRequest("c", "b", 2, Snapshot(5, 1, VOTERS, b"two"), 3, 6))
    assert drain(follower) == [SnapshotReply("b", "a", 1, 5, 3), SnapshotReply("b", "c", 2, 5, 0)]
    follower.step(SnapshotRequest("c", "b", 2, Snapshot(5, 1, VOTERS, b"two"), 0, 6))
    follower.step(SnapshotRequest("c", "b", 2, Snapshot(5, 1, VOTERS, b"two"), 3, 6))
    assert follower.ready().snapshot == Snapshot(5, 1, VOTERS, b"twotwo")


def test_a_follower_that_takes_no_chunk_loses_its_claim_on_the_snapshot() -> None:
    raft = leader_of_three()
    raft.config = RaftConfig("a", trailing_entries=0)
    raft.propose_many([b"x"] * 5)
    drain(raft)
    raft.step(AppendReply("b", "a", 1, 6))
    drain(raft)
    raft.compacted(raft.compact(4, b"state"))
    raft.step(AppendReply("c", "a", 1, 0, rejected=True, prev_index=0))
    drain(raft)
    assert raft.progress["c"].stage is Stage.SNAPSHOT
    raft.compacted(raft.compact(6, b"state"))
    assert raft.log.base_index == 4, "what follows the snapshot under way is kept"
    for _ in range(limits.RAFT_SNAPSHOT_STALL_TICKS):
        raft.tick()
        drain(raft)
        raft.step(HeartbeatReply("b", "a", 1, 1))
    assert raft.is_leader
    assert str(raft.progress["c"]).startswith("probe match=0 next=1")
    assert raft.progress["c"].snapshot is None


def test_a_chunk_is_sent_once_for_each_step_forward_whatever_is_answered_twice() -> None:
    raft = machine((1,) * 6, commit=6)
    raft.config = RaftConfig("a", trailing_entries=0)
    drain(raft)
    raft.compacted(raft.compact(6, bytes(3 * limits.RAFT_SNAPSHOT_CHUNK_BYTES)))
    lead(raft)
    raft.step(AppendReply("c", "a", 2, 0, rejected=True, prev_index=6))
    assert len(sent(drain(raft), SnapshotRequest, "c")) == 1
    for _ in range(5):
        raft.step(SnapshotReply("c", "a", 2, 6, limits.RAFT_SNAPSHOT_CHUNK_BYTES))
    assert len(sent(drain(raft), SnapshotRequest, "c")) == 1
    raft.step(SnapshotReply("c", "a", 2, 6, limits.RAFT_SNAPSHOT_CHUNK_BYTES))
    assert sent(drain(raft), SnapshotRequest, "c") == []
    raft.step(SnapshotReply("c", "a", 2, 6, 0))
    (request,) = sent(drain(raft), SnapshotRequest, "c")
    assert isinstance(request, SnapshotRequest)
    assert request.offset == 0, "it forgot what it had"


def test_handing_over_again_and_again_does_not_put_off_the_quorum_check() -> None:
    raft = leader_of_three()
    for number in range(20):
        raft.transfer("bc"[number % 2])
        raft.tick()
        drain(raft)
        if not raft.is_leader:
            break
    assert not raft.is_leader


def test_only_the_leader_it_follows_can_tell_a_server_to_campaign() -> None:
    follower = machine(name="b")
    follower.step(Heartbeat("a", "b", 1, 0, 0, 1))
    follower.step(TimeoutNow("c", "b", 1))
    follower.step(TimeoutNow("a", "b", 0))
    assert follower.term == 1
    follower.step(TimeoutNow("a", "b", 1))
    assert follower.role is Role.CANDIDATE
    follower.step(TimeoutNow("a", "b", 1))
    assert follower.term == 2, "the second of two does not raise the term again"


def test_messages_for_others_change_nothing() -> None:
    raft = machine()
    raft.step(AppendRequest("b", "c", 9, 0, 0, 0))
    raft.step(AppendRequest("a", "a", 9, 0, 0, 0))
    assert raft.term == 0
    assert not raft.ready()


def test_no_message_whatever_it_says_brings_a_machine_down() -> None:
    chance = random.Random(1)

    def number() -> int:
        return chance.choice((0, 1, 2, 3, 4, 5, 6, 40, (1 << 63) - 1))

    def entries(prev: int, term: int) -> tuple[Entry, ...]:
        return tuple(Entry(prev + 1 + at, term) for at in range(chance.randint(0, 3)))

    def any_message(term: int) -> Message:
        head = (chance.choice("bcx"), "a", term)
        prev = chance.randint(0, 8)
        part = Snapshot(number(), chance.randint(0, term), VOTERS, b"abc")
        return chance.choice(
            (
                AppendRequest(*head, prev, chance.randint(0, term), number(), entries(prev, term)),
                AppendReply(*head, number(), chance.random() < 0.5, number(), number()),
                Heartbeat(*head, number(), number(), number()),
                HeartbeatReply(*head, number()),
                VoteRequest(*head, number(), number(), "", chance.random() < 0.5, chance.random() < 0.5),
                VoteReply(*head, chance.random() < 0.7, chance.random() < 0.5),
                SnapshotRequest(*head, part, chance.choice((0, 3)), 6),
                SnapshotReply(*head, number(), number()),
                TimeoutNow(*head),
            )
        )

    leaders = 0
    for _ in range(300):
        raft = machine((1, 1, 2))
        for _ in range(60):
            if chance.random() < 0.3:
                raft.tick()
            term = max(0, raft.term + chance.choice((-1, 0, 0, 0, 0, 0, 0, 1)))
            try:
                raft.step(decode_message(encode_message(any_message(term))))
            except PeerError:
                continue
            if raft.is_leader:
                leaders += 1
                raft.propose(b"x")
                raft.read(1)
            drain(raft)
    assert leaders > 100


def test_a_follower_that_lost_what_it_had_confirmed_gets_it_again() -> None:
    for in_flight in (False, True):
        progress = Progress(next_index=11, incarnation="")
        progress.accepted(10, base_index=0)
        assert progress.stage is Stage.REPLICATE
        if in_flight:
            progress.sent(12, commit=10)
        progress.rejected(prev_index=10, hint=4)
        progress.rejected(prev_index=10, hint=4)
        assert (progress.match, progress.next, progress.paused) == (4, 5, False)
        progress.accepted(12, base_index=0)
        assert (progress.match, progress.stage) == (12, Stage.REPLICATE)


# --- what the network takes at a time -----------------------------------------------------------------------------


def test_entries_and_snapshots_fit_into_what_the_network_takes() -> None:
    """NATS ends a connection over one message that is too large, and nothing else would get through either."""
    most = 3_000
    raft = leader_of_three()
    raft.bound_messages(most)
    raft.propose_many([b"x" * 700] * 20)
    size = 0
    for _ in range(40):
        messages = sent(drain(raft), AppendRequest, "b")
        size = max(size, *(len(encode_message(message)) for message in messages), 0)
        for message in messages:
            assert isinstance(message, AppendRequest)
            raft.step(AppendReply("b", "a", 1, message.prev_index + len(message.entries)))
        if raft.log.commit == raft.log.last_index:
            break
    assert raft.log.commit == raft.log.last_index, "what was too large for one message never arrived"
    assert 700 < size <= most
    raft.config = RaftConfig("a", trailing_entries=0)
    snapshot = raft.compact(raft.log.applied, b"s" * 10_000)
    raft.compacted(snapshot)
    raft.step(AppendReply("c", "a", 1, 0, rejected=True, prev_index=0))
    received = 0
    for _ in range(40):
        for message in sent(drain(raft), SnapshotRequest, "c"):
            assert isinstance(message, SnapshotRequest)
            assert len(encode_message(message)) <= most
            received = message.offset + len(message.snapshot.data)
            raft.step(SnapshotReply("c", "a", 1, snapshot.index, received))
    assert received == 10_000


def test_a_command_that_fits_into_no_message_is_refused_with_the_reason() -> None:
    raft = leader_of_three()
    raft.bound_messages(8_192)
    before = raft.log.last_index
    with pytest.raises(ResourceExhausted, match="max_payload"):
        raft.propose(b"x" * 8_000)
    assert raft.log.last_index == before, "it would stand before everything that is proposed later"
    raft.propose(b"x" * 7_000)


def test_what_is_said_while_the_disk_stands_still_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RAFT_OUTBOX_MESSAGES", 50)
    follower = machine(name="b")
    follower.step(AppendRequest("a", "b", 1, 0, 0, 0, (Entry(1, 1),)))
    ready = follower.ready()  # its write takes long
    for number in range(200):
        follower.step(Heartbeat("a", "b", 1, 0, 0, number))
    follower.advance(ready)
    assert len(follower.ready().messages) == 50
