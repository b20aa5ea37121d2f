"""Single publishes: many callers, one PublishAsync call per broker.

A unary Publish returns the first ack to arrive, and if another stream has the same subject that may be the ack of the
other stream. So single messages too go over PublishAsync, where an ack names its stream and message, and only the right
one counts. Requests of callers that publish at the same time leave in one write.

A message waits in the outbox until the connection takes it. Up to then it is not sent: it goes another way if the
connection is lost, and NotSent says so if there is none in time. After that its outcome is unknown until an answer
comes, and Unconfirmed says so: a silent second try could store the message twice. The timeout begins when there is room
for the message: callers that wait for room wait for as long as other messages are acked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import NamedTuple

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline, from_publish_code, from_status
from bascule.client.requests import Encoder, Prepared, Responses, ack_of
from bascule.client.values import Ack, AckPolicy, Outgoing
from bascule.client.watch import Waiter
from bascule.errors import (
    AckError,
    AckTimeout,
    BasculeError,
    ClientClosed,
    DeadlineExceeded,
    NotSent,
    RpcError,
    SendTimeout,
    Unavailable,
    Unconfirmed,
)
from bascule.net.channel import Channel, ClientCall, Listener
from bascule.wire.pb import api_pb2 as pb

PUBLISH_ASYNC = "/proto.API/PublishAsync"


class StillHere(Exception):
    """The call ended before the message left: it can be sent on another one."""


class Waiting(NamedTuple):
    """A message without an answer."""

    stream: str
    partition: int
    answer: asyncio.Future[pb.Ack]
    until: float
    timeout: float


class Session(Waiter, Listener):
    """One PublishAsync call and the messages on it that wait for an answer."""

    def __init__(self, call: ClientCall, broker: str | None = None) -> None:
        self.broker = broker
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, Waiting] = {}
        self._numbers = 0
        self._outbox: dict[int, bytes] = {}
        self._outbox_bytes = 0
        self._send_asked = False
        self._sending = False
        """The connection has not taken yet what was written last."""
        self._drained = asyncio.Event()
        self._responses = Responses()
        self._closing = False
        self._room = asyncio.Semaphore(limits.CLIENT_PUBLISH_WINDOW)
        self._progress_at = self._loop.time()
        self.progressed = False
        """The broker has taken or answered something on this call."""
        self._answered_at = 0.0
        self._waits_since = 0.0
        self._sweep: asyncio.TimerHandle | None = None
        self.ended: BasculeError | None = None
        self._over = asyncio.Event()
        call.listen(self)

    async def publish(
        self, encoder: Encoder, stream: str, message: Outgoing | Prepared, partition: int, timeout: float
    ) -> pb.Ack:
        if self._room.locked():
            await self._wait_for_room(timeout)
        else:
            await self._room.acquire()
        number = 0
        try:
            if self._outbox_bytes >= limits.CLIENT_OUTBOX_BYTES:
                await self._wait_for_outbox(limits.CLIENT_OUTBOX_BYTES, timeout)
            number = self._hand_over(encoder, message, partition)
            alone = not self._waiting and not self._sending
            if not self._waiting:
                self._waits_since = self._loop.time()
            answer: asyncio.Future[pb.Ack] = self._loop.create_future()
            until = self._loop.time() + timeout
            self._waiting[number] = Waiting(stream, partition, answer, until, timeout)
            if self._sweep is None or until < self._sweep.when():
                self._sweep_at(until)
            if alone:
                self._send()  # one that is published alone waits for no turn of the loop
            else:
                self._send_soon()
            return await answer
        finally:
            self._waiting.pop(number, None)
            self._take_back(number)
            self._room.release()

    async def publish_without_ack(
        self, encoder: Encoder, message: Outgoing | Prepared, partition: int, timeout: float
    ) -> None:
        if self._outbox_bytes >= limits.CLIENT_UNACKED_OUTBOX_BYTES:
            await self._wait_for_outbox(limits.CLIENT_UNACKED_OUTBOX_BYTES, timeout)
        self._hand_over(encoder, message, partition)
        self._send_soon()

    def _hand_over(self, encoder: Encoder, message: Outgoing | Prepared, partition: int) -> int:
        """Into the outbox; returns the correlation id that the answer will have."""
        if self.ended is not None:
            raise StillHere
        number = self._numbers + 1
        if isinstance(message, Prepared):
            frame = encoder.encode_prepared([message], number)
        else:
            frame = encoder.encode([message], [partition], number)
        self._numbers = number
        self._outbox[number] = frame
        self._outbox_bytes += len(frame)
        return number

    def _take_back(self, number: int) -> bool:
        """Whether it had not been sent."""
        frame = self._outbox.pop(number, None)
        if frame is None:
            return False
        self._outbox_bytes -= len(frame)
        return True

    # --- waiting ------------------------------------------------------------------------------------------

    async def _wait_for_room(self, timeout: float) -> None:
        while True:
            try:
                async with asyncio.timeout(timeout):
                    await self._room.acquire()
                    return
            except TimeoutError:
                self._check_progress(timeout)

    async def _wait_for_outbox(self, size: int, timeout: float) -> None:
        while self._outbox_bytes >= size and self.ended is None:
            self._drained.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._drained.wait()
            except TimeoutError:
                self._check_progress(timeout)

    def _check_progress(self, timeout: float) -> None:
        if self._loop.time() - self._progress_at >= timeout:
            raise SendTimeout(
                f"the broker has taken and acked nothing for {timeout:g} s, and {len(self._waiting)} messages wait for "
                "it: this one was not sent"
            )

    def quiet_since(self) -> float | None:
        return max(self._answered_at, self._waits_since) if self._waiting else None

    def awaited(self) -> Iterable[tuple[str, int | None]]:
        return {(each.stream, each.partition) for each in self._waiting.values()}

    def replaced(self, reason: str) -> None:
        self._end(Unavailable(reason))
        self._call.cancel()

    def _sweep_at(self, when: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = self._loop.call_at(when, self._end_late)

    def _end_late(self) -> None:
        """One timer for all messages: most are answered long before. While answers arrive, those that are late may be
        among them: a program that publishes more than it can read the acks of gets twice the time."""
        self._sweep = None
        now = self._loop.time()
        answers_arrive = now - self._answered_at < limits.CLIENT_ARRIVING_S
        for number, (stream, _, answer, until, timeout) in self._waiting.items():
            if until + (timeout if answers_arrive else 0.0) <= now and not answer.done():
                answer.set_exception(self._late(number, stream, timeout))
        left = [each.until for each in self._waiting.values() if not each.answer.done()]
        if left:
            self._sweep_at(max(min(left), now + limits.CLIENT_ARRIVING_S))

    def _late(self, number: int, stream: str, timeout: float) -> BasculeError:
        if self._take_back(number):
            return SendTimeout(
                f"the broker took no message for {timeout:g} s: this one was not sent to stream {stream}"
            )
        return AckTimeout(
            f"no ack within {timeout:g} s for a message to stream {stream}: stored or not is unknown. "
            "Read the stream's end before sending it again, or allow a longer timeout"
        )

    # --- the call -----------------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        """With those that other callers hand over in this turn of the loop."""
        if not self._send_asked and not self._sending:
            self._send_asked = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        """Messages that callers hand over while the connection takes these leave with the next ones."""
        self._send_asked = False
        if self._sending or self.ended is not None:
            return
        frames, self._outbox, self._outbox_bytes = b"".join(self._outbox.values()), {}, 0
        if frames:
            self._sending = True
            self._call.write_now(frames)
        if self._closing:
            self._call.half_close()

    def on_drained(self) -> None:
        self._sending = False
        self.progressed = True
        self._progress_at = self._loop.time()
        self._drained.set()
        if self._outbox or self._closing:
            self._send_soon()

    def on_data(self, data: bytes) -> None:
        self.progressed = True
        self._progress_at = self._answered_at = self._loop.time()
        try:
            for response in self._responses.feed(data):
                self._answer(response)
        except ValueError as error:
            self._end(Unavailable(f"the broker's answers cannot be read: {error}"))
            self._call.cancel()

    def on_end(self, error: RpcError | None) -> None:
        self._end(Unavailable("the broker ended the publish call") if error is None else from_status(error))

    def _answer(self, response: pb.PublishResponse) -> None:
        refused = response.HasField("asyncError")
        number = response.correlationId if refused else response.ack.correlationId
        waiting = self._waiting.get(int(number)) if number.isdecimal() else None
        if waiting is None or waiting.answer.done():
            return
        if refused and int(response.asyncError.code) == AckError.DUPLICATE:
            # It was stored before, and is safe; where, is not known any more.
            waiting.answer.set_result(pb.Ack(stream=waiting.stream, offset=-1, ackPolicy=pb.ALL))
        elif refused:
            error = response.asyncError
            waiting.answer.set_exception(from_publish_code(error.code, error.message))
        elif response.ack.stream == waiting.stream:
            waiting.answer.set_result(response.ack)

    def _end(self, reason: BasculeError) -> None:
        if self.ended is not None:
            return
        self.ended = reason
        self._over.set()
        self._drained.set()
        if self._sweep is not None:
            self._sweep.cancel()
        for number, waiting in self._waiting.items():
            if not waiting.answer.done():
                waiting.answer.set_exception(
                    StillHere()
                    if number in self._outbox
                    else Unconfirmed(f"the leader was lost before the ack came ({reason}): stored or not is unknown")
                )

    async def close(self) -> None:
        """Messages that were handed over are sent first, and their acks waited for, if the broker answers soon."""
        self._closing = True
        self._send()
        try:
            async with asyncio.timeout(limits.CLIENT_CLOSE_TIMEOUT_S):
                await self._over.wait()
        except TimeoutError:
            pass
        finally:
            self._end(Unavailable("this client was closed"))
            self._call.cancel()


class Publisher:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sessions: dict[Channel, Session] = {}
        self._encoders: dict[tuple[str, AckPolicy], Encoder] = {}
        self._closed = False

    def _session(self, channel: Channel) -> Session:
        session = self._sessions.get(channel)
        if session is None or session.ended is not None:
            if self._closed:
                raise ClientClosed("this client is closed: connect a new one")
            self._sessions = {c: s for c, s in self._sessions.items() if s.ended is None}
            session = Session(channel.stream(PUBLISH_ASYNC), self._cluster.broker_of(channel))
            self._sessions[channel] = session
            self._cluster.watch.add(session)
        return session

    def publish(
        self,
        stream: str,
        message: Outgoing,
        partition: int,
        policy: AckPolicy,
        expected_offset: int,
        timeout: float,
    ) -> Awaitable[Ack]:
        encoder = self._encoder(stream, policy, expected_offset)
        return self.publish_encoded(stream, encoder, message, partition, timeout, policy is AckPolicy.NONE)

    def _encoder(self, stream: str, policy: AckPolicy, expected_offset: int) -> Encoder:
        if expected_offset >= 0:
            return Encoder(stream, policy, expected_offset)
        found = self._encoders.get((stream, policy))
        if found is None:
            if len(self._encoders) >= limits.CLIENT_ENCODERS:
                self._encoders.clear()
            found = self._encoders[stream, policy] = Encoder(stream, policy)
        return found

    async def publish_encoded(
        self,
        stream: str,
        encoder: Encoder,
        message: Outgoing | Prepared,
        partition: int,
        timeout: float,
        without_ack: bool = False,
    ) -> Ack:
        deadline = Deadline(timeout)
        while True:
            channel = self._cluster.known_leader(stream, partition)
            session = self._session(channel or await self._find(stream, partition, deadline))
            try:
                if without_ack:
                    await session.publish_without_ack(encoder, message, partition, timeout)
                    return Ack(stream, partition, -1, "", AckPolicy.NONE, 0, 0)
                return ack_of(await session.publish(encoder, stream, message, partition, timeout), partition)
            except StillHere:
                if self._closed:
                    raise ClientClosed("this client was closed before the message was sent") from None
                self._cluster.suspect(stream)
                if session.progressed:  # the message waited while others were taken: its time begins anew
                    deadline = Deadline(timeout)
            except (Unconfirmed, NotSent):
                self._cluster.suspect(stream)
                raise

    async def _find(self, stream: str, partition: int, deadline: Deadline) -> Channel:
        try:
            return await self._cluster.persist(lambda: self._cluster.publisher(stream, partition, deadline), deadline)
        except (Unavailable, DeadlineExceeded) as error:
            raise SendTimeout(
                f"no broker took the message within {deadline.seconds:g} s, it was not sent: {error}"
            ) from error

    async def close(self) -> None:
        self._closed = True
        sessions, self._sessions = list(self._sessions.values()), {}
        await asyncio.gather(*(session.close() for session in sessions))
