"""Whether the data folder of `bascule up` has the data of one broker, or a folder for each broker of a cluster.

Opened as the other kind it would look empty, and a new cluster would be founded inside it.
"""

from __future__ import annotations

import shlex
import string
from pathlib import Path

from bascule import limits
from bascule.cli.output import CommandFailed

_MEMBERS = string.ascii_lowercase[: limits.LOCAL_BROKERS]


def check_shape(folder: Path, brokers: int) -> None:
    """Raises CommandFailed, with the command that opens what is there, if that is not for so many brokers."""
    names = sorted(each.name for each in folder.iterdir() if _is_broker(each)) if folder.is_dir() else []
    # Brokers have letters as names, and the first so many are started: with folders a, c and d, four are needed.
    needed = max(2, len(names), *(string.ascii_lowercase.find(name) + 1 for name in names)) if names else 1
    removed = ""
    path = folder
    if _is_broker(folder):
        there, count, fits = "the data of one broker", "", brokers == 1
    elif len(names) == 1 and names[0] not in _MEMBERS:
        there, count, fits, path = f"a folder {names[0]} with the data of one broker", "", False, folder / names[0]
    else:
        there, count = f"a cluster of {len(names)} brokers ({', '.join(names)})", f" --brokers {needed}"
        # There may be fewer folders: the disks of other brokers were lost, or they are new.
        fits = not names or 1 < brokers >= needed
        if brokers > 1:
            removed = ". A broker that `bascule cluster remove` took out leaves its folder behind: delete it first"
    if not fits:
        raise CommandFailed(
            f"{folder} holds {there}, and not what {brokers} would use: nothing was started. To open what is there: "
            f"bascule up{count} --data-dir {shlex.quote(str(path))}; for another cluster name another --data-dir"
            f"{removed}"
        )


def _is_broker(folder: Path) -> bool:
    """It has the state of Raft."""
    raft = folder / "raft"
    return raft.is_dir() and any(raft.iterdir())
