"""Settings of a stream that are changed after its creation.

Most settings are read where they are used, and the brokers of the stream get the new ones with the change. Min ISR,
optimistic concurrency and the FlatBuffers draft are fixed for a leader epoch: a change of them begins another one, so
that no record is committed by half under the one and by half under the other. With a lower min ISR replicas that were
eligible may lack what is committed without them from then on: they are eligible no longer.

Where nobody leads nothing is committed before somebody does, and an eligible replica that comes back first could lead.
So there the controller takes those into the ISR before it lowers the minimum (`expansions`): they have all committed,
and whoever leads then commits nothing without them, or takes them out first. With commands of their own: what
AlterStream does to the sets stays as it was, for brokers of an earlier version, and for those that are stored.
"""

from collections.abc import Callable
from dataclasses import fields, replace

from bascule.core.metadata.commands import AlterStream, ExpandIsr
from bascule.core.metadata.isr import ClusterState, minimum, with_sets
from bascule.core.metadata.streams import Partition, Stream, StreamConfig
from bascule.errors import FailedPrecondition, InvalidArgument, NotFound

SETTINGS = tuple(each.name for each in fields(StreamConfig))
OF_A_LEADER_EPOCH = ("min_isr", "optimistic_concurrency_control", "flatbuffers_draft")


def check(stream: Stream | None, command: AlterStream) -> None:
    """Raises what a client is told if it cannot be done."""
    if stream is None:
        raise NotFound("stream does not exist")
    given = [name for name in SETTINGS if getattr(command.config, name) is not None]
    if not given and not command.reset:
        raise InvalidArgument("no setting is named: there is nothing to alter")
    for name in command.reset:
        if name not in SETTINGS:
            raise InvalidArgument(f"no stream setting is called {name}: there are {', '.join(SETTINGS)}")
        if name in given:
            raise InvalidArgument(f"{name} is both set and reset: do one of them")
    for name in given:
        if getattr(command.config, name) < 0:
            raise InvalidArgument(f"{name} cannot be negative")
    if "encryption" in (*given, *command.reset):
        raise FailedPrecondition("the encryption of a stream cannot be altered: create another one")
    least = minimum(altered(stream.config, command))
    fewest = min(len(item.replicas) for item in stream)
    if least > minimum(stream.config) and least > fewest:
        raise FailedPrecondition(f"a min ISR of {least} can never be met: a partition has {fewest} replicas")


def altered(config: StreamConfig, command: AlterStream) -> StreamConfig:
    given = {name: value for name in SETTINGS if (value := getattr(command.config, name)) is not None}
    return replace(config, **given, **dict.fromkeys(command.reset))


def apply(stream: Stream, command: AlterStream, now: ClusterState) -> tuple[StreamConfig, dict[int, Partition]]:
    """The settings, and the partitions, all of which change: their replicas must learn of it."""
    config = altered(stream.config, command)
    begins = any(getattr(config, name) != getattr(stream.config, name) for name in OF_A_LEADER_EPOCH)
    least = minimum(config)
    changed: dict[int, Partition] = {}
    for item in stream:
        leader_epoch = now.epoch if begins and item.leader else item.leader_epoch
        changed[item.id] = with_sets(item, item.isr, item.eligible, least, now, item.leader, leader_epoch)
    return config, changed


def expansions(stream: Stream, command: AlterStream, is_there: Callable[[str], bool]) -> list[ExpandIsr]:
    """What takes replicas that are eligible into the ISR before this command ends that: the next one of each partition
    whose leader is not there, and that would be eligible no longer. With each the partition changes: the next one may
    be eligible no longer after it, if the ISR has the present minimum then, and is left."""
    before, after = minimum(stream.config), minimum(altered(stream.config, command))
    return [
        ExpandIsr(stream.name, item.id, item.eligible[0], item.leader, item.leader_epoch, item.epoch)
        for item in stream
        if after < before and after <= len(item.isr) and item.eligible
        if item.leader and not is_there(item.leader)
    ]
