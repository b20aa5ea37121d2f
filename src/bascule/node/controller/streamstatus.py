"""Which brokers lead a stream, or know that it is gone: the controller asks, every broker answers.

A stream counts as created when its leaders say that they lead; a deletion is over when they say that they know of it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from google.protobuf.message import DecodeError

from bascule.core.metadata.state import Metadata
from bascule.errors import BusUnavailable, DeadlineExceeded
from bascule.node.membership.controllerclient import POLL_S
from bascule.node.membership.garbage import GarbageLog
from bascule.node.membership.requests import Requests
from bascule.node.membership.subjects import Subjects
from bascule.ports import Bus
from bascule.wire.envelope import MsgType, decode_checked, encode
from bascule.wire.nats import messages, pub
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.subjects import usable_subject

logger = logging.getLogger(__name__)

STARTED_TIMEOUT_S = 3.0
"""How long a new stream's leaders are waited for: one may have just died, and the stream exists all the same."""
ASK_EVERY_S = 0.1


class StreamStatus:
    def __init__(
        self, own: str, subjects: Subjects, bus: Bus, requests: Requests, metadata: Callable[[], Metadata]
    ) -> None:
        self._leads_here: Callable[[int], bool]
        self._own = own
        self._subjects = subjects
        self._bus = bus
        self._requests = requests
        self._metadata = metadata
        self._garbage = GarbageLog(logger, "a question about a stream")

    def listen(self, leads_here: Callable[[int], bool]) -> None:
        """`leads_here` says whether everything of a stream that this broker should lead is being led."""
        self._leads_here = leads_here
        self._bus.subscribe(self._subject(self._own), self._on_batch)

    def _subject(self, broker: str) -> bytes:
        return self._subjects.within(f"raft.metadata.status.{broker}")

    # --- asking ----------------------------------------------------------------------------------------------

    async def started(self, leaders: Iterable[str], creation_index: int) -> None:
        """Returns when every leader of the stream leads, or after a while: it exists either way."""
        waiting = dict.fromkeys(leaders)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STARTED_TIMEOUT_S
        while waiting and loop.time() < deadline:
            for leader in list(waiting):
                if await self._leads(leader, creation_index):
                    del waiting[leader]
            if waiting:
                await asyncio.sleep(POLL_S)

    async def _leads(self, broker: str, creation_index: int) -> bool:
        if broker == self._own:
            return self._leads_here(creation_index)
        status = await self._ask(broker, creation_index)
        return status is not None and status.isLeader

    async def knows_that_it_is_gone(self, broker: str, creation_index: int) -> bool:
        status = await self._ask(broker, creation_index)
        return status is not None and not status.exists

    async def _ask(self, broker: str, creation_index: int) -> pb.PartitionStatusResponse | None:
        request = pb.PartitionStatusRequest(creationIndex=creation_index).SerializeToString()
        kinds = (MsgType.PARTITION_STATUS_REQUEST, MsgType.PARTITION_STATUS_RESPONSE)
        try:
            data = await self._requests.ask(self._subject(broker), kinds[0], request, kinds[1], ASK_EVERY_S)
            return pb.PartitionStatusResponse.FromString(data)
        except (DeadlineExceeded, BusUnavailable, DecodeError):
            return None

    # --- answering -------------------------------------------------------------------------------------------

    def exists(self, creation_index: int) -> bool:
        """Whether that stream is there, or is to come, as far as this broker knows."""
        metadata = self._metadata()
        known = any(stream.creation_index == creation_index for stream in metadata.streams.values())
        return known or metadata.index < creation_index

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            payload = decode_checked(message.payload, MsgType.PARTITION_STATUS_REQUEST)
            if payload is None or not usable_subject(message.reply):
                continue
            try:
                index = pb.PartitionStatusRequest.FromString(bytes(payload)).creationIndex
            except DecodeError as error:
                self._garbage.say(error)
                continue
            response = pb.PartitionStatusResponse(exists=self.exists(index), isLeader=self._leads_here(index))
            try:
                answer = encode(MsgType.PARTITION_STATUS_RESPONSE, response.SerializeToString(), crc=True)
                self._bus.send(pub(message.reply, answer))
            except BusUnavailable:
                pass  # asked again
