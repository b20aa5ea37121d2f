"""Which members are alive, and not about to stop, as the controller sees it: `core.liveness` joined to the membership.

Its state is valid only while this broker is the controller.
"""

from collections.abc import Callable

from bascule.core.liveness import Liveness
from bascule.node.membership.peers import HEARTBEAT_S, SESSION_S, Peer
from bascule.node.membership.raft import RaftDriver
from bascule.ports import Clock

GRACE_S = 1.5 * HEARTBEAT_S
"""The least time that a new controller gives each broker to send a heartbeat: its own process may have been stopped."""


class LiveBrokers:
    def __init__(
        self,
        raft: RaftDriver,
        clock: Clock,
        last_heartbeat: Callable[[str], int],
        announced_stop: Callable[[str], bool],
    ) -> None:
        """`last_heartbeat` says when this broker last received a heartbeat of another one, or started;
        `announced_stop`, whether that heartbeat said that the other one is about to stop."""
        self.active = False
        """This broker is the controller."""
        self.stopping: dict[str, None] = {}
        """Brokers that have announced that they are about to stop."""
        self.fencing: dict[str, None] = {}
        """Dead brokers whose fencing is not committed yet."""
        self._raft = raft
        self._clock = clock
        self._last_heartbeat = last_heartbeat
        self._announced_stop = announced_stop
        self._liveness = Liveness(int(SESSION_S * 1e9), int(GRACE_S * 1e9))

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(server for server in self._raft.membership.everyone if server != self._raft.raft.id)

    def begin(self) -> None:
        """This broker has become the controller: what it knew in an earlier term does not count. A controller that
        stops hands its role over, and may send no heartbeat to its successor any more."""
        self.active = True
        self.stopping = {broker: None for broker in self.others if self._announced_stop(broker)}
        last = {broker: self._last_heartbeat(broker) for broker in self.others}
        self._liveness.begin(last, self._clock.monotonic_ns())

    def end(self) -> None:
        self.active = False

    def on_heartbeat(self, peer: Peer) -> bool:
        """A heartbeat of a member. True if that broker has restarted since the one before."""
        if peer.stopping:
            self.stopping[peer.id] = None
        else:
            self.stopping.pop(peer.id, None)
        return self._liveness.heard(peer.id, peer.boot, self._clock.monotonic_ns())

    def forget(self, broker: str) -> None:
        """It is not a member any more."""
        self._liveness.left(broker)
        self.stopping.pop(broker, None)

    def expired(self) -> list[str]:
        """Brokers whose session ended since the last call."""
        return self._liveness.expired(self._clock.monotonic_ns())

    def alive_for(self, broker: str) -> int | None:
        """For how many ns its present boot has sent heartbeats; None if it is not alive."""
        return self._liveness.heard_for(broker, self._clock.monotonic_ns())

    def undecided(self, broker: str) -> bool:
        """Whether it is alive is known within a session; or it is dead, and its fencing is not committed yet."""
        return self._liveness.undecided(broker) or broker in self.fencing

    def alive(self, broker: str) -> bool:
        return broker == self._raft.raft.id or self._liveness.alive(broker)

    def stays(self, broker: str) -> bool:
        """It is alive, and has not announced that it is about to stop."""
        own = broker == self._raft.raft.id
        return own or (self._liveness.alive(broker) and broker not in self.stopping)

    def staying(self) -> tuple[str, ...]:
        """The brokers that may lead partitions."""
        return tuple(server for server in self._raft.membership.everyone if self.stays(server))
