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
import math
from collections import deque
from collections.abc import Awaitable, Iterable
from contextlib import suppress

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline, from_publish_code, from_status
from bascule.client.requests import Encoder, PlainAck, Prepared, Responses, ack_of, plain
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


Message = Outgoing | Prepared | bytes
Waiting = tuple[str, int, asyncio.Future[Ack], float, float]
"""A message without an answer: stream, partition, who waits, until when, and how long that is."""


class Room:
    """For a bounded number of messages without an answer. Those that find none wait, in the order they came. It does
    what asyncio.Semaphore does; but to take a place where there is one is a look and a subtraction."""

    def __init__(self, free: int) -> None:
        self.free = free
        """None while somebody waits."""
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Until one is free: it is the caller's then."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.release()  # it had just got one
            else:
                with suppress(ValueError):
                    self._waiters.remove(waiter)
            raise

    def release(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1


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
        self._room = Room(limits.CLIENT_PUBLISH_WINDOW)
        self._progress_at = self._loop.time()
        self.progressed = False
        """The broker has taken or answered something on this call."""
        self._answered_at = 0.0
        self._waits_since = 0.0
        self._sweep: asyncio.TimerHandle | None = None
        self._sweeps_at = math.inf
        self.ended: BasculeError | None = None
        self._over = asyncio.Event()
        call.listen(self)

    async def publish(
        self, encoder: Encoder, stream: str, message: Message, partition: int, timeout: float, now: float
    ) -> Ack:
        room = self._room
        if room.free:
            room.free -= 1
        else:
            await self._wait_for_room(timeout)
            now = self._loop.time()
        try:
            if self._outbox_bytes >= limits.CLIENT_OUTBOX_BYTES:
                await self._wait_for_outbox(limits.CLIENT_OUTBOX_BYTES, timeout)
                now = self._loop.time()
            number, frame = self._numbered(encoder, message, partition)
        except BaseException:
            room.release()
            raise
        until = now + timeout
        answer: asyncio.Future[Ack] = self._loop.create_future()
        alone = not self._waiting and not self._sending and not self._outbox
        if not self._waiting:
            self._waits_since = now
        self._waiting[number] = (stream, partition, answer, until, timeout)
        if until < self._sweeps_at:
            self._sweep_at(until)
        try:
            if not alone:
                self._put(number, frame)
            else:  # it waits for no turn of the loop
                self._sending = True
                if self._call.write_now(frame):
                    self._sending, self.progressed, self._progress_at = False, True, now
            return await answer
        finally:
            del self._waiting[number]
            if number in self._outbox:
                self._take_back(number)
            room.release()

    async def publish_without_ack(self, encoder: Encoder, message: Message, partition: int, timeout: float) -> None:
        if self._outbox_bytes >= limits.CLIENT_UNACKED_OUTBOX_BYTES:
            await self._wait_for_outbox(limits.CLIENT_UNACKED_OUTBOX_BYTES, timeout)
        self._put(*self._numbered(encoder, message, partition))

    def _numbered(self, encoder: Encoder, message: Message, partition: int) -> tuple[int, bytes]:
        """The correlation id that its answer will have, and the framed request."""
        if self.ended is not None:
            raise StillHere
        number = self._numbers + 1
        if isinstance(message, bytes):
            frame = encoder.encode_value(message, partition, number)
        elif isinstance(message, Prepared):
            frame = encoder.encode_prepared([message], number)
        else:
            frame = encoder.encode([message], [partition], number)
        self._numbers = number
        return number, frame

    def _put(self, number: int, frame: bytes) -> None:
        """Into the outbox, with those that other callers hand over in this turn of the loop."""
        self._outbox[number] = frame
        self._outbox_bytes += len(frame)
        self._send_soon()

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
                    await self._room.wait()
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
        return {(stream, partition) for stream, partition, *_ in self._waiting.values()}

    def replaced(self, reason: str) -> None:
        self._end(Unavailable(reason))
        self._call.cancel()

    def _sweep_at(self, when: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweeps_at = when
        self._sweep = self._loop.call_at(when, self._end_late)

    def _end_late(self) -> None:
        """One timer for all messages: most are answered long before. While answers arrive, those that are late may be
        among them: a program that publishes more than it can read the acks of gets twice the time."""
        self._sweep, self._sweeps_at = None, math.inf
        now = self._loop.time()
        answers_arrive = now - self._answered_at < limits.CLIENT_ARRIVING_S
        for number, (stream, _, answer, until, timeout) in self._waiting.items():
            if until + (timeout if answers_arrive else 0.0) <= now and not answer.done():
                answer.set_exception(self._late(number, stream, timeout))
        left = [until for _, _, answer, until, _ in self._waiting.values() if not answer.done()]
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
            if self._call.write_now(frames):
                self.on_drained()
        else:
            self._drained.set()  # what others waited behind was taken back
        if self._closing:
            self._call.half_close()

    def on_drained(self) -> None:
        self._sending = False
        self.progressed = True
        self._progress_at = self._loop.time()
        self._drained.set()
        if self._outbox or self._closing:
            self._send_soon()

    def on_data(self, data: bytes, now: float) -> None:
        self.progressed = True
        self._progress_at = self._answered_at = now
        try:
            for answer in self._responses.feed(data):
                if isinstance(answer, tuple):
                    self._acked(answer)
                else:
                    self._answered(answer)
        except ValueError as error:
            self._end(Unavailable(f"the broker's answers cannot be read: {error}"))
            self._call.cancel()

    def on_end(self, error: RpcError | None) -> None:
        self._end(Unavailable("the broker ended the publish call") if error is None else from_status(error))

    def _acked(self, ack: PlainAck) -> None:
        waiting = self._waiting.get(ack[0])
        if waiting is None:
            return
        stream, partition, answer, *_ = waiting
        if ack[1] == stream and not answer.done():
            answer.set_result(ack_of(ack, partition))

    def _answered(self, response: pb.PublishResponse) -> None:
        refused = response.HasField("asyncError")
        number = response.correlationId if refused else response.ack.correlationId
        waiting = self._waiting.get(int(number)) if number.isdecimal() else None
        if waiting is None or waiting[2].done():
            return
        stream, _, answer, *_ = waiting
        if refused and int(response.asyncError.code) == AckError.DUPLICATE:
            # It was stored before, and is safe; where, is not known any more.
            self._acked((int(number), stream, -1, "", AckPolicy.ALL, 0, 0))
        elif refused:
            error = response.asyncError
            answer.set_exception(from_publish_code(error.code, error.message))
        else:
            self._acked(plain(response.ack))

    def _end(self, reason: BasculeError) -> None:
        if self.ended is not None:
            return
        self.ended = reason
        self._over.set()
        self._drained.set()
        if self._sweep is not None:
            self._sweep.cancel()
        for number, (_, _, answer, *_) in self._waiting.items():
            if not answer.done():
                answer.set_exception(
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
        self._clock = asyncio.get_running_loop().time

    def _open(self, channel: Channel) -> Session:
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
        message: Outgoing | bytes,
        partition: int,
        policy: AckPolicy,
        expected_offset: int,
        timeout: float,
    ) -> Awaitable[Ack]:
        encoder = self._encoders.get((stream, policy)) if expected_offset < 0 else None
        if encoder is None:
            encoder = self._encoder(stream, policy, expected_offset)
        return self.publish_encoded(stream, encoder, message, partition, timeout, policy is AckPolicy.NONE)

    def _encoder(self, stream: str, policy: AckPolicy, expected_offset: int) -> Encoder:
        if expected_offset >= 0:
            return Encoder(stream, policy, expected_offset)
        if len(self._encoders) >= limits.CLIENT_ENCODERS:
            self._encoders.clear()
        made = self._encoders[stream, policy] = Encoder(stream, policy)
        return made

    async def publish_encoded(
        self,
        stream: str,
        encoder: Encoder,
        message: Message,
        partition: int,
        timeout: float,
        without_ack: bool = False,
    ) -> Ack:
        began = now = self._clock()
        deadline: Deadline | None = None
        while True:
            channel = self._cluster.known_leader(stream, partition, now)
            if channel is None:
                deadline = deadline or Deadline(timeout, began)
                channel = await self._find(stream, partition, deadline)
                now = self._clock()
            session = self._sessions.get(channel)
            if session is None or session.ended is not None:
                session = self._open(channel)
            try:
                if without_ack:
                    await session.publish_without_ack(encoder, message, partition, timeout)
                    return Ack(stream, partition, -1, "", AckPolicy.NONE, 0, 0)
                return await session.publish(encoder, stream, message, partition, timeout, now)
            except StillHere:
                if self._closed:
                    raise ClientClosed("this client was closed before the message was sent") from None
                self._cluster.suspect(stream)
                deadline = deadline or Deadline(timeout, began)
                now = self._clock()
                if session.progressed:  # the message waited while others were taken: its time begins anew
                    deadline = Deadline(timeout, now)
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
