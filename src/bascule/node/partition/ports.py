"""What one partition may ask of its broker and of replication.

A replica is given a `PartitionBroker` when it is created, and passes it on to its roles and its repair. These see their
replica as a `PartitionReplica`, extended in each file by what that part needs. So no file of a partition imports the
file that creates it.
"""

from collections.abc import Awaitable
from typing import Protocol

from bascule.core.metadata.commands import ClearedEnd
from bascule.core.metadata.streams import Key, Partition, Stream
from bascule.core.partition.candidate import PeerLog
from bascule.core.partition.leader import AskExpand, AskShrink, Refuse
from bascule.node.replication.feeds import Feeds, LocalReplica
from bascule.node.replication.fetchers import Fetchers
from bascule.wire.repair import Cleared


class PartitionReplica(LocalReplica, Protocol):
    """A replica as its roles and its broker see it."""

    @property
    def name(self) -> str: ...

    @property
    def stream(self) -> Stream: ...

    @property
    def partition(self) -> Partition:
        """As the metadata had it when the replica last took its role."""

    def appended(self, records: bytes, start: int, end: int) -> None:
        """Its log ended at `start`, has these records now, and ends at `end`."""

    def assertion_failed(self, error: AssertionError) -> None:
        """An assertion failed: the replica has no role until the broker restarts."""


class OtherLogs(Protocol):
    """The logs of the other replicas of a partition."""

    def is_member(self, broker: str) -> bool:
        """Whether that broker is in the cluster: others never answer."""

    async def describe(self, broker: str, key: Key) -> PeerLog | None: ...

    async def fetch(self, broker: str, key: Key, start: int, end: int, least: Cleared | None = None) -> bytes: ...


class PartitionBroker(Protocol):
    """What a partition may ask of the broker that holds it."""

    @property
    def feeds(self) -> Feeds: ...

    @property
    def fetchers(self) -> Fetchers: ...

    @property
    def peer_logs(self) -> OtherLogs: ...

    @property
    def being_removed(self) -> bool:
        """It is being removed from the cluster: its leaderships go to others."""

    def writable_changed(self, stream: str, partition: int) -> None:
        """A partition starts or stops taking writes: the publish routes follow."""

    def ask_isr(self, replica: PartitionReplica, asked: AskShrink | AskExpand) -> None:
        """A leader asks the controller to take another replica out of the ISR, or into it."""

    def tell_cleared(self, replica: PartitionReplica, end: ClearedEnd) -> Awaitable[Partition | None]:
        """How far its log is cleared -> the partition as this broker knows it when that is applied; None if its stream
        is gone. Raises BasculeError."""

    def hand_on(self, replica: PartitionReplica) -> None:
        """A leader whose disk hangs asks the controller for another leader."""

    def step_down(self, replica: PartitionReplica) -> Awaitable[None]:
        """A leader whose log lost records asks the controller for another leader, or for a new epoch."""

    def refuse(self, replica: PartitionReplica, refuse: Refuse) -> None:
        """A leader asks whether it still leads: the answer comes as an event, `Confirmed`."""

    def give_way(self, replica: PartitionReplica, other: str, whole: bool) -> Awaitable[bool]:
        """A leader asks the controller to hand leadership over to a replica that has more, and says whether its own log
        is whole, with everything that it promised. True if that is done."""
