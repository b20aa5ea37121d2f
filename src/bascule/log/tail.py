"""What a start knows about the end of a log: whether promised records may be missing there."""

from enum import Enum
from typing import NamedTuple


class Tail(Enum):
    SURE = "sure"
    """No promised record is missing at the end: this replica may lead without comparing its log."""
    LIKELY = "likely"
    """It has everything that is on record as promised, but the last promises before a power loss may not be on record:
    this replica leads after its log was compared with another one."""
    SUSPECT = "suspect"
    """Its end was torn, or is not on record: promised records may be missing. Other replicas are asked."""
    SHORT = "short"
    """It ends before its promised end: other replicas have the missing records, or they are lost."""


class CleanEnd(NamedTuple):
    """Where a clean shutdown left a log. Every record has a CRC that the next start checks, so the CRC of the last one
    stands for the checksum of the segment: with its length and the end it shows that all of them are there."""

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
    exposed: int = 0
    """Everything below was committed or exposed: these offsets are not given to other records."""
    suspect: bool = False
    """An earlier start marked the log suspect, and it was not verified since."""
    clean: CleanEnd | None = None
    complete: bool = True
    """False if the file of promised ends was lost or damaged: there may have been more on record."""
    exact: bool = True
    """False after a power loss or a reboot: more may have been promised than is on record."""


def judge(known: Known, end: int, torn: bool) -> Tail:
    """For a log that ends there after its recovery, and whose tail was `torn`. One without any file is no exception:
    its folder may be gone."""
    if end < known.promised:
        return Tail.SHORT
    if known.clean is not None:
        return Tail.SURE  # torn bytes were behind the recorded end
    if known.suspect or not known.complete:
        return Tail.SUSPECT
    if known.exact:
        return Tail.SURE  # as above
    return Tail.SUSPECT if torn else Tail.LIKELY
