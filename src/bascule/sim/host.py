"""A machine that runs one broker: its disk and clock outlive the broker's process, which is killed, paused and started
again. Clients reach the broker through `call` and `open`, as through a gRPC connection that dies with the process.
"""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from bascule.core.metadata.state import Metadata
from bascule.core.raft.machine import Raft
from bascule.errors import BasculeError, Status
from bascule.node.partition.replica import Replica
from bascule.node.process.broker import Broker
from bascule.sim.trace import Part, Trace
from bascule.testing.bus import MemoryBus, MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import SimulatedProcess, VirtualClock, VirtualLoop
from bascule.wire.kernels import split_messages

RESTART_AFTER_FAILED_START_S = 1.0
STOP_TIMEOUT_S = 30.0
HAND_OVER_S = 5.0
MAX_MESSAGE_BYTES = 1 << 30
LOST = "the connection to the broker was lost"
REFUSED = "connection refused: nobody listens"

Handler = Callable[[Any], Awaitable[None]]
Answer = tuple[Status, str, list[bytes]]


class SeededRandom:
    """`ports.Random` out of a seed."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)

    def token(self, length: int = 22) -> str:
        return "".join(self._chance.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))

    def uniform(self, low: float, high: float) -> float:
        return self._chance.uniform(low, high)


class Build(Protocol):
    async def __call__(self, host: "Host", boot: int) -> tuple[Broker, Mapping[str, Handler]]:
        """Start a broker on this host; serving may begin when it returns."""


class Host:
    def __init__(self, name: str, nats: MemoryNats, trace: Trace, seed: int, build: Build) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.name = name
        self.nats = nats
        self.seed = seed
        self.disk = MemoryDisk()
        self.last_metadata: Metadata | None = None
        self.clock = VirtualClock(loop)
        self.broker: Broker | None = None
        self.node: Broker | None = None
        """The same, set as soon as it is assembled, before it is started."""
        self.raft: Raft | None = None
        """The Raft of its process, set as soon as there is one."""
        self.buses: list[MemoryBus] = []
        self.wanted = True
        """Whether it is started again when it ends."""
        self.founds = True
        """Whether it may found a cluster; else it joins the one there is."""
        self.host, self.port = name, 9292
        self._loop = loop
        self._trace = trace
        self._build = build
        self._process: SimulatedProcess | None = None
        self._boots = 0
        self._methods: Mapping[str, Handler] = {}
        self._calls: dict[MemoryCall, None] = {}
        self._outside = contextvars.Context()
        self._changed = asyncio.Event()

    # --- start and stop --------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Its process exists; it may still be starting."""
        return self._process is not None

    @property
    def term(self) -> int:
        return self.broker.cluster.raft.raft.term if self.broker is not None else 0

    def replica(self, part: Part) -> Replica | None:
        return self.broker.replicas.find(part.stream, part.number) if self.broker is not None else None

    def start_of(self, part: Part) -> int:
        """Where the partition begins, as far as this broker knows; 0 if it is down."""
        return _start_of(part, None if self.broker is None else self.broker.cluster.metadata)

    def last_start_of(self, part: Part) -> int:
        """The same, or as far as it knew when its process ended: a client may have seen that already."""
        return _start_of(part, self.last_metadata if self.broker is None else self.broker.cluster.metadata)

    @property
    def paused(self) -> bool:
        return self._process is not None and self._process.paused

    def boot(self) -> None:
        if self._process is None and self.wanted:
            self._boots += 1
            self._trace.note("host", f"{self.name} starts, time {self._boots}")
            self._process = SimulatedProcess(self._loop)
            self._process.start(self._serve(self._process))

    def boot_later(self, delay_s: float) -> None:
        self._loop.call_later(delay_s, self.boot, context=self._outside)

    async def _serve(self, process: SimulatedProcess) -> None:
        try:
            self.broker, self._methods = await self._build(self, self._boots)
            self._trace.note("host", f"{self.name} serves")
        except (BasculeError, OSError) as error:
            self._trace.note("host", f"{self.name} could not start: {error}")
            self._loop.call_soon(self._give_up, process, context=self._outside)
        except Exception as error:
            self._loop.call_exception_handler({"message": f"{self.name} died at its start", "exception": error})

    def _give_up(self, process: SimulatedProcess) -> None:
        if self._process is process:
            self._end_process()
            self.boot_later(RESTART_AFTER_FAILED_START_S)

    def die(self, reason: str) -> None:
        """The broker itself says that it cannot go on."""
        self._trace.note("host", f"{self.name} ends: {reason}")
        if "empty its data folder and restart it: it joins" in reason:
            # It lost its disk while no other broker could be reached, and founded a cluster; or it joined that one. The
            # operator does what the message says.
            self._loop.call_soon(self.wipe, context=self._outside)
            self.boot_later(RESTART_AFTER_FAILED_START_S)
            return
        if self._process is not None:
            self._loop.call_soon(self._give_up, self._process, context=self._outside)

    def wipe(self) -> None:
        """A new and empty disk; the configuration is what it was."""
        self._end_process()
        disk = MemoryDisk()
        disk.cached, disk.latency_s, disk.sync_delay_s = self.disk.cached, self.disk.latency_s, self.disk.sync_delay_s
        self.disk = disk

    def kill(self, chance: random.Random) -> None:
        """kill -9: what the process wrote stays in the page cache."""
        if self._process is not None:
            self.disk.kill(chance)
            self._end_process()

    def power_off(self, chance: random.Random) -> None:
        """The process ends, and the page cache with it."""
        self._end_process()
        self.disk.crash(chance)

    async def stop(self) -> bool:
        """SIGTERM. Whether the shutdown was clean."""
        process, broker = self._process, self.broker
        if process is None or broker is None:
            return False
        stopping = process.start(_stop(broker))
        stopping.add_done_callback(lambda _: self._changed.set())
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                while self._process is process and not stopping.done():  # never the task itself: killed, it never ends
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._trace.note("host", f"{self.name} does not stop")
        clean = self._process is process and stopping.done() and stopping.exception() is None
        if self._process is process:
            self._end_process()
        return clean

    def pause(self) -> None:
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        if self._process is not None and self._process.paused:
            self._process.resume()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        self._changed.set()
        if self.broker is not None:
            self.last_metadata = self.broker.cluster.metadata
        self.broker, self.node, self.raft, self._methods = None, None, None, {}
        buses, self.buses = self.buses, []
        for bus in buses:
            bus.abandon()
        if process is not None:
            process.kill()
            self.disk.kill()  # else a write that it had under way would be torn when the next process ends
        calls, self._calls = self._calls, {}
        for call in calls:
            call.lose(LOST)

    def connect(self, purpose: str) -> MemoryBus:
        """A connection of its process to NATS."""
        bus = self.nats.connect(purpose, self.name)
        self.buses.append(bus)
        return bus

    # --- calls of clients -----------------------------------------------------------------------------------------

    def open(self, method: str, call: MemoryCall) -> None:
        """Begin a call; it is over when `call.ended` is true."""
        handler = self._methods.get(method if method.startswith("/") else f"/proto.API/{method}")
        if handler is None or self._process is None:
            call.lose(REFUSED)
            return
        self._calls[call] = None
        self._process.start(self._run(call, handler))

    async def _run(self, call: MemoryCall, handler: Handler) -> None:
        process = SimulatedProcess.current()
        try:
            await call.run(handler)
        except Exception as error:
            if (
                process is None or not process.dead
            ):  # a dead one's handlers are closed, and may not wait for anything then
                self._loop.call_exception_handler({"message": "a handler failed", "exception": error})
        self._calls.pop(call, None)

    async def call(self, method: str, request: Any, timeout_s: float) -> Answer:
        """A unary call, or one that ends by itself; the deadline holds on the client's side too."""
        call = MemoryCall(timeout_s)
        call.request(request.SerializeToString())
        self.open(method, call)
        try:
            async with asyncio.timeout(timeout_s + 0.01):
                status, text = await call.over()
        except TimeoutError:
            call.cancel()
            return Status.DEADLINE_EXCEEDED, "the client waited long enough", []
        return status, text, messages_of(bytes(call.responses))


def messages_of(frames: bytes) -> list[bytes]:
    return [message for _, message in split_messages(frames, 0, len(frames), MAX_MESSAGE_BYTES)[1]]


async def _stop(broker: Broker) -> None:
    await broker.hand_over(HAND_OVER_S)
    await broker.stop()
    await broker.close()
    await broker.environment.scheduler.close()


def _start_of(part: Part, metadata: Metadata | None) -> int:
    item = None if metadata is None else metadata.partition(part.stream, part.number)
    return item.start if item is not None else 0
