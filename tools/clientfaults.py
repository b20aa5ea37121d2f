"""The Python client on three real brokers while leaders, replicas and coordinators are killed, paused and partitioned
from NATS, and members of a group are killed: an idempotent producer writes, a group reads. Nothing that was acked may
be missing or there twice, every message is read, and what was committed is not read again.
"""

import argparse
import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bascule.client import Client
from tests.harness.cluster_load import Brokers
from tests.harness.group_load import Workers, Writer, committed, coordinator, until

STREAM = "struck"
PARTITIONS = 4
HELD_S = 6.0
"""How long a broker is paused, or partitioned."""
SETTINGS = {
    "groups.consumer.timeout": "4s",
    "groups.coordinator.timeout": "2s",
    "cursors.stream.partitions": 2,
    "cursors.stream.replication.factor": 3,
}
WAYS = ("kill", "pause", "cut")
TARGETS = ("leader", "replica", "coordinator", "member")


@dataclass(slots=True)
class Outcome:
    rounds: Counter[str] = field(default_factory=Counter)
    outages_s: dict[str, float] = field(default_factory=dict)
    """By what was done: the longest time without an ack."""
    acked: int = 0
    failed: int = 0
    lost: int = 0
    twice: int = 0
    unread: int = 0
    read_again: int = 0
    committed_again: int = 0

    @property
    def wrong(self) -> int:
        return self.failed + self.lost + self.twice + self.unread + self.committed_again

    def __str__(self) -> str:
        done = "".join(
            f"\n  {what}: {times} times, at most {self.outages_s[what]:.1f} s without an ack"
            for what, times in sorted(self.rounds.items())
        )
        return (
            f"{self.acked} messages acked; {self.failed} failed, {self.lost} lost, {self.twice} stored twice; "
            f"{self.unread} not read by the group, {self.read_again} read again, "
            f"{self.committed_again} of them though committed{done}"
        )


class Struck:
    """A cluster that is struck, round by round."""

    def __init__(self, brokers: Brokers, client: Client, workers: Workers, writer: Writer) -> None:
        self._brokers = brokers
        self._client = client
        self._workers = workers
        self._writer = writer
        self.outcome = Outcome()

    async def round(self, way: str, target: str) -> None:
        await self._whole()
        before, read = await committed(self._client, STREAM, PARTITIONS), len(self._workers.look())
        what = f"{way} {target}"
        self._writer.outage_s = 0.0
        if target == "member":
            self._workers.kill()
            self._workers.add()
            await self._writer.more(500)
        else:
            async with self._harmed(way, await self._broker(target)):
                await asyncio.sleep(HELD_S)
            await self._writer.more(500)
        written = set(self._writer.places())
        await until(lambda: written <= set(self._workers.look()), 90.0)
        self.outcome.rounds[what] += 1
        self.outcome.outages_s[what] = max(self.outcome.outages_s.get(what, 0.0), self._writer.outage_s)
        self.outcome.committed_again += len(self._workers.repeated(read, before))
        print(f"{what}: {self._writer.outage_s:.1f} s without an ack, {len(self._writer.acked)} acked", flush=True)

    async def _broker(self, target: str) -> str:
        partition = (await self._client.fetch_metadata([STREAM])).streams[STREAM].partitions[0]
        if target == "coordinator":
            return await coordinator(self._client, STREAM)
        others = [name for name in partition.replicas if name != partition.leader]
        return partition.leader if target == "leader" else others[0]

    @asynccontextmanager
    async def _harmed(self, way: str, name: str) -> AsyncIterator[None]:
        broker = self._brokers[name]
        if way == "kill":
            await asyncio.to_thread(broker.kill9)
            yield
            await asyncio.to_thread(lambda: broker.start().wait_ready())
        elif way == "pause":
            broker.pause()
            yield
            broker.resume()
        else:
            self._brokers.proxies[name].cut()
            yield
            self._brokers.proxies[name].heal()

    async def _whole(self) -> None:
        async with asyncio.timeout(120):
            while True:
                known = (await self._client.fetch_metadata([STREAM], timeout=30)).streams[STREAM].partitions.values()
                if all(len(each.isr) == len(self._brokers.brokers) for each in known):
                    return
                await asyncio.sleep(0.2)

    async def judge(self) -> Outcome:
        await self._writer.stop()
        await self._whole()
        outcome, acked = self.outcome, self._writer.acked
        written = set(self._writer.places())
        try:
            await until(lambda: written <= set(self._workers.look()), 60.0)
        except TimeoutError:
            pass
        stored: Counter[int] = Counter()
        async with self._client.consumer(STREAM, stop="latest") as consumer:
            async for batch in consumer.batches():
                stored.update(int(message.value) for message in batch)
        outcome.acked, outcome.failed = len(acked), len(self._writer.failures)
        outcome.lost = sum(1 for number in acked if not stored[number])
        outcome.twice = sum(1 for times in stored.values() if times > 1)
        outcome.unread = len(written - set(self._workers.read))
        outcome.read_again = len(self._workers.read) - len(set(self._workers.read))
        return outcome


async def strike(folder: Path, rounds: int, only: str) -> Outcome:
    kinds = [(way, target) for target in TARGETS for way in WAYS if target != "member" or way == "kill"]
    kinds = [kind for kind in kinds if only in " ".join(kind)]
    with Brokers(folder, proxied=True, config=SETTINGS) as brokers:
        workers = Workers(brokers.addresses, STREAM)
        async with Client.connect(brokers.addresses) as client:
            await client.create_stream(STREAM, partitions=PARTITIONS, replication_factor=3, timeout=30)
            writer = Writer(client, STREAM)
            try:
                for _ in range(3):
                    workers.add()
                await until(lambda: {partition for partition, _ in workers.look()} == set(range(PARTITIONS)))
                struck = Struck(brokers, client, workers, writer)
                for number in range(rounds):
                    await struck.round(*kinds[number % len(kinds)])
                return await struck.judge()
            finally:
                await writer.stop()
                workers.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.clientfaults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="one kind of fault each, in turn")
    parser.add_argument("--only", default="", help='faults whose name has this text, such as "pause leader"')
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = asyncio.run(strike(Path(folder), given.rounds, given.only))
    print(outcome)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
