"""Folders that belong to no stream: a deletion did not finish, or metadata was lost. They may be the only copy, so they
are never deleted: they are moved to quarantine, with a line in the log."""

import logging
from collections.abc import Container

from bascule.ports import Clock, Disk

logger = logging.getLogger(__name__)


async def set_aside_unclaimed(disk: Disk, clock: Clock, claimed: Container[str]) -> None:
    for name in await disk.list("streams"):
        folder = f"streams/{name}"
        if folder in claimed:
            continue
        aside = f"quarantine/{clock.time_ns()}-{name}"
        logger.warning("%s belongs to no stream, and is moved to %s; delete it if you do not need it", folder, aside)
        await disk.make_folder("quarantine")
        await disk.rename(folder, aside)
        await disk.sync_folder("quarantine")
        await disk.sync_folder("streams")
