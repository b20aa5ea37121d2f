"""Single publishes: many callers, one PublishAsync call per broker.

A unary Publish returns the first ack to arrive, and if another stream has the same subject that may be the ack of the
other stream. So single messages too go over PublishAsync, where an ack names its stream and message, and only the right
one counts. Requests of callers that publish at the same time leave in one write.

After a failure before the request was handed to the connection it is tried again. After that the outcome is unknown
until an answer comes, and Unconfirmed says so: a silent second try could store the message twice.
"""

from __future__ import annotations

import asyncio

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline, from_publish_code, from_status
from bascule.client.requests import Encoder, Responses, ack_of
from bascule.client.values import Ack, AckPolicy, Outgoing
from bascule.errors import BasculeError, DeadlineExceeded, RpcError, Unavailable, Unconfirmed
from bascule.net.channel import Channel, ClientCall
from bascule.wire.pb import api_pb2 as pb

PUBLISH_ASYNC = "/proto.API/PublishAsync"


class Session:
    """One PublishAsync call and the messages on it that wait for an answer."""

    def __init__(self, call: ClientCall) -> None:
        self._call = call
        self._waiting: dict[str, tuple[str, asyncio.Future[pb.Ack]]] = {}
        self._numbers = 0
        self._outbox: list[bytes] = []
        self._filled = asyncio.Event()
        self._closing = False
        self._room = asyncio.Semaphore(limits.CLIENT_PUBLISH_WINDOW)
        self.ended: BasculeError | None = None
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    async def publish(self, encoder: Encoder, stream: str, message: Outgoing, partition: int) -> pb.Ack:
        async with self._room:
            answer: asyncio.Future[pb.Ack] = asyncio.get_running_loop().create_future()
            number = self.hand_over(encoder, message, partition)
            self._waiting[number] = stream, answer
            try:
                return await answer
            finally:
                self._waiting.pop(number, None)

    def hand_over(self, encoder: Encoder, message: Outgoing, partition: int) -> str:
        """Hand it to the writer; returns the correlation id that the answer will have."""
        if self.ended is not None:
            raise Unavailable(str(self.ended))
        frame = encoder.encode([message], [partition], self._numbers + 1)
        self._numbers += 1
        self._outbox.append(frame)
        self._filled.set()
        return str(self._numbers)

    async def _write(self) -> None:
        """Messages that callers hand over while a write is under way leave with the next one."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            frames, self._outbox = b"".join(self._outbox), []
            if frames:
                await self._call.send(frames)
            if self._closing and not self._outbox:
                self._call.half_close()
                return

    async def _read(self) -> None:
        responses = Responses()
        try:
            while (data := await self._call.receive()) is not None:
                for response in responses.feed(data):
                    self._answer(response)
            self._end(Unavailable("the broker ended the publish call"))
        except RpcError as error:
            self._end(from_status(error))
        except ValueError as error:
            self._call.cancel()
            self._end(Unavailable(f"the broker's answers cannot be read: {error}"))

    def _answer(self, response: pb.PublishResponse) -> None:
        refused = response.HasField("asyncError")
        number = response.correlationId if refused else response.ack.correlationId
        stream, answer = self._waiting.get(number, ("", None))
        if answer is None or answer.done():
            return
        if refused:
            error = response.asyncError
            answer.set_exception(from_publish_code(error.code, error.message))
        elif response.ack.stream == stream:
            answer.set_result(response.ack)

    def _end(self, reason: BasculeError) -> None:
        self.ended = reason
        for _, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(
                    Unconfirmed(f"the connection was lost before the ack came ({reason}): stored or not is unknown")
                )

    async def close(self) -> None:
        """Messages that were handed over are sent first, if the broker takes them soon."""
        self._closing = True
        self._filled.set()
        if self.ended is None:
            await asyncio.wait(self._tasks, timeout=limits.CLIENT_CLOSE_TIMEOUT_S)
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end(Unavailable("this client is closed: connect a new one"))


class Publisher:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sessions: dict[Channel, Session] = {}

    def _session(self, channel: Channel) -> Session:
        session = self._sessions.get(channel)
        if session is None or session.ended is not None:
            self._sessions = {c: s for c, s in self._sessions.items() if s.ended is None}
            session = self._sessions[channel] = Session(channel.stream(PUBLISH_ASYNC))
        return session

    async def publish(
        self,
        stream: str,
        message: Outgoing,
        partition: int,
        policy: AckPolicy,
        expected_offset: int,
        timeout: float,
    ) -> Ack:
        deadline = Deadline(timeout)
        encoder = Encoder(stream, policy, expected_offset)

        sent = False

        async def attempt() -> Ack:
            nonlocal sent
            session = self._session(await self._cluster.publisher(stream, partition, deadline))
            if policy is AckPolicy.NONE:
                session.hand_over(encoder, message, partition)
                return Ack(stream, partition, -1, "", policy, 0, 0)
            sent = session.ended is None
            return ack_of(await session.publish(encoder, stream, message, partition), partition)

        try:
            async with asyncio.timeout(timeout):
                return await self._cluster.persist(attempt, deadline)
        except TimeoutError:
            if not sent:
                raise DeadlineExceeded(f"no broker took the message within {timeout:g} s: nothing was sent") from None
            raise Unconfirmed(
                f"no ack within {timeout:g} s for a message to stream {stream}: stored or not is unknown. "
                "Read the stream's end before sending it again, or allow a longer timeout"
            ) from None

    async def close(self) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()
