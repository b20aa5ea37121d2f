"""The id of this broker. It is stored once and then wins over the configuration: replicas are placed by it."""

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
    """The id that is stored in this data folder; None if there is none."""
    data = await read_checkpoint(disk, FILE)
    if data is None:
        if await disk.size(FILE) is None:
            return None
        raise _unreadable("it is torn or damaged")
    try:
        broker_id = pb.ServerState.FromString(data).serverID
    except DecodeError:
        raise _unreadable("its content is not an id") from None
    if not broker_id:
        raise _unreadable("it has no id")
    return broker_id


def _unreadable(why: str) -> StartError:
    return StartError(
        f"the file `{FILE}` in the data folder, which has the id of this broker, cannot be used: {why}; restore it "
        "from a copy, or move it away and set clustering.server.id to the id this broker had (its earlier logs name it)"
    )


async def load_or_create(disk: Disk, random: Random, configured: str) -> str:
    """The stored id, or a new one for a new folder."""
    stored = await load(disk)
    if (stored or configured) and not usable_id(stored or configured):
        raise StartError(
            f"{stored or configured!r} is not a valid broker id: it is reserved in internal subjects, or is not a "
            "single token of a subject; start with another clustering.server.id and an empty data folder"
        )
    if stored is not None:
        if configured and configured != stored:
            logger.warning(
                "clustering.server.id is %s, but this data folder belongs to broker %s: this broker runs as %s",
                configured,
                stored,
                stored,
            )
        return stored
    if not configured and await disk.list("raft"):
        raise StartError(
            f"this data folder has streams, but the file `{FILE}`, which has the id of this broker, is missing; "
            "restore it from a copy, or set clustering.server.id to the id this broker had (its earlier logs name it)"
        )
    broker_id = configured or random.token()
    await write_checkpoint(disk, FILE, pb.ServerState(serverID=broker_id).SerializeToString())
    return broker_id
