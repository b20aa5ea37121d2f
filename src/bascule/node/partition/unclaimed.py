"""Folders that no stream claims: a deletion that did not finish, or metadata that was lost. They are never deleted, for
they might be the only copy: they are moved aside, and the log says so."""

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
        logger.warning("%s belongs to no stream: moved to %s, delete it if you do not miss it", folder, aside)
        await disk.make_folder("quarantine")
        await disk.rename(folder, aside)
        await disk.sync_folder("quarantine")
        await disk.sync_folder("streams")
