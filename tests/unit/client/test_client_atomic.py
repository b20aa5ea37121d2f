"""Atomic batches of the client: what is sent again, under which numbers, and what is said when it fails."""

import asyncio
from typing import Any, cast

import pytest

from bascule.client.atomic import PUBLISH_BATCH, AtomicBatches, StoredBatch
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline
from bascule.client.producers import Producers
from bascule.client.values import Partition, Stream
from bascule.errors import (
    AckError,
    BasculeError,
    FailedPrecondition,
    RpcError,
    SendTimeout,
    Status,
    Unavailable,
    Unconfirmed,
    Unimplemented,
)
from bascule.wire.pb import producer_pb2 as pb
from bascule.wire.producers import REFUSALS, numbered, producer_prefix

STORED = pb.PublishBatchResponse(firstOffset=4)
LOST = RpcError(Status.UNAVAILABLE, "connection lost")


def refused(error: AckError) -> RpcError:
    return RpcError(Status.FAILED_PRECONDITION, REFUSALS[error])


class Server:
    """A cluster, and the broker that answers: `answers` one after the other, the last one for ever."""

    def __init__(self, *answers: pb.PublishBatchResponse | RpcError | Unavailable, knows: bool = True) -> None:
        self._answers = list(answers)
        self._knows = knows
        self._begun = 0
        self.numbers: list[bytes] = []

    async def ask_any(self, method: str, request: bytes, deadline: Deadline, try_s: float | None = None) -> bytes:
        if not self._knows:
            raise Unimplemented("unknown service bascule.v1.Producers")
        self._begun += 1
        return pb.InitProducerResponse(id=self._begun, epoch=self._begun, creation=7).SerializeToString()

    async def stream(self, name: str, deadline: Deadline) -> Stream:
        partition = Partition(0, "a", ("a",), ("a",), 0, 0, False, False)
        return Stream(name, name, {0: partition, 1: partition}, 100)

    async def publisher(self, stream: str, partition: int, deadline: Deadline) -> "Server":
        if isinstance(self._answers[0], Unavailable):
            raise self._answers[0]
        return self

    def known_leader(self, stream: str, partition: int, now: float) -> None:
        """None: nobody is asked who leads."""

    def suspect(self, stream: str) -> None:
        pass

    async def unary(self, method: str, request: bytes, timeout: float) -> bytes:
        assert method == PUBLISH_BATCH
        self.numbers.append(pb.PublishBatchRequest.FromString(request).producer)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, RpcError):
            raise answer
        return cast(pb.PublishBatchResponse, answer).SerializeToString()


def store(server: Server, batches: int = 1, retry_for: float = 5.0) -> list[StoredBatch]:
    async def main() -> list[StoredBatch]:
        cluster = cast(Cluster, server)
        sender = AtomicBatches(cluster, Producers(cluster), "s", retry_for, 1.0)
        return [await sender.store([b"a", b"b"], None) for _ in range(batches)]

    return asyncio.run(main())


def of(id: int, sequence: int) -> bytes:
    return numbered(producer_prefix(id, id, 7, 0), sequence)


def test_batches_of_one_producer_have_their_numbers_in_a_row() -> None:
    server = Server(STORED)
    assert store(server, 3) == [StoredBatch("s", 0, 4, 5)] * 3
    assert server.numbers == [of(1, 0), of(1, 2), of(1, 4)]


def test_a_batch_is_sent_again_under_its_number_until_it_is_acked() -> None:
    lost = [LOST, RpcError(Status.UNKNOWN, "unknown error: ..."), RpcError(Status.DEADLINE_EXCEEDED, "no ack")]
    server = Server(*lost, STORED)
    assert store(server) == [StoredBatch("s", 0, 4, 5)]
    assert server.numbers == [of(1, 0)] * 4


def test_a_batch_that_is_known_to_be_stored_needs_no_offset() -> None:
    assert store(Server(LOST, refused(AckError.DUPLICATE))) == [StoredBatch("s", 0, -1, -1)]


@pytest.mark.parametrize("error", [AckError.UNKNOWN_PRODUCER, AckError.SEQUENCE_GAP])
def test_a_producer_that_the_partition_has_forgotten_begins_anew(error: AckError) -> None:
    server = Server(STORED, refused(error), STORED)
    assert len(store(server, 2)) == 2
    assert server.numbers == [of(1, 0), of(1, 2), of(2, 0)]
    with pytest.raises(FailedPrecondition):
        store(Server(refused(error)))


@pytest.mark.parametrize(
    ("answers", "kind", "reason"),
    [
        ([LOST], Unconfirmed, "all of it is stored or nothing"),
        ([LOST, refused(AckError.SEQUENCE_GAP)], Unconfirmed, "sequence gap"),
        ([LOST, RpcError(Status.FAILED_PRECONDITION, "readonly partition: 0")], Unconfirmed, "readonly"),
        ([LOST, RpcError(Status.NOT_FOUND, "no such stream: s")], Unconfirmed, "no such stream"),
        ([RpcError(Status.FAILED_PRECONDITION, "readonly partition: 0")], FailedPrecondition, "^readonly"),
        ([refused(AckError.FENCED)], FailedPrecondition, "fenced"),
        ([Unavailable("no broker")], SendTimeout, "the batch was not sent: no broker"),
        (
            [RpcError(Status.UNKNOWN, "failed to publish to NATS: no connection")],
            SendTimeout,
            "the batch was not sent",
        ),
    ],
)
def test_what_may_be_stored_is_never_called_refused(answers: list[Any], kind: type[BasculeError], reason: str) -> None:
    with pytest.raises(kind, match=reason) as caught:
        store(Server(*answers), retry_for=0.3)
    assert type(caught.value) is kind


def test_after_a_failure_another_producer_goes_on() -> None:
    server = Server(refused(AckError.FENCED), STORED)

    async def main() -> None:
        cluster = cast(Cluster, server)
        sender = AtomicBatches(cluster, Producers(cluster), "s", 5.0, 1.0)
        with pytest.raises(FailedPrecondition):
            await sender.store([b"a"], None)
        await sender.store([b"a"], None)

    asyncio.run(main())
    assert server.numbers == [of(1, 0), of(2, 0)]


def test_a_server_without_producers_has_no_batches() -> None:
    with pytest.raises(Unimplemented, match="this server has no atomic batches"):
        store(Server(STORED, knows=False))
