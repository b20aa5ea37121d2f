"""A stream whose clients know keys: of each key only the newest record stays, in most runs, and tombstones delete keys.

All kinds of publishers write to it, idempotent producers and atomic batches among them, few keys in small segments; a
few records have no key. What readers may miss is in `keys`.
"""

from bascule.errors import Status
from bascule.sim.bulkwriters import BulkWriter
from bascule.sim.history import StreamInfo
from bascule.sim.keys import Keys
from bascule.sim.numbered import NumberedProducer
from bascule.sim.plan import KeyedPlan
from bascule.sim.publishers import NatsPublisher, UnaryPublisher
from bascule.sim.readers import Reader
from bascule.sim.world import World
from bascule.wire.pb import api_pb2 as api

NAME = "keyed"


async def create_keyed(world: World, plan: KeyedPlan) -> None:
    stream = StreamInfo(
        NAME, f"sub.{NAME}", plan.stream.partitions, plan.stream.replication, plan.stream.min_isr, keys=plan.keys
    )
    world.history.streams[NAME] = stream
    if plan.compacts:
        for part in stream.parts():
            world.checker.compacted[part] = Keys(delay_s=plan.tombstone_delay_ms / 1000)
    request = api.CreateStreamRequest(
        name=NAME, subject=stream.subject, partitions=stream.partitions, replicationFactor=stream.replication
    )
    request.minIsr.value = stream.min_isr
    request.segmentMaxBytes.value = plan.segment_bytes
    request.cleanerInterval.value = plan.cleaned_every_ms
    request.compactEnabled.value = plan.compacts
    request.compactMinLag.value = plan.min_lag_ms
    request.compactTombstoneDelay.value = plan.tombstone_delay_ms
    await world.change("CreateStream", request, stream, (Status.OK, Status.ALREADY_EXISTS))


def start_keyed(world: World) -> None:
    """Its own clients, beside those that use every stream."""
    stream = world.history.streams[NAME]
    parts = stream.parts()
    world.start(UnaryPublisher(world, f"{NAME}-unary", parts, 0.15).run())
    world.start(NatsPublisher(world, f"{NAME}-nats", parts, 0.4).run())
    world.start(BulkWriter(world, f"{NAME}-bulk", parts, 0.8).run())
    for number in range(2):
        world.start(NumberedProducer(world, f"{NAME}-numbered{number}", stream, 0.4).run())
    world.start(Reader(world, f"{NAME}-reader", parts, 0.3).run())
