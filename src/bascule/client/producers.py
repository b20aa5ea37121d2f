"""Idempotent producers: messages are numbered, so that those that are sent again are stored once. Bascule only.

A producer belongs to one run of `publish_many` at a time. When all its messages are confirmed the next run goes on with
its numbers; after anything else it is given up, because it is not known what is stored of it, and the next run begins
with a new one. A server that does not know producers is asked again after a while: the brokers of a cluster may be
upgraded one by one.

A message is prepared once: its partition, its number and its bytes stay the same however often it is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline
from bascule.client.requests import Encoder, Prepared, partition_for, unfit
from bascule.client.values import Outgoing, Stream
from bascule.errors import DeadlineExceeded, InvalidArgument, Unavailable, Unimplemented
from bascule.wire.pb import producer_pb2 as pb
from bascule.wire.producers import producer_prefix

logger = logging.getLogger(__name__)

Prepare = Callable[[bytes | Outgoing, int], Prepared]
"""Takes a message and its number overall."""

INIT_PRODUCER = "/bascule.v1.Producers/InitProducer"


class ProducerSession:
    def __init__(self, answer: pb.InitProducerResponse) -> None:
        self._identity = (answer.id, answer.epoch, answer.creation)
        self._begun_anew: dict[int, tuple[int, int, int]] = {}
        """Partitions where it has another identity."""
        self._prefixes: dict[int, bytes] = {}
        self._next: dict[int, int] = {}

    def number(self, partition: int) -> bytes:
        """What the next message to this partition says of its producer."""
        return self.numbers(partition, 1)

    def numbers(self, partition: int, count: int) -> bytes:
        """What the first of the next `count` messages to this partition says. The others have the next sequences."""
        sequence = self._next.get(partition, 0)
        if sequence == 0:
            identity = self._begun_anew.get(partition, self._identity)
            self._prefixes[partition] = producer_prefix(*identity, partition)
        self._next[partition] = sequence + count
        return self._prefixes[partition] + sequence.to_bytes(8, "little")

    def begin_anew(self, partition: int, answer: pb.InitProducerResponse) -> None:
        """Under another identity, with the number 0. No number of the old one is ever used again there: late copies
        of messages that have them are refused for ever."""
        self._begun_anew[partition] = answer.id, answer.epoch, answer.creation
        self._next.pop(partition, None)


class _Idle(NamedTuple):
    """Of one stream: another one of the same name that was made again has others."""

    creation_timestamp: int
    sessions: list[ProducerSession]


class Producers:
    """Of one client: those that no run uses now."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._idle: dict[str, _Idle] = {}
        self._unknown_until = float("-inf")
        """Until then the server counts as one that does not know producers."""
        self._said = False

    async def take(self, stream: Stream, deadline: Deadline) -> ProducerSession | None:
        """None where messages cannot be numbered."""
        clock = asyncio.get_running_loop().time
        if clock() < self._unknown_until:
            return None
        idle = self._idle.pop(stream.name, None)
        if idle is not None and idle.creation_timestamp == stream.creation_timestamp and idle.sessions:
            self._idle[stream.name] = idle
            return idle.sessions.pop()
        try:
            return ProducerSession(await self._init(stream.name, deadline))
        except Unimplemented:
            self._unknown_until = clock() + limits.CLIENT_PRODUCERS_AGAIN_S
            return None

    async def begin_anew(self, producer: ProducerSession, stream: str, partition: int, deadline: Deadline) -> None:
        """Nothing that it numbered for this partition, and that has no ack, may be stored there."""
        producer.begin_anew(partition, await self._init(stream, deadline))

    async def _init(self, stream: str, deadline: Deadline) -> pb.InitProducerResponse:
        request = pb.InitProducerRequest(stream=stream).SerializeToString()
        answer = await self._cluster.ask_any(INIT_PRODUCER, request, deadline, limits.CLIENT_CONNECT_TRY_S)
        return pb.InitProducerResponse.FromString(answer)

    def say_at_least_once(self) -> None:
        """Once: messages are about to be sent again without numbers."""
        if not self._said:
            self._said = True
            logger.warning(
                "this server does not number messages (it is no Bascule, or an older one): those that are sent again "
                "after a lost connection may be stored twice"
            )

    def give_back(self, stream: Stream, producer: ProducerSession) -> None:
        """All its messages are confirmed."""
        idle = self._idle.pop(stream.name, None)
        if idle is None or idle.creation_timestamp != stream.creation_timestamp:
            idle = _Idle(stream.creation_timestamp, [])
        idle.sessions.append(producer)
        self._idle[stream.name] = idle
        if len(self._idle) > limits.CLIENT_IDLE_PRODUCERS:
            del self._idle[next(iter(self._idle))]


class Numbering:
    """Of one run: which numbers its messages have."""

    def __init__(
        self,
        producers: Producers,
        cluster: Cluster,
        stream: Stream,
        session: ProducerSession,
        preparing: Callable[[ProducerSession, int], Prepare],
    ) -> None:
        """`preparing` takes the number of partitions, too."""
        self._producers = producers
        self._cluster = cluster
        self._stream = stream
        self._session = session
        self._preparing = preparing
        self.prepare = preparing(session, len(stream.partitions))

    async def begin_anew(self, partition: int) -> None:
        """Unavailable if nobody answers in time."""
        name, deadline = self._stream.name, Deadline(limits.CLIENT_TIMEOUT_S)
        self._cluster.forget(name)  # it may have been made again, with other partitions
        try:
            known = await self._cluster.stream(name, deadline)
            await self._producers.begin_anew(self._session, name, partition, deadline)
        except DeadlineExceeded as error:
            raise Unavailable(f"no broker gives a producer for stream {name}: {error}") from error
        if known.creation_timestamp != self._stream.creation_timestamp:
            self._stream = known
            self.prepare = self._preparing(self._session, len(known.partitions))

    def numbered_anew(self, message: Prepared) -> Prepared:
        return message.numbered_by(self._session.number(message.partition))

    def give_back(self) -> None:
        """All messages are confirmed, or are known not to be stored."""
        self._producers.give_back(self._stream, self._session)


def preparing(
    producer: ProducerSession, encoder: Encoder, partitions: int, keyless: Sequence[int], partition: int | None
) -> Prepare:
    """Prepares messages, each with its number overall: those without a key take the partitions `keyless` in turn."""
    turns = [partition] if partition is not None else keyless

    def prepare(value: bytes | Outgoing, overall: int) -> Prepared:
        message = value if isinstance(value, Outgoing) else Outgoing(value)
        try:
            if message.partition is not None:
                chosen = message.partition
            elif partition is None and message.key:
                chosen = partition_for(message.key, partitions)
            else:
                chosen = turns[overall % len(turns)]
            return encoder.prepare(message, chosen, producer.number)
        except (TypeError, AttributeError, ValueError):
            raise InvalidArgument(unfit(value) or "it is neither bytes nor an Outgoing") from None

    return prepare
