"""What a start knows about the end of a log: whether records that were promised may be missing there."""

from enum import Enum


class Tail(Enum):
    SURE = "sure"
    """Nothing that was promised is missing at the end: this replica may lead without comparing its log."""
    UNSURE = "unsure"
    """Something was torn off at the end: promised records may be among it, other replicas must be asked."""
    SHORT = "short"
    """It ends before what is known to have been promised: other replicas have more, or it is lost."""
