"""Notices within a second that files of a running broker are removed, moved or replaced: segments, folders, or the
whole data folder.

A pass looks at paths, all in one call to a thread: the data folder and its lock, the files of the metadata, every log
that has stored records since the last pass, and some of the others in turn. So the cost of a pass has a bound: an idle
broker with ten thousand partitions spends a fraction of a percent of a core. Missing files of an idle log are noticed
when its turn comes; nothing is acked there meanwhile, for a log that stores records is checked in the next pass.

A log whose files are gone takes no writes (see `log.presence`). Without its data folder or its metadata a broker makes
no promises: it takes no writes, neither votes nor stores metadata, and reports that it is not serving, until they are
back.
"""

import asyncio
import errno
import itertools
import logging
from collections.abc import Callable, Iterator

from bascule import limits
from bascule.log.commitlog import CommitLog
from bascule.log.raftlog import RaftStorage
from bascule.log.sync import SyncScheduler
from bascule.ports import Disk, Seen

logger = logging.getLogger(__name__)

CHECK_EVERY_S = 0.5


class FileWatch:
    def __init__(
        self,
        disk: Disk,
        scheduler: SyncScheduler,
        storage: RaftStorage,
        logs: Callable[[], list[CommitLog]],
        on_gone: Callable[[], None],
    ) -> None:
        """`on_gone` is called when `gone` has changed."""
        self.gone = ""
        """Why this broker can promise nothing; empty if it can."""
        self._on_gone = on_gone
        self._disk = disk
        self._scheduler = scheduler
        self._storage = storage
        self._logs = logs
        self._metadata: Seen | None = None
        self._turn: Iterator[CommitLog] = iter(())
        self._many = False
        """There are so many logs that only the folders of idle ones are checked."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                await self.check()
            except OSError as error:
                logger.debug("the files were not checked this time: %s", error)

    async def check(self) -> None:
        """One pass. Raises OSError if the disk does not answer."""
        written, others = self._written(), self._others()
        self._look_again(*written)
        found = [(log, log.presence.file_check()) for log in written]
        found += [(log, log.presence.file_check(self._many)) for log in others if log not in written]
        checks = [(log, file_check) for log, file_check in found if file_check is not None]
        metadata = self._storage.paths
        paths = [*metadata, *(path for _, file_check in checks for path in file_check.paths)]
        try:
            seen = await self._disk.look(paths)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self._lose_all(f"the data folder {error.filename or ''}".strip(), str(error.strerror))
            return
        if not self._metadata_is_there(metadata, seen[: len(metadata)]):
            return
        start = len(metadata)
        for log, file_check in checks:
            end = start + len(file_check.paths)
            if not log.presence.unchanged(file_check, seen[start:end]):
                if log.presence.busy:  # verifying it would block this pass
                    self._look_again(log)
                else:
                    await log.presence.verify()
            start = end

    def _look_again(self, *logs: CommitLog) -> None:
        """Check logs whose files are being changed in the next pass."""
        self._scheduler.stored.update(dict.fromkeys(log for log in logs if log.presence.busy))

    def _written(self) -> dict[CommitLog, None]:
        stored = self._scheduler.stored
        some = [log for log, _ in zip(stored, range(limits.WRITTEN_LOGS_LOOKED_AT), strict=False)]
        for log in some:
            del stored[log]
        return {log: None for log in some if isinstance(log, CommitLog)}

    def _others(self) -> list[CommitLog]:
        some = list(itertools.islice(self._turn, limits.IDLE_PATHS_LOOKED_AT))
        if len(some) < limits.IDLE_PATHS_LOOKED_AT:
            logs = self._logs()
            self._turn = iter(logs)
            self._many = 2 * len(logs) > limits.IDLE_PATHS_LOOKED_AT
        return some

    # --- the whole broker --------------------------------------------------------------------------------------

    def _metadata_is_there(self, paths: list[str], seen: list[Seen | None]) -> bool:
        """Whether the folder is the same as before, and the file that is written is in it."""
        folder = seen[0]
        missing = next((path for path, each in zip(paths, seen, strict=True) if each is None or not each.same), "")
        if not missing and folder is not None:
            self._metadata = self._metadata or folder
            if self._metadata.identity == folder.identity:
                self._all_back()
                return True
        if self._metadata is None:
            return True  # there is none yet
        self._lose_all(missing or paths[0], "removed, moved or replaced")
        return False

    def _lose_all(self, what: str, how: str) -> None:
        if self.gone:
            return
        self.gone = (
            f"{what} was {how} while this broker runs: what it stores now would not be there at its next start. It "
            "takes no writes, and neither votes nor stores metadata; messages acked in the second before this was "
            "noticed may be lost. Put it back as it was, and the broker goes on by itself; if it is gone for good, "
            "restart the broker: it starts without the lost files, and copies from other brokers what they have"
        )
        logger.error("%s", self.gone)
        self._storage.lose(self.gone)
        for log in self._logs():
            log.lose(what)
        self._on_gone()

    def _all_back(self) -> None:
        if self.gone:
            self.gone = ""
            logger.warning("the data folder is back where it was: this broker goes on")
            self._storage.found()
            self._on_gone()
