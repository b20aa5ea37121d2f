"""Single messages that are sent again until their ack comes. A Bascule server stores each of them once: it is numbered
(`producers`), and keeps its number however often it is sent. Elsewhere it may be stored twice.

Each one that is under way has a producer of its own, so that none waits for another one's outcome. When it is acked
the next one goes on with its producer; after anything else that is given up. So few may be under way at a time.
"""

from __future__ import annotations

import asyncio

from bascule import limits
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline, MadeAgain
from bascule.client.producers import Producers, ProducerSession
from bascule.client.publisher import Publisher
from bascule.client.requests import Encoder, Prepared
from bascule.client.values import Ack, AckPolicy, Outgoing, Stream
from bascule.errors import (
    AckError,
    BasculeError,
    DeadlineExceeded,
    Internal,
    NotSent,
    SendTimeout,
    Unavailable,
    Unconfirmed,
    UnknownOutcome,
)
from bascule.wire.producers import REFUSALS

_PASSING = (Unavailable, NotSent, Internal, UnknownOutcome, Unconfirmed, DeadlineExceeded)
"""After these it is sent again."""
_FORGOTTEN = (REFUSALS[AckError.SEQUENCE_GAP], REFUSALS[AckError.UNKNOWN_PRODUCER])
"""The partition does not know what this producer stored before."""


def unfit_to_retry(retry_s: float, ack: AckPolicy, expected_offset: int) -> str | None:
    """Why a message cannot be sent again until it is acked."""
    if not retry_s or (ack is AckPolicy.ALL and expected_offset < 0):
        return None
    if ack is not AckPolicy.ALL:
        return f"retry_s={retry_s:g} with {ack}: a message that is sent again is acked by all replicas, AckPolicy.ALL"
    return f"retry_s={retry_s:g} with expected_offset={expected_offset}: the offset names the one try that may store it"


class NumberedPublishes:
    """Of one client."""

    def __init__(self, cluster: Cluster, producers: Producers, publisher: Publisher) -> None:
        self._cluster = cluster
        self._producers = producers
        self._publisher = publisher
        self._room = asyncio.Semaphore(limits.CLIENT_NUMBERED_PUBLISHES)
        self._acked_at = float("-inf")

    async def publish(self, stream: str, message: Outgoing, partition: int, retry_s: float, timeout: float) -> Ack:
        """Gives up when there was no ack for `retry_s`: of this message, or, while it waits for room, of any."""
        began = await self._wait_for_room(retry_s)
        try:
            ack = await self._publish(stream, message, partition, began + retry_s, retry_s, timeout)
        finally:
            self._room.release()
        self._acked_at = asyncio.get_running_loop().time()
        return ack

    async def _wait_for_room(self, retry_s: float) -> float:
        """In the order of the calls. Returns since when there has been no ack."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            until = max(began, self._acked_at) + retry_s
            if loop.time() < until:
                timer = loop.call_at(until, look)
            else:
                limit.reschedule(until)

        try:
            async with asyncio.timeout(None) as limit:
                if self._room.locked():
                    look()
                await self._room.acquire()
        except TimeoutError:
            raise SendTimeout(
                f"nothing was acked for {retry_s:g} s, and {limits.CLIENT_NUMBERED_PUBLISHES} messages before this one "
                "are sent again until they are: it was not sent"
            ) from None
        finally:
            if timer is not None:
                timer.cancel()
        return max(began, self._acked_at)

    async def _publish(
        self, stream: str, message: Outgoing, partition: int, give_up_s: float, retry_s: float, timeout: float
    ) -> Ack:
        clock, pause_s = asyncio.get_running_loop().time, limits.CLIENT_RETRY_MIN_S
        encoder = Encoder(stream, AckPolicy.ALL)
        known, producer, numbered = await self._numbered(encoder, stream, message, partition, timeout)
        unknown = began_anew = False
        while True:
            try:
                ack = await self._publisher.publish_encoded(stream, encoder, numbered, partition, timeout)
                break
            except _PASSING as error:
                if str(error).startswith(_FORGOTTEN):
                    if unknown or began_anew:
                        raise
                    began_anew = True
                    known, producer, numbered = await self._numbered(encoder, stream, message, partition, timeout)
                    continue
                unknown = unknown or not isinstance(error, NotSent)
                if clock() + pause_s >= give_up_s:
                    raise self._given_up(error, unknown, retry_s) from error
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, limits.CLIENT_RETRY_MAX_S)
                self._cluster.forget(stream)
                await self._is_the_same(known, unknown, give_up_s - clock())
            except MadeAgain as error:
                if unknown or clock() + pause_s >= give_up_s:
                    raise self._given_up(error, unknown, retry_s) from error
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, limits.CLIENT_RETRY_MAX_S)
                self._cluster.forget(stream)
                known, producer, numbered = await self._numbered(encoder, stream, message, partition, timeout)
            except BasculeError as error:
                raise self._given_up(error, unknown, retry_s) if unknown else error from error
        if producer is not None:
            self._producers.give_back(known, producer)
        return ack

    async def _numbered(
        self, encoder: Encoder, stream: str, message: Outgoing, partition: int, timeout: float
    ) -> tuple[Stream, ProducerSession | None, Outgoing | Prepared]:
        """The message with its number, where the server knows producers."""
        try:
            known = await self._cluster.stream(stream, Deadline(timeout))
            producer = await self._producers.take(known, Deadline(timeout))
        except (Unavailable, DeadlineExceeded) as error:
            raise SendTimeout(f"the message was not sent: {error}") from error
        if producer is None:
            self._producers.say_at_least_once()
            return known, None, message
        return known, producer, encoder.prepare(message, partition, producer.number)

    async def _is_the_same(self, known: Stream, unknown: bool, timeout: float) -> None:
        """A stream that was made again does not know this number, and would store the message once more."""
        try:
            now = await self._cluster.stream(known.name, Deadline(max(timeout, 0.0)))
        except BasculeError as error:
            raise self._given_up(error, unknown, timeout) from error
        if now.creation_timestamp != known.creation_timestamp:
            again = f"stream {known.name} was deleted and made again meanwhile"
            raise Unconfirmed(f"{again}: the message may be stored in either") if unknown else NotSent(again)

    def _given_up(self, error: BasculeError, unknown: bool, retry_s: float) -> BasculeError:
        if not unknown:
            return SendTimeout(f"the message was not sent, for {retry_s:g} s: {error}")
        return Unconfirmed(
            f"{error}: the message was sent, and not acked for {retry_s:g} s. Stored or not is unknown: read the "
            "stream's end before sending it again"
        )
