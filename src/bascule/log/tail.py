"""What a start knows about the end of a log: whether records that were promised may be missing there."""

from enum import Enum
from typing import NamedTuple


class Tail(Enum):
    SURE = "sure"
    """Nothing that was promised is missing at the end: this replica may lead without comparing its log."""
    LIKELY = "likely"
    """It has everything that is on record as promised, but the last promises before a power loss may not be: this
    replica leads once it was compared with another one."""
    SUSPECT = "suspect"
    """Something was torn off at the end: promised records may be among it, other replicas must be asked."""
    SHORT = "short"
    """It ends before what is known to have been promised: other replicas have more, or it is lost."""


class CleanEnd(NamedTuple):
    """Where a clean shutdown left a log. Every record has a CRC that the next start checks, so the CRC of the last one
    stands for the checksum of the segment: with its length and the end it says that all of them are there."""

    end: int
    last_epoch: int
    base: int
    """Of the last segment."""
    size: int
    last_crc: int
    """0 if it is not known."""


class Known(NamedTuple):
    """What was on record about the end of a log before this start."""

    promised: int = 0
    shown: int = 0
    """Everything below was committed or shown: these offsets are not given to other records."""
    suspect: bool = False
    """Something was torn off by an earlier start, and nobody has vouched for the log since."""
    clean: CleanEnd | None = None
    complete: bool = True
    """False if the file that has all this was lost or damaged: then there may have been more on record."""
    exact: bool = True
    """False if it was not the process alone that ended: then more may have been promised than is on record."""


def judge(known: Known, end: int, torn: bool, empty: bool) -> Tail:
    """Of a log that ends there after its recovery, from which something was `torn` off, and that has no files if
    `empty`."""
    if end < known.promised:
        return Tail.SHORT
    if known.clean is not None:
        return Tail.SURE  # what was torn off stood behind the end that is known
    if known.suspect or not (known.complete or empty):
        return Tail.SUSPECT
    if known.exact or empty:
        return Tail.SURE  # the same
    return Tail.SUSPECT if torn else Tail.LIKELY
