"""A client of a stream whose records expire, with a few records a segment: it publishes, reads, and holds records now
and then. Nothing below a partition's start returns, whoever leads; nothing at or above a hold is removed.
"""

from bascule.errors import Status
from bascule.sim.history import StreamInfo
from bascule.sim.publishers import UnaryPublisher
from bascule.sim.readers import read_all, read_back
from bascule.sim.world import World
from bascule.wire.pb import api_pb2 as api

SEGMENT_BYTES = 600
RETAINED_MESSAGES = 12
CLEANED_EVERY_MS = 400


class Expiring:
    def __init__(self, world: World, name: str, replication: int, min_isr: int) -> None:
        self._world = world
        self._chance = world.chance(name)
        self._stream = StreamInfo(name, f"expiring.{name}", 1, replication, min_isr)

    async def run(self) -> None:
        world, chance = self._world, self._chance
        await self._create()
        (part,) = self._stream.parts()
        publisher = UnaryPublisher(world, f"{part}", [part], 0.05)
        while world.publishing:
            for _ in range(chance.randint(1, 8)):
                await publisher.round(part)
                await world.pause(chance, 0.05)
            await (read_all if chance.random() < 0.7 else read_back)(world, part)
            await world.pause(chance, 0.2)

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
