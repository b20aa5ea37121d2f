"""Heartbeats: each broker sends its id, address and state to all others four times a second.

The heartbeat is a ServerInfoResponse that nobody asked for. A ServerInfoRequest makes all brokers send one at once, so
that a broker that just started knows the others without waiting.

A heartbeat that arrives late or twice is ignored: replayed messages must not keep a dead broker alive, nor make one
boot look like two.

A broker that does not receive its own heartbeats has a connection to NATS that works in one direction only: it seems
alive and can serve nobody. It then sends heartbeats to itself only, until it receives them again; the others receive
none and fence it. So does a broker that has stored nothing of the metadata for as long as a replica may lag: its disk
hangs or fails, so it learns of no change, and cannot lead what it is given.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bascule.errors import PeerError
from bascule.limits import RAFT_MAX_SERVERS
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import HEARTBEAT, HEARTBEATS_WANTED
from bascule.node.membership.activeclock import TURN_S, ActiveClock
from bascule.node.runtime.jobs import Jobs, Timer
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.subjects import usable_token

logger = logging.getLogger(__name__)

HEARTBEAT_S = TURN_S
SESSION_S = 1.5
OWN_HEARTBEAT_S = 0.8
DOUBLES = 8
"""After this many heartbeats of another broker under our own id, and a session after our start, this broker ends. The
one that started first waits for twice as many, so that the copy ends. Only heartbeats that name our boot count: late
ones of our earlier boot do not."""
REMEMBERED_BOOTS = 64
"""Boots of one broker that are remembered, each with its last heartbeat."""


@dataclass(frozen=True, slots=True)
class Peer:
    id: str
    host: str
    port: int
    boot: str
    partition_count: int
    leader_count: int
    stopping: bool
    beat: int = 0
    hears: str = ""
    cluster: str = ""
    commit: int = 0
    members: int = 0
    """Number of members of its cluster."""
    knows_cleared: bool = False
    """It knows the command TellCleared; brokers of an older release end when they meet it."""
    stalled: bool = False
    """It stores no metadata, and has not for too long. Never of another broker: one that is sends no heartbeats."""


Describe = Callable[[bool], Peer]
"""This broker as it is now; the argument says whether it is about to stop."""


class Peers:
    def __init__(
        self,
        calls: Calls,
        active_clock: ActiveClock,
        describe: Describe,
        on_double: Callable[[str], None],
        jobs: Jobs,
    ) -> None:
        """`on_double` is called if another broker runs under our id."""
        self._on_peer: Callable[[Peer], None]
        self._on_unknown_broker: Callable[[Peer], None]
        self._on_double = on_double
        self._calls = calls
        self._subjects = calls.subjects
        self._jobs = jobs
        self._clock = active_clock
        self._describe = describe
        self.stopping = False
        self._latest: dict[str, tuple[Peer, int]] = {}
        self._past: dict[str, dict[str, int]] = {}
        """By broker, its boots, each with the number of its last heartbeat."""
        self._beats = 0
        self._other_boot = ""
        self._own_heartbeat_at = 0
        self._started_at = 0
        self._doubles = 0
        self._double_at = 0
        self._was_here_first = False
        self._was_stalled = False
        self._heartbeats: Timer | None = None

    def start(self, on_heartbeat: Callable[[Peer], None], on_unknown_broker: Callable[[Peer], None]) -> None:
        """`on_unknown_broker` is called for each heartbeat of a broker of another cluster, which is otherwise
        ignored."""
        self._on_peer, self._on_unknown_broker = on_heartbeat, on_unknown_broker
        for subject in (self._subjects.heartbeats, self._own_subject):
            self._calls.subscribe(subject, self._on_batch)
        self._own_heartbeat_at = self._started_at = self._clock.monotonic_ns()
        self._calls.tell(self._subjects.heartbeats, HEARTBEATS_WANTED, pb.ServerInfoRequest(id=self._me().id))
        self._heartbeats = self._jobs.every("heartbeats", HEARTBEAT_S, self._beat, "this broker counts as dead")

    def stop(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.stop()

    def alive(self) -> list[Peer]:
        """The other brokers that sent a heartbeat within the last session, by id."""
        oldest = self._clock.monotonic_ns() - int(SESSION_S * 1e9)
        own = self._me().id
        return [peer for name, (peer, at) in sorted(self._latest.items()) if at >= oldest and name != own]

    def last_heartbeat(self, broker: str) -> int:
        """Its time on the monotonic clock; the time of our start if there was none."""
        return self._latest[broker][1] if broker in self._latest else self._started_at

    def all_know_cleared(self, members: Iterable[str]) -> bool:
        """Whether the last heartbeat of each of these members said so. One that sent none may have an older release."""
        own = self._me().id
        return all(each == own or (each in self._latest and self._latest[each][0].knows_cleared) for each in members)

    def announced_stop(self, broker: str) -> bool:
        """Whether its last heartbeat said that it is about to stop."""
        return broker in self._latest and self._latest[broker][0].stopping

    @property
    def boot(self) -> str:
        """The boot id of this broker."""
        return self._me().boot

    @property
    def _own_subject(self) -> bytes:
        return self._subjects.heartbeats_to(self._me().id)

    @property
    def _misses_own(self) -> bool:
        return self._clock.monotonic_ns() - self._own_heartbeat_at > int(OWN_HEARTBEAT_S * 1e9)

    def say(self) -> None:
        """Send a heartbeat now, not at the next beat."""
        me = self._me()
        self._beats += 1
        message = pb.ServerInfoResponse(
            id=me.id,
            host=me.host,
            port=me.port,
            boot=me.boot,
            partitionCount=me.partition_count,
            leaderCount=me.leader_count,
            leaving=me.stopping,
            beat=self._beats,
            hears=self._other_boot,
            cluster=self._subjects.cluster,
            commit=me.commit,
            members=me.members,
            knowsCleared=True,
        )
        # A broker that cannot receive, or stores nothing, is to be fenced: the others get no heartbeat.
        self._note_stall(me.stalled)
        fence = self._misses_own or me.stalled
        self._calls.tell(self._own_subject if fence else self._subjects.heartbeats, HEARTBEAT, message)

    def _note_stall(self, stalled: bool) -> None:
        if stalled and not self._was_stalled:
            logger.error(
                "nothing of the metadata has been stored for as long as a replica may lag: the disk hangs or fails. "
                "This broker sends no more heartbeats, so that others lead its partitions. It goes on by itself when "
                "its disk does; look into the disk"
            )
        elif self._was_stalled and not stalled:
            logger.warning("the metadata is stored again: this broker sends heartbeats again")
        self._was_stalled = stalled

    def announce_stop(self) -> None:
        """Announce, now and in all later heartbeats, that this broker is about to stop."""
        self.stopping = True
        self.say()

    def _me(self) -> Peer:
        return self._describe(self.stopping)

    def _on_own_id(self, peer: Peer) -> None:
        """Another boot under our id is a late heartbeat of our last boot or, if it names our boot and goes on, another
        broker."""
        if peer.boot == self.boot:
            self._own_heartbeat_at = self._clock.monotonic_ns()
            return
        self._other_boot = peer.boot
        if peer.hears != self.boot:
            return
        now, session_ns = self._clock.monotonic_ns(), int(SESSION_S * 1e9)
        age_ns = now - self._started_at
        if not self._doubles or now - self._double_at > session_ns:
            self._doubles, self._was_here_first = 0, age_ns > session_ns
        self._double_at = now
        self._doubles += 1
        if self._doubles >= DOUBLES * (1 + self._was_here_first) and age_ns > session_ns:
            self._on_double(
                f"another broker with the id {peer.id} runs at {peer.host}:{peer.port}: two brokers with one id undo "
                "each other's work; give this one another clustering.server.id and an empty data folder"
            )

    def _beat(self) -> None:
        self._clock.turned()
        self.say()

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in self._calls.received(batch, HEARTBEAT, HEARTBEATS_WANTED):
            with message as payload:
                if message.kind is HEARTBEAT:
                    self._on_heartbeat(HEARTBEAT.decode(payload))
                else:
                    HEARTBEATS_WANTED.decode(payload)
                    self.say()

    def _on_heartbeat(self, info: pb.ServerInfoResponse) -> None:
        if not usable_token(info.id):
            raise PeerError(f"{info.id[:64]!r} is not a valid broker id")
        self._note(_peer(info), self._clock.monotonic_ns())

    def _note(self, peer: Peer, now: int) -> None:
        if peer.cluster != self._subjects.cluster:
            self._on_unknown_broker(peer)
            return
        if peer.id == self._me().id:
            self._on_own_id(peer)
        elif self._is_old(peer):
            return
        self._latest.pop(peer.id, None)
        self._latest[peer.id] = (peer, now)
        if len(self._latest) > RAFT_MAX_SERVERS:
            silent = next(iter(self._latest))  # the one whose last heartbeat is oldest
            del self._latest[silent]
            self._past.pop(silent, None)
        self._on_peer(peer)

    def _is_old(self, peer: Peer) -> bool:
        boots = self._past.get(peer.id, {})
        if peer.beat <= boots.get(peer.boot, 0):
            return True
        self._past[peer.id] = boots
        boots.pop(peer.boot, None)  # ordered by last heartbeat
        boots[peer.boot] = peer.beat
        if len(boots) > REMEMBERED_BOOTS:
            del boots[next(iter(boots))]
        return False


def _peer(info: pb.ServerInfoResponse) -> Peer:
    return Peer(
        info.id,
        info.host,
        info.port,
        info.boot,
        info.partitionCount,
        info.leaderCount,
        info.leaving,
        info.beat,
        info.hears,
        info.cluster,
        info.commit,
        info.members,
        info.knowsCleared,
    )
