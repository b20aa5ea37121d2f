"""The server under test, of whatever make: brokers by id behind one address, and the NATS server they share.

Only what any Liftbridge client has is used: grpcio, the messages of api.proto, and NATS.
"""

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import grpc

from bascule.testing.processes import BrokerProcess, poll
from bascule.wire.pb import api_pb2 as api
from tests.harness.raw_nats import RawNats
from tests.harness.stub import Stub

TIMEOUT_S = 20.0
"""Of one call. Generous: the machine may be busy with other tests."""

Outcome = tuple[grpc.StatusCode, str]

_numbers = itertools.count()


def unique(what: str) -> str:
    """A name that nothing on the server has, not even after an earlier run of these tests."""
    return f"{what}-{secrets.token_hex(4)}-{next(_numbers)}"


def outcome(act: Callable[[], object]) -> Outcome:
    """How a call ended that `act` makes, or reads from."""
    try:
        act()
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def status(method: Any, request: object, timeout: float | None = TIMEOUT_S) -> Outcome:
    """How a call with one response ended."""
    return outcome(lambda: method(request, timeout=timeout))


class Reading:
    """A subscription: its messages without the handshake, and how it ends."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def take(self, count: int) -> list[api.Message]:
        """The next so many; fails with the call's error if there are fewer."""
        return [next(self._call) for _ in range(count)]

    def offsets(self, count: int) -> list[int]:
        return [message.offset for message in self.take(count)]

    def values(self, count: int) -> list[bytes]:
        return [message.value for message in self.take(count)]

    def rest(self) -> tuple[list[api.Message], Outcome]:
        """All that comes until the server ends it, and how it does."""
        received: list[api.Message] = []
        ended = outcome(lambda: received.extend(self._each()))
        return received, ended

    def _each(self) -> Iterator[api.Message]:
        yield from self._call

    def end(self) -> Outcome:
        return self.rest()[1]

    def cancel(self) -> None:
        self._call.cancel()


class Server:
    """`processes` are there if the tests started it themselves, by broker id; else it is a foreign one."""

    def __init__(
        self, address: str, nats_url: str, settings: Mapping[str, Any], processes: Mapping[str, BrokerProcess]
    ) -> None:
        self.address = address
        self.nats_url = nats_url
        self.settings = settings
        self.processes = processes
        self.any = Stub(address)
        self._stubs: dict[str, Stub] = {}

    # --- brokers -----------------------------------------------------------------------------------------------

    def brokers(self) -> list[api.Broker]:
        return list(self.any.FetchMetadata(api.FetchMetadataRequest(streams=["-"]), timeout=TIMEOUT_S).brokers)

    def __len__(self) -> int:
        return len(self.brokers())

    @property
    def every(self) -> dict[str, Stub]:
        """Each broker by its id."""
        for broker in self.brokers():
            if broker.id not in self._stubs:
                self._stubs[broker.id] = Stub(f"{broker.host}:{broker.port}")
        return dict(self._stubs)

    def leader(self, stream: str, partition: int = 0) -> Stub:
        """The broker that leads a partition, or led it before it was paused."""

        def found() -> Stub | None:
            described = self.described(stream)
            assert described.error == api.StreamMetadata.OK, f"there is no stream {stream}"
            item = described.partitions.get(partition)
            return None if item is None or not item.leader else self.every.get(item.leader)

        assert poll(lambda: found() is not None, TIMEOUT_S), f"{stream} has no leader of partition {partition}"
        stub = found()
        assert stub is not None
        return stub

    def others(self, stream: str, partition: int = 0) -> list[Stub]:
        leader = self.leader(stream, partition)
        return [stub for stub in self.every.values() if stub is not leader]

    def nats(self) -> RawNats:
        return RawNats(self.nats_url)

    # --- streams -----------------------------------------------------------------------------------------------

    def create(self, what: str = "stream", subject: str | None = None, **fields: Any) -> str:
        """A stream on every broker, of a name that begins with `what`; every broker knows of it."""
        name = unique(what)
        fields = {"replicationFactor": -1, **fields}
        request = api.CreateStreamRequest(name=name, subject=name if subject is None else subject, **fields)
        self.any.CreateStream(request, timeout=TIMEOUT_S)
        self.known(name)
        return name

    def leads_cursors(self) -> None:
        """Returns when the leaders of `__cursors` answer: one that was just elected refuses for a moment."""

        def answers(number: int) -> bool:
            request = api.FetchCursorRequest(stream="s", partition=0, cursorId=f"probe-{number}")
            for stub in self.every.values():
                try:
                    stub.FetchCursor(request, timeout=TIMEOUT_S)
                except grpc.RpcError:
                    continue
                return True
            return False

        partitions = len(self.described("__cursors").partitions)
        for number in range(8 * partitions):  # as many ids as reach every partition
            assert poll(partial(answers, number), TIMEOUT_S), f"nobody answers for cursor probe-{number}"

    def known(self, name: str) -> None:
        """Returns when every broker has heard of the stream."""

        def knows(stub: Stub) -> bool:
            described = self.described(name, stub)
            return bool(described.partitions) and all(item.leader for item in described.partitions.values())

        assert poll(lambda: all(knows(stub) for stub in self.every.values()), TIMEOUT_S), f"not all know {name}"

    def described(self, stream: str, stub: Stub | None = None) -> api.StreamMetadata:
        request = api.FetchMetadataRequest(streams=[stream])
        response: api.FetchMetadataResponse = (stub or self.any).FetchMetadata(request, timeout=TIMEOUT_S)
        (found,) = response.streamMetadata
        return found

    def partition(self, stream: str, partition: int = 0) -> api.PartitionMetadata:
        """As its leader has it."""
        request = api.FetchPartitionMetadataRequest(stream=stream, partition=partition)
        leader = self.leader(stream, partition)
        response: api.FetchPartitionMetadataResponse = leader.FetchPartitionMetadata(request, timeout=TIMEOUT_S)
        return response.metadata

    def delete(self, name: str) -> None:
        self.any.DeleteStream(api.DeleteStreamRequest(name=name), timeout=TIMEOUT_S)

    def pause(self, name: str, *partitions: int, resume_all: bool = False) -> None:
        request = api.PauseStreamRequest(name=name, partitions=partitions, resumeAll=resume_all)
        self.any.PauseStream(request, timeout=TIMEOUT_S)
        self.shows(name, partitions, lambda item: item.paused)

    def set_readonly(self, name: str, *partitions: int, readonly: bool = True) -> None:
        request = api.SetStreamReadonlyRequest(name=name, partitions=partitions, readonly=readonly)
        self.any.SetStreamReadonly(request, timeout=TIMEOUT_S)
        self.shows(name, partitions, lambda item: item.readonly is readonly)

    def shows(self, name: str, partitions: tuple[int, ...], condition: Callable[[api.PartitionMetadata], bool]) -> None:
        """Returns when every broker describes these partitions (none: all) so."""

        def so(stub: Stub) -> bool:
            described = self.described(name, stub).partitions
            return all(condition(described[number]) for number in partitions or described)

        assert poll(lambda: all(so(stub) for stub in self.every.values()), TIMEOUT_S), self.described(name)

    # --- messages ----------------------------------------------------------------------------------------------

    def publish(self, stream: str, value: bytes = b"v", timeout: float = TIMEOUT_S, **fields: Any) -> api.Ack:
        fields = {"expectedOffset": -1, **fields}
        request = api.PublishRequest(stream=stream, value=value, **fields)
        response: api.PublishResponse = self.any.Publish(request, timeout=timeout)
        return response.ack

    def fill(self, stream: str, count: int, partition: int = 0) -> list[api.Ack]:
        """Messages with the values 0, 1, ..., each acked by all replicas."""
        return [self.publish(stream, b"%d" % number, partition=partition, ackPolicy=api.ALL) for number in range(count)]

    @contextmanager
    def reading(
        self, stream: str, partition: int = 0, stub: Stub | None = None, timeout: float = TIMEOUT_S, **fields: Any
    ) -> Iterator[Reading]:
        """A subscription at the leader, its handshake received."""
        fields = {"startPosition": api.EARLIEST, **fields}
        request = api.SubscribeRequest(stream=stream, partition=partition, **fields)
        call = (stub or self.leader(stream, partition)).Subscribe(request, timeout=timeout)
        assert next(call) == api.Message(), "the first message of a subscription is empty"
        try:
            yield Reading(call)
        finally:
            call.cancel()

    def refusal(self, stream: str, partition: int = 0, stub: Stub | None = None, **fields: Any) -> Outcome:
        """Why a subscription is refused. Fails if it is not."""
        request = api.SubscribeRequest(stream=stream, partition=partition, **fields)
        received: list[api.Message] = []
        call = (stub or self.any).Subscribe(request, timeout=TIMEOUT_S)
        ended = outcome(lambda: received.extend(call))
        assert received == []
        return ended

    def stored(self, stream: str, partition: int = 0) -> list[api.Message]:
        """Everything a partition holds right now."""
        request = api.SubscribeRequest(
            stream=stream, partition=partition, startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST
        )
        received: list[api.Message] = []
        call = self.leader(stream, partition).Subscribe(request, timeout=TIMEOUT_S)
        ended = outcome(lambda: received.extend(call))
        assert ended[0] is grpc.StatusCode.RESOURCE_EXHAUSTED, ended
        return received[1:]

    def values(self, stream: str, partition: int = 0) -> list[bytes]:
        return [message.value for message in self.stored(stream, partition)]

    def holds(self, stream: str, count: int, partition: int = 0) -> list[api.Message]:
        """What a partition holds when it holds so many messages: what comes through NATS is not waited for else."""
        assert poll(lambda: self.partition(stream, partition).highWatermark >= count - 1, TIMEOUT_S)
        stored = self.stored(stream, partition)
        assert len(stored) == count, stored
        return stored

    # --- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        for stub in (self.any, *self._stubs.values()):
            stub.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
