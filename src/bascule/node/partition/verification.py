"""Whether a replica's log is known to have everything it promised.

A start finds out what it can about the end of a log (`log.tail`). The log is *verified* once this broker has led with
it, or has stored everything that a leader has; of a partition with one replica there is nothing to compare it with.
What is on record about it for the next start is kept with the log (`log.promised`).
"""

from bascule.log.commitlog import CommitLog
from bascule.log.tail import Tail


class Verification:
    def __init__(self, log: CommitLog, only_replica: bool) -> None:
        self._log = log
        self.verified = only_replica
        """Since this broker started."""
        self.tail = log.tail
        """What the start found at the end of the log."""

    @property
    def certain(self) -> bool:
        """It has everything it promised: it is verified, or its log ends as it was left."""
        return self.verified or (self.tail in (Tail.SURE, Tail.LIKELY) and not self._log.damaged)

    def confirm(self) -> None:
        self.verified = True
        self._log.record.hole_closed()
        self._log.record.verify()

    def withdraw(self) -> None:
        """Something may be missing that was there before."""
        self.verified = False

    def mark_suspect(self) -> None:
        """Nothing is known about the end of the log, whatever it looks like. A clean shutdown does not change that."""
        self.tail = Tail.SUSPECT
        self._log.record.mark_suspect()
