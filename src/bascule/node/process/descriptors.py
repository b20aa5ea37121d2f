"""How many file descriptors this process may have open, and how they are divided between segments and clients.

The usual limit of 1,024 is a soft limit, from times when programs used select(): it is raised to what the system
allows. The descriptors are divided between segments and clients, with a reserve for everything else (NATS, the
metadata, short-lived files, connections that are about to be refused). So the limit is never reached: a segment that
cannot be opened would make its partition refuse writes, and asyncio accepts no connections without descriptors.
"""

import logging
import resource
from dataclasses import dataclass

from bascule.errors import StartError
from bascule.limits import MAX_CONNECTIONS, MAX_OPEN_FILES, MIN_DESCRIPTORS, RESERVED_DESCRIPTORS

logger = logging.getLogger(__name__)

WANTED = MAX_OPEN_FILES + MAX_CONNECTIONS + RESERVED_DESCRIPTORS


@dataclass(frozen=True, slots=True)
class Descriptors:
    files: int
    connections: int


def share_out(limit: int) -> Descriptors:
    """The shares of a process that may have `limit` descriptors. Raises StartError if that is too few."""
    if limit < MIN_DESCRIPTORS:
        raise StartError(
            f"this process may open {limit} files, a broker needs at least {MIN_DESCRIPTORS}; "
            "raise the limit (ulimit -n, LimitNOFILE of systemd)"
        )
    spare = limit - RESERVED_DESCRIPTORS
    files = min(MAX_OPEN_FILES, spare // 2)
    return Descriptors(files, min(MAX_CONNECTIONS, spare - files))


def claim() -> Descriptors:
    """Raise the soft limit as far as useful, and divide the descriptors."""
    soft, hard = (WANTED if limit == resource.RLIM_INFINITY else limit for limit in _limits())
    if soft < WANTED and soft < hard:
        wanted = min(hard, WANTED)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, _limits()[1]))
            soft = wanted
        except (OSError, ValueError) as error:
            logger.debug("the limit of open files stays at %d: %s", soft, error)
    shares = share_out(soft)
    if soft < WANTED:
        logger.info(
            "this process may open %d files: at most %d clients connect at a time; for more, raise the limit "
            "(ulimit -n, LimitNOFILE of systemd)",
            soft,
            shares.connections,
        )
    return shares


def _limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)
