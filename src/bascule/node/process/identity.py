"""Who this broker is. The id is written once and wins over the configuration ever after: its partitions carry it."""

import logging

from google.protobuf.message import DecodeError

from bascule.errors import StartError
from bascule.log.checkpoint import read_checkpoint, write_checkpoint
from bascule.ports import Disk, Random
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.subjects import usable_id

logger = logging.getLogger(__name__)

FILE = "server"


async def load(disk: Disk) -> str | None:
    """The id this data folder was made with; None for a folder without one."""
    data = await read_checkpoint(disk, FILE)
    if data is None:
        if await disk.size(FILE) is None:
            return None
        raise _unreadable("it is torn or damaged")
    try:
        broker_id = pb.ServerState.FromString(data).serverID
    except DecodeError:
        raise _unreadable("it holds something else") from None
    if not broker_id:
        raise _unreadable("it holds no id")
    return broker_id


def _unreadable(why: str) -> StartError:
    return StartError(
        f"the file `{FILE}` in the data folder, which says who this broker is, cannot be used: {why}; restore it from "
        "a copy, or move it away and set clustering.server.id to the id this broker had (its earlier logs name it)"
    )


async def settle(disk: Disk, random: Random, configured: str) -> str:
    """The stored id, or a new one for a new folder."""
    stored = await load(disk)
    if (stored or configured) and not usable_id(stored or configured):
        raise StartError(
            f"{stored or configured!r} cannot be the id of a broker: it is a word of internal subjects, or no single "
            "token of one; start with another clustering.server.id and an empty data folder"
        )
    if stored is not None:
        if configured and configured != stored:
            logger.warning(
                "clustering.server.id is %s, but this data folder belongs to %s: using that",
                configured,
                stored,
            )
        return stored
    if not configured and await disk.list("raft"):
        raise StartError(
            f"this data folder holds streams, but the file `{FILE}`, which says who this broker is, is missing; "
            "restore it from a copy, or set clustering.server.id to the id this broker had (its earlier logs name it)"
        )
    broker_id = configured or random.token()
    await write_checkpoint(disk, FILE, pb.ServerState(serverID=broker_id).SerializeToString())
    return broker_id
