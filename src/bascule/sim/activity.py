"""What the activity stream must have in the end: every event at least once, and each id first in order.

The events that must be there are those of the streams that exist, and of the changes that were answered."""

import asyncio
from collections import Counter

from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import ACTIVITY
from bascule.sim.trace import Part
from bascule.sim.world import Change, World
from bascule.testing.call import MemoryCall
from bascule.wire.kernels import decode_records
from bascule.wire.pb import api_pb2 as api

BOUND_S = 40.0
"""After the last fault all events are published within so long."""
READ_TIMEOUT_S = 5.0
_HANDSHAKE_BYTES = 5


async def check_activity(world: World, when: str) -> None:
    deadline_s = asyncio.get_running_loop().time() + BOUND_S
    while (metadata := _newest(world)) is None or metadata.activity.unpublished:
        if asyncio.get_running_loop().time() > deadline_s:
            world.checker.violate("I9", f"{when}, {BOUND_S} s after the last fault, events are not published")
            return
        await asyncio.sleep(0.1)
    stream = metadata.stream(ACTIVITY)
    if stream is None:
        return
    events = await _events(world, deadline_s)
    ids = [event.id for event in events]
    firsts = list(dict.fromkeys(ids))
    if firsts != sorted(firsts):
        world.checker.violate("activity", f"{when} the events come in this order: {firsts}")
    for each in metadata.streams.values():
        if each.creation_index >= stream.creation_index and each.creation_index not in firsts:
            text = f"{when} the creation of {each.name}, event {each.creation_index}, is missing"
            world.checker.violate("activity", text)
    reported = Counter(change_of(event) for event in {event.id: event for event in events}.values())
    for change, count in world.changes.items():
        if reported[change] < count:
            text = f"{change[0]} of {change[1]} was answered {count} times, and is reported {reported[change]} times"
            world.checker.violate("activity", f"{when} {text}")
    world.trace.note("activity", f"{when} {len(firsts)} events, {len(ids)} records")


def change_of(event: api.ActivityStreamEvent) -> Change | None:
    """What a client has asked for; None if that is no change of a stream."""
    match event.op:
        case api.CREATE_STREAM:
            return "CreateStream", event.createStreamOp.stream
        case api.DELETE_STREAM:
            return "DeleteStream", event.deleteStreamOp.stream
        case api.PAUSE_STREAM:
            return "PauseStream", event.pauseStreamOp.stream
        case api.SET_STREAM_READONLY:
            return "SetStreamReadonly", event.setStreamReadonlyOp.stream
    return None


def _newest(world: World) -> Metadata | None:
    """The controller's, which only the simulator can ask for."""
    controller = world.cluster.controller
    return controller.broker.cluster.metadata if controller is not None and controller.broker is not None else None


async def _events(world: World, deadline_s: float) -> list[api.ActivityStreamEvent]:
    """All events, as they are read."""
    part = Part(ACTIVITY, 1, 0)
    request = api.SubscribeRequest(
        stream=ACTIVITY, startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST, resume=True
    )
    while True:
        call = MemoryCall(READ_TIMEOUT_S)
        call.request(request.SerializeToString())
        (await world.leader(part)).open("Subscribe", call)
        status, text = await call.over()
        if text == "Stop offset reached":
            records = bytes(call.responses[_HANDSHAKE_BYTES:])
            values = [record[2] for record in decode_records(records, 0, len(records), len(records))[1]]
            return [api.ActivityStreamEvent.FromString(value) for value in values]
        world.note_status(part, status)
        if asyncio.get_running_loop().time() > deadline_s:
            world.checker.violate("I9", f"the activity stream cannot be read: {text}", part)
            return []
        await asyncio.sleep(0.1)
