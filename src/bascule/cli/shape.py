"""What a folder that `bascule up` is pointed at holds: the data of one broker, or a folder for each of a cluster's.

Opened as the other it would look empty, and a new cluster would begin inside it.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from bascule.cli.output import CommandFailed


def check_shape(folder: Path, brokers: int) -> None:
    """Raises CommandFailed, with the command that opens what is there, if that is not for so many brokers."""
    names = sorted(each.name for each in folder.iterdir() if _is_broker(each)) if folder.is_dir() else []
    if _is_broker(folder):
        there, count, fits = "the data of one broker", "", brokers == 1
    else:
        there, count = f"a cluster of {len(names)} brokers ({', '.join(names)})", f" --brokers {max(len(names), 2)}"
        # Fewer may be there: the disks of others were lost, or they are new.
        fits = not names or 1 < brokers >= len(names)
    if not fits:
        raise CommandFailed(
            f"{folder} holds {there}, and not what {brokers} would use: nothing was started. To open what is there: "
            f"bascule up{count} --data-dir {shlex.quote(str(folder))}; for another cluster name another --data-dir"
        )


def _is_broker(folder: Path) -> bool:
    """It has a state of Raft."""
    raft = folder / "raft"
    return raft.is_dir() and any(raft.iterdir())
