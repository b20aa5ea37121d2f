"""Publishing of many messages: once, or again after a lost connection, with numbers where the server knows them."""

from __future__ import annotations

from collections.abc import AsyncIterable

from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline
from bascule.client.pipeline import OnAcks, Pipeline, Sendable, Values
from bascule.client.producers import Numbering, Producers, preparing
from bascule.client.publisher import PUBLISH_ASYNC
from bascule.client.requests import Encoder, check_partition, keyless_turns
from bascule.client.retrying import OnRetry, Outcomes, Retrying
from bascule.client.values import AckPolicy
from bascule.errors import (
    DeadlineExceeded,
    NotFound,
    NotSent,
    PublishError,
    SendTimeout,
    Unavailable,
    Unconfirmed,
    Unimplemented,
)


class ManyPublishes:
    """Of one client."""

    def __init__(self, cluster: Cluster, producers: Producers) -> None:
        self._cluster = cluster
        self._producers = producers

    async def __call__(
        self,
        stream: str,
        values: Values,
        *,
        ack: AckPolicy,
        timeout: float,
        on_acks: OnAcks | None,
        retry_s: float,
        on_retry: OnRetry | None,
        partition: int | None = None,
        spread: bool = True,
        idempotent: bool | None = None,
        outcomes: Outcomes | None = None,
    ) -> int:
        if not retry_s or ack is AckPolicy.NONE:
            return await self._once(stream, values, partition, spread, ack, timeout, on_acks)
        numbered = None
        if ack is AckPolicy.ALL and idempotent is not False:
            numbered = await self._numbered(stream, partition, spread, Deadline(max(timeout, retry_s)))
            if numbered is None and idempotent:
                raise Unimplemented(
                    "this server does not number messages (it is no Bascule, or an older one), and idempotent=True "
                    "asks for that: nothing was sent"
                )
            if numbered is None:
                self._producers.say_at_least_once()

        async def attempt(values: AsyncIterable[Sendable], on_acks: OnAcks) -> int:
            return await self._once(stream, values, partition, spread, ack, timeout, on_acks)

        if numbered is None:
            return await Retrying(on_acks, on_retry, outcomes=outcomes).run(values, attempt, retry_s)
        count = await Retrying(on_acks, on_retry, None, numbered, outcomes).run(values, attempt, retry_s)
        numbered.give_back()
        return count

    async def _numbered(self, stream: str, partition: int | None, spread: bool, deadline: Deadline) -> Numbering | None:
        """Where the server knows idempotent producers."""
        self._cluster.forget(stream)  # it may have been made again since
        known = await self._cluster.stream(stream, deadline)
        producer = await self._producers.take(known, deadline)
        if producer is None:
            return None
        encoder, count = Encoder(stream, AckPolicy.ALL), len(known.partitions)
        check_partition(stream, partition, count)
        return Numbering(
            self._producers,
            self._cluster,
            known,
            producer,
            lambda session, count: preparing(session, encoder, count, keyless_turns(count, spread), partition),
        )

    async def _once(
        self,
        stream: str,
        values: Values | AsyncIterable[Sendable],
        partition: int | None,
        spread: bool,
        ack: AckPolicy,
        timeout: float,
        on_acks: OnAcks | None,
    ) -> int:
        deadline = Deadline(timeout)
        try:
            partitions = len((await self._cluster.stream(stream, deadline)).partitions)
        except (Unavailable, DeadlineExceeded) as error:
            raise SendTimeout(f"no message was sent: {error}") from error
        check_partition(stream, partition, partitions)
        keyless = keyless_turns(partitions, spread)

        async def start() -> Pipeline:
            channel = await self._cluster.publisher(stream, only, deadline)
            pipeline = Pipeline(
                channel.stream(PUBLISH_ASYNC),
                stream,
                partitions,
                keyless=keyless,
                partition=partition,
                policy=ack,
                timeout=timeout,
                on_acks=on_acks,
            )
            pipeline.broker = self._cluster.broker_of(channel)
            self._cluster.watch.add(pipeline)
            return pipeline

        only = 0 if partitions == 1 else partition
        try:
            pipeline = await self._cluster.persist(start, deadline)
        except (Unavailable, DeadlineExceeded) as error:
            raise SendTimeout(f"no broker took a message within {timeout:g} s, none was sent: {error}") from error
        try:
            return await pipeline.run(values)
        except (Unavailable, Unconfirmed, PublishError) as error:
            if not isinstance(error, PublishError) or isinstance(error.__cause__, Unavailable | NotSent):
                self._cluster.suspect(stream)
            elif isinstance(error.__cause__, NotFound):
                self._cluster.forget(stream)  # it may have been made anew, with other partitions
            raise
        finally:
            self._cluster.watch.remove(pipeline)
