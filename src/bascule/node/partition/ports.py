"""What one partition may ask of its broker and of replication.

A replica is given a `PartitionBroker` when it is created, and passes it on to its roles and its repair. These see their
replica as a `PartitionReplica`, extended in each file by what that part needs. So no file of a partition imports the
file that creates it.
"""

from collections.abc import Awaitable
from typing import Protocol

from bascule.core.metadata.streams import Key, Partition, Stream
from bascule.core.partition.candidate import Account
from bascule.core.partition.leader import AskExpand, AskShrink
from bascule.node.replication.feeds import LocalReplica
from bascule.node.replication.fetchers import FollowerRole


class PartitionReplica(LocalReplica, Protocol):
    """A replica as its roles and its broker see it."""

    @property
    def name(self) -> str: ...

    @property
    def stream(self) -> Stream: ...

    @property
    def partition(self) -> Partition:
        """As the metadata had it when the replica last took its role."""

    def assertion_failed(self, error: AssertionError) -> None:
        """An assertion failed: the replica has no role until the broker restarts."""


class Feeding(Protocol):
    """The leading side of replication, as a partition uses it."""

    def prepare(self) -> None:
        """Records are about to be appended."""

    def appended(self, replica: LocalReplica, records: bytes, first_offset: int, next_offset: int) -> None: ...

    def has_news(self, replica: LocalReplica) -> None:
        """It has a higher high watermark, or records that could not be read before."""

    def went_back(self, replica: LocalReplica) -> None:
        """Its log failed, and its last records are lost."""

    def last_reports(self, key: Key, epoch: int) -> tuple[tuple[str, int], ...]:
        """The followers in this epoch, and when each last reported."""


class Fetching(Protocol):
    """The following side of replication, as a partition uses it."""

    def follow(self, following: FollowerRole) -> None: ...

    def unfollow(self, following: FollowerRole) -> None: ...

    def changed(self, following: FollowerRole) -> None:
        """Its position changed: report it to the leader."""

    def start_over(self, following: FollowerRole) -> None:
        """Its log was truncated: send the leader a full fetch request."""


class OtherLogs(Protocol):
    """The logs of the other replicas of a partition."""

    async def account(self, broker: str, key: Key) -> Account | None: ...

    async def fetch(self, broker: str, key: Key, start: int, end: int) -> bytes: ...


class PartitionBroker(Protocol):
    """What a partition may ask of the broker that holds it."""

    @property
    def feeds(self) -> Feeding: ...

    @property
    def fetchers(self) -> Fetching: ...

    @property
    def peer_logs(self) -> OtherLogs: ...

    @property
    def being_removed(self) -> bool:
        """It is being removed from the cluster: its leaderships go to others."""

    def writable_changed(self, stream: str, partition: int) -> None:
        """A partition starts or stops taking writes: the publish routes follow."""

    def ask_isr(self, replica: PartitionReplica, asked: AskShrink | AskExpand) -> None:
        """A leader asks the controller to take another replica out of the ISR, or into it."""

    def step_down(self, replica: PartitionReplica) -> Awaitable[None]:
        """A leader whose log lost records asks the controller for another leader, or for a new epoch."""

    def give_way(self, replica: PartitionReplica, other: str) -> Awaitable[bool]:
        """A leader asks the controller to hand leadership over to a replica that has more. True if that is done."""
