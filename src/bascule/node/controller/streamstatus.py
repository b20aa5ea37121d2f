"""What brokers know about a stream: the controller asks, every broker answers.

CreateStream and ResumeStream return when the leaders answer that they lead, DeleteStream when all replicas answer that
the stream is gone, PauseStream, SetStreamReadonly, AlterStream and SetHold when all have carried the command out.
"""

import asyncio
from collections.abc import Iterable, Sequence

from bascule.core.metadata.streams import Partition
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import STREAM_STATUS
from bascule.node.membership.controllerclient import POLL_S
from bascule.node.membership.metadata import MetadataStore
from bascule.node.partition.replicas import Replicas
from bascule.wire.pb import internal_pb2 as pb

STARTED_TIMEOUT_S = 3.0
"""How long CreateStream waits for the leaders: one may have just died, and the stream exists anyway."""
ASK_EVERY_S = 0.1


class StreamStatus:
    def __init__(self, own: str, calls: Calls, store: MetadataStore, replicas: Replicas) -> None:
        self._own = own
        self._calls = calls
        self._store = store
        self._replicas = replicas

    def listen(self) -> None:
        self._calls.subscribe(self._calls.subjects.status(self._own), self._on_questions)

    # --- asking ----------------------------------------------------------------------------------------------

    async def started(self, partitions: Iterable[Partition], creation_index: int, all_of_stream: bool = True) -> None:
        """Returns when the leaders of these partitions lead, or after STARTED_TIMEOUT_S: the stream exists either way.
        Nobody is waited for where nobody can lead. A broker is asked for `all_of_stream` that it leads; or for those
        partitions only, whatever keeps it from leading others."""
        waiting: dict[str, list[int]] = {}
        for item in partitions:
            if item.leader:
                waiting.setdefault(item.leader, []).append(item.id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STARTED_TIMEOUT_S
        while waiting and loop.time() < deadline:
            for leader, numbers in list(waiting.items()):
                if await self._leads(leader, creation_index, () if all_of_stream else numbers):
                    del waiting[leader]
            if waiting:
                await asyncio.sleep(POLL_S)

    async def _leads(self, broker: str, creation_index: int, partitions: Sequence[int]) -> bool:
        """All that it should lead of that stream, or of these partitions."""
        if broker == self._own:
            return self._replicas.leads_all_it_should(creation_index, partitions)
        status = await self._ask(broker, creation_index, partitions)
        return status is not None and status.isLeader

    async def knows_that_it_is_gone(self, broker: str, creation_index: int) -> bool:
        if broker == self._own:
            return not self.exists(creation_index)
        status = await self._ask(broker, creation_index)
        return status is not None and not status.exists

    async def has_carried_out(self, broker: str, index: int) -> bool:
        """Whether its replicas are as the command at this index has them."""
        if broker == self._own:
            return self._replicas.carried_out_index >= index
        status = await self._ask(broker, 0)
        return status is not None and status.carriedOut >= index

    async def _ask(
        self, broker: str, creation_index: int, partitions: Sequence[int] = ()
    ) -> pb.PartitionStatusResponse | None:
        question = pb.PartitionStatusRequest(creationIndex=creation_index, partitions=partitions)
        return await self._calls.ask_once(self._calls.subjects.status(broker), STREAM_STATUS, question, ASK_EVERY_S)

    # --- answering -------------------------------------------------------------------------------------------

    def exists(self, creation_index: int) -> bool:
        """Whether that stream exists, or its creation is not applied here yet."""
        metadata = self._store.metadata
        known = any(stream.creation_index == creation_index for stream in metadata.streams.values())
        return known or metadata.index < creation_index

    def _on_questions(self, batch: bytes, count: int) -> None:
        for message in self._calls.received(batch, STREAM_STATUS.question):
            with message as payload:
                question = STREAM_STATUS.question.decode(payload)
                self._calls.tell(message.reply, STREAM_STATUS.answer, self._answer(question))

    def _answer(self, question: pb.PartitionStatusRequest) -> pb.PartitionStatusResponse:
        index = question.creationIndex
        return pb.PartitionStatusResponse(
            exists=self.exists(index),
            isLeader=self._replicas.leads_all_it_should(index, question.partitions),
            carriedOut=self._replicas.carried_out_index,
        )
