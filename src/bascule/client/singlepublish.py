"""Single publishes: to the partition that is given, or that the key of the message chooses; once, or again until they
are acked."""

from __future__ import annotations

from collections.abc import Awaitable

from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline
from bascule.client.numberedpublish import NumberedPublishes
from bascule.client.producers import Producers
from bascule.client.publisher import Publisher
from bascule.client.requests import partition_for
from bascule.client.values import Ack, AckPolicy, Outgoing
from bascule.errors import DeadlineExceeded, NotFound, SendTimeout, Unavailable


class SinglePublishes:
    """Of one client."""

    def __init__(self, cluster: Cluster, producers: Producers) -> None:
        self._cluster = cluster
        self._publisher = Publisher(cluster)
        self._numbered = NumberedPublishes(cluster, producers, self._publisher)
        self.once = self._publisher.publish
        """Without a key and without retries: the most frequent way, and the shortest."""

    def __call__(
        self,
        stream: str,
        message: Outgoing,
        partition: int,
        ack: AckPolicy,
        expected_offset: int,
        timeout: float,
        retry_s: float,
    ) -> Awaitable[Ack]:
        if retry_s:
            return self._numbered.publish(stream, message, partition, retry_s, timeout)
        return self._publisher.publish(stream, message, partition, ack, expected_offset, timeout)

    async def by_key(
        self,
        stream: str,
        message: Outgoing,
        partition: int,
        ack: AckPolicy,
        expected_offset: int,
        timeout: float,
        retry_s: float,
    ) -> Ack:
        """The same, whatever `partition` is."""
        chosen = await self._partition_for(stream, message.key or b"", timeout)
        try:
            return await self(stream, message, chosen, ack, expected_offset, timeout, retry_s)
        except NotFound:  # it may have been made anew, with other partitions
            self._cluster.forget(stream)
            again = await self._partition_for(stream, message.key or b"", timeout)
            if again == chosen:
                raise
            return await self(stream, message, again, ack, expected_offset, timeout, retry_s)

    async def _partition_for(self, stream: str, key: bytes, timeout: float) -> int:
        try:
            return partition_for(key, len((await self._cluster.stream(stream, Deadline(timeout))).partitions))
        except (Unavailable, DeadlineExceeded) as error:
            raise SendTimeout(f"the message was not sent: {error}") from error

    async def close(self) -> None:
        await self._publisher.close()
