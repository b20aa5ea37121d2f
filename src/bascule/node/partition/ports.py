"""What one partition on this broker may know of the rest: what it may ask of its broker, and of replication.

A replica is handed a `PartitionBroker` when it is made, and passes it on to its roles and its repair. These see their
replica as a `PartitionReplica`, each with the few things it needs besides, named in its own file. So no file of a
partition imports the file that makes it.
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
        """As the metadata had it when the replica was last told."""

    def fail(self, error: AssertionError) -> None:
        """Something does not hold that must: the replica has no role on this broker any more."""


class Feeding(Protocol):
    """The leading side of replication, as a partition uses it."""

    def prepare(self) -> None:
        """Something is about to be appended."""

    def appended(self, replica: LocalReplica, records: bytes, first_offset: int, next_offset: int) -> None: ...

    def has_news(self, replica: LocalReplica) -> None:
        """It has a higher watermark, or records that could not be read before."""

    def went_back(self, replica: LocalReplica) -> None:
        """Its last records could not be stored."""

    def heard(self, key: Key, epoch: int) -> tuple[tuple[str, int], ...]:
        """Who follows it in this epoch, and when each was last heard."""


class Fetching(Protocol):
    """The following side of replication, as a partition uses it."""

    def follow(self, following: FollowerRole) -> None: ...

    def unfollow(self, following: FollowerRole) -> None: ...

    def changed(self, following: FollowerRole) -> None:
        """Its position did: the leader is to know."""

    def start_over(self, following: FollowerRole) -> None:
        """Its log went back: the leader is asked for everything anew."""


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
    def leaving(self) -> bool:
        """It is being removed from the cluster: what it leads is moved to others."""

    def writable_changed(self, stream: str, partition: int) -> None:
        """A partition starts or stops taking writes: the publish routes follow."""

    def ask_isr(self, replica: PartitionReplica, asked: AskShrink | AskExpand) -> None:
        """A leader asks the controller to take another replica out of the in-sync set, or into it."""

    def step_down(self, replica: PartitionReplica) -> Awaitable[None]:
        """A leader whose log lost something asks for another one, or for a new epoch."""

    def give_way(self, replica: PartitionReplica, other: str) -> Awaitable[bool]:
        """A leader that knows of a replica with more asks the controller to let that one lead. True if it does."""
