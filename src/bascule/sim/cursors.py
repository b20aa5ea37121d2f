"""Clients that set and fetch cursors, and pause the stream that has them.

Each cursor is set by one client, one value after the other, each another one and in no order: a cursor may be set back.
Another client fetches it. No answer may be older than a value that was acked, or fetched, before the question was
asked; a set whose outcome is not known may count, until a later one does.

One more cursor is of a stream that its client deletes and makes again: then it was never set. Only a set whose outcome
is not known may still count.
"""

import asyncio

from bascule.core.cursors.keys import CursorName, partition_of
from bascule.core.metadata.streams import CURSORS
from bascule.errors import Status
from bascule.sim.cluster import PARTITIONS_OF_CURSORS
from bascule.sim.history import StreamInfo
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.wire.pb import api_pb2 as api

IDS = ("orders", "payments", "clicks", "audit")
CALL_TIMEOUT_S = 2.0
ANSWER_BOUND_S = 40.0
"""After the last fault a cursor is fetched within so long."""


class CursorHistory:
    """One cursor: what it was set to, in this order, and how far it is known to be set."""

    def __init__(self, name: CursorName) -> None:
        self.name = name
        self.part = Part(CURSORS, 1, partition_of(name.key, PARTITIONS_OF_CURSORS))
        self.floor = 0
        """Values before this one are over: it was acked, or fetched."""
        self.sets = 1
        """One more than there were."""
        self._places = {-1: 0}
        self._open: dict[int, None] = {}
        """Values whose outcome is not known, and that no later one has replaced."""

    def begin(self, value: int) -> int:
        """It is about to be set; returns the place of the value."""
        self._open[value] = None
        return self._at_the_end(value)

    def known(self, place: int) -> None:
        """It was acked, or fetched: what was set before is over."""
        self.floor = max(self.floor, place)
        self._open = {value: None for value in self._open if self._places[value] > place}

    def place_of(self, value: int) -> int | None:
        return self._places.get(value)

    def made_again(self) -> None:
        """Its stream: what was acked is a position in another one."""
        undecided = self._open
        self.floor = self._at_the_end(-1)
        for value in undecided:
            self._at_the_end(value)

    def _at_the_end(self, value: int) -> int:
        place = self._places[value] = self.sets
        self.sets += 1
        return place


class CursorClients:
    def __init__(self, world: World, replication: int, min_isr: int) -> None:
        self._world = world
        self._chance = world.chance("cursors")
        self._stream = StreamInfo(CURSORS, CURSORS, PARTITIONS_OF_CURSORS, replication, min_isr)
        names = [CursorName(cursor_id, "s", 0) for cursor_id in IDS]
        self._cursors = [CursorHistory(name) for name in names]
        self._remade = StreamInfo("cursored", "cursored", 1, replication, min_isr)
        self._of_remade = CursorHistory(CursorName("remade", self._remade.name, 0))
        assert len({cursor.part for cursor in self._cursors}) == PARTITIONS_OF_CURSORS, "each partition has cursors"

    def start(self) -> None:
        for cursor in self._cursors:
            self._world.start(self._set(cursor))
        self._world.start(self._fetch())
        self._world.start(self._pause())
        self._world.start(self._make_again(self._of_remade))

    async def check(self, when: str) -> None:
        """Every cursor can be fetched, and is what it was. Its partition is not paused then."""
        deadline_s = asyncio.get_running_loop().time() + ANSWER_BOUND_S
        for cursor in (*self._cursors, self._of_remade):
            while not await self._fetched(cursor):
                if asyncio.get_running_loop().time() > deadline_s:
                    self._world.checker.violate("I9", f"{when} cursor {cursor.name.cursor_id} cannot be fetched")
                    return
                await asyncio.sleep(0.1)

    # --- clients ----------------------------------------------------------------------------------------------

    async def _set(self, cursor: CursorHistory) -> None:
        world, chance = self._world, self._world.chance(f"cursor {cursor.name.cursor_id}")
        while world.publishing:
            await world.pause(chance, 0.15)
            await self._set_once(cursor, chance.randrange(1000))
            if chance.random() < 0.3:
                await self._fetched(cursor)

    async def _make_again(self, cursor: CursorHistory) -> None:
        """Nobody else uses the stream, and each answer is waited for: it is always known which stream there is."""
        world, chance = self._world, self._world.chance("the stream of a cursor")
        while True:
            await world.create(self._remade)
            cursor.made_again()
            for _ in range(chance.randint(0, 3)):
                await self._fetched(cursor)
                await self._set_once(cursor, chance.randrange(1000))
                await world.pause(chance, 0.1)
            await self._fetched(cursor)
            if not world.publishing:
                return
            await world.delete(self._remade)
            self._remade.incarnation += 1
            await world.pause(chance, 0.1)

    async def _set_once(self, cursor: CursorHistory, salt: int) -> bool:
        name = cursor.name
        value = salt * 1_000_000 + cursor.sets
        place = cursor.begin(value)
        request = api.SetCursorRequest(
            stream=name.stream, partition=name.partition, cursorId=name.cursor_id, offset=value
        )
        answer = await self._ask(cursor.part, "SetCursor", request)
        self._world.trace.note("cursor", f"{name.cursor_id} := {value}, {place}: {answer and answer[0].name}")
        if answer is None or answer[0] is not Status.OK:
            return False
        cursor.known(place)
        return True

    async def _fetch(self) -> None:
        while self._world.publishing:
            await self._world.pause(self._chance, 0.1)
            await self._fetched(self._chance.choice(self._cursors))

    async def _fetched(self, cursor: CursorHistory) -> bool:
        name, floor = cursor.name, cursor.floor
        request = api.FetchCursorRequest(stream=name.stream, partition=name.partition, cursorId=name.cursor_id)
        answer = await self._ask(cursor.part, "FetchCursor", request)
        if answer is None or answer[0] is not Status.OK:
            return False
        value = api.FetchCursorResponse.FromString(answer[1]).offset
        place = cursor.place_of(value)
        self._world.trace.note("cursor", f"{name.cursor_id} is {value}, {place}")
        if place is None:
            self._world.checker.violate("cursor", f"{name.cursor_id} is {value}, which nobody has set it to")
        elif place < floor:
            text = f"{name.cursor_id} is {value}, number {place}, and number {floor} was acked or fetched before"
            self._world.checker.violate("cursor", text, cursor.part)
        else:
            cursor.known(place)
        return True

    async def _pause(self) -> None:
        world, chance = self._world, self._world.chance("pauses of the cursors")
        while world.publishing:
            await world.pause(chance, 2.0)
            if chance.random() < 0.5 and world.publishing:
                request = api.PauseStreamRequest(name=CURSORS)
                await world.change("PauseStream", request, self._stream, (Status.OK, Status.NOT_FOUND))

    async def _ask(self, part: Part, method: str, request: object) -> tuple[Status, bytes] | None:
        """None if it was answered by a broker that has founded a cluster of its own."""
        host = await self._world.leader(part)
        status, _, answers = await host.call(method, request, CALL_TIMEOUT_S)
        self._world.note_status(part, status)
        if self._world.cluster.founded_another(host):
            return None
        return status, answers[0] if answers else b""
