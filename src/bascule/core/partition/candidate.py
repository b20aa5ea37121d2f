"""Whether a replica that is named leader, and whose log was not verified since this boot, may lead.

It knows the state of its own log, and the answers of the others about theirs; it does no I/O and reads no clock. Rules:
- After a clean shutdown, with an unchanged log, it leads without asking (that is decided before).
- If its process was killed and the tail is SURE, it waits for the others a moment.
- If the tail is LIKELY, after a power loss, its last promises may not be on record, and a file truncated between two
  records does not show it. Its log is compared with at least one other in-sync or eligible replica, because a partition
  must survive one damaged replica; for the others it waits a while.
- Any other log is compared with those of all in-sync and eligible replicas. One of these that is certain of its own log
  is enough: it has everything that was committed. It does not lead by a timeout while one has not answered: that one
  may have acked messages that are missing here.
- If its log is short it asks every replica: any may have the missing records.
- With a min ISR of 1 it may be the only complete replica: the only one listed. Then it waits a while, and leads.
- The log with the highest (epoch, end) leads, as in Raft.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bascule.wire.repair import LogEnd

PATIENCE_S = 5.0
"""How long a replica waits for others that may have more, where it need not hear from them."""
SHORT_PATIENCE_S = 1.0
"""And for those that are not in sync: they may have records that this one lost."""


class PeerLog(NamedTuple):
    """The answer of a replica about its own log."""

    log_end: LogEnd
    certain: bool
    """It has everything it promised: by the state of its tail, or because it is verified."""


@dataclass(frozen=True, slots=True)
class Candidate:
    log_end: LogEnd
    likely: bool
    """Its tail is SURE or LIKELY."""
    sure: bool
    """Its tail is SURE: no promised record can be missing."""
    lacks: bool
    """Its log is short: it ends before its promised end."""
    complete: tuple[str, ...]
    """The others in sync or eligible, those too that only died since this replica was named leader."""
    others: tuple[str, ...]
    """All other replicas."""
    least: int
    """How many must be in sync for anything to be committed."""


@dataclass(frozen=True, slots=True)
class Lead:
    unheard: tuple[str, ...]
    """In-sync or eligible replicas that have not answered."""


@dataclass(frozen=True, slots=True)
class GiveWay:
    to: str


@dataclass(frozen=True, slots=True)
class Wait:
    missing: tuple[str, ...]
    """The replicas that must answer before it leads; () if it only waits a moment."""


def decide(own: Candidate, told: Mapping[str, PeerLog], waited_s: float) -> Lead | GiveWay | Wait:
    unheard = _missing(own.complete, told)
    if not any(broker in told and told[broker].certain for broker in own.complete):
        missing = _missing(own.others, told) if own.lacks else unheard
        needed = missing if own.least > 1 else unheard
        alone = len(unheard) == len(own.complete)
        if needed and (not own.likely or (alone and not own.sure)):
            return Wait(needed)
        if missing and waited_s < PATIENCE_S and not own.sure:
            return Wait(())
        if _missing(own.others, told) and waited_s < SHORT_PATIENCE_S:
            return Wait(())
    best = max(told, key=lambda broker: (told[broker].log_end, broker in own.complete, broker), default=None)
    if best is not None and told[best].log_end > own.log_end:
        return GiveWay(best)
    return Lead(unheard)


def _missing(brokers: Sequence[str], told: Mapping[str, PeerLog]) -> tuple[str, ...]:
    return tuple(broker for broker in brokers if broker not in told)
