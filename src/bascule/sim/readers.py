"""Clients that read: everything, from a position, backwards, or for ever; and one that asks for high watermarks."""

import asyncio
import random

from bascule.errors import Status
from bascule.sim.checkers import View
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.testing.call import MemoryCall
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as bulk

READ_TIMEOUT_S = 4.0
STOPPED = "Stop offset reached"
EMPTY = "Stream is empty"
NOTHING_BEHIND = "Failed to create stream reader: segment not found"


async def collect(world: World, view: View, request: api.SubscribeRequest, timeout_s: float) -> tuple[Status, str]:
    """A subscription to its end, or as far as time allows."""
    call = MemoryCall(timeout_s)
    call.request(request.SerializeToString())
    host = await world.leader(view.part)
    start, began_s = host.start_of(view.part), asyncio.get_running_loop().time()
    host.open("Subscribe", call)
    try:
        async with asyncio.timeout(timeout_s + 0.01):
            status, text = await call.over()
    except TimeoutError:
        call.cancel()
        status, text = Status.DEADLINE_EXCEEDED, "the client waited long enough"
    world.note_status(view.part, status)
    view.took_s = 0.0 if request.reverse else asyncio.get_running_loop().time() - began_s
    count = view.take(bytes(call.responses), request.reverse)
    view.expired_below(start, world.newest_start(view.part))
    world.trace.note("read", f"{count} records up to {view.last}: {status.name} {text}", view.part)
    return status, text


async def read_all(world: World, part: Part, timeout_s: float = READ_TIMEOUT_S) -> View | None:
    """From the oldest to the newest; None if the end was not reached."""
    view = View(world.checker, part)
    request = api.SubscribeRequest(
        stream=part.stream,
        partition=part.number,
        startPosition=api.EARLIEST,
        stopPosition=api.STOP_LATEST,
        resume=True,
    )
    _, text = await collect(world, view, request, timeout_s)
    complete = text in (STOPPED, EMPTY)
    view.covered(0, view.top if complete else view.last + 1)
    if complete:
        view.whole_batches("in a full read")
    return view if complete else None


async def read_back(world: World, part: Part, timeout_s: float = READ_TIMEOUT_S) -> View | None:
    """From the newest to the oldest; None if the oldest was not reached."""
    view = View(world.checker, part)
    request = api.SubscribeRequest(
        stream=part.stream, partition=part.number, startPosition=api.LATEST, reverse=True, resume=True
    )
    _, text = await collect(world, view, request, timeout_s)
    complete = text in (STOPPED, NOTHING_BEHIND)
    if complete:
        view.whole_batches("in a full read backwards")
    view.covered(0 if complete else view.last, view.top if complete or view.seen else 0)
    return view if complete else None


async def read_from_somewhere(world: World, part: Part, chance: random.Random) -> None:
    view = View(world.checker, part)
    known = world.checker.known(part)
    request = api.SubscribeRequest(stream=part.stream, partition=part.number, stopPosition=api.STOP_LATEST)
    timestamps = sorted(known.timestamps)
    low = 0
    match chance.randrange(4):
        case 0:
            low = chance.randint(0, view.top + 1)
            request.startPosition, request.startOffset = api.OFFSET, low
        case 1 if timestamps:
            low = chance.choice(timestamps)
            request.startPosition, request.startTimestamp = api.TIMESTAMP, known.timestamps[low]
        case 2:
            low = max(0, view.top - 1)
            request.startPosition = api.LATEST
        case _:
            low = view.top
            request.startPosition, request.stopPosition = api.NEW_ONLY, api.STOP_ON_CANCEL
    if timestamps and request.stopPosition == api.STOP_LATEST and chance.random() < 0.3:
        request.stopPosition, request.stopOffset = api.STOP_OFFSET, chance.choice(timestamps)
    await collect(world, view, request, 1.0)
    for offset in view.seen:
        if offset < low and request.startPosition != api.OFFSET:
            world.checker.violate("position", f"a read from {low} on gave it", part, offset)
    if view.seen:
        first = low if request.startPosition in (api.OFFSET, api.TIMESTAMP) else next(iter(view.seen))
        view.covered(first, view.last + 1)


async def read_range(world: World, part: Part, chance: random.Random) -> None:
    """A bulk read, from the leader or from any broker that has a replica. Whatever range a response names is whole."""
    view = View(world.checker, part)
    floor = world.checker.known(part).hw_end
    low = chance.randint(0, max(0, view.top))
    request = bulk.ReadRequest(
        stream=part.stream,
        partition=part.number,
        start=low,
        end=chance.choice((0, chance.randint(low, view.top + 2))),
        maxBytes=chance.choice((0, 1, 300)),
        fromReplica=chance.random() < 0.5,
    )
    host = world.some_host() if request.fromReplica else await world.leader(part)
    start, began_s = host.start_of(part), asyncio.get_running_loop().time()
    status, text, answers = await host.call("/bascule.v1.Log/Read", request, READ_TIMEOUT_S)
    if not request.fromReplica:
        world.note_status(part, status)
    position = low
    for answer in map(bulk.ReadResponse.FromString, answers):
        if answer.start != position or answer.end < answer.start:
            world.checker.violate("range", f"{answer.start} to {answer.end} came after {position}", part, answer.start)
        position = answer.end
        view.take(answer.records)
    view.took_s = asyncio.get_running_loop().time() - began_s
    view.expired_below(start, world.newest_start(part))
    view.covered(low, position)
    world.trace.note("range", f"{low} to {position} of {request.end}: {status.name} {text}", part)
    if status is Status.OK and not request.fromReplica and position < (wanted := min(request.end or floor, floor)):
        text = f"a bulk read ended at {position}, and {wanted} was requested and below the high watermark"
        world.checker.violate("range", text, part, position)


class Reader:
    """Reads partitions at random, in one way or another."""

    def __init__(self, world: World, name: str, parts: list[Part], mean_pause_s: float) -> None:
        self._world = world
        self._chance = world.chance(name)
        self._parts = parts
        self._mean_pause_s = mean_pause_s

    async def run(self) -> None:
        while self._world.publishing:
            await self._world.pause(self._chance, self._mean_pause_s)
            part = self._chance.choice(self._parts)
            match self._chance.randrange(5):
                case 0:
                    await read_all(self._world, part)
                case 1:
                    await read_back(self._world, part)
                case 2:
                    await read_range(self._world, part, self._chance)
                case _:
                    await read_from_somewhere(self._world, part, self._chance)


class Follower:
    """Subscribes for ever, and after every lost connection goes on after the last record it has."""

    def __init__(self, world: World, name: str, part: Part) -> None:
        self._world = world
        self._chance = world.chance(name)
        self.view = View(world.checker, part)

    async def run(self) -> None:
        while self._world.reading:
            await self._world.pause(self._chance, 0.1)
            await self._follow(self.view.part)
        self.view.took_s = float("inf")
        self.view.covered(0, self.view.last + 1)

    async def _follow(self, part: Part) -> None:
        call = MemoryCall(None)
        request = api.SubscribeRequest(
            stream=part.stream, partition=part.number, startPosition=api.OFFSET, startOffset=self.view.last + 1
        )
        call.request(request.SerializeToString())
        host = await self._world.leader(part)
        host.open("Subscribe", call)
        call.taking = self._chance.random() < 0.8
        until = asyncio.get_running_loop().time() + self._chance.uniform(0.5, 5)
        try:
            async with asyncio.timeout_at(until):
                while not call.ended and self._world.reading:
                    self.view.take(await call.arrived())
                    await asyncio.sleep(0.02)
                    call.take()
        except TimeoutError:
            pass
        if call.ended:
            self._world.note_status(part, (await call.over())[0])
        call.cancel()


class Watcher:
    """Asks for high watermarks, and checks which broker commits."""

    def __init__(self, world: World, name: str, parts: list[Part], mean_pause_s: float) -> None:
        self._world = world
        self._chance = world.chance(name)
        self._parts = parts
        self._mean_pause_s = mean_pause_s

    async def run(self) -> None:
        while self._world.publishing:
            await self._world.pause(self._chance, self._mean_pause_s)
            await watch(self._world, self._chance.choice(self._parts))
            self._look_inside()

    def _look_inside(self) -> None:
        """What no client can see: which broker commits."""
        for host in self._world.cluster.hosts.values():
            for part in self._parts:
                driver = host.replica(part)
                if driver is not None and driver.leading is not None and driver.leading.hw_end:
                    self._world.checker.commits(part, driver.partition.leader_epoch, host.name)


async def watch(world: World, part: Part, timeout_s: float = 2.0) -> bool:
    floor = world.checker.known(part).hw_end
    request = api.FetchPartitionMetadataRequest(stream=part.stream, partition=part.number)
    status, _, answers = await world.call_leader(part, "FetchPartitionMetadata", request, timeout_s)
    if status is Status.OK:
        world.checker.watermark(part, floor, api.FetchPartitionMetadataResponse.FromString(answers[0]).metadata)
    return status is Status.OK
