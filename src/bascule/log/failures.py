"""Why a log takes no writes, for an operator: what happened, what it means, what to do."""

import errno

from bascule.errors import LogError


def storage_error(path: str, error: OSError) -> LogError:
    if error.errno in (errno.ENOENT, errno.ESTALE):
        return lost_error(path)
    advice = "free space on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the disk"
    return LogError(
        f"{path}: storing records failed: {error.strerror or error}; nothing that was acked is lost, reads go on; "
        f"{advice}: writes go on by themselves once it works"
    )


def lost_error(path: str) -> LogError:
    """`path` is a file or a folder that is not where it was put."""
    return LogError(
        f"{path} was removed, moved or replaced while the broker runs; what was acked in the second before this was "
        "noticed may be lost with it. If another replica is in sync it leads, and this one gets its records back from "
        "there; if none is, put it back, and writes go on by themselves, or, if it is gone for good, start the broker "
        "again: it goes on with what is left and says what is missing"
    )
