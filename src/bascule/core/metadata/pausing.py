"""Partitions that are paused, resumed, and set read-only or writable again.

A paused partition takes nothing, so nothing is appended in its leader epoch any more: it is resumed under another one,
and a broker that has not heard of the pause cannot go on under it. Who leads and who is in sync stays as it is, and
changes meanwhile as that of any other partition when brokers die and come back: a paused partition is replicated while
it must be (`replicates`).
"""

from collections.abc import Collection

from bascule.core.metadata.commands import PartitionsCommand, PauseStream, ResumeStream, SetStreamReadonly
from bascule.core.metadata.streams import Partition, Stream
from bascule.errors import FailedPrecondition, NotFound
from bascule.types import Epoch


def check(stream: Stream | None, command: PartitionsCommand) -> None:
    """Raises what a client is told if it cannot be done."""
    if stream is None:
        raise NotFound("stream does not exist")
    if any(stream.partition(number) is None for number in command.partitions):
        raise NotFound("partition does not exist")
    if isinstance(command, PauseStream) and command.leader:
        for item in _named(stream, command):
            if not item.is_led_by(command.leader, command.leader_epoch) or item.paused:
                raise FailedPrecondition(f"{command.leader} does not lead partition {item.id} any more")


def apply(
    stream: Stream, command: PauseStream | ResumeStream | SetStreamReadonly, epoch: Epoch
) -> dict[int, Partition]:
    """The partitions that change, as they are afterwards."""
    named = _named(stream, command)
    match command:
        case PauseStream(resume_all=resume_all, at=at):
            return {
                item.id: item._replace(paused=True, resume_all=resume_all, pauses=item.pauses.at(at), epoch=epoch)
                for item in named
            }
        case ResumeStream(at=at):
            paused = [item for item in named if item.paused]
            if any(item.resume_all for item in paused):
                paused = [item for item in stream if item.paused]
            return {item.id: _resumed(item, at, epoch) for item in paused}
        case SetStreamReadonly(readonly=readonly, at=at):
            return {
                item.id: item._replace(readonly=readonly, readonly_changes=item.readonly_changes.at(at), epoch=epoch)
                for item in named
            }


def is_resumed(item: Partition, command: ResumeStream, epoch: Epoch) -> bool:
    """Whether that command, applied at this epoch, has resumed the partition, or was to and found it resumed."""
    named = not command.partitions or item.id in command.partitions
    return not item.paused and (named or item.leader_epoch >= epoch)


def replicates(item: Partition, alive: Collection[str]) -> bool:
    """Whether a paused partition is open for replication: a replica that is alive is not in sync, and its leader is
    there to replicate from. Each death and each lost disk takes a replica out of the ISR, during a pause, too: without
    this none would come back into it, and at last nobody would be left there."""
    return item.leader in alive and any(each in alive and each not in item.isr for each in item.replicas)


def _named(stream: Stream, command: PartitionsCommand) -> list[Partition]:
    return [stream.partitions[number] for number in command.partitions] if command.partitions else list(stream)


def _resumed(item: Partition, at: int, epoch: Epoch) -> Partition:
    return item._replace(paused=False, resume_all=False, pauses=item.pauses.at(at), epoch=epoch, leader_epoch=epoch)
