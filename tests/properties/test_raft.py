"""Raft under chance (see `tests.harness.raft_cluster`): the safety claims of the paper hold in every history, and once
the faults stop commands are committed again. `--raft-seeds 2000` runs more of them.

The checks are checked too: with a bug planted they must find it.
"""

from dataclasses import replace

import pytest

from bascule.core.raft.election import Election
from bascule.core.raft.leading import Leadership
from bascule.core.raft.log import RaftLog
from bascule.wire.raft import encode_membership
from bascule.wire.raft_messages import Entry, EntryKind, Membership, VoteRequest
from tests.harness.raft_cluster import DUELS, FALLING_LEADERS, SLOW_DISKS, Chances, Cluster, run_seed


@pytest.mark.timeout(3600)
def test_safety_under_faults_and_progress_after_them(raft_seeds: int) -> None:
    elections = wipes = changes = snapshots = reads = 0
    for seed in range(1, raft_seeds + 1):
        try:
            cluster = run_seed(seed)
        except AssertionError as error:
            raise AssertionError(f"python -m tests.harness.raft_cluster --seeds 1 --trace --first {seed}") from error
        elections += len(cluster.safety.leaders)
        wipes += cluster.wipes
        changes += cluster.changes
        snapshots += cluster.snapshots
        reads += cluster.served
    assert elections > 2 * raft_seeds, "the conditions is too fair to prove anything"
    assert min(wipes, changes, snapshots) > raft_seeds // 4
    assert reads > 10 * raft_seeds


def test_a_seed_is_a_history() -> None:
    first, again, other = (run_seed(seed, turns=100) for seed in (11, 11, 12))
    assert first.digest() == again.digest() != other.digest()


def found(chances: Chances, runs: int, *, turns: int = 120, bug: str = "", founders: int = 3) -> str:
    """What the first run that fails says."""
    for seed in range(runs):
        cluster = Cluster(seed, founders, chances, bug=bug, spares=6 - founders if chances.change else 0)
        try:
            cluster.run_faults(turns)
        except AssertionError as error:
            return str(error)
    return f"nothing in {runs} runs"


def without(chances: Chances, **values: float) -> Chances:
    return replace(chances, **{"change": 0.0, "wipe": 0.0, **values})  # type: ignore[arg-type]


def test_a_vote_that_is_not_persisted_is_found() -> None:
    assert "election safety" in found(without(DUELS), 400, bug="vote-not-persisted")


def test_an_ack_before_the_entries_are_persisted_is_found() -> None:
    assert found(without(SLOW_DISKS), 400, bug="ack-before-persist").startswith(
        ("leader completeness", "state machine safety")
    )


def test_committing_entries_of_an_older_term_by_counting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Leadership._commit

    def hasty(self: Leadership) -> None:
        membership = self._state.membership
        reached = sorted(map(self._stored_end, membership.voters), reverse=True)[membership.quorum - 1]
        self._state.log.commit_to(reached)
        original(self)

    monkeypatch.setattr(Leadership, "_commit", hasty)
    assert found(without(FALLING_LEADERS), 150, turns=400).startswith(("leader completeness", "state machine safety"))


def test_reads_that_no_quorum_confirms_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leadership, "_answered_round", lambda self, voter: self._round + 1)
    assert "a read at" in found(without(Chances(), delay=0.5, split=0.1, read=1.0, transfer=0.2), 300, turns=150)


def test_votes_for_candidates_that_lack_entries_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftLog, "is_up_to_date", lambda self, last_index, last_term: True)
    assert "leader completeness" in found(without(Chances(), split=0.1, transfer=0.1), 200)


def test_a_server_that_lost_its_state_and_votes_as_if_nothing_happened_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Election.on_request

    def trusting(self: Election, message: VoteRequest) -> None:
        original(self, replace(message, incarnation=self._state.incarnation))

    monkeypatch.setattr(Election, "on_request", trusting)
    chances = replace(FALLING_LEADERS, append_bytes=200, change=0.0, wipe=0.5)
    assert found(chances, 200, turns=250).startswith(("leader completeness", "election safety"))


def test_several_membership_changes_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(self: Leadership, membership: Membership) -> int:
        index = self._state.log.last_index + 1
        self._append([Entry(index, self.term, EntryKind.MEMBERSHIP, encode_membership(membership))])
        self._meet_members()
        self._commit()
        return index

    monkeypatch.setattr(Leadership, "propose_membership", hasty)
    chances = Chances(wipe=0.0, change=0.2, split=0.2, transfer=0.05)
    assert found(chances, 100, turns=250).startswith(("election safety", "leader completeness", "state machine safety"))
