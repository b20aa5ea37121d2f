"""A real broker that compacts a stream of keyed messages while others are published: how long their acks take with and
without it, the memory it takes, and what is left, by a model; and what is left when it is killed in the middle.
"""

import asyncio
import os
import random
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from bascule.client import Client, Outgoing
from bascule.limits import LEAST_KEY_MAP_BYTES
from bascule.log.filecopy import TEMPORARY_SUFFIX
from bascule.log.manifest import MANIFEST_SUFFIX
from bascule.testing.processes import BrokerProcess, start_broker
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.pb import api_pb2 as api
from tests.harness.keyed_model import KeyedModel
from tests.harness.nats_peers import close

STREAM = "keyed"
SLOT_BYTES = 32
"""Of the map of keys, as the setting counts it."""
SEGMENTS = 24
RECORD_BYTES = 130
"""About."""
RATE = 400
WARM_UP_S = 2.0
TICK_S = 0.01
COMPACTED_S = 1200.0
BATCH = 2_000
KILL_WITHIN_S = 0.4
PASS_BEGINS_S = 10.0
_CLEAN_END, _HEAD_BYTES = struct.Struct("<q"), 12  # of the checkpoint of a compaction


@dataclass
class Outcome:
    sent: int = 0
    left: int = 0
    compaction_s: float = 0.0
    p99_ms: list[float] = field(default_factory=list)
    """Before, during and after it."""
    twin_ms: list[float] = field(default_factory=list)
    """At the same times, of a broker beside it that compacts nothing: what the machine does to both."""
    memory_mb: list[float] = field(default_factory=list)
    """The most before and during it."""
    kills: int = 0
    amid: dict[str, int] = field(default_factory=dict)
    """What a kill met on the disk."""
    wrong: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Of acks during the compaction and without, as far as that is not the machine's."""
        return min(self.p99_ms[1] / self.twin_ms[1], during_to_rest(self.p99_ms))

    def __str__(self) -> str:
        wrong = "; ".join(self.wrong[:5]) or "nothing"
        told = [f"sent={self.sent} left={self.left} kills={self.kills} wrong: {wrong}"]
        if self.p99_ms:
            told += [
                f"compacted in {self.compaction_s:.1f} s; memory: {self.memory_mb[0]:.0f} MB before, "
                f"{self.memory_mb[1]:.0f} MB at most during it",
                f"p99 of acks before, during and after it: {_listed(self.p99_ms)} ms, "
                f"{during_to_rest(self.p99_ms):.2f}x; of a broker beside it that compacts nothing: "
                f"{_listed(self.twin_ms)} ms, {during_to_rest(self.twin_ms):.2f}x; during it one to the other: "
                f"{self.p99_ms[1] / self.twin_ms[1]:.2f}x",
            ]
        if self.amid:
            told.append("killed amid: " + ", ".join(f"{what} {count}" for what, count in sorted(self.amid.items())))
        return "\n".join(told)


def during_to_rest(times: list[float]) -> float:
    before, during, after = times
    return during / ((before + after) / 2)


def _listed(times: list[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in times)


class SteadyPublisher:
    """Envelopes at a steady rate over NATS. `times_ms` takes how long each waited for its ack, from when it was due."""

    def __init__(self, connection: NatsClient, model: KeyedModel) -> None:
        self.times_ms: list[float] = []
        self._connection = connection
        self._model = model
        self._due_s: dict[int, float] = {}
        self._stop = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def running(cls, url: str, model: KeyedModel) -> AsyncIterator[Self]:
        async def ignore(error: Exception) -> None:
            """The broker, whose server this is, is killed."""

        connection = await nats.connect(url, max_reconnect_attempts=-1, error_cb=ignore)
        publisher = cls(connection, model)
        acks = await connection.subscribe("acks.keyed", cb=publisher._on_ack)
        task = asyncio.create_task(publisher._run())
        try:
            yield publisher
        finally:
            publisher._stop.set()
            with suppress(nats.errors.Error, OSError):
                await task
            with suppress(nats.errors.Error, OSError):
                await acks.unsubscribe()
            await close(connection)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while not self._stop.is_set():
            for _ in range(round(RATE * TICK_S)):
                number, message = self._model.next()
                self._due_s[number] = due_s
                await self._connection.publish(STREAM, _envelope(number, message))
            due_s += TICK_S
            await asyncio.sleep(max(0.0, due_s - loop.time()))
        for _ in range(100):  # the last acks
            if not self._due_s or not self._connection.is_connected:
                break
            await asyncio.sleep(0.1)

    async def _on_ack(self, message: Msg) -> None:
        payload = decode(message.data, MsgType.ACK)
        assert payload is not None
        ack = api.Ack.FromString(payload)
        if not ack.ackError:
            number = int(ack.correlationId)
            self._model.stored(number, ack.offset)
            self.times_ms.append((asyncio.get_running_loop().time() - self._due_s.pop(number)) * 1000.0)

    def p99_ms(self) -> float:
        """Of the acks since it was asked last."""
        times, self.times_ms = sorted(self.times_ms), []
        assert times, "nothing was acked"
        return times[int(len(times) * 0.99)]


def _envelope(number: int, message: Outgoing) -> bytes:
    body = api.Message(
        offset=-1,
        key=message.key or b"",
        value=message.value,
        ackInbox="acks.keyed",
        correlationId=str(number),
        ackPolicy=api.ALL,
    )
    return encode(MsgType.PUBLISH, body.SerializeToString())


class KeyedLoad:
    def __init__(self, broker: BrokerProcess, records: int, keys: int, seed: int) -> None:
        self.outcome = Outcome()
        self._broker = broker
        self._records = records
        self._model = KeyedModel(keys, seed)
        self._chance = random.Random(seed)

    async def _write(self, client: Client, batches: Iterator[list[tuple[int, Outgoing]]]) -> None:
        """In bulk, all of them acked."""
        sent: list[list[tuple[int, Outgoing]]] = []

        def messages() -> Iterator[list[Outgoing]]:
            for batch in batches:
                sent.append(batch)
                yield [message for _, message in batch]

        async for written in client.write_batches(STREAM, messages(), timeout=60.0):
            batch = sent[written.number]
            sent[written.number] = []
            for index, (number, _) in enumerate(batch):
                self._model.stored(number, written.first_offset + index)

    def _new(self, count: int) -> Iterator[list[tuple[int, Outgoing]]]:
        for first in range(0, count, BATCH):
            yield [self._model.next() for _ in range(min(BATCH, count - first))]

    def _one_of_each_key(self) -> Iterator[list[tuple[int, Outgoing]]]:
        first, messages = self._model.sent, self._model.each_key()
        for start in range(0, len(messages), BATCH):
            yield [(first + start + index, each) for index, each in enumerate(messages[start : start + BATCH])]

    async def _create(self, client: Client, **settings: Any) -> None:
        segment_bytes = max(self._records * RECORD_BYTES // SEGMENTS, 4096)
        await client.create_stream(STREAM, segment_max_bytes=segment_bytes, cleaner_interval_ms=200, **settings)
        await self._write(client, self._one_of_each_key())
        await self._write(client, self._new(self._records - self._model.keys))

    async def _check(self, client: Client, compacted_to: int = 0) -> int:
        """How many superseded records are left below that offset."""
        found = await self._model.check(client.read_range(STREAM), compacted_to)
        self.outcome.wrong += found.wrong
        self.outcome.sent, self.outcome.left = self._model.sent, found.records
        return found.superseded

    # --- beside publishing -----------------------------------------------------------------------------------

    async def beside(self, twin: BrokerProcess, seconds: float) -> Outcome:
        """Acks before, during and after the compaction of all that was written, and those of a twin."""
        outcome, clock = self.outcome, asyncio.get_running_loop().time
        async with await Client.connect(self._broker.address) as client:
            await self._create(client)
            segment = await self._last_segment(client)
            async with await Client.connect(twin.address) as other:
                await other.create_stream(STREAM)
            running, other_model = SteadyPublisher.running, KeyedModel(self._model.keys, 0)
            async with (
                running(self._broker.nats_url, self._model) as publisher,
                running(twin.nats_url, other_model) as beside,
            ):

                def note() -> None:
                    outcome.p99_ms.append(publisher.p99_ms())
                    outcome.twin_ms.append(beside.p99_ms())

                await asyncio.sleep(min(seconds, WARM_UP_S))
                note()
                await asyncio.sleep(seconds)
                note()
                outcome.memory_mb.append(self._memory_mb())
                began_s = clock()
                await client.admin.alter_stream(STREAM, compact_enabled=True)
                outcome.memory_mb.append(await self._until_compacted_to(segment))
                outcome.compaction_s = clock() - began_s
                note()
                await asyncio.sleep(seconds)
                note()
            del outcome.p99_ms[0], outcome.twin_ms[0]  # of the warm-up
            if superseded := await self._check(client, segment):
                outcome.wrong.append(f"{superseded} superseded records are left below offset {segment}")
        return outcome

    async def _last_segment(self, client: Client) -> int:
        """Where the segment begins that has the last of the records, and is not compacted yet."""
        end = (await client.log_bounds(STREAM)).end
        return max(base for base in (int(each.stem) for each in self._folder().glob("*.log")) if base < end)

    async def _until_compacted_to(self, offset: int) -> float:
        """The most memory that the broker had meanwhile, in MB."""
        clock, most_mb = asyncio.get_running_loop().time, 0.0
        deadline_s = clock() + COMPACTED_S
        while self._compacted_to() < offset:
            assert clock() < deadline_s, f"compacted to {self._compacted_to()} only"
            await asyncio.sleep(0.05)
            most_mb = max(most_mb, self._memory_mb())
        return most_mb

    def _memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self._broker.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    # --- kills -----------------------------------------------------------------------------------------------

    async def killed(self, kills: int) -> Outcome:
        """The broker is killed at random moments of its compaction; each time everything is read."""
        async with await Client.connect(self._broker.address) as client:
            await self._create(client, compact_enabled=True)
        for _ in range(kills):
            async with await Client.connect(self._broker.address) as client:
                await self._kill_amid(client)
            async with await Client.connect(self._broker.address) as client:
                await self._check(client)
            if self.outcome.wrong:
                return self.outcome
        async with await Client.connect(self._broker.address) as client:
            segment = await self._last_segment(client)
            await self._until_compacted_to(segment)
            if superseded := await self._check(client, segment):
                self.outcome.wrong.append(f"{superseded} superseded records are left below offset {segment}")
        return self.outcome

    async def _kill_amid(self, client: Client) -> None:
        """A fifth of the log is new each time: that makes a pass due."""
        async with SteadyPublisher.running(self._broker.nats_url, self._model):
            await self._write(client, self._new(self._records // 5))
            deadline = asyncio.get_running_loop().time() + PASS_BEGINS_S
            while not self._work() and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.001)
            await asyncio.sleep(self._chance.uniform(0.0, KILL_WITHIN_S))
            await asyncio.to_thread(self._broker.kill9)
        work = self._work() or "nothing"
        self.outcome.amid[work] = self.outcome.amid.get(work, 0) + 1
        self.outcome.kills += 1
        await asyncio.to_thread(lambda: self._broker.start().wait_ready())

    # --- what is on the disk ---------------------------------------------------------------------------------

    def _folder(self) -> Path:
        (folder,) = self._broker.data_dir.glob(f"**/streams/{STREAM}@*/0")
        return folder

    def _work(self) -> str:
        """Which step of a compaction shows."""
        names = [each.name for each in self._folder().iterdir()]
        if any(name.endswith(MANIFEST_SUFFIX) for name in names):
            return "swap"
        if any(MANIFEST_SUFFIX in name for name in names):
            return "manifest"
        return "copy" if any(name.endswith(".compacted" + TEMPORARY_SUFFIX) for name in names) else ""

    def _compacted_to(self) -> int:
        """As the checkpoint of the compaction says."""
        path = self._folder() / "compaction"
        data = path.read_bytes() if path.exists() else b""
        return int(_CLEAN_END.unpack_from(data, _HEAD_BYTES)[0]) if data else 0


def key_map_bytes(keys: int) -> int:
    """Of a map that has room for a quarter of them."""
    return max(keys // 4 * SLOT_BYTES, LEAST_KEY_MAP_BYTES)


def _settings(keys: int) -> dict[str, Any]:
    return {"streams.compact.key.map.bytes": key_map_bytes(keys)}


async def compact_beside_publishing(folder: Path, records: int, keys: int, seed: int, seconds: float) -> Outcome:
    with start_broker(folder, config=_settings(keys)) as broker, start_broker(folder, name="twin") as twin:
        return await KeyedLoad(broker, records, keys, seed).beside(twin, seconds)


async def kill_amid_compaction(folder: Path, records: int, keys: int, seed: int, kills: int) -> Outcome:
    with start_broker(folder, config=_settings(keys)) as broker:
        return await KeyedLoad(broker, records, keys, seed).killed(kills)
