"""Whether a replica's log is known to have everything it promised.

A start finds out what it can about the end of a log (`log.tail`). The log is *verified* once this broker has led with
it, or has stored everything that a leader has. The only replica of a partition is always verified: there is no other
log to compare it with. What the next start has to know is stored with the log (`log.promised`).
"""

from collections.abc import Callable

from bascule.log.commitlog import CommitLog
from bascule.log.tail import Tail


class Verification:
    def __init__(self, log: CommitLog, only_replica: bool, on_verified: Callable[[], None]) -> None:
        self._log = log
        self._on_verified = on_verified
        self.verified = only_replica
        """Since this boot."""
        self.tail = log.tail
        """What the start found at the end of the log."""

    @property
    def certain(self) -> bool:
        """The log has everything that it promised: it is verified, or its end is as the last boot left it."""
        return self.verified or (self.tail in (Tail.SURE, Tail.LIKELY) and not self._log.damaged)

    @property
    def sure(self) -> bool:
        """No promised record can be missing. A log that is certain and not sure may lack the last promises before a
        power loss: it is compared with another one before it leads."""
        return self.verified or (self.tail is Tail.SURE and not self._log.damaged)

    def confirm(self) -> None:
        self.verified = True
        self._log.record.hole_closed()
        self._log.record.verify()
        self._on_verified()

    def withdraw(self) -> None:
        """The log may lack records that it had."""
        self.verified = False

    def mark_suspect(self) -> None:
        """The log may lack promised records, also if its end looks complete. A clean shutdown does not change that."""
        self.tail = Tail.SUSPECT
        self._log.record.mark_suspect()
