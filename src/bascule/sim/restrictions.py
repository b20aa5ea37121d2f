"""Clients that pause partitions of their stream, or set them read-only, and use them again. Once a restriction is
answered nothing is stored there, not even by a leader that has not heard of it, until somebody resumes the partition or
sets it writable: this client, by a publish, or a publish of its own that was under way still.
"""

from bascule.core.metadata.streams import Partition
from bascule.errors import Status
from bascule.sim.ends import EndWatcher, Writable
from bascule.sim.history import Sent, StreamInfo
from bascule.sim.publishers import UnaryPublisher
from bascule.sim.readers import read_all
from bascule.sim.trace import Part
from bascule.sim.unwanted import UnwantedPublisher
from bascule.sim.world import World
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api

MOST_PARTITIONS = 3


class Restricted:
    """A stream of which some partitions are restricted, and what they were then."""

    def __init__(self, world: World, name: str, replication: int, min_isr: int) -> None:
        self._world = world
        self._chance = world.chance(name)
        partitions = self._chance.randint(1, MOST_PARTITIONS)
        self._stream = StreamInfo(name, f"restricted.{name}", partitions, replication, min_isr)
        self._unwanted = UnwantedPublisher(world, self._stream, self._on_acked)
        self._restricted: dict[int, Partition] = {}
        """The partitions as they were when their restriction was answered."""
        self._writable = Writable()
        self._ends: dict[int, tuple[str, int]] = {}
        """Their leaders then, and where the logs ended there."""
        self._publisher: UnaryPublisher

    async def _create(self) -> list[Part]:
        parts = self._stream.parts()
        await self._world.create(self._stream)
        self._publisher = UnaryPublisher(self._world, self._stream.name, parts, 0.05)
        return parts

    async def _use(self, most: int) -> None:
        for _ in range(self._chance.randint(0, most)):
            await self._publisher.round(self._chance.choice(self._stream.parts()))
            await self._world.pause(self._chance, 0.1)

    async def _restrict(self, readonly: bool) -> list[Part]:
        """Some partitions by their numbers, or all of them."""
        chance, parts = self._chance, self._stream.parts()
        named = chance.sample(parts, chance.randint(1, len(parts))) if chance.random() < 0.5 else []
        numbers = sorted(part.number for part in named)
        if readonly:
            await self._set_readonly(True, numbers)
        else:
            request = api.PauseStreamRequest(
                name=self._stream.name, partitions=numbers, resumeAll=chance.random() < 0.5
            )
            await self._world.change("PauseStream", request, self._stream, (Status.OK,))
        self._note(named or parts)
        return named or parts

    async def _set_readonly(self, readonly: bool, numbers: list[int]) -> None:
        request = api.SetStreamReadonlyRequest(name=self._stream.name, readonly=readonly, partitions=numbers)
        self._writable.asked(readonly)
        await self._world.change("SetStreamReadonly", request, self._stream, (Status.OK,))
        if not readonly:
            self._writable.answered(self._world.now_s())

    async def _stay_open(self) -> None:
        """What is compared in the end is open."""
        for part in self._stream.parts():
            while (item := self._world.newest_partition(part)) is not None and item.paused:
                await self._publisher.round(part)

    # --- what must not change ---------------------------------------------------------------------------------

    def _note(self, parts: list[Part]) -> None:
        for part in parts:
            if (item := self._world.newest_partition(part)) is not None:
                self._restricted[part.number] = item
                if (end := self._world.log_end(part, item)) is not None:
                    self._ends[part.number] = (item.leader, end)

    def _is_as_it_was(self, number: int, now: Partition | None) -> bool:
        was = self._restricted.get(number)
        if was is None or now is None or not (was.paused or was.readonly):
            return False
        return (now.paused, now.readonly, now.pauses, now.readonly_changes) == (
            was.paused,
            was.readonly,
            was.pauses,
            was.readonly_changes,
        )

    def _check_ends(self) -> None:
        """Under the same leader a log does not grow while its partition is restricted."""
        world, ends = self._world, self._ends
        self._ends = {}
        for part in self._stream.parts():
            if part.number not in ends or (item := world.newest_partition(part)) is None:
                continue
            was, (leader, end) = self._restricted[part.number], ends[part.number]
            if item.leader_epoch != was.leader_epoch or not self._is_as_it_was(part.number, item):
                continue
            now = world.log_end(part, item)
            if now is not None and now > end:
                kind = "paused" if was.paused else "read-only"
                text = f"the log of {leader} ended at {end} when its partition was {kind}, and ends at {now}"
                world.checker.violate("restricted", text, part, end)

    def _on_acked(self, sent: Sent, ack: api.Ack) -> None:
        number = sent.target.number
        if self._is_as_it_was(number, self._world.newest_partition(sent.target)):
            kind = "paused" if self._restricted[number].paused else "read-only"
            text = f"{sent.token!r} was acked, and sent when its partition was {kind}"
            self._world.checker.violate("restricted", text, sent.target, ack.offset)


class Restrictions(Restricted):
    """They are short; at times the client alters the min ISR."""

    async def run(self) -> None:
        world, chance = self._world, self._chance
        parts = await self._create()
        for part in parts:
            for number in range(2):
                world.start(EndWatcher(world, f"ends of {part}, {number}", part, self._writable).run())
        while world.publishing:
            await self._use(4)
            if chance.random() < 0.5:
                await read_all(world, chance.choice(parts))
            if chance.random() < 0.3:
                await self._alter()
            readonly = chance.random() < 0.4
            restricted = await self._restrict(readonly)
            await self._unwanted.send(chance.choice(restricted), "its partition is restricted")
            await world.pause(chance, 0.3)
            self._check_ends()
            self._restricted = {}
            if readonly:
                await self._set_readonly(False, [])
        await self._stay_open()

    async def _alter(self) -> None:
        """Another min ISR, never below that of the run: what faults may lose depends on it."""
        stream = self._stream
        least = self._chance.randint(stream.min_isr, max(stream.min_isr, stream.replication - 1))
        request = admin.AlterStreamRequest(stream=stream.name, settings=admin.StreamSettings(minIsr=least))
        await self._world.change("/bascule.v1.Admin/AlterStream", request, stream, (Status.OK,))


class LongPauses(Restricted):
    """They outlast other faults: brokers die, lose their disks and come back meanwhile. Most often the last pause goes
    on when the faults are over."""

    async def run(self) -> None:
        world, chance = self._world, self._chance
        await self._create()
        while world.publishing:
            await self._use(3)
            await self._restrict(False)
            until_s = world.now_s() + chance.uniform(0.3, 2.0) * world.scenario.duration_s
            while world.publishing and self._paused() and (world.stays_paused or world.now_s() < until_s):
                await world.pause(chance, 0.2)
            self._check_ends()
            self._restricted = {}
        await self._stay_open()

    def _paused(self) -> bool:
        items = [self._world.newest_partition(part) for part in self._stream.parts()]
        return any(item is not None and item.paused for item in items)
