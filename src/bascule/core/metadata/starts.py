"""Where partitions begin, and what holds them: what expired is served nowhere, whoever leads.

A start only rises, and never above the lowest hold. A request for more is not cut to the hold: that partition is left
as it is, and nobody is told. So the leader that asks stays at or below the lowest hold, and below its high watermark,
too, which nobody checks here (`Cleaner`). A new start is no reason for another partition epoch: who leads and who is in
sync has nothing to do with it.
"""

from collections.abc import Mapping

from bascule.core.metadata.commands import RaiseStarts, RemoveHold, SetHold
from bascule.core.metadata.placement import Changed
from bascule.core.metadata.streams import Hold, Partition, Stream
from bascule.errors import FailedPrecondition, InvalidArgument, NotFound
from bascule.limits import MAX_HOLD_NAME_BYTES, MAX_HOLDS


def lowest_hold(item: Partition) -> int | None:
    return min((hold.offset for hold in item.holds), default=None)


def raise_starts(streams: Mapping[str, Stream], command: RaiseStarts) -> Changed:
    changed: Changed = {}
    for name, creation_index, number, leader_epoch, start in command.starts:
        stream = streams.get(name)
        item = stream.partition(number) if stream and stream.creation_index == creation_index else None
        if item is None or not item.is_led_by(command.leader, leader_epoch):
            continue
        held = lowest_hold(item)
        if start > item.start and (held is None or start <= held):
            changed.setdefault(name, {})[item.id] = item._replace(start=start)
    return changed


def check_hold(item: Partition | None, command: SetHold | RemoveHold) -> None:
    if item is None:
        raise NotFound("partition does not exist")
    known = {hold.name: hold for hold in item.holds}.get(command.name)
    if isinstance(command, RemoveHold):
        if known is None:
            raise NotFound(f"there is no hold {command.name!r} on this partition")
        return
    if not command.name or len(command.name.encode()) > MAX_HOLD_NAME_BYTES:
        raise InvalidArgument(f"the name of a hold has from 1 to {MAX_HOLD_NAME_BYTES} bytes")
    if command.offset < item.start:
        raise FailedPrecondition(
            f"the partition begins at offset {item.start}: what is below is removed, and cannot be held"
        )
    if known is not None and command.offset < known.offset:
        raise FailedPrecondition(
            f"hold {command.name!r} is at offset {known.offset}, and is never lowered: remove it and set another one"
        )
    if known is None and len(item.holds) >= MAX_HOLDS:
        raise FailedPrecondition(f"a partition has at most {MAX_HOLDS} holds: remove one first")


def apply_hold(item: Partition, command: SetHold | RemoveHold) -> Partition:
    holds = {hold.name: hold for hold in item.holds if hold.name != command.name}
    if isinstance(command, SetHold):
        holds[command.name] = Hold(command.name, command.offset, command.at)
    return item._replace(holds=tuple(holds[name] for name in sorted(holds)))
