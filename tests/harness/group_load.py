"""A producer and the members of a group on a cluster that is struck: what was acked, what was read, and how often."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from bascule.client import Client, Receipt, Sent
from bascule.client.cursors import GROUP
from bascule.client.failures import Deadline
from bascule.testing.jsonlines import JsonProcess

GROUP_ID = "g"
Read = tuple[int, int]
"""Partition and offset."""


class Workers:
    """Members of the group, each a process."""

    def __init__(self, servers: Sequence[str], stream: str) -> None:
        self.read: list[Read] = []
        self.running: list[JsonProcess] = []
        self._command = [
            *(sys.executable, "-m", "tests.harness.group_worker"),
            *("-servers", ",".join(servers), "-stream", stream, "-group", GROUP_ID),
        ]

    def add(self) -> None:
        self.running.append(JsonProcess(self._command))

    def look(self) -> list[Read]:
        for worker in self.running:
            self._take(worker)
        return self.read

    def _take(self, worker: JsonProcess) -> None:
        for event in worker.so_far():
            assert event["event"] != "error" or event["retryable"], event
            if event["event"] == "read":
                first, partition = event["offset"], event["partition"]
                self.read += [(partition, first + number) for number in range(len(event["values"]))]

    def kill(self) -> None:
        """What it said up to its end counts."""
        self.look()
        worker = self.running.pop()
        worker.close()
        self._take(worker)

    def close(self) -> None:
        while self.running:
            self.running.pop().close()

    def repeated(self, since: int, committed: Mapping[int, int]) -> list[Read]:
        """What was read again after the first `since` reads, though it had been committed."""
        known = set(self.read[:since])
        return [item for item in self.read[since:] if item in known and item[1] <= committed[item[0]]]


class Writer:
    """Numbered messages, one by one."""

    def __init__(self, client: Client, stream: str) -> None:
        self.acked: dict[int, Sent] = {}
        """In the order of the acks."""
        self.outage_s = 0.0
        """The longest time without an ack, since it was last set to 0."""
        self.failures: list[BaseException] = []
        self._client = client
        self._stream = stream
        self._acked_at = 0.0
        self._noting: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        async with self._client.producer(self._stream, retry_for=60.0) as producer:
            for number in count():
                receipt = await producer.send(b"%d" % number)
                self._noting.add(task := asyncio.create_task(self._note(number, receipt)))
                task.add_done_callback(self._noting.discard)
                await asyncio.sleep(0.002)

    async def _note(self, number: int, receipt: Receipt) -> None:
        try:
            sent = await receipt
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.failures.append(error)
            return
        now = asyncio.get_running_loop().time()
        if self._acked_at:
            self.outage_s = max(self.outage_s, now - self._acked_at)
        self._acked_at = now
        self.acked[number] = sent

    def places(self) -> list[Read]:
        """Where they are stored, as far as an ack said so: one of an earlier attempt does not."""
        return [(sent.partition, sent.offset) for sent in self.acked.values() if sent.offset >= 0]

    async def more(self, count: int) -> None:
        goal = len(self.acked) + count
        await until(lambda: len(self.acked) >= goal)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, *self._noting, return_exceptions=True)


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.05)


async def committed(client: Client, stream: str, partitions: int) -> dict[int, int]:
    return {p: await client.fetch_cursor(GROUP + GROUP_ID, stream, p, timeout=30) for p in range(partitions)}


async def coordinator(client: Client, stream: str) -> str:
    return (await client._cluster.refresh([stream], Deadline(30.0), [GROUP_ID])).groups[GROUP_ID].coordinator
