"""A walk through the metadata: commands by chance, most of them made to fit the state they meet, and which of its
fields each kind of command has ever changed.
"""

import random
from dataclasses import fields
from functools import cache

from bascule.core.metadata import codec
from bascule.core.metadata import commands as c
from bascule.core.metadata.brokers import Brokers
from bascule.core.metadata.operations import Operation
from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import Partition, Stream, StreamConfig
from bascule.core.metadata.tombstones import told

BROKERS = ("a", "b", "c", "d")
NAMES = ("s", "t")
FIELDS = (
    "streams",
    *(name for name in Partition._fields if name != "id"),
    *(field.name for field in fields(Brokers)),
    "activity",
    "producers",
    "groups",
)
"""What a command can change: which streams there are, each field of a partition, each list of brokers, how far the
activity stream is published, producers with a name, and consumer groups."""


class Walk:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.metadata = Metadata()
        self._made = 0

    def command(self) -> c.Command | None:
        return self._chance.choice(
            (self._of_streams, self._of_brokers, self._of_partitions, self._of_administrators, self._of_groups)
        )()

    def _of_streams(self) -> c.Command | None:
        chance, name = self._chance, self._chance.choice(NAMES)
        self._made += 1
        operation = Operation(str(self._made), self.metadata.index)
        config = StreamConfig(min_isr=chance.choice((1, 2)))
        made = place(2, 3, BROKERS, self.metadata.streams.values(), chance.sample(BROKERS, 1))
        return chance.choice(
            (
                c.CreateStream(Stream(name, name, "", made, config), operation),
                c.DeleteStream(name, operation) if chance.random() < 0.2 else None,
                c.SetStreamReadonly(name, (), chance.random() < 0.5, self._made),
                c.PauseStream(name, (), chance.random() < 0.5, self._made),
                c.ResumeStream(name, (), self._made),
                c.PublishActivity(self.metadata.index),
                c.AlterStream(name, config),
            )
        )

    def _of_brokers(self) -> c.Command:
        chance, broker = self._chance, self._chance.choice(BROKERS)
        alive = tuple(chance.sample(BROKERS, 3))
        kind = chance.choice((c.BrokerDied, c.HandOver, c.DiskLost, c.BrokerStarted))
        if kind is c.BrokerStarted:
            return c.BrokerStarted(broker, chance.random() < 0.5, (("s", 0),), alive)
        return kind(broker, alive)  # type: ignore[arg-type]

    def _of_partitions(self) -> c.Command | None:
        chance = self._chance
        known = [(name, item) for name, stream in self.metadata.streams.items() for item in stream]
        if not known:
            return None
        name, item = chance.choice(known)
        where = (name, item.id, chance.choice(item.replicas), item.leader, item.leader_epoch, item.epoch)
        choices: list[c.Command] = [
            c.ShrinkIsr(*where, lacks=chance.random() < 0.5),
            c.ExpandIsr(*where),
            c.GiveWay(*where),
            c.ChangeLeader(name, item.id, item.leader, item.leader_epoch, tuple(chance.sample(BROKERS, 3))),
            c.ElectLeader(c.At(*where[:3]), item.isr, item.eligible),
            c.InitProducer(chance.choice(["", "p", "q"]), self.metadata.index),
            c.SetHold(name, item.id, "h", item.start + chance.randrange(3), self.metadata.index),
            c.RemoveHold(name, item.id, "h"),
            c.RaiseStarts(item.leader, (self._start(name, item),)),
            *(c.TellCleared(each, (self._cleared(name, item, each),)) for each in item.replicas for _ in range(2)),
        ]
        return chance.choice(choices)

    def _start(self, name: str, item: Partition) -> c.NewStart:
        index = self.metadata.streams[name].creation_index
        return c.NewStart(name, index, item.id, item.leader_epoch, item.start + self._chance.randrange(3))

    def _cleared(self, name: str, item: Partition, replica: str) -> c.ClearedEnd:
        index, known = self.metadata.streams[name].creation_index, told(item, replica)
        since = known.at if known is not None else 0
        end = item.tombstones_end + self._chance.randrange(3)
        return c.ClearedEnd(name, index, item.id, item.epoch, since, 0 if self._chance.random() < 0.1 else end)

    def _of_groups(self) -> c.Command | None:
        chance, known = self._chance, self.metadata.groups.get("g")
        self._made += 1
        operation = Operation(str(self._made), self.metadata.index)
        if known is None or chance.random() < 0.3:
            alive = tuple(chance.sample(BROKERS, 3))
            return c.JoinGroup("g", f"c{self._made}", (chance.choice(NAMES),), operation, alive)
        if chance.random() < 0.5:
            return c.LeaveGroup("g", chance.choice(list(known.members)), operation=operation)
        return c.ChangeCoordinator("g", known.epoch, tuple(chance.sample(BROKERS, 3)))

    def _of_administrators(self) -> c.Command:
        chance, broker = self._chance, self._chance.choice(BROKERS)
        others = [each for each in BROKERS if each != broker]
        held = [(name, item.id) for name, stream in self.metadata.streams.items() for item in stream]
        places = tuple(c.At(name, partition, chance.choice(others)) for name, partition in held)
        return chance.choice(
            (
                c.DrainBroker(broker),
                c.UndrainBroker(broker),
                c.BeginRemoval(broker, places),
                c.RemoveBroker(broker, "", places),
            )
        )


def state_of(metadata: Metadata) -> dict[str, object]:
    partitions = {(name, item.id): item for name, stream in metadata.streams.items() for item in stream}
    state: dict[str, object] = {"streams": sorted((s.name, s.creation_index) for s in metadata.streams.values())}
    for name in Partition._fields:
        state[name] = {key: getattr(item, name) for key, item in partitions.items()}
    state["activity"] = metadata.activity.published
    state["producers"] = dict(metadata.producers.named)
    state["groups"] = dict(metadata.groups)
    return state | {field.name: getattr(metadata.brokers, field.name) for field in fields(Brokers)}


@cache
def changed_fields(walks: int = 800, length: int = 80) -> dict[str, set[str]]:
    """By command. A stream that comes or goes takes its partitions along: only `streams` is noted then."""
    seen: dict[str, set[str]] = {}
    for seed in range(walks):
        walk = Walk(seed)
        for index in range(1, length):
            if (command := walk.command()) is None:
                continue
            before = state_of(walk.metadata)
            walk.metadata.apply(index, codec.decode(codec.encode(command)))
            after = state_of(walk.metadata)
            noted = seen.setdefault(type(command).__name__, set())
            if before["streams"] != after["streams"]:
                noted.add("streams")
            else:
                noted |= {field for field in FIELDS if before[field] != after[field]}
    return seen
