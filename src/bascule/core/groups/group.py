"""A consumer group, as the cluster agreed on it. Values only; `changes` makes the next one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bascule.wire.pb import internal_pb2 as pb


class Member(NamedTuple):
    streams: tuple[str, ...]
    """That it subscribes to, in the order of their names. None are left when all of them are deleted."""
    joined: int
    """The index of the command by which it did: a consumer that left and joined again is another member."""
    assigned: dict[str, tuple[int, ...]]
    """By stream, the partitions that it reads in this epoch, and nobody else in the group."""

    @property
    def partitions(self) -> int:
        return sum(map(len, self.assigned.values()))


def count_subscriptions(members: Mapping[str, Member]) -> int:
    return sum(max(1, len(member.streams)) for member in members.values())


@dataclass(frozen=True, slots=True)
class Group:
    id: str
    coordinator: str
    """The broker that gives members their assignments, and finds out which of them are gone."""
    epoch: int
    """The index of the last command that changed it."""
    created: int
    coordinator_epoch: int
    """The index of the command that named the coordinator."""
    members: Mapping[str, Member]
    partitions: int
    """How many its members read."""
    subscriptions: int
    """Members and streams that each subscribes to; a member without any counts as one."""

    def is_at(self, epoch: int) -> bool:
        """Whether somebody who knows of this epoch knows the group as it is. Its first epoch is also called 0: that is
        what the protocol answers to whoever creates a group."""
        return epoch == self.epoch or (not epoch and self.epoch == self.created)

    @classmethod
    def from_wire(cls, message: pb.ConsumerGroup) -> "Group":
        members = {
            each.id: Member(
                streams=tuple(each.streams),
                joined=each.joined,
                assigned={given.stream: tuple(given.partitions) for given in each.assignments},
            )
            for each in message.members
        }
        return cls(
            id=message.id,
            coordinator=message.coordinator,
            epoch=message.epoch,
            created=message.created,
            coordinator_epoch=message.coordinatorEpoch,
            members=members,
            partitions=sum(member.partitions for member in members.values()),
            subscriptions=count_subscriptions(members),
        )

    def to_wire(self) -> pb.ConsumerGroup:
        return pb.ConsumerGroup(
            id=self.id,
            members=[
                pb.Consumer(
                    id=name,
                    streams=member.streams,
                    joined=member.joined,
                    assignments=[
                        pb.PartitionAssignment(stream=stream, partitions=numbers)
                        for stream, numbers in member.assigned.items()
                    ],
                )
                for name, member in self.members.items()
            ],
            coordinator=self.coordinator,
            epoch=self.epoch,
            created=self.created,
            coordinatorEpoch=self.coordinator_epoch,
        )
