"""The replicas on this broker. Replication, repair, requests of the controller and the API find them here; the manager
adds and removes them."""

from collections.abc import Collection, Iterable, Iterator

from bascule.core.metadata.streams import Key, Partition, Stream
from bascule.limits import PAUSED_LOGS_AT_ONCE
from bascule.node.membership.metadata import MetadataCache
from bascule.node.partition.leading import Leading
from bascule.node.partition.replica import Replica
from bascule.node.partition.summary import LogSummary


class Replicas:
    def __init__(self, broker_id: str, cache: MetadataCache) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._open: dict[Key, Replica] = {}
        self._closed: dict[Key, LogSummary] = {}
        """Replicas of paused partitions that this broker has closed."""
        self._lent: dict[Key, Replica] = {}
        """Of these those whose logs are open for a moment (`PausedLogs`)."""
        self._wanted: dict[Key, None] = {}
        """And those that another replica has asked for."""
        self.behind = 0
        """Committed changes of the metadata that are not carried out here yet."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: Key) -> bool:
        return key in self._open

    def get(self, key: Key) -> Replica | None:
        return self._open.get(key)

    def asked_for(self, key: Key) -> Replica | None:
        """For another replica, which asks for records or the end of a log: open ones, in any role or none. One of a
        paused partition is opened soon."""
        if key in self._closed and len(self._wanted) < PAUSED_LOGS_AT_ONCE:
            self._wanted[key] = None
        return self._open.get(key) or self._lent.get(key)

    def take_wanted(self) -> Iterable[Key]:
        wanted, self._wanted = self._wanted, {}
        return wanted

    def lend(self, key: Key, replica: Replica | None) -> None:
        """The log of a paused partition is open for a moment, or is closed again."""
        if replica is None:
            self._lent.pop(key, None)
        else:
            self._lent[key] = replica

    def led(self, key: Key) -> Leading | None:
        """The leader of that partition, if this broker is it."""
        replica = self._open.get(key)
        return None if replica is None else replica.leading

    def find(self, stream: str, partition: int) -> Replica | None:
        """The replica of the stream that has this name now; None also while it is open for replication only: clients
        are told that it is paused."""
        known = self._cache.metadata.stream(stream)
        replica = self._open.get((known.creation_index, partition)) if known else None
        return None if replica is None or replica.only_replicates else replica

    def exists(self, stream: str, partition: int) -> bool:
        """Whether there is such a partition, here or elsewhere."""
        return self._cache.metadata.partition(stream, partition) is not None

    def partition(self, replica: Replica) -> Partition | None:
        """As the metadata has it now; None if its stream was deleted, or is another one of the same name."""
        known = self._cache.metadata.stream(replica.stream.name)
        if known is None or known.creation_index != replica.stream.creation_index:
            return None
        return known.partition(replica.partition.id)

    def stream(self, creation_index: int, name: str = "") -> Stream | None:
        """As the metadata has it now. It is found faster by its `name`."""
        streams = self._cache.metadata.streams
        known = streams.get(name) if name else None
        found = streams.values() if known is None else (known,)
        return next((each for each in found if each.creation_index == creation_index), None)

    @property
    def metadata_index(self) -> int:
        """It rises with every change of the metadata."""
        return self._cache.metadata.index

    def streams(self) -> Iterable[Stream]:
        """All there are, here and elsewhere."""
        return self._cache.metadata.streams.values()

    def values(self) -> Iterable[Replica]:
        return self._open.values()

    def add(self, replica: Replica) -> None:
        self._open[replica.key] = replica
        self._closed.pop(replica.key, None)

    def add_closed(self, key: Key, summary: LogSummary) -> None:
        self._closed[key] = summary

    def closed(self, key: Key) -> LogSummary | None:
        """What this broker knows of a partition that it closed when it was paused."""
        return self._closed.get(key)

    def described(self, key: Key) -> Replica | LogSummary | None:
        """Its replica here, or what is known of it while it is paused."""
        return self._open.get(key) or self._closed.get(key)

    def forget_closed(self, key: Key) -> None:
        self._closed.pop(key, None)

    def summary(self, stream: Stream, partition: int) -> LogSummary | None:
        """Of its replica here, open or paused; None if there is none."""
        key = (stream.creation_index, partition)
        replica = self._open.get(key)
        return self._closed.get(key) if replica is None else replica.summary

    def led_here(self) -> Iterator[tuple[Stream, Partition]]:
        """The partitions of which this broker is the leader, as the metadata has it; paused ones, too."""
        for stream in self.streams():
            for item in stream:
                if item.leader == self._broker_id:
                    yield stream, item

    def pop(self, key: Key) -> Replica | None:
        return self._open.pop(key, None)

    def leads_all_it_should(self, creation_index: int, partitions: Collection[int] = ()) -> bool:
        """Whether this broker leads all partitions of that stream that it should lead, or of these partitions; False if
        there are none."""
        if self.behind:
            return False
        led = [
            item
            for stream in self._cache.metadata.streams.values()
            if stream.creation_index == creation_index
            for item in stream
            if item.leader == self._broker_id and not item.paused and (not partitions or item.id in partitions)
        ]
        replicas = [self._open.get((creation_index, item.id)) for item in led]
        return bool(led) and all(replica is not None and replica.leading is not None for replica in replicas)

    @property
    def carried_out_index(self) -> int:
        """The index of the last command, if everything up to it is carried out here; else 0."""
        return 0 if self.behind else self._cache.metadata.index

    def start(self, replica: Replica) -> int:
        """Where the partition begins. The metadata may know it before the log: what has expired is not served from the
        moment that the command is applied, although changes are carried out one after the other, later."""
        item = self._cache.metadata.partition(replica.stream.name, replica.partition.id)
        return max(replica.log.start, 0 if item is None else item.start)

    def is_paused(self, stream: str, partition: int) -> bool:
        item = self._cache.metadata.partition(stream, partition)
        return item is not None and item.paused

    def is_assigned_here(self, stream: str, partition: int, as_follower: bool) -> bool:
        """Whether the metadata names this broker the leader of the partition, or, `as_follower` too, one of its
        replicas."""
        item = self._cache.metadata.partition(stream, partition)
        return item is not None and self._broker_id in (item.replicas if as_follower else (item.leader,))

    def gone(self, keys: Iterable[Key]) -> list[Key]:
        """Of these partitions those that have no replica on this broker any more. Paused ones are not open, and have
        theirs."""
        closed = [key for key in keys if key not in self._open]
        streams = {stream.creation_index: stream for stream in self.streams()} if closed else {}
        gone: list[Key] = []
        for key in closed:
            stream = streams.get(key[0])
            item = None if stream is None else stream.partition(key[1])
            if item is None or self._broker_id not in item.replicas:
                gone.append(key)
        return gone

    def leads_what_is_anothers(self) -> bool:
        """Whether this broker still leads a partition for which the metadata names another leader."""
        return self.behind > 0 or any(
            replica.leading is not None
            and (item := self._cache.metadata.partition(replica.stream.name, replica.partition.id)) is not None
            and item.leader != self._broker_id
            for replica in self._open.values()
        )
