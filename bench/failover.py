"""How long writes stall when the leader of a partition is killed.

A publisher sends a message with ack ALL every few milliseconds, whatever happens, as NATS envelopes. The time counted
is from kill -9 of the leader to the first ack of a message that was sent after it. Then the killed broker is started
again, and the next one is killed only when it is back in the in-sync set.
"""

import asyncio
import itertools
import time
from contextlib import suppress

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from bascule.client import Client, Partition
from bascule.errors import BasculeError
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.pb import api_pb2 as api
from bench.servers import REPLICAS, BasculeCluster

SEND_INTERVAL_S = 0.005
POLL_INTERVAL_S = 0.05
LIGHT_LOAD_S = 0.3
GIVE_UP_S = 60.0
STREAM_TIMEOUT_S = 20.0


async def worst_stall_s(cluster: BasculeCluster, stream: str, kills: int) -> float:
    """The longest of so many times without a leader."""
    async with await Client.connect(cluster.addresses) as client:
        await client.create_stream(stream, replication_factor=REPLICAS, timeout=STREAM_TIMEOUT_S)
    worst = 0.0
    try:
        await every_vote(cluster)
        async with Publisher(cluster, stream) as publisher:
            for _ in range(kills):
                leader = (await whole(cluster, stream)).leader
                await publisher.acked_after(time.monotonic())
                await asyncio.sleep(LIGHT_LOAD_S)
                killed_at = time.monotonic()
                await asyncio.to_thread(cluster.brokers[leader].kill9)
                worst = max(worst, await publisher.acked_after(killed_at) - killed_at)
                await asyncio.to_thread(cluster.brokers[leader].start().wait_ready)
            await whole(cluster, stream)
    finally:
        async with await Client.connect(cluster.addresses) as client:
            await client.delete_stream(stream, timeout=STREAM_TIMEOUT_S)
    return worst


async def every_vote(cluster: BasculeCluster) -> None:
    """A cluster survives the loss of a broker once all of them vote; that takes some seconds after its start."""
    async with asyncio.timeout(GIVE_UP_S):
        while True:
            with suppress(BasculeError):
                async with await Client.connect(cluster.addresses) as client:
                    status = await client.admin.cluster_status()
                if sum(member.voter for member in status.members) == REPLICAS:
                    return
            await asyncio.sleep(POLL_INTERVAL_S)


async def whole(cluster: BasculeCluster, stream: str) -> Partition:
    """The stream's only partition, once every replica is in sync."""
    async with asyncio.timeout(GIVE_UP_S):
        while True:
            with suppress(BasculeError):
                async with await Client.connect(cluster.addresses) as client:
                    metadata = await client.fetch_metadata([stream])
                partition = metadata.streams[stream].partitions[0]
                if len(partition.isr) == REPLICAS:
                    return partition
            await asyncio.sleep(POLL_INTERVAL_S)


class Publisher:
    """Sends while its `async with` block runs, and knows when what was acked."""

    def __init__(self, cluster: BasculeCluster, subject: str) -> None:
        self._nats_url = cluster.nats.nats_url
        self._subject = subject
        self._connection = NatsClient()
        self._sent_at: dict[str, float] = {}
        self._newest_acked = (0.0, 0.0)
        """When the newest acked message was sent, and when it was acked."""
        self._acked = asyncio.Condition()

    async def acked_after(self, moment: float) -> float:
        """When a message sent after that moment was acked, or is going to be."""
        async with asyncio.timeout(GIVE_UP_S), self._acked:
            await self._acked.wait_for(lambda: self._newest_acked[0] > moment)
            return self._newest_acked[1]

    async def __aenter__(self) -> "Publisher":
        self._connection = await nats.connect(self._nats_url)
        self._inbox = self._connection.new_inbox()
        await self._connection.subscribe(self._inbox, cb=self._on_ack)
        self._task = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._connection.close()

    async def _send(self) -> None:
        for number in itertools.count():
            name = str(number)
            message = api.Message(value=b"v", ackInbox=self._inbox, correlationId=name, ackPolicy=api.ALL)
            self._sent_at[name] = time.monotonic()
            await self._connection.publish(self._subject, encode(MsgType.PUBLISH, message.SerializeToString()))
            await asyncio.sleep(SEND_INTERVAL_S)

    async def _on_ack(self, message: Msg) -> None:
        acked_at = time.monotonic()
        ack = api.Ack.FromString(decode(message.data, MsgType.ACK) or b"")
        sent_at = self._sent_at.pop(ack.correlationId, 0.0)
        if ack.ackError == api.Ack.OK and sent_at > self._newest_acked[0]:
            async with self._acked:
                self._newest_acked = (sent_at, acked_at)
                self._acked.notify_all()
