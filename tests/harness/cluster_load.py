"""Three brokers as processes, publishers and a reader that never rest, and what must hold whatever happens to them.

Two publishers write to every partition with ack ALL: one through gRPC (our client), one through raw NATS envelopes
(nats-py, which knows nothing of us). Neither tries anything again: what was not acked is unknown, and may come late:
so a publisher that begins anew after a failure is another publisher. A reader follows each partition. At the end
everything is read, and compared with what was acked and what the readers had read.
"""

import asyncio
import itertools
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from bascule.client import Client, Partition
from bascule.errors import BasculeError
from bascule.testing.probe import call
from bascule.testing.processes import HOST, BrokerProcess, NatsProcess, poll, start_nats
from bascule.testing.proxy import Proxy
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.nats_peers import close

STREAM = "orders"
PARTITIONS = 3
PER_ROUND = 4
ROUND_S = 0.02
GIVE_UP_S = 1.0
SETTLE_S = 60.0
_CONTROLLER = re.compile(r"this broker is the controller, term (\d+)")


class Brokers:
    """Brokers a, b, c ... on one NATS server, each behind a proxy if asked."""

    other_version: ClassVar[Path | None] = None
    """The `bascule` that every second broker runs instead of this one: versions that live side by side."""

    def __init__(
        self,
        folder: Path,
        names: str = "abc",
        *,
        proxied: bool = False,
        peers: bool = False,
        config: dict[str, Any] | None = None,
        env: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """The first is the seed and the others have their votes after five seconds, or, with `peers`, all are a list of
        which one founds, and vote at once. `env`: more variables, by the name of a broker."""
        self.folder = folder
        self.nats: NatsProcess = start_nats(folder)
        self.proxies: dict[str, Proxy] = {}
        self.brokers: dict[str, BrokerProcess] = {}
        for name in names:
            url = self.nats.nats_url
            if proxied:
                self.proxies[name] = Proxy(HOST, self.nats.port)
                url = f"nats://{HOST}:{self.proxies[name].port}"
            settings = {"clustering.server.id": name, "clustering.min.insync.replicas": 2, **(config or {})}
            if peers:
                settings["clustering.raft.bootstrap.peers"] = list(names)
            seed = name == names[0] and not peers
            program = self.other_version if names.index(name) % 2 else None
            self.brokers[name] = BrokerProcess(
                folder / name, nats_url=url, seed=seed, config=settings, program=program, env=(env or {}).get(name)
            )
            self.brokers[name].start()
            if not peers:
                self.brokers[name].wait_ready()
        for broker in self.brokers.values():
            broker.wait_ready()
        assert poll(lambda: self.voters() == list(names), SETTLE_S), f"not all have a vote: {self.voters()}"

    def voters(self) -> list[str]:
        """As the first broker that answers has it."""
        for broker in self.brokers.values():
            if broker.running:
                answer = call(HOST, broker.port, "/bascule.v1.Admin/ClusterStatus", b"", 5.0)
                if answer.status == 0:
                    members = admin.ClusterStatusResponse.FromString(answer.message).members
                    return sorted(member.id for member in members if member.voter)
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for broker in self.brokers.values():
            broker.kill9()
            broker.close()
        for proxy in self.proxies.values():
            proxy.close()
        self.nats.close()

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.brokers[name]

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers.values()]

    def controller(self) -> str:
        """Who said last, by term, that it is the controller."""
        terms = {name: [0, *map(int, _CONTROLLER.findall(broker.logs()))][-1] for name, broker in self.brokers.items()}
        return max(terms, key=lambda name: terms[name])

    def wipe(self, name: str) -> None:
        shutil.rmtree(self.brokers[name].data_dir)

    def log_bytes(self, name: str, partition: int) -> bytes:
        """Every record this broker has of a partition, as on its disk."""
        (folder,) = (self.brokers[name].data_dir / "streams").glob(f"{STREAM}@*")
        return b"".join(file.read_bytes() for file in sorted((folder / str(partition)).glob("*.log")))


@dataclass
class Report:
    """What a run came to. `on_round` is called at the end of each round."""

    name: str
    on_round: Callable[[float], None] = field(default=lambda stall_s: None, repr=False)
    acked: int = 0
    read: int = 0
    lost: int = 0
    duplicated: int = 0
    disordered: int = 0
    withdrawn: int = 0
    controllers: int = 0
    """Rounds in which it was the controller that was struck."""
    stalls_s: list[float] = field(default_factory=list)
    failure: str = ""

    def ended(self, stall_s: float) -> None:
        self.stalls_s.append(stall_s)
        self.on_round(stall_s)

    def __str__(self) -> str:
        stalls = ", ".join(f"{stall:.2f}" for stall in self.stalls_s) or "none"
        return (
            f"{self.name}: rounds={len(self.stalls_s)} controllers={self.controllers} acked={self.acked} "
            f"read={self.read} lost={self.lost} duplicated={self.duplicated} order_violations={self.disordered} "
            f"withdrawn={self.withdrawn} worst_stall_s={max(self.stalls_s, default=0.0):.2f} stalls_s=[{stalls}]"
            + (f" FAILED: {self.failure}" if self.failure else "")
        )

    @property
    def clean(self) -> bool:
        wrong = self.lost or self.duplicated or self.disordered or self.withdrawn or self.failure
        return not wrong and self.acked > 0


class Load:
    """`async with Load(brokers) as load`: publishers and readers run until it ends."""

    def __init__(self, brokers: Brokers, partitions: int = PARTITIONS) -> None:
        self.brokers = brokers
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.refused = 0
        self.shown: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(partitions)}
        self._partitions = range(partitions)
        self._replicas = min(len(brokers.brokers), 3)
        self._stop = asyncio.Event()
        self._last_ack = [time.monotonic()] * partitions
        self._worst = [0.0] * partitions
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.with_client(
            lambda client: client.create_stream(
                STREAM, partitions=len(self._partitions), replication_factor=self._replicas, timeout=20.0
            )
        )
        for partition in self._partitions:
            self._start(self._publish_by_nats(partition))
            self._start(self._publish_by_grpc(partition))
            self._start(self._follow(partition))
        await self.flowing()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def _start(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def stop(self) -> None:
        self._stop.set()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def with_client(self, work: Callable[[Client], Any]) -> Any:
        async with await Client.connect(self.brokers.addresses, timeout=20.0) as client:
            return await work(client)

    # --- publishers and readers ------------------------------------------------------------------------------

    def _confirmed(self, value: bytes, partition: int, offset: int) -> None:
        assert value not in self.acked, f"{value!r} was acked twice"
        self.acked[value] = (partition, offset)
        now = time.monotonic()
        self._worst[partition] = max(self._worst[partition], now - self._last_ack[partition])
        self._last_ack[partition] = now

    async def _publish_by_nats(self, partition: int) -> None:
        connection: NatsClient = await nats.connect(
            self.brokers.nats.nats_url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_ignore
        )
        inbox = connection.new_inbox()

        async def on_ack(message: Msg) -> None:
            payload = decode(message.data, MsgType.ACK)
            assert payload is not None
            ack = api.Ack.FromString(payload)
            if ack.stream != STREAM:
                return  # another stream on this subject has stored it, too
            if ack.ackError == api.Ack.OK:
                self._confirmed(ack.correlationId.encode(), partition, ack.offset)
            else:
                self.refused += 1

        await connection.subscribe(inbox, cb=on_ack)
        subject = STREAM if partition == 0 else f"{STREAM}.{partition}"
        number = 0
        try:
            while not self._stop.is_set():
                if connection.is_connected:
                    for _ in range(PER_ROUND):
                        number += 1
                        value = f"nats {partition} {number}"
                        message = api.Message(
                            value=value.encode(), ackInbox=inbox, correlationId=value, ackPolicy=api.ALL
                        )
                        envelope = encode(MsgType.PUBLISH, message.SerializeToString(), crc=True)
                        await connection.publish(subject, envelope)
                await asyncio.sleep(ROUND_S)
        finally:
            await close(connection)

    async def _publish_by_grpc(self, partition: int) -> None:
        for connection in itertools.count():
            sent: list[bytes] = []

            async def values(connection: int = connection, sent: list[bytes] = sent) -> AsyncIterator[bytes]:
                while not self._stop.is_set():
                    for _ in range(PER_ROUND):
                        sent.append(b"grpc %d %d %d" % (partition, connection, len(sent)))
                        yield sent[-1]
                    await asyncio.sleep(ROUND_S)

            def on_acks(acks: list[tuple[int, int, int]], sent: list[bytes] = sent) -> None:
                for index, offset, _ in acks:
                    self._confirmed(sent[index], partition, offset)

            try:
                async with await Client.connect(self.brokers.addresses) as client:
                    await client.publish_many(STREAM, values(), partition=partition, timeout=GIVE_UP_S, on_acks=on_acks)
            except (BasculeError, OSError):
                await asyncio.sleep(ROUND_S)  # what was not acked is unknown

    async def _follow(self, partition: int) -> None:
        shown = self.shown[partition]
        while not self._stop.is_set():
            try:
                async with await Client.connect(self.brokers.addresses) as client:
                    start = shown[-1][0] + 1 if shown else 0
                    async for batch in client.subscribe(STREAM, partition, start=start).batches():
                        shown += [(message.offset, message.value) for message in batch]
            except (BasculeError, OSError):
                await asyncio.sleep(ROUND_S)

    # --- what is going on ------------------------------------------------------------------------------------

    def mark(self) -> None:
        """From here on, stalls count."""
        now = time.monotonic()
        self._worst = [0.0] * len(self._partitions)
        self._last_ack = [now] * len(self._partitions)

    @property
    def stall_s(self) -> float:
        """The longest time since `mark` in which some partition acked nothing."""
        return max(self._worst)

    async def flowing(self, timeout_s: float = SETTLE_S) -> None:
        """Returns when each partition has acked something sent after this call, more or less."""
        began = time.monotonic()
        await until(lambda: min(self._last_ack) > began + ROUND_S, timeout_s, "writes did not resume")

    async def partitions(self) -> list[Partition]:
        try:
            metadata = await self.with_client(lambda client: client.fetch_metadata([STREAM]))
        except BasculeError:
            return []
        return list(metadata.streams[STREAM].partitions.values()) if STREAM in metadata.streams else []

    async def leader(self, partition: int = 0) -> str:
        return str((await self.partitions())[partition].leader)

    async def whole(self, size: int = 3, timeout_s: float = SETTLE_S) -> None:
        """Returns when every partition has a full in-sync set."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = await self.partitions()
            if found and all(len(item.isr) == size for item in found):
                return
            assert time.monotonic() < deadline, f"the in-sync sets stay small: {found}"
            await asyncio.sleep(0.05)

    # --- the verdict -----------------------------------------------------------------------------------------

    async def finish(self, report: Report) -> Report:
        """Stop, read everything, and compare."""
        await self.flowing()
        await self.whole(self._replicas)
        await asyncio.sleep(GIVE_UP_S)  # acks on their way
        await self.stop()
        report.acked += len(self.acked)
        for partition in self._partitions:
            self._judge(report, partition, await self.with_client(partial(read_all, partition=partition)))
        await self._same_bytes()
        return report

    def _judge(self, report: Report, partition: int, stored: list[tuple[int, bytes]]) -> None:
        report.read += len(stored)
        offsets = [offset for offset, _ in stored]
        report.disordered += sum(later <= earlier for earlier, later in itertools.pairwise(offsets))
        at = {value: offset for offset, value in stored}
        report.duplicated += len(stored) - len(at)
        report.lost += sum(
            at.get(value) != offset for value, (where, offset) in self.acked.items() if where == partition
        )
        value_at = dict(stored)
        report.withdrawn += sum(value_at.get(offset) != value for offset, value in self.shown[partition])
        orders: dict[bytes, list[int]] = {}
        for _, value in stored:
            publisher, _, number = value.rpartition(b" ")
            orders.setdefault(publisher, []).append(int(number))
        for order in orders.values():
            report.disordered += sum(later <= earlier for earlier, later in itertools.pairwise(order))

    async def _same_bytes(self) -> None:
        """Nobody writes: soon every replica has the very same bytes."""
        for partition in self._partitions:
            await until(partial(self._same, partition), SETTLE_S, f"replicas of partition {partition} differ")

    def _same(self, partition: int) -> bool:
        return len({self.brokers.log_bytes(name, partition) for name in self.brokers.brokers}) == 1


async def read_all(client: Client, partition: int = 0, stream: str = STREAM) -> list[tuple[int, bytes]]:
    subscription = client.subscribe(stream, partition, start="earliest", stop="latest")
    return [(message.offset, message.value) async for batch in subscription.batches() for message in batch]


async def until(condition: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, otherwise
        await asyncio.sleep(0.02)


async def _ignore(error: Exception) -> None:
    """nats-py reports lost connections here; the test itself breaks them."""
