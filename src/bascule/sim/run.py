"""One seed from beginning to end: brokers start, clients work while faults happen, the faults end, the final checks
run.

After the faults every partition must take a publish again within a bound (I9). Then everything is read, forwards and
backwards; all brokers crash once more and everything is read again: what clients had read must be there both times.
"""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from bascule.errors import Status
from bascule.node.membership.controllerclient import ISR_TIMEOUT_S
from bascule.sim import knobs
from bascule.sim.activity import check_activity
from bascule.sim.bugs import BUGS
from bascule.sim.bulkwriters import BulkWriter
from bascule.sim.checkers import View
from bascule.sim.churn import Churn
from bascule.sim.cursors import CursorClients
from bascule.sim.expiring import Expiring
from bascule.sim.faults.hanging import hang, hanging_at_peace
from bascule.sim.faults.strikes import Faults
from bascule.sim.groups import Groups
from bascule.sim.history import StreamInfo
from bascule.sim.inspection import compare_metadata, compare_replicas, left_files, same_index
from bascule.sim.keyed import create_keyed, start_keyed
from bascule.sim.numbered import NumberedProducer
from bascule.sim.omniscience import watching
from bascule.sim.plan import Scenario
from bascule.sim.publishers import (
    AsyncPublisher,
    NatsPublisher,
    RacingWriter,
    SubjectPublisher,
    UnaryPublisher,
)
from bascule.sim.readers import Follower, Reader, Watcher, read_all, read_back, watch
from bascule.sim.restrictions import LongPauses, Restrictions
from bascule.sim.scenario import scenario
from bascule.sim.trace import Part, Trace, Violation
from bascule.sim.world import World
from bascule.testing.loop import VirtualLoop, run
from bascule.wire.pb import api_pb2 as api

RESUME_BOUND_S = 40.0
"""After the last fault: a partition that failed tries to reopen at least every 30 s."""
LAST_TRIES_S = 10.0
READ_ALL_S = 5.0
READ_ONE_S = 0.005
"""Of a slow disk, where reads take a record each: so long takes every record of a read from end to end."""
CATCH_UP_BOUND_S = 10.0
READ_TRIES = 3
LEADERS_CHANGE = "limits.MAX_UNSYNCED_BYTES"
"""Where it is small appends are refused, and leaders replaced, so often that none of them sees a replica lag."""
USED = 4
"""Partitions of one stream that clients use; the others of a stream with hundreds stay empty."""
MAX_RUN_S = 600.0
_log = logging.getLogger("bascule")


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    commits: int
    crashes: int
    splits: int
    faults: int
    kinds: dict[str, int]
    """How often each kind of fault happened."""
    elections: int
    tombstones: int
    """Those that went in partitions with several replicas."""
    digest: str
    violations: list[Violation]
    timeline: list[str] = field(default_factory=list)


def run_seed(seed: int, bug: str = "", brokers: int = 0, families: tuple[str, ...] = ()) -> Result:
    loop = VirtualLoop()
    trace = Trace(loop)
    simulation = Simulation(scenario(seed, brokers, families), trace)
    gc.collect()
    gc.disable()  # the run must not depend on when the garbage collector runs
    try:
        with ExitStack() as stack:
            stack.enter_context(_captured_logs(trace, simulation))
            stack.enter_context(knobs.turned(simulation.plan.knobs))
            if bug:
                stack.enter_context(BUGS[bug]())
            try:
                run(simulation.bounded(loop), loop)
            except Exception as error:
                simulation.problems.append(Violation(_kind(error), f"the run ended with {error!r}"))
    finally:
        gc.enable()
    return simulation.result()


class Simulation:
    def __init__(self, plan: Scenario, trace: Trace) -> None:
        self.plan = plan
        self.trace = trace
        self.problems: list[Violation] = []
        """Errors that no client saw: failed tasks, logged exceptions."""
        self._world: World
        self._faults: Faults
        self._cursors: CursorClients
        self._followers: list[Follower] = []
        self._following: list[asyncio.Task[None]] = []

    async def bounded(self, loop: VirtualLoop) -> None:
        """The run, unless it hangs."""
        try:
            async with asyncio.timeout(MAX_RUN_S):
                await self.run(loop)
        except TimeoutError:
            self.problems.append(Violation("hang", f"the run was not over after {MAX_RUN_S} s"))

    async def run(self, loop: VirtualLoop) -> None:
        loop.set_exception_handler(self._on_exception)
        self._world = World(self.plan, self.trace)
        self._faults = Faults(self._world)
        self._prepare_disks()
        with watching(self._world.omniscience, loop):
            await self._run()
        self.trace.note("phase", f"over after {loop.turns} turns, {self._world.nats.routed} messages")

    async def _run(self) -> None:
        await self._begin()
        await asyncio.sleep(self.plan.duration_s)
        self.trace.note("phase", "peace")
        self._world.stays_paused = True
        await self._faults.heal()
        await self._catch_up_while_paused()
        self._world.stays_paused = False
        await self._resume_beside_hanging_disk()
        await self._resume()
        self._world.publishing = False
        await self._final_checks()

    def result(self) -> Result:
        checker = self._world.checker
        violations = [*checker.violations, *self._world.cluster.violations, *self.problems]
        return Result(
            seed=self.plan.seed,
            commits=checker.committed,
            crashes=self._faults.crashes,
            splits=self._faults.splits,
            faults=self._faults.counts.total(),
            kinds=dict(self._faults.counts),
            elections=self._world.cluster.elections + checker.changes_of_leaders,
            tombstones=sum(len(keys.gone) for keys in checker.compacted.values()),
            digest=self.trace.digest(),
            violations=violations,
            timeline=self.trace.timeline(violations[0]) if violations else [],
        )

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        text = f"{context.get('message')}: {context.get('exception')!r}"
        self.trace.note("violation", text)
        self.problems.append(Violation(_kind(context.get("exception")), text))

    def _prepare_disks(self) -> None:
        latency_s = self.plan.disk_latency_s
        for host in self._world.cluster.hosts.values():
            host.disk.cached = self.plan.cached_reads
            host.disk.sync_delay_s = self.plan.sync_delay_s
            if latency_s:
                chance = self.plan.chance(f"disk of {host.name}")
                host.disk.latency_s = lambda chance=chance: chance.uniform(0, latency_s)

    # --- the work ---------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        world = self._world
        world.cluster.start()
        while not world.cluster.complete:
            await asyncio.sleep(0.05)
        for number, each in enumerate(self.plan.streams):
            name, subject = f"s{number}", f"sub.s{number}"
            await world.create(StreamInfo(name, subject, each.partitions, each.replication, each.min_isr))
        last = self.plan.streams[-1]
        await world.create(StreamInfo("race", "race", 1, last.replication, last.min_isr, optimistic=True))
        if self.plan.many:
            await world.create(StreamInfo("many", "many", self.plan.many, last.replication, last.min_isr))
        if self.plan.keyed is not None:
            await create_keyed(world, self.plan.keyed)
        parts = [part for part in world.parts() if not part.stream.startswith("race") and part.number < USED]
        races = [part for part in world.parts() if part.stream.startswith("race")]
        numbered = StreamInfo("numbered", "sub.numbered", 2, last.replication, last.min_isr)
        await world.create(numbered)
        if self.plan.wildcard:
            await world.create(StreamInfo("wild", "sub.>", 1, last.replication, last.min_isr))
        self._start_publishers(parts, races)
        for number in range(3):
            world.start(NumberedProducer(world, f"numbered{number}", numbered, 0.4).run())
        if world.checker.producers_known:
            world.start(NumberedProducer(world, "passer-by", numbered, 0.2, passes_by=True).run())
        if self.plan.keyed is not None:
            start_keyed(world)
        self._start_readers([part for part in world.parts() if part.number < USED])
        world.start(Churn(world, "churn", last.replication, last.min_isr).run())
        world.start(Groups(world, "grouped", "churn", last.replication, last.min_isr).run())
        world.start(Expiring(world, "expiring", last.replication, last.min_isr).run())
        world.start(Restrictions(world, "restricted", last.replication, last.min_isr).run())
        world.start(LongPauses(world, "paused", last.replication, last.min_isr).run())
        self._cursors = CursorClients(world, last.replication, last.min_isr)
        self._cursors.start()
        self.trace.note("phase", f"work for {self.plan.duration_s:.3f} s")
        world.start(self._faults.run())

    def _start_publishers(self, parts: list[Part], races: list[Part]) -> None:
        world = self._world
        for number in range(2):
            world.start(UnaryPublisher(world, f"unary{number}", parts, 0.15).run())
        world.start(SubjectPublisher(world, "subject", parts, 0.3).run())
        world.start(AsyncPublisher(world, "async0", parts, 0.5).run())
        world.start(NatsPublisher(world, "nats0", parts, 0.4).run())
        world.start(BulkWriter(world, "bulk0", parts, 0.5).run())
        for number in range(2):
            world.start(RacingWriter(world, f"race{number}", races, 0.2).run())

    def _start_readers(self, parts: list[Part]) -> None:
        world = self._world
        world.start(Reader(world, "reader", parts, 0.3).run())
        world.start(Watcher(world, "watcher", parts, 0.2).run())
        self._followers = [Follower(world, f"follower of {part}", part) for part in parts]
        loop = asyncio.get_running_loop()
        self._following = [loop.create_task(follower.run()) for follower in self._followers]

    # --- after the faults -------------------------------------------------------------------------------------

    async def _catch_up_while_paused(self) -> None:
        """I9: every replica of a paused partition comes back in sync, too, although nobody resumes it."""
        deadline_s = asyncio.get_running_loop().time() + RESUME_BOUND_S
        while (behind := self._world.paused_and_behind) != "":
            if asyncio.get_running_loop().time() > deadline_s:
                if behind is not None:  # else the final checks say why
                    text = f"paused, {RESUME_BOUND_S} s after the last fault: {behind}"
                    self._world.checker.violate("I9", text)
                return
            await asyncio.sleep(0.1)

    async def _resume_beside_hanging_disk(self) -> None:
        """I9: while the disk of one broker hangs, partitions that do not need it take a publish."""
        if (
            hang.__name__ not in self.plan.faults
            or LEADERS_CHANGE in dict(self.plan.knobs)
            or not await self._complete()
        ):
            return
        with hanging_at_peace(self._faults) as parts:
            loop = asyncio.get_running_loop()
            until_s = loop.time() + RESUME_BOUND_S
            tried = [
                loop.create_task(self._takes_a_publish("beside a disk that hangs", part, until_s)) for part in parts
            ]
            for task in tried:
                await task

    async def _complete(self) -> bool:
        """Every replica is in sync, within the bound, and has been for so long that nobody still asks for one to leave.
        If not, the final checks say so."""
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + RESUME_BOUND_S
        since_s = now_s()
        while now_s() < deadline_s and now_s() - since_s < 2 * ISR_TIMEOUT_S:
            await asyncio.sleep(0.1)
            if self._world.missing:
                since_s = now_s()
        return not self._world.missing

    async def _resume(self) -> None:
        """I9: every partition takes a publish again."""
        deadline_s = asyncio.get_running_loop().time() + RESUME_BOUND_S
        for part in self._world.parts():
            if part.stream == "wild":
                continue
            # Hundreds of partitions take long, and one may be paused while it is tried.
            until_s = max(deadline_s, asyncio.get_running_loop().time() + LAST_TRIES_S)
            await self._takes_a_publish("after all", part, until_s)

    async def _takes_a_publish(self, when: str, part: Part, until_s: float) -> None:
        world = self._world
        publisher = UnaryPublisher(world, f"{when}, {part}", [part], 0.0)
        while part in world.parts() and not await self._publishes(publisher, part):
            if asyncio.get_running_loop().time() > until_s:
                world.checker.violate("I9", f"{when}: no publish within {RESUME_BOUND_S} s after the last fault", part)
                break
            await asyncio.sleep(0.2)

    async def _publishes(self, publisher: UnaryPublisher, part: Part) -> bool:
        sent = publisher.send(part)
        request = api.PublishRequest(
            stream=part.stream, partition=part.number, **sent.fields, ackPolicy=api.ALL, expectedOffset=-1
        )
        status, text, answers = await self._world.call("Publish", request, 3.0)
        ack = api.PublishResponse.FromString(answers[0]).ack if answers else None
        publisher.learn(sent, status, text, ack)
        return status is Status.OK

    async def _final_checks(self) -> None:
        world = self._world
        await world.finished()
        await asyncio.sleep(1.0)  # messages in flight arrive
        await self._cursors.check("at the end")
        await check_activity(world, "at the end")
        await self._replicas_agree("at the end")
        await self._read_everything("at the end")
        await self._subscribers_arrive()
        chance = self.plan.chance("last power loss")
        hosts = list(world.cluster.hosts.values())
        for host in hosts:
            if self.plan.sync.relaxed:
                host.kill(chance)
            else:
                world.omniscience.power_goes(host)
                host.power_off(chance)
        for host in hosts:
            host.boot()
        self.trace.note("phase", "final checks, again after a crash of all")
        await self._cursors.check("after the last crash")
        await check_activity(world, "after the last crash")
        await self._replicas_agree("after the last crash")
        await self._read_everything("after the last crash")
        world.checker.check_order()

    async def _subscribers_arrive(self) -> None:
        world = self._world
        deadline_s = asyncio.get_running_loop().time() + CATCH_UP_BOUND_S
        for follower in self._followers:
            while follower.view.last + 1 < world.checker.known(follower.view.part).top:
                if asyncio.get_running_loop().time() > deadline_s:
                    text = f"a subscriber got no further than {follower.view.last}"
                    world.checker.violate("I9", text, follower.view.part)
                    break
                await asyncio.sleep(0.1)
        world.reading = False
        for task in self._following:
            await task

    async def _replicas_agree(self, when: str) -> None:
        """I9: every replica comes back in sync. I8: then all have the same bytes, and brokers the same metadata."""
        world = self._world
        deadline_s = asyncio.get_running_loop().time() + RESUME_BOUND_S
        while missing := world.missing or self._led_by_nobody() or left_files(world):
            if asyncio.get_running_loop().time() > deadline_s:
                world.checker.violate("I9", f"{when}, {RESUME_BOUND_S} s after the last fault: {missing}")
                return
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)
        for part in world.parts():
            await compare_replicas(world, part, when)
        while not same_index(world) and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(0.1)
        compare_metadata(world, when)

    def _led_by_nobody(self) -> str:
        """Partitions that could have a leader: damage of the only copy in sync cannot be repaired."""
        world = self._world
        parts = [each for each in world.parts() if not world.checker.known(each).damaged]
        without = ", ".join(str(part) for part in parts if world.cluster.leader(part) is None)
        return f"nobody leads {without}" if without else ""

    async def _read_everything(self, when: str) -> None:
        world = self._world
        for part in world.parts():
            forward = await self._tried(read_all, part)
            backward = await self._tried(read_back, part)
            if forward is None or backward is None:
                world.checker.violate("I9", f"{when} it cannot be read to its end", part)
            elif different := forward.differs(backward):
                text = f"{when} a read backwards gives other records: {different[:5]}"
                world.checker.violate("I1/I4", text, part, different[0])
            else:
                forward.without_holes(when)
            await watch(world, part)

    async def _tried(self, read: Callable[[World, Part, float], Awaitable[View | None]], part: Part) -> View | None:
        """A client that is sent to the wrong broker asks again."""
        timeout_s = READ_ALL_S + READ_ONE_S * self._world.checker.known(part).top
        for _ in range(READ_TRIES):
            view = await read(self._world, part, timeout_s)
            if view is not None:
                return view
        return None


def _kind(error: object) -> str:
    """A failed assertion is a violation of its own kind, wherever it failed."""
    return "assertion" if isinstance(error, AssertionError) else "crash"


@contextmanager
def _captured_logs(trace: Trace, simulation: Simulation) -> Iterator[None]:
    """Log lines of the brokers are part of the trace; an exception in one is a violation."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            trace.note("log", f"{record.levelname} {record.getMessage()}")
            if record.exc_info and record.exc_info[1] is not None:
                error = record.exc_info[1]
                simulation.problems.append(Violation(_kind(error), f"{record.getMessage()}: {error!r}"))

    handler = Handler(logging.WARNING)
    level, propagate = _log.level, _log.propagate
    _log.setLevel(logging.WARNING)
    _log.propagate = False
    _log.addHandler(handler)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)
        _log.propagate = propagate
