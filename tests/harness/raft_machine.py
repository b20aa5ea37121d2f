"""One Raft machine and the messages it is given."""

from bascule.core.raft.machine import Raft, RaftConfig
from bascule.wire.raft_messages import (
    Entry,
    HardState,
    Membership,
    Message,
    Snapshot,
    VoteReply,
)

VOTERS = Membership(("a", "b", "c"))


def machine(terms: tuple[int, ...] = (), term: int = 0, vote: str = "", commit: int = 0, name: str = "a") -> Raft:
    """One of three voters, with entries of these terms."""
    entries = [Entry(index, of, data=b"%d of %d" % (index, of)) for index, of in enumerate(terms, start=1)]
    hard_state = HardState(max(term, *terms, 0), vote, commit)
    return Raft(RaftConfig(name), hard_state, Snapshot(0, 0, VOTERS), entries, lambda low, high: low)


def drain(raft: Raft) -> list[Message]:
    messages: list[Message] = []
    while ready := raft.ready():
        messages += ready.messages
        raft.advance(ready)
    return messages


def terms_of(raft: Raft) -> list[int]:
    return [entry.term for entry in raft.log.slice(1, raft.log.last_index + 1)]


def lead(raft: Raft) -> None:
    raft.campaign()
    raft.step(VoteReply("b", "a", raft.term + 1, granted=True, pre=True))
    raft.step(VoteReply("b", "a", raft.term, granted=True))
    assert raft.is_leader
    drain(raft)
