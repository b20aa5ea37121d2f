"""Single publishes on one call, on a real connection to a server that answers as the test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline, persist
from bascule.client.publisher import PUBLISH_ASYNC, Publisher, Room, Session, StillHere
from bascule.client.requests import Encoder
from bascule.client.values import AckPolicy, Outgoing
from bascule.errors import AckTimeout, BasculeError, InvalidArgument, RpcError, SendTimeout, Status, Unconfirmed
from bascule.net.channel import Channel
from bascule.net.grpc import Call, GrpcServer
from bascule.wire.grpc import frame
from bascule.wire.pb import api_pb2 as pb

HOST = "127.0.0.1"
ENCODER = Encoder("s", AckPolicy.ALL)


class Answering:
    """A server that acks each message, while it `reads`."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.malformed = False
        self.takes_s = 0.0
        self.values: list[bytes] = []
        self.half_closed = False

    async def publish(self, call: Call) -> None:
        while True:
            message = await call.receive()
            await self.reads.wait()
            await asyncio.sleep(self.takes_s)
            if message is None:
                self.half_closed = True
                return
            request = pb.PublishRequest.FromString(message)
            self.values.append(request.value)
            ack = pb.Ack(stream="s", offset=len(self.values) - 1, correlationId=request.correlationId)
            answer = b"\xff\xff" if self.malformed else pb.PublishResponse(ack=ack).SerializeToString()
            await call.send(frame(answer))


def run(body: Callable[[Answering, Channel], Awaitable[None]]) -> None:
    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[tuple[Answering, Channel]]:
        answering = Answering()
        server = GrpcServer({PUBLISH_ASYNC: answering.publish})
        channel = await Channel.connect(HOST, await server.start(HOST, 0))
        try:
            yield answering, channel
        finally:
            answering.reads.set()
            await channel.close()
            await server.close(Status.UNAVAILABLE, "stopped", 2.0)

    async def main() -> None:
        async with asyncio.timeout(20), serving() as (answering, channel):
            await body(answering, channel)

    asyncio.run(main())


def noted_writes(monkeypatch: pytest.MonkeyPatch, channel: Channel) -> list[bytes]:
    """What is written to the connection from now on."""
    transport = channel.connection.transport
    assert transport is not None
    writes: list[bytes] = []
    write = transport.write

    def noting(data: bytes) -> None:
        writes.append(bytes(data))
        write(data)

    monkeypatch.setattr(transport, "write", noting)
    return writes


async def publish(session: Session, value: bytes, timeout: float = 5.0) -> int:
    now = asyncio.get_running_loop().time()
    return (await session.publish(ENCODER, "s", Outgoing(value), 0, timeout, now)).offset


def test_messages_that_are_published_together_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(answering: Answering, channel: Channel) -> None:
        session = Session(channel.stream(PUBLISH_ASYNC))
        assert await publish(session, b"alone") == 0
        writes = noted_writes(monkeypatch, channel)
        offsets = await asyncio.gather(*(publish(session, b"%d" % number) for number in range(1000)))
        assert offsets == list(range(1, 1001)), "in the order of the calls"
        assert answering.values == [b"alone", *(b"%d" % number for number in range(1000))]
        assert len(writes) < 20
        await session.close()

    run(body)


def test_one_that_is_published_alone_is_written_before_its_caller_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(answering: Answering, channel: Channel) -> None:
        session = Session(channel.stream(PUBLISH_ASYNC))
        await publish(session, b"first")
        writes = noted_writes(monkeypatch, channel)
        waiting = publish(session, b"second")
        suspended = waiting.send(None)  # up to where it waits for its ack
        assert any(b"second" in data for data in writes)
        waiting.close()
        assert suspended is not None
        await session.close()

    run(body)


def test_those_that_are_answered_together_leave_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(answering: Answering, channel: Channel) -> None:
        session = Session(channel.stream(PUBLISH_ASYNC))
        await publish(session, b"first")
        answering.reads.clear()

        async def twice(number: int) -> None:
            await publish(session, b"%d" % number)
            await publish(session, b"again")

        tasks = [asyncio.create_task(twice(number)) for number in range(10)]
        await asyncio.sleep(0.01)
        writes = noted_writes(monkeypatch, channel)
        acks = [pb.PublishResponse(ack=pb.Ack(stream="s", correlationId=str(number))) for number in range(2, 12)]
        session.on_data(b"".join(frame(ack.SerializeToString()) for ack in acks), asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)
        assert [data.count(b"again") for data in writes] == [10]
        for task in tasks:
            task.cancel()
        await session.close()

    run(body)


def test_what_the_connection_does_not_take_waits_and_goes_on_in_order() -> None:
    async def body(answering: Answering, channel: Channel) -> None:
        session = Session(channel.stream(PUBLISH_ASYNC))
        await publish(session, b"first")
        answering.reads.clear()
        big = bytes(limits.HTTP2_STREAM_WINDOW_BYTES // 2)
        tasks = [asyncio.create_task(publish(session, b"%d" % number + big)) for number in range(6)]
        await asyncio.sleep(0.1)
        assert answering.values == [b"first"]
        answering.reads.set()
        assert await asyncio.gather(*tasks) == [1, 2, 3, 4, 5, 6]
        assert [value[:1] for value in answering.values[1:]] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        await session.close()

    run(body)


async def one_by_one(session: Session, values: list[bytes], timeout: float) -> list[asyncio.Task[int]]:
    """Each after the connection has taken what it takes of the one before."""
    tasks = []
    for value in values:
        tasks.append(asyncio.create_task(publish(session, value, timeout)))
        await asyncio.sleep(0.02)
    return tasks


BIG = bytes(2 * limits.HTTP2_STREAM_WINDOW_BYTES)


def test_in_time_it_is_said_which_were_sent() -> None:
    async def body(answering: Answering, channel: Channel) -> None:
        session = Session(channel.stream(PUBLISH_ASYNC))
        answering.reads.clear()
        tasks = await one_by_one(session, [b"taken", BIG, b"behind it"], 0.3)
        taken, sent, not_sent = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(taken, AckTimeout)
        assert isinstance(sent, AckTimeout)
        assert isinstance(not_sent, SendTimeout)
        answering.reads.set()
        assert await publish(session, b"last") == 2
        assert answering.values == [b"taken", BIG, b"last"]
        await session.close()

    run(body)


def test_closing_sends_what_was_handed_over_and_waits_for_its_acks() -> None:
    async def body(answering: Answering, channel: Channel) -> None:
        session = Session(channel.stream(PUBLISH_ASYNC))
        tasks = [asyncio.create_task(publish(session, b"%d" % number)) for number in range(100)]
        await asyncio.sleep(0)
        await session.close()
        assert await asyncio.gather(*tasks) == list(range(100))
        assert answering.half_closed

    run(body)


def test_a_call_that_ended_says_which_message_can_be_sent_on_another_one() -> None:
    async def body(answering: Answering, channel: Channel) -> None:
        session = Session(channel.stream(PUBLISH_ASYNC))
        answering.reads.clear()
        tasks = await one_by_one(session, [b"taken", BIG, b"behind it"], 5.0)
        channel.connection.abort()
        taken, sent, not_sent = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(taken, Unconfirmed)
        assert isinstance(sent, Unconfirmed)
        assert isinstance(not_sent, StillHere)
        with pytest.raises(StillHere):
            await publish(session, b"after it")
        await session.close()

    run(body)


def test_answers_that_cannot_be_read_leave_nobody_waiting() -> None:
    async def body(answering: Answering, channel: Channel) -> None:
        session = Session(channel.stream(PUBLISH_ASYNC))
        answering.malformed = True
        with pytest.raises(Unconfirmed, match="the broker's answers cannot be read"):
            await publish(session, b"first")
        assert session.ended is not None
        await session.close()

    run(body)


def test_a_call_that_ends_while_a_message_is_written_tells_its_caller_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(answering: Answering, channel: Channel) -> None:
        session = Session(channel.stream(PUBLISH_ASYNC))
        await publish(session, b"first")
        transport = channel.connection.transport
        assert transport is not None
        monkeypatch.setattr(transport, "write", lambda data: session.on_end(RpcError(Status.UNAVAILABLE, "lost")))
        async with asyncio.timeout(1.0):
            with pytest.raises(Unconfirmed, match="lost"):
                await publish(session, b"second", timeout=15.0)

    run(body)


def test_places_go_to_those_that_wait_in_the_order_they_came_and_none_is_lost() -> None:
    async def main() -> None:
        room = Room(1)
        room.free -= 1
        got: list[int] = []

        async def come(number: int) -> None:
            await room.wait()
            got.append(number)

        tasks = [asyncio.create_task(come(number)) for number in range(6)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # while it waits
        await asyncio.sleep(0)
        tasks[2].cancel()
        room.release()  # before those that are cancelled have noticed
        room.release()
        tasks[3].cancel()  # it had just got a place
        await asyncio.sleep(0.01)
        assert (got, room.free) == ([1, 4], 0)
        room.release()
        room.release()
        await asyncio.sleep(0.01)
        assert (got, room.free) == ([1, 4, 5], 1)
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def test_messages_leave_their_places_however_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_PUBLISH_WINDOW", 3)

    async def body(answering: Answering, channel: Channel) -> None:
        session = Session(channel.stream(PUBLISH_ASYNC))
        room = session._room
        await publish(session, b"acked")
        assert room.free == 3
        answering.reads.clear()
        tasks = [asyncio.create_task(publish(session, b"%d" % number, 0.3)) for number in range(5)]
        await asyncio.sleep(0.01)
        assert room.free == 0
        tasks[0].cancel()  # sent, and its ack comes later
        tasks[4].cancel()  # it waits for room
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in ended[1:3]] == [AckTimeout, AckTimeout]
        answering.reads.set()
        assert await asyncio.gather(*(publish(session, b"%d" % number) for number in range(10)))
        assert room.free == 3
        with pytest.raises(InvalidArgument):
            await publish(session, bytes(limits.GRPC_MAX_MESSAGE_BYTES))
        assert room.free == 3
        channel.connection.abort()
        await asyncio.sleep(0.01)
        with pytest.raises(StillHere):
            await publish(session, b"after it")
        assert room.free == 3

    run(body)


class OneBroker:
    """A cluster of one broker, to which connecting takes a moment."""

    def __init__(self, port: int) -> None:
        self.channel: Channel | None = None
        self.watch = self
        self._port = port
        self._lock = asyncio.Lock()

    def add(self, session: Session) -> None:
        """It is not watched."""

    def broker_of(self, channel: Channel) -> str:
        return "broker"

    def known_leader(self, stream: str, partition: int, now: float) -> Channel | None:
        return self.channel if self.channel is not None and not self.channel.closed else None

    def suspect(self, stream: str) -> None:
        """There is no other one."""

    async def persist(self, attempt: Callable[[], Awaitable[Channel]], deadline: Deadline) -> Channel:
        return await persist(attempt, deadline)

    async def publisher(self, stream: str, partition: int, deadline: Deadline) -> Channel:
        async with self._lock:
            if self.known_leader(stream, partition, 0.0) is None:
                await asyncio.sleep(0.05)
                self.channel = await Channel.connect(HOST, self._port)
            assert self.channel is not None
            return self.channel


def test_those_that_waited_for_room_have_their_whole_time_when_the_connection_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CLIENT_PUBLISH_WINDOW", 1)
    timeout_s = 1.0

    async def main() -> None:
        answering = Answering()
        answering.takes_s = 0.05
        server = GrpcServer({PUBLISH_ASYNC: answering.publish})
        broker = OneBroker(await server.start(HOST, 0))
        publisher = Publisher(cast(Cluster, broker))
        publishes = [
            publisher.publish("s", Outgoing(b"%d" % number), 0, AckPolicy.ALL, -1, timeout_s) for number in range(40)
        ]
        tasks = [asyncio.ensure_future(each) for each in publishes]
        until = asyncio.get_running_loop().time() + timeout_s
        while asyncio.get_running_loop().time() < until or len(answering.values) < 5:
            await asyncio.sleep(0.01)
        assert broker.channel is not None
        broker.channel.connection.abort()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [each for each in outcomes if isinstance(each, BaseException)]
        assert len(failures) <= 1, failures
        assert all(isinstance(each, Unconfirmed) for each in failures), "its ack was under way"
        await publisher.close()
        await broker.channel.close()
        await server.close(Status.UNAVAILABLE, "stopped", 2.0)

    asyncio.run(main())


def test_a_call_that_ends_at_once_again_and_again_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_PUBLISH_WINDOW", 1)

    async def main() -> None:
        async def refuses(call: Call) -> None:
            raise RpcError(Status.RESOURCE_EXHAUSTED, "too many calls")

        server = GrpcServer({PUBLISH_ASYNC: refuses})
        broker = OneBroker(await server.start(HOST, 0))
        publisher = Publisher(cast(Cluster, broker))
        async with asyncio.timeout(30):
            outcomes = await asyncio.gather(
                *(publisher.publish("s", Outgoing(b"v"), 0, AckPolicy.ALL, -1, 0.5) for _ in range(5)),
                return_exceptions=True,
            )
        assert all(isinstance(each, BasculeError) for each in outcomes)
        await publisher.close()
        assert broker.channel is not None
        await broker.channel.close()
        await server.close(Status.UNAVAILABLE, "stopped", 2.0)

    asyncio.run(main())
