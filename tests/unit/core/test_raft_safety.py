"""The safety claims of the Raft paper (its figure 3), one test each, on small cases that can be read. The randomized
test (`tests/properties/test_raft.py`) watches the same claims in thousands of histories.
"""

from itertools import combinations_with_replacement

from bascule.core.raft.machine import Raft, RaftConfig
from bascule.core.raft.ready import Ready
from bascule.wire.raft_messages import (
    AppendReply,
    AppendRequest,
    Entry,
    HardState,
    Membership,
    Snapshot,
    VoteReply,
    VoteRequest,
)
from tests.harness.raft_cluster import FALLING_LEADERS, Cluster, Server
from tests.harness.raft_machine import VOTERS, drain, lead, machine, terms_of


def test_election_safety_a_voter_votes_once_a_term_even_across_a_crash() -> None:
    voter = machine(name="c")
    voter.step(VoteRequest("a", "c", 5, 0, 0))
    ready = voter.ready()
    assert ready.hard_state == HardState(5, "a")
    assert ready.messages == [VoteReply("c", "a", 5, granted=True)]
    voter.advance(ready)
    restarted = Server("c", HardState(), Snapshot(0, 0, VOTERS))
    restarted.persist(ready)
    for again in (voter, machine(term=5, vote=restarted.hard_state.vote, name="c")):
        again.step(VoteRequest("b", "c", 5, 9, 4))
        again.step(VoteRequest("a", "c", 5, 0, 0))
        assert drain(again) == [
            VoteReply("c", "b", 5, granted=False),
            VoteReply("c", "a", 5, granted=True),
        ], "the same candidate may ask again, no other"


def test_election_safety_votes_of_another_term_or_given_twice_do_not_count() -> None:
    candidate = Raft(
        RaftConfig("a"), HardState(), Snapshot(0, 0, Membership(("a", "b", "c", "d", "e"))), [], lambda low, high: low
    )
    candidate.campaign()
    for voter in "bc":
        candidate.step(VoteReply(voter, "a", 1, granted=True, pre=True))
    for reply in (
        VoteReply("b", "a", 1, granted=True),
        VoteReply("b", "a", 1, granted=True),
        VoteReply("x", "a", 1, granted=True),
        VoteReply("d", "a", 1, granted=True, pre=True),
        VoteReply("d", "a", 0, granted=True),
    ):
        candidate.step(reply)
        assert not candidate.is_leader
    candidate.step(VoteReply("c", "a", 1, granted=True))
    assert candidate.is_leader


def test_leader_append_only_whatever_a_leader_receives_its_own_log_only_grows() -> None:
    leader = machine((1, 1, 2))
    lead(leader)
    before = terms_of(leader)
    assert before == [1, 1, 2, 3]
    for message in (
        AppendRequest("b", "a", 2, 1, 1, 1, (Entry(2, 2),)),
        AppendRequest("b", "a", 3, 0, 0, 1, (Entry(1, 3),)),
        AppendReply("b", "a", 3, 0, rejected=True, prev_index=3),
        AppendReply("c", "a", 3, 99),
        VoteRequest("b", "a", 2, 9, 2),
    ):
        leader.step(message)
        drain(leader)
        assert terms_of(leader)[: len(before)] == before
    leader.propose(b"x")
    assert terms_of(leader) == [*before, 3]


def test_log_matching_a_follower_takes_entries_only_after_one_both_have() -> None:
    theirs = [Entry(index, of, data=b"%d of %d" % (index, of)) for index, of in enumerate((1, 1, 2, 3), start=1)]
    for terms in [(), (1,), (1, 1), (1, 1, 1), (1, 1, 1, 1, 1), (1, 1, 2, 2), (1, 1, 2, 3)]:
        for prev in range(len(theirs)):
            follower = machine(terms, term=3, name="b")
            prev_term = theirs[prev - 1].term if prev else 0
            follower.step(AppendRequest("a", "b", 3, prev, prev_term, 0, tuple(theirs[prev:])))
            (reply,) = drain(follower)
            assert isinstance(reply, AppendReply)
            agrees = prev == 0 or terms[prev - 1 : prev] == (prev_term,)
            assert reply.rejected is not agrees
            held = follower.log.slice(1, follower.log.last_index + 1)
            assert held == theirs if agrees else terms_of(follower) == list(terms)
            if not agrees:
                assert reply.match <= prev
                assert reply.match <= len(terms)


def test_log_matching_a_late_copy_of_a_request_truncates_nothing() -> None:
    follower = machine((1, 1, 1, 1), term=1, name="b")
    follower.step(AppendRequest("a", "b", 1, 0, 0, 0, tuple(follower.log.slice(1, 3))))
    assert drain(follower) == [AppendReply("b", "a", 1, 2)]
    assert terms_of(follower) == [1, 1, 1, 1]


def test_leader_completeness_a_vote_is_for_logs_at_least_as_complete() -> None:
    logs = [terms for length in range(4) for terms in combinations_with_replacement((1, 2, 3), length)]
    for mine in logs:
        for theirs in logs:
            voter = machine(mine, term=3, name="b")
            last = theirs[-1] if theirs else 0
            voter.step(VoteRequest("a", "b", 4, len(theirs), last))
            (reply,) = drain(voter)
            assert isinstance(reply, VoteReply)
            own_last = mine[-1] if mine else 0
            assert reply.granted == (last > own_last or (last == own_last and len(theirs) >= len(mine)))


def test_leader_completeness_an_older_terms_entry_is_committed_only_with_one_of_the_own() -> None:
    leader = machine((1, 2, 2))
    lead(leader)
    for match in (1, 2, 3):
        leader.step(AppendReply("b", "a", 3, match))
        drain(leader)
        assert leader.log.commit == 0, "a majority has it, and still a later leader may replace it"
    leader.step(AppendReply("b", "a", 3, 4))
    assert leader.log.commit == 4


def test_leader_completeness_the_own_copy_counts_only_when_it_is_persisted() -> None:
    leader = machine()
    lead(leader)
    index = leader.propose(b"x")
    ready = leader.ready()
    assert [entry.index for entry in ready.entries] == [index]
    leader.step(AppendReply("b", "a", 1, index))
    assert leader.log.commit < index
    leader.advance(ready)
    assert leader.log.commit == index


def test_state_machine_safety_all_servers_apply_the_same_commands_in_the_same_order() -> None:
    for seed in range(3):
        cluster = Cluster(seed, 3, FALLING_LEADERS)
        applied: dict[int, bytes] = {}
        original = cluster.apply

        def apply(
            server: Server, entry: Entry, applied: dict[int, bytes] = applied, original: object = original
        ) -> None:
            assert applied.setdefault(entry.index, entry.data) == entry.data
            assert callable(original)
            original(server, entry)

        cluster.apply = apply  # type: ignore[method-assign]
        cluster.run(200)
        assert sorted(applied) == list(range(1, len(applied) + 1))
        assert len(cluster.safety.leaders) > 5


def test_promises_leave_in_the_ready_that_persists_what_they_rest_on() -> None:
    follower = machine(name="b")
    follower.step(AppendRequest("a", "b", 2, 0, 0, 0, (Entry(1, 1), Entry(2, 2))))
    ready: Ready = follower.ready()
    assert ready.hard_state == HardState(2)
    assert [entry.index for entry in ready.entries] == [1, 2]
    assert ready.messages == [AppendReply("b", "a", 2, 2)]


def test_one_voter_may_become_three_at_once_and_nothing_else_changes_two() -> None:
    one, three, five = (Membership(tuple("abcde"[:count]), cluster="x") for count in (1, 3, 5))
    assert one.may_become(three)
    assert not three.may_become(one), "two of the three could decide without it"
    assert not three.may_become(five), "two of the old three and three of the new five share nobody"
    assert not one.may_become(five)
    assert not one.may_become(Membership(("b", "c", "d"), cluster="x")), "the one voter must be among the three"
    assert not one.may_become(Membership(("a", "b", "c"), (), (("a", "anew"),), cluster="x")), "in its own incarnation"
    assert not three.may_become(Membership(("a", "b", "c"), cluster="y")), "a membership is of one cluster"


def test_a_voter_that_becomes_one_of_three_decides_nothing_alone_from_then_on_also_after_a_crash() -> None:
    alone = Membership(("a",), ("b", "c"))
    server = Server("a", HardState(), Snapshot(0, 0, alone))
    leader = Raft(RaftConfig("a"), HardState(), Snapshot(0, 0, alone), [], lambda low, high: low)
    leader.campaign()
    while ready := leader.ready():
        server.persist(ready)
        leader.advance(ready)
    assert leader.log.commit == 1
    index = leader.propose_membership(alone.with_voter("b").with_voter("c"))
    leader.propose(b"not by one alone")
    ready = leader.ready()
    assert index in [entry.index for entry in ready.entries], "it is stored with the Ready whose messages carry it"
    server.persist(ready)
    leader.advance(ready)
    assert leader.log.commit == 1
    assert server.entries[index - 1].index == index
    again = Raft(RaftConfig("a"), server.hard_state, server.snapshot, server.entries, lambda low, high: low)
    for _ in range(50):
        again.tick()
        drain(again)
    assert not again.is_leader
    assert again.log.commit == 1


def test_learners_give_their_votes_to_who_counts_them_as_voters() -> None:
    """They do not know of it: the entry that makes them voters reached the candidate only."""
    learner = Raft(
        RaftConfig("c"),
        HardState(1, incarnation="c1"),
        Snapshot(0, 0, Membership(("a",), ("b", "c"), (("c", "c1"),))),
        [],
        lambda low, high: low,
    )
    learner.step(VoteRequest("b", "c", 2, 5, 1, "c1"))
    assert drain(learner) == [VoteReply("c", "b", 2, granted=True)]
    learner.step(VoteRequest("b", "c", 3, 5, 1, "of an earlier incarnation"))
    assert drain(learner) == [VoteReply("c", "b", 3, granted=False)]
