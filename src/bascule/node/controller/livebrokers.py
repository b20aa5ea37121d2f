"""Which members are alive, and stay, as the controller sees it: `core.liveness` joined to the membership.

It says nothing while this broker is not the controller.
"""

from collections.abc import Callable

from bascule.core.liveness import Liveness
from bascule.node.membership.peers import HEARTBEAT_S, SESSION_S, Peer
from bascule.node.membership.raft import RaftDriver
from bascule.ports import Clock

GRACE_S = 1.5 * HEARTBEAT_S
"""What a new controller gives those at least whom it has not heard for long: its own process may have stood still."""


class LiveBrokers:
    def __init__(self, raft: RaftDriver, clock: Clock, last_heard: Callable[[str], int]) -> None:
        """`last_heard` says when this broker last heard another one, or began to listen."""
        self.active = False
        """This broker is the controller."""
        self.leaving: dict[str, None] = {}
        """Those that have said that they are about to stop."""
        self.fencing: dict[str, None] = {}
        """Those that are dead, and that is being recorded."""
        self._raft = raft
        self._clock = clock
        self._last_heard = last_heard
        self._liveness = Liveness(int(SESSION_S * 1e9), int(GRACE_S * 1e9))

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(server for server in self._raft.membership.everyone if server != self._raft.raft.id)

    def begin(self) -> None:
        """This broker has become the controller: what it knew of an earlier term does not count."""
        self.active = True
        self.leaving = {}
        heard = {broker: self._last_heard(broker) for broker in self.others}
        self._liveness.begin(heard, self._clock.monotonic_ns())

    def end(self) -> None:
        self.active = False

    def heard(self, peer: Peer) -> bool:
        """A heartbeat of a member. True if it died since the one before."""
        if peer.leaving:
            self.leaving[peer.id] = None
        else:
            self.leaving.pop(peer.id, None)
        return self._liveness.heard(peer.id, peer.boot, self._clock.monotonic_ns())

    def forget(self, broker: str) -> None:
        """It is no member any more."""
        self._liveness.left(broker)
        self.leaving.pop(broker, None)

    def expired(self) -> list[str]:
        """Brokers whose session ended since the last call."""
        return self._liveness.expired(self._clock.monotonic_ns())

    def heard_for(self, broker: str) -> int | None:
        """For how many ns this life of it has been heard; None if it is silent, or was never heard."""
        return self._liveness.heard_for(broker, self._clock.monotonic_ns())

    def undecided(self, broker: str) -> bool:
        """Whether it lives shows within a session; or it is dead, and that is being recorded."""
        return self._liveness.undecided(broker) or broker in self.fencing

    def alive(self, broker: str) -> bool:
        return broker == self._raft.raft.id or self._liveness.alive(broker)

    def stays(self, broker: str) -> bool:
        """It lives, and has not said that it is about to stop."""
        own = broker == self._raft.raft.id
        return own or (self._liveness.alive(broker) and broker not in self.leaving)

    def staying(self) -> tuple[str, ...]:
        """Who may lead something."""
        return tuple(server for server in self._raft.membership.everyone if self.stays(server))
