"""Who this broker is. The id is written once and wins over the configuration ever after: its partitions carry it."""

import logging

from google.protobuf.message import DecodeError

from bascule.errors import StartError
from bascule.log.checkpoint import read_checkpoint, write_checkpoint
from bascule.ports import Disk, Random
from bascule.wire.pb import internal_pb2 as pb

logger = logging.getLogger(__name__)

FILE = "server"


async def load(disk: Disk) -> str | None:
    """The id this data folder was made with; None for a fresh folder."""
    data = await read_checkpoint(disk, FILE)
    if data is None:
        return None
    try:
        return pb.ServerState.FromString(data).serverID or None
    except DecodeError as error:
        raise StartError(f"the file `{FILE}` in the data folder cannot be read: {error}") from error


async def settle(disk: Disk, random: Random, configured: str, bootstrap: bool) -> str:
    """The stored id, or a new one for a folder that may begin a cluster."""
    stored = await load(disk)
    if stored is not None:
        if configured and configured != stored:
            logger.warning(
                "clustering.server.id is %s, but this data folder belongs to %s: using that",
                configured,
                stored,
            )
        return stored
    if not bootstrap:
        raise StartError(
            "failed to join metadata Raft group: this data folder is new and no cluster answered; "
            "start the first broker of a cluster with --raft-bootstrap-seed"
        )
    broker_id = configured or random.token()
    await write_checkpoint(disk, FILE, pb.ServerState(serverID=broker_id).SerializeToString())
    return broker_id
