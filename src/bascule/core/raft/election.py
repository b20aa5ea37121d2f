"""Elections: asking for votes, and giving one.

A server without a leader first asks whether it would be elected (pre-vote) and raises its term only if so: one that was
partitioned from the others does not disturb them when it returns. A server with a live leader ignores vote requests
(the lease that belongs to the leader's quorum check), unless the leader itself asked for the election to hand over.

A vote is given once a term, to a candidate whose log is at least as up to date. A vote request names the incarnation of
the voter: a server that lost its state has another one, and does not grant a vote that is meant for the earlier one.
"""

from bascule.core.raft.state import Role, State
from bascule.wire.raft_messages import VoteReply, VoteRequest


class Election:
    def __init__(self, state: State) -> None:
        self._state = state
        self._votes: dict[str, bool] = {}

    def campaign(self, *, transfer: bool = False) -> None:
        """On winning, the role is LEADER."""
        state = self._state
        if not state.may_campaign or state.role is Role.LEADER:
            return
        if transfer or state.membership.voters == (state.id,):
            self._ask_in_earnest(transfer)
        else:
            state.role = Role.PRE_CANDIDATE
            self._ask(state.term + 1, pre=True, transfer=False)

    def on_request(self, message: VoteRequest) -> None:
        state = self._state
        free = state.vote == message.source or (not state.vote and not state.leader)
        could = free or (message.pre and message.term > state.term)
        meant = message.incarnation == state.incarnation
        up_to_date = state.log.is_up_to_date(message.last_index, message.last_term)
        granted = could and meant and up_to_date
        if meant and not up_to_date and not state.leader:
            state.needed = True
        if granted and not message.pre:
            state.vote = message.source
            state.elapsed = 0
        # A pre-vote is granted in the term of the request; a refusal has the present term.
        term = message.term if granted else state.term
        state.send(VoteReply(state.id, message.source, term, granted=granted, pre=message.pre))

    def on_reply(self, message: VoteReply) -> None:
        state = self._state
        expected = Role.PRE_CANDIDATE if message.pre else Role.CANDIDATE
        asked_term = state.term + 1 if message.pre else state.term
        if state.role is not expected or (message.granted and message.term != asked_term):
            return
        self._votes.setdefault(message.source, message.granted)
        self._count()

    def _ask_in_earnest(self, transfer: bool) -> None:
        state = self._state
        state.role = Role.CANDIDATE
        state.term += 1
        state.vote = state.id
        self._ask(state.term, pre=False, transfer=transfer)

    def _ask(self, term: int, *, pre: bool, transfer: bool) -> None:
        state = self._state
        state.leader = ""
        state.reset_timeout()
        self._votes = {state.id: True}
        log, membership = state.log, state.membership
        for voter in membership.voters:
            if voter != state.id:
                incarnation = membership.incarnation_of(voter)
                state.send(
                    VoteRequest(state.id, voter, term, log.last_index, log.last_term, incarnation, pre, transfer)
                )
        self._count()

    def _count(self) -> None:
        state = self._state
        voters, quorum = state.membership.voters, state.membership.quorum
        granted = sum(self._votes.get(voter, False) for voter in voters)
        refused = sum(not self._votes.get(voter, True) for voter in voters)
        if granted >= quorum and state.role is Role.PRE_CANDIDATE:
            self._ask_in_earnest(transfer=False)
        elif granted >= quorum:
            state.role = Role.LEADER
            state.leader = state.id
        elif refused > len(voters) - quorum:
            state.follow(state.term, "")
