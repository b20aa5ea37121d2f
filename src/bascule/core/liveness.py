"""Which brokers are alive, as the controller sees it.

Every broker sends four heartbeats in a session. A broker without a heartbeat for a session is dead; one with another
boot id died in between, however short it was. A new controller gives each broker the rest of a session, counted from
the last heartbeat that its own broker received, or from when it began to listen; at least the time of a heartbeat.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class _Session:
    boot: str
    heard_at: int
    since: int
    """Since then no two heartbeats were a session apart."""
    dead: bool = False


class Liveness:
    def __init__(self, session_ns: int, grace_ns: int = 0) -> None:
        self._session_ns = session_ns
        self._grace_ns = grace_ns
        self._sessions: dict[str, _Session] = {}

    def begin(self, brokers: dict[str, int], now: int) -> None:
        """We just became controller; `brokers` has when our broker received the last heartbeat of each."""
        earliest = now - self._session_ns + self._grace_ns
        self._sessions = {broker: _Session("", max(at, earliest), now) for broker, at in brokers.items()}

    def heard(self, broker: str, boot: str, now: int) -> bool:
        """A heartbeat. True if the broker restarted since the last one, unnoticed: its leaderships go to others."""
        session = self._sessions.get(broker)
        if session is None or session.boot != boot:
            reborn = session is not None and bool(session.boot) and not session.dead
            self._sessions[broker] = _Session(boot, now, now)
            return reborn
        if session.dead:
            session.since = now
        session.heard_at = now
        session.dead = False
        return False

    def left(self, broker: str) -> None:
        """It announced its stop, or is no member any more."""
        self._sessions.pop(broker, None)

    def expired(self, now: int) -> list[str]:
        """Brokers whose session ended since the last call."""
        late = [
            broker
            for broker, session in self._sessions.items()
            if not session.dead and now - session.heard_at > self._session_ns
        ]
        for broker in late:
            self._sessions[broker].dead = True
        return late

    def alive(self, broker: str) -> bool:
        session = self._sessions.get(broker)
        return session is not None and not session.dead

    def heard_for(self, broker: str, now: int) -> int | None:
        """For how many ns its heartbeats have come since this boot; None if it is dead, or none came yet."""
        session = self._sessions.get(broker)
        return now - session.since if session is not None and session.boot and not session.dead else None

    def undecided(self, broker: str) -> bool:
        """Counted as alive, but only because we are a new controller: no heartbeat has come from it yet."""
        session = self._sessions.get(broker)
        return session is not None and not session.dead and not session.boot
