"""A client of a stream whose records expire, with a few records a segment: it publishes, reads, and now and then holds
records or deletes some. Nothing below a partition's start returns, whoever leads; nothing at or above a hold goes.

In half of the seeds the partition is paused whenever it is idle for a moment, mostly before the cleaner's interval is
over.

The limit is a number of messages, of bytes, or an age. Nothing goes early: by age unless clocks are wrong, by a number
unless some log had more. In the end, when nobody publishes any more, nothing is left that is over the limit, and no
file of what is gone.
"""

import asyncio
from collections.abc import Iterator

from bascule.errors import Status
from bascule.node.membership.controllerclient import DEFAULT_TIMEOUT_S
from bascule.node.membership.lease import LEASE_WAIT_S
from bascule.sim.history import StreamInfo
from bascule.sim.inspection import left_file
from bascule.sim.publishers import UnaryPublisher
from bascule.sim.readers import read_all, read_back
from bascule.sim.retained import LogSizes
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api

SEGMENT_BYTES = 600
RETAINED_MESSAGES = 12
RETAINED_BYTES = 2_000
RETAINED_MS = 1_500
SEGMENT_MS = 500
REMOVED_BOUND_S = 40.0
"""When nobody publishes any more."""
CLOCKS = ("clock", "drift")
CLEANED_EVERY_MS = 400
CALL_S = 3.0
HOLD = "archive"


class Expiring:
    def __init__(self, world: World, name: str, replication: int, min_isr: int) -> None:
        self._world = world
        self._chance = world.chance(name)
        self._stream = StreamInfo(name, f"expiring.{name}", 1, replication, min_isr)
        self._idle_chance = world.chance(f"{name}, idle")
        """Its own, so that seeds without auto-pause draw everything else as before."""
        self._pauses_ms = self._idle_chance.choice((0, self._idle_chance.randint(100, 600)))
        self._limit = world.chance(f"{name}, limit").choice(("messages", "bytes", "age"))
        self._clocks_agree = not any(kind in CLOCKS for kind in world.scenario.faults)
        self._deleted = 0
        """Below may be removed, however young it is."""
        self._held: int | None = None
        """Nothing at or above is removed: a hold is there, at this offset or below."""
        self._start = 0
        """Where the partition began when that was looked at last."""
        self._sizes = LogSizes(world, self._stream.parts()[0])

    async def run(self) -> None:
        world, chance = self._world, self._chance
        await self._create()
        (part,) = self._stream.parts()
        publisher = UnaryPublisher(world, f"{part}", [part], 0.05)
        while world.publishing:
            for _ in range(chance.randint(1, 8)):
                await publisher.round(part)
                self._check_number(part)
                await world.pause(chance, 0.05)
                self._check_number(part)
            if chance.random() < 0.4:
                await self._hold(part)
            if chance.random() < 0.2:
                await self._delete(part)
            await (read_all if chance.random() < 0.7 else read_back)(world, part)
            self._check_held(part)
            await world.pause(chance, 0.2)
            if self._pauses_ms and self._idle_chance.random() < 0.5:
                await world.pause(self._idle_chance, 2 * self._pauses_ms / 1000)
            self._check_age(part)
            self._check_number(part)
        if self._pauses_ms:
            await self._stay_open(part, publisher)
        await self._check_removed(part)

    async def _stay_open(self, part: Part, publisher: UnaryPublisher) -> None:
        """What is compared in the end is open, also if its leader had asked for another pause before it knew."""
        world = self._world
        request = admin.AlterStreamRequest(stream=part.stream, settings=admin.StreamSettings(autoPauseTime=0))
        await world.change("/bascule.v1.Admin/AlterStream", request, self._stream, (Status.OK,))
        until = world.now_s() + DEFAULT_TIMEOUT_S + LEASE_WAIT_S
        while (item := world.newest_partition(part)) is not None and (item.paused or world.now_s() < until):
            await (publisher.round(part) if item.paused else asyncio.sleep(0.5))

    # --- holds ------------------------------------------------------------------------------------------------------

    async def _hold(self, part: Part) -> None:
        """Set one, raise it, or remove it."""
        world, chance = self._world, self._chance
        low = world.newest_start(part) if self._held is None else self._held
        if self._held is not None and chance.random() < 0.4:
            self._held = None
            gone = admin.RemoveHoldRequest(stream=part.stream, name=HOLD)
            await world.change("/bascule.v1.Admin/RemoveHold", gone, self._stream, (Status.OK, Status.NOT_FOUND))
            return
        request = admin.SetHoldRequest(stream=part.stream, name=HOLD)
        request.offset = chance.randint(low, max(low, world.checker.known(part).top))
        if self._held is not None:
            self._held = request.offset  # whether it is raised or not
        host = world.some_host()
        status, text, _ = await host.call("/bascule.v1.Admin/SetHold", request, CALL_S)
        world.trace.note("hold", f"at {request.offset}: {status.name} {text}", part)
        if status is Status.OK and not world.cluster.founded_another(host):
            self._held = request.offset
        self._check_held(part)

    async def _delete(self, part: Part) -> None:
        """By an administrator, who is refused above a hold."""
        world, held = self._world, self._held
        start = world.newest_start(part)
        before = self._chance.randint(start, max(start, world.checker.known(part).top))
        expired = self._limit == "age" and self._chance.random() < 0.5
        request = admin.DeleteRecordsRequest(stream=part.stream, before=0 if expired else before, expired=expired)
        if expired:
            before = 0
        self._deleted = max(self._deleted, before)
        host = world.some_host()
        status, text, _ = await host.call("/bascule.v1.Admin/DeleteRecords", request, CALL_S)
        world.trace.note("delete", f"before {before}: {status.name} {text}", part)
        if status is Status.OK and held is not None and before > held and not world.cluster.founded_another(host):
            world.checker.violate("held", f"everything before {before} was deleted, and {held} is held", part, held)
        self._check_held(part)

    def _check_held(self, part: Part) -> None:
        """On no broker, whether it leads or not, and whether it serves or not."""
        if self._held is None:
            return
        for host in self._world.cluster.hosts.values():
            replica = host.replica(part)
            start = max(host.start_of(part), 0 if replica is None else replica.log.segments.floor)
            if start > self._held:
                text = f"it is held, and {host.name} has removed everything below {start}"
                self._world.checker.violate("held", text, part, self._held)

    # --- what goes, and when -----------------------------------------------------------------------------------------

    def _check_age(self, part: Part) -> None:
        if self._limit != "age" or not self._clocks_agree:
            return
        world = self._world
        now = max(host.clock.time_ns() for host in world.cluster.hosts.values())
        start, timestamps = world.newest_start(part), world.checker.known(part).timestamps
        young = [
            offset
            for offset in range(self._deleted, start)
            if offset in timestamps and timestamps[offset] > now - RETAINED_MS * 1_000_000
        ]
        if young:
            text = f"it is younger than {RETAINED_MS} ms, and everything below {start} has expired"
            world.checker.violate("retention", text, part, young[0])

    def _check_number(self, part: Part) -> None:
        """If the partition begins later than when this looked last, the limit was exceeded in between."""
        world = self._world
        if self._limit == "age" or world.checker.repeats:
            return
        start, most = world.newest_start(part), self._sizes.look()
        early = most.messages <= RETAINED_MESSAGES if self._limit == "messages" else most.nbytes <= RETAINED_BYTES
        if early and start > max(self._start, self._deleted):
            text = f"everything below {start} has expired, and no log had more than {most.messages} messages"
            world.checker.violate("retention", f"{text} with {most.nbytes} bytes", part, start - 1)
        self._start = max(self._start, start)

    async def _check_removed(self, part: Part) -> None:
        world, stream = self._world, self._stream
        self._held = None
        gone = admin.RemoveHoldRequest(stream=part.stream, name=HOLD)  # it may be there, though nobody said so
        await world.change("/bascule.v1.Admin/RemoveHold", gone, stream, (Status.OK, Status.NOT_FOUND))
        until_s = asyncio.get_running_loop().time() + REMOVED_BOUND_S
        while left := next(self._left(part), ""):
            if asyncio.get_running_loop().time() > until_s:
                world.checker.violate("retention", f"{REMOVED_BOUND_S} s after the last message {left}", part)
                return
            await asyncio.sleep(0.2)

    def _left(self, part: Part) -> Iterator[str]:
        """What should have gone, on any broker."""
        for host in self._world.cluster.hosts.values():
            replica = host.replica(part)
            if replica is None or replica.stream.name != part.stream:
                continue
            log = replica.log
            later = log.segments[1:]
            if self._limit == "messages" and sum(each.records for each in later) > RETAINED_MESSAGES:
                yield f"{host.name} has more than {RETAINED_MESSAGES} messages"
            if self._limit == "bytes" and sum(each.appended.size for each in later) > RETAINED_BYTES:
                yield f"{host.name} has more than {RETAINED_BYTES} bytes"
            if self._limit == "age" and self._clocks_agree and log.segments.floor < log.end:
                yield f"{host.name} has records from {log.segments.floor} to {log.end}"
            if left := left_file(host, log):
                yield left

    async def _create(self) -> None:
        stream = self._stream
        self._world.history.streams[stream.name] = stream
        request = api.CreateStreamRequest(
            name=stream.name, subject=stream.subject, partitions=1, replicationFactor=stream.replication
        )
        request.minIsr.value = stream.min_isr
        request.segmentMaxBytes.value = SEGMENT_BYTES
        match self._limit:
            case "messages":
                request.retentionMaxMessages.value = RETAINED_MESSAGES
            case "bytes":
                request.retentionMaxBytes.value = RETAINED_BYTES
            case _:
                request.retentionMaxAge.value, request.segmentMaxAge.value = RETAINED_MS, SEGMENT_MS
        request.cleanerInterval.value = CLEANED_EVERY_MS
        request.autoPauseTime.value = self._pauses_ms
        await self._world.change("CreateStream", request, stream, (Status.OK, Status.ALREADY_EXISTS))
