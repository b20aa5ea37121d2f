"""A client that pauses its partition, or sets it read-only, and uses it again; at times it alters the min ISR. Once a
restriction is answered nothing is stored there, not even by a leader that has not heard of it, until somebody resumes
it or sets it writable: this client, by a publish, or a publish of its own that was under way still.
"""

from bascule.core.metadata.streams import Partition
from bascule.errors import Status
from bascule.sim.history import Sent, StreamInfo
from bascule.sim.publishers import UnaryPublisher
from bascule.sim.readers import read_all
from bascule.sim.unwanted import UnwantedPublisher
from bascule.sim.world import World
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api


class Restrictions:
    def __init__(self, world: World, name: str, replication: int, min_isr: int) -> None:
        self._world = world
        self._chance = world.chance(name)
        self._stream = StreamInfo(name, f"restricted.{name}", 1, replication, min_isr)
        self._unwanted = UnwantedPublisher(world, self._stream, self._on_acked)
        self._restricted: Partition | None = None
        """The partition as it was when its restriction was answered."""

    async def run(self) -> None:
        world, chance = self._world, self._chance
        await world.create(self._stream)
        (part,) = self._stream.parts()
        publisher = UnaryPublisher(world, f"{part}", [part], 0.05)
        while world.publishing:
            for _ in range(chance.randint(0, 4)):
                await publisher.round(part)
                await world.pause(chance, 0.1)
            if chance.random() < 0.5:
                await read_all(world, part)
            if chance.random() < 0.3:
                await self._alter()
            readonly = chance.random() < 0.4
            await self._restrict(readonly)
            await self._unwanted.send(part, "its partition is restricted")
            await world.pause(chance, 0.3)
            self._restricted = None
            if readonly:
                await self._set_readonly(False)
        while (item := self._newest()) is not None and item.paused:
            await publisher.round(part)

    async def _restrict(self, readonly: bool) -> None:
        if readonly:
            await self._set_readonly(True)
        else:
            request = api.PauseStreamRequest(name=self._stream.name, resumeAll=self._chance.random() < 0.5)
            await self._world.change("PauseStream", request, self._stream, (Status.OK,))
        self._restricted = self._newest()

    async def _alter(self) -> None:
        """Another min ISR, never below that of the run: what faults may lose depends on it."""
        stream = self._stream
        least = self._chance.randint(stream.min_isr, max(stream.min_isr, stream.replication - 1))
        request = admin.AlterStreamRequest(stream=stream.name, settings=admin.StreamSettings(minIsr=least))
        await self._world.change("/bascule.v1.Admin/AlterStream", request, stream, (Status.OK,))

    async def _set_readonly(self, readonly: bool) -> None:
        request = api.SetStreamReadonlyRequest(name=self._stream.name, readonly=readonly)
        await self._world.change("SetStreamReadonly", request, self._stream, (Status.OK,))

    def _newest(self) -> Partition | None:
        """As the broker has it that knows most; nobody but the simulator can ask for that."""
        known = [
            item
            for host in self._world.cluster.hosts.values()
            if host.broker is not None
            and (item := host.broker.cluster.metadata.partition(self._stream.name, 0)) is not None
        ]
        return max(known, key=lambda item: item.epoch, default=None)

    def _on_acked(self, sent: Sent, ack: api.Ack) -> None:
        was, now = self._restricted, self._newest()
        if was is None or now is None or not (was.paused or was.readonly):
            return
        if (now.paused, now.readonly, now.pauses, now.readonly_changes) == (
            was.paused,
            was.readonly,
            was.pauses,
            was.readonly_changes,
        ):
            kind = "paused" if was.paused else "read-only"
            text = f"{sent.token!r} was acked, and sent when its partition was {kind}"
            self._world.checker.violate("restricted", text, sent.target, ack.offset)
