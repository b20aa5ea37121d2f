"""A client of a stream whose records expire, with a few records a segment: it publishes, reads, and now and then holds
records or deletes some. Nothing below a partition's start returns, whoever leads; nothing at or above a hold goes.
"""

from bascule.errors import Status
from bascule.sim.history import StreamInfo
from bascule.sim.publishers import UnaryPublisher
from bascule.sim.readers import read_all, read_back
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api

SEGMENT_BYTES = 600
RETAINED_MESSAGES = 12
CLEANED_EVERY_MS = 400
CALL_S = 3.0
HOLD = "archive"


class Expiring:
    def __init__(self, world: World, name: str, replication: int, min_isr: int) -> None:
        self._world = world
        self._chance = world.chance(name)
        self._stream = StreamInfo(name, f"expiring.{name}", 1, replication, min_isr)
        self._held: int | None = None
        """Nothing at or above is removed: a hold is there, at this offset or below."""

    async def run(self) -> None:
        world, chance = self._world, self._chance
        await self._create()
        (part,) = self._stream.parts()
        publisher = UnaryPublisher(world, f"{part}", [part], 0.05)
        while world.publishing:
            for _ in range(chance.randint(1, 8)):
                await publisher.round(part)
                await world.pause(chance, 0.05)
            if chance.random() < 0.4:
                await self._hold(part)
            if chance.random() < 0.2:
                await self._delete(part)
            await (read_all if chance.random() < 0.7 else read_back)(world, part)
            self._check_held(part)
            await world.pause(chance, 0.2)

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
        request = admin.DeleteRecordsRequest(stream=part.stream, before=before)
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

    async def _create(self) -> None:
        stream = self._stream
        self._world.history.streams[stream.name] = stream
        request = api.CreateStreamRequest(
            name=stream.name, subject=stream.subject, partitions=1, replicationFactor=stream.replication
        )
        request.minIsr.value = stream.min_isr
        request.segmentMaxBytes.value = SEGMENT_BYTES
        request.retentionMaxMessages.value = RETAINED_MESSAGES
        request.cleanerInterval.value = CLEANED_EVERY_MS
        await self._world.change("CreateStream", request, stream, (Status.OK, Status.ALREADY_EXISTS))
