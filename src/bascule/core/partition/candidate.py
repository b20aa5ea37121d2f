"""Whether a replica that is to lead, and whose log nobody vouches for in this life, may.

It may know how sure it is of the end of its own log, and what the others said about theirs; it asks nobody, and reads
no clock. The rules:
- A log that a clean shutdown left as it is leads without asking (that is decided before).
- One that is sure of its end after its process was killed gives the others a moment.
- One that is sure of its end after a power loss may still lack what it promised in its last moments: that is not on
  record, and a file cut between two records does not show it. It is compared with one other in sync or eligible at
  least, for one damaged replica is what a partition must survive; for the rest of them it waits a while.
- Any other is compared with the logs of all that are in sync or eligible; one of these that is certain of its own end
  is enough, for it has everything that was committed. While one is unheard and more than one replica must be in sync,
  time alone never makes a leader: the one that is away may have acked messages that are missing here.
- One that is known to lack something asks every replica, for what it lacks may be on any.
- Where one replica in sync is enough to commit, this one may be all there ever is: it waits a while, and leads.
- The fullest log leads: by epoch, then by end, as in Raft.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bascule.wire.repair import LogEnd

PATIENCE_S = 5.0
"""How long a replica waits for others in sync where one is enough to commit."""
SHORT_PATIENCE_S = 1.0
"""And for those that are not in sync: they may have more all the same, if this one lost it."""


class Account(NamedTuple):
    """What a replica says about its own log."""

    log_end: LogEnd
    certain: bool
    """It is sure to have everything it promised: by its clean end, or because it has caught up with a leader since."""


@dataclass(frozen=True, slots=True)
class Candidate:
    log_end: LogEnd
    sure: bool
    """Its log ends as it was left, as far as it can tell."""
    exact: bool
    """And nothing that it promised can be missing: it was the process alone that ended."""
    lacks: bool
    """Its log is known to end before what it had promised."""
    complete: tuple[str, ...]
    """The others in sync or eligible."""
    others: tuple[str, ...]
    """All other replicas."""
    least: int
    """How many must be in sync for anything to be committed."""


class Lead(NamedTuple):
    unheard: tuple[str, ...]
    """In sync or eligible, and not compared with."""


class GiveWay(NamedTuple):
    to: str


class Wait(NamedTuple):
    missing: tuple[str, ...]
    """Who has to be heard before anybody leads; () if this is a matter of a moment."""


def decide(own: Candidate, told: Mapping[str, Account], waited_s: float) -> Lead | GiveWay | Wait:
    unheard = _missing(own.complete, told)
    if not any(broker in told and told[broker].certain for broker in own.complete):
        missing = _missing(own.others, told) if own.lacks else unheard
        alone = len(unheard) == len(own.complete)
        if missing and own.least > 1 and (not own.sure or (alone and not own.exact)):
            return Wait(missing)
        if missing and waited_s < PATIENCE_S and not own.exact:
            return Wait(())
        if _missing(own.others, told) and waited_s < SHORT_PATIENCE_S:
            return Wait(())
    best = max(told, key=lambda broker: (told[broker].log_end, broker in own.complete, broker), default=None)
    if best is not None and told[best].log_end > own.log_end:
        return GiveWay(best)
    return Lead(unheard)


def _missing(brokers: Sequence[str], told: Mapping[str, Account]) -> tuple[str, ...]:
    return tuple(broker for broker in brokers if broker not in told)
