"""A member of a consumer group: the machine of `membership` joined to a cluster, and what it reads.

Each partition that it is given begins where the group's cursor says. The cursor is looked at again once the broker has
accepted the subscription: by then it has ended that of the member before, whose last commit may just have arrived.

Commits are fenced as far as the protocol allows. A cursor can be set by anybody, so a member asks the coordinator
whether the partition is still its own right before it sets one; if more than CLIENT_COMMIT_FENCE_S have passed since it
asked (the process stood still, the cluster is slow) it asks again. What a member was given and lost is another
`Holding` when it is given back, and nothing of the old one is stored.

The cluster takes a stream that is deleted out of the group, and one of the same name that is made later is another one.
So a member looks at the streams that it does not read when the group changes, and now and then: if one was made again
it leaves the group and joins again.

Known to be imperfect: within that second another
member may be given the partition and begin before the cursor is set; it then repeats what was committed meanwhile. No
message is ever left out, for only what was handled is committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from bascule import limits
from bascule.client.beginning import committed_end, is_paused, resume, stored_end, warn_of_removed
from bascule.client.cluster import Cluster
from bascule.client.cursors import BEFORE_THE_FIRST, GROUP, NEVER_SET, Cursors
from bascule.client.failures import Deadline
from bascule.client.groupcalls import PASSING, GroupCalls
from bascule.client.membership import Action, Assigned, Change, Join, Joined, Leave, Membership, Wait, by_stream
from bascule.client.parts import Name, Parts
from bascule.client.subscription import GroupReader, OnLost, Reading, Subscription
from bascule.client.values import StartAt
from bascule.errors import BasculeError, NotFound, TimedOut, Unavailable

logger = logging.getLogger(__name__)

GroupStart = Literal["earliest", "new"] | datetime
"""Where a group begins that has committed nothing."""


class Holding:
    """A partition while it is this member's."""

    def __init__(self) -> None:
        self.committed: int | None = None
        """The offset that the group's cursor says to go on with."""
        self.outlived: int | None = None
        """A cursor that is of an earlier stream of this name."""
        self.checked: int | None = None
        """An offset that is one of this stream."""


class Told(NamedTuple):
    """For the user: partitions that were assigned, or revoked."""

    assigned: bool
    names: frozenset[Name]


class Member:
    def __init__(
        self,
        cluster: Cluster,
        group: str,
        consumer: str,
        streams: Sequence[str],
        start: GroupStart,
        resume_paused: bool,
        on_lost: OnLost | None,
        chosen_id: bool,
        parts: Parts,
        positions: dict[Name, int],
        lose: Callable[[frozenset[Name]], None],
    ) -> None:
        self._cluster = cluster
        self._cursors = Cursors(cluster)
        self._group = group
        self._consumer = consumer
        self._streams = streams
        self._reader = GroupReader(group, consumer)
        self._start = start
        self._resume_paused = resume_paused
        self._on_lost = on_lost
        self._calls = GroupCalls(cluster, group, consumer, streams)
        self._membership = Membership(chosen_id)
        self._parts = parts
        self._positions = positions
        self._lose = lose
        self.held: dict[Name, Holding] = {}
        self.told: deque[Told] = deque()
        self._failure: Exception | None = None
        self._running: asyncio.Task[None] | None = None
        self._beginning: dict[Name, asyncio.Task[None]] = {}
        self._creations: dict[str, int] = {}
        """When the streams were made that it reads."""
        self._joined: dict[str, int] = {}
        """The same of all streams of the group, before it joined."""
        self._looked = (0, 0.0)
        """In which epoch of the group they were looked at last, and until when that is enough."""
        self._stores = asyncio.Semaphore(limits.CLIENT_GROUP_AT_ONCE)
        self._room = asyncio.Semaphore(limits.CLIENT_GROUP_AT_ONCE)
        self._committing = asyncio.Lock()
        self._nudged = asyncio.Event()
        self._heard = asyncio.Event()
        self._assigned_at = float("-inf")
        """When the last heartbeat was sent that was answered with partitions."""
        self._asked_at = float("-inf")
        """Somebody wants a heartbeat that is sent after this."""
        self._answered_at = 0.0
        self._left = False

    @property
    def _clock(self) -> Callable[[], float]:
        return asyncio.get_running_loop().time

    # --- the group --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Also after a failure, to try again."""
        if self._left:
            return
        if self._running is None or self._running.done():
            self._answered_at = self._clock()
            self._running = asyncio.create_task(self._run(), name=f"member of group {self._group}")
        for name, holding in self.held.items():
            if name not in self._parts and name not in self._beginning:
                self._begin(name, holding)

    def check(self) -> None:
        """Raises what has failed since the last check, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def started(self) -> None:
        """It has its first partitions, and the brokers have accepted its subscriptions."""
        while self._assigned_at < 0 or self._beginning:
            self.check()
            self._heard.clear()
            await self._heard.wait()
        self.check()

    async def _run(self) -> None:
        try:
            while True:
                action = self._membership.next(self._clock())
                if isinstance(action, Wait):
                    await self._pause(action.until)
                    self._apply(self._membership.tick(self._clock()))
                    continue
                sent = self._clock()
                if isinstance(action, Join):
                    self._joined = await self._creations_of(self._streams)
                outcome = await self._calls.make(action, self._patience(action))
                change = self._membership.step(action, outcome, sent, self._clock())
                if isinstance(outcome, Joined):
                    logger.info("%s joined group %s, coordinated by %s", self._consumer, self._group, outcome[0])
                    self._answered_at = sent
                if isinstance(outcome, Assigned):
                    self._assigned_at = self._answered_at = sent
                    self._reader.epoch = outcome.epoch
                    if self._asked_at > sent:
                        self._membership.hurry()
                self._apply(change)
                self._heard.set()
                if change.revoked:
                    await self._check_streams(change.revoked)
                if isinstance(outcome, Assigned) and await self._was_made_again(outcome.epoch):
                    await self._join_again()
                self._give_up_in_time()
        except Exception as error:
            self._membership = Membership(self._membership.chosen_id)
            self._apply(Change(frozenset(self.held), frozenset()))
            self._fail(error)

    async def _pause(self, until: float) -> None:
        if self.held:
            until = min(until, self._membership.expires_at())
        try:
            async with asyncio.timeout(max(0.0, until - self._clock())):
                self._nudged.clear()
                await self._nudged.wait()
        except TimeoutError:
            pass

    def _patience(self, action: Action) -> float:
        """No longer than until its partitions are no longer its own."""
        if isinstance(action, Join):
            return limits.CLIENT_TIMEOUT_S
        left = self._membership.expires_at() - self._clock() if self.held else limits.CLIENT_GROUP_ASK_S
        return max(0.1, min(limits.CLIENT_GROUP_ASK_S, left))

    async def _check_streams(self, revoked: frozenset[Name]) -> None:
        """A stream that was deleted is an error, as for any reader, also if it was made again: the group reads that
        when its members have joined again. Partitions that others have are none."""
        try:
            for stream in sorted({stream for stream, _ in revoked}):
                self._cluster.forget(stream)
                found = await self._cluster.stream(stream, Deadline(limits.CLIENT_GROUP_ASK_S))
                if found.creation_timestamp > self._creations.get(stream, found.creation_timestamp):
                    raise NotFound(f"stream {stream} was deleted and made again while it was read: begin anew")
        except PASSING:
            pass

    async def _was_made_again(self, epoch: int) -> bool:
        """A stream that this member does not read: whoever reads one is told by its subscription."""
        if self._looked[0] == epoch and self._clock() < self._looked[1]:
            return False
        others = set(self._streams) - {stream for stream, _ in self.held}
        found = await self._creations_of(sorted(others))
        gone = others - found.keys()
        again_s = limits.CLIENT_GROUP_ASK_S if gone else limits.CLIENT_RESUBSCRIBE_S
        self._looked = epoch, self._clock() + again_s
        return any(creation > self._joined.setdefault(stream, creation) for stream, creation in found.items())

    async def _creations_of(self, streams: Sequence[str]) -> dict[str, int]:
        """Of those that there are."""
        if not streams:
            return {}
        try:
            found = (await self._cluster.refresh(streams, Deadline(limits.CLIENT_GROUP_ASK_S))).streams
        except PASSING:
            return {}
        return {name: found[name].creation_timestamp for name in streams if name in found}

    async def _join_again(self) -> None:
        logger.info("%s joins group %s again: a stream was deleted and made again", self._consumer, self._group)
        self._apply(Change(frozenset(self.held), frozenset()))
        await self._calls.make(Leave(), limits.CLIENT_GROUP_ASK_S)
        self._membership = Membership(self._membership.chosen_id)

    def _give_up_in_time(self) -> None:
        silent_s = self._clock() - self._answered_at
        if silent_s >= limits.CLIENT_RESUBSCRIBE_S:
            raise Unavailable(
                f"no coordinator of group {self._group} has answered for {silent_s:.0f} s: {self._calls.last_error}"
            )

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._heard.set()
        self._parts.wake()

    def _apply(self, change: Change) -> None:
        if change.revoked:
            logger.info("%s of group %s lost %s", self._consumer, self._group, by_stream(change.revoked))
            self._lose(change.revoked)
            for name in change.revoked:
                del self.held[name]
                self._positions.pop(name, None)
                self._parts.remove(name)
                if (beginning := self._beginning.pop(name, None)) is not None:
                    beginning.cancel()
            self.told.append(Told(False, change.revoked))
        if change.assigned:
            logger.info("%s of group %s was given %s", self._consumer, self._group, by_stream(change.assigned))
            self.told.append(Told(True, change.assigned))
            for name in sorted(change.assigned):
                holding = self.held[name] = Holding()
                self._begin(name, holding)
        if change.revoked or change.assigned:
            self._parts.wake()

    # --- reading ----------------------------------------------------------------------------------------------

    def _begin(self, name: Name, holding: Holding, again: bool = False) -> None:
        task = asyncio.create_task(self._beginning_of(name, holding, again))
        self._beginning[name] = task

        def ended(task: asyncio.Task[None]) -> None:
            if self._beginning.get(name) is task:
                del self._beginning[name]
            self._heard.set()

        task.add_done_callback(ended)

    def ended(self, name: Name) -> None:
        """Its subscription has ended: another member reads it now, or it is read-only and read to its end."""
        holding = self.held.get(name)
        if holding is not None and name not in self._beginning:
            self._begin(name, holding, again=True)

    async def _beginning_of(self, name: Name, holding: Holding, again: bool) -> None:
        try:
            if again:
                await self.confirm(Deadline(limits.CLIENT_RESUBSCRIBE_S))
                await asyncio.sleep(limits.CLIENT_RETRY_MAX_S)
            async with self._room:
                await self._read_on(name, holding)
        except Exception as error:
            if self.held.get(name) is holding:
                self._fail(error)

    async def _read_on(self, name: Name, holding: Holding) -> None:
        start = await self._start_of(name, holding)
        while True:
            reading = Reading(*name, start, None, False, self._resume_paused, reader=self._reader)
            subscription = Subscription(self._cluster, reading, self._on_lost)
            try:
                await subscription.ready()
                newer = await self._checked_start(name, holding)
            except BaseException:
                subscription.close()
                raise
            if newer == start:
                break
            subscription.close()
            start = newer
        if self.held.get(name) is not holding or self._left:
            subscription.close()
            return
        if subscription.creation is not None:
            self._creations[name[0]] = subscription.creation
        if isinstance(start, int):
            self._positions[name] = start
        self._parts.add(name, subscription)

    async def _start_of(self, name: Name, holding: Holding) -> StartAt:
        cursor = await self._cursors.fetch(GROUP + self._group, *name, limits.CLIENT_TIMEOUT_S)
        if cursor == holding.outlived:
            holding.committed = None
        elif cursor != NEVER_SET:
            holding.committed = max(0, cursor + 1)
        known = [offset for offset in (holding.committed, self._positions.get(name)) if offset is not None]
        if known:
            return max(known)  # other members may have read on while this one did not notice
        if self._start != "new":
            return self._start
        deadline = Deadline(limits.CLIENT_TIMEOUT_S)
        if self._resume_paused and await is_paused(self._cluster, name, deadline):
            await resume(self._cluster, name)
        # Stored at once: whoever goes on after this member begins where it began.
        newest = await committed_end(self._cluster, name, deadline)
        await self._cursors.set(GROUP + self._group, *name, _cursor(newest), limits.CLIENT_TIMEOUT_S)
        holding.committed = newest
        return newest

    async def _checked_start(self, name: Name, holding: Holding) -> StartAt:
        """Once the partition has a leader. A cursor beyond the end is of a stream that was deleted and made again:
        servers other than Bascule, and its earlier releases, do not note of which one it is."""
        start = await self._start_of(name, holding)
        if not isinstance(start, int) or not start or start == holding.checked:
            return start
        deadline = Deadline(limits.CLIENT_TIMEOUT_S)
        end = await stored_end(self._cluster, name, deadline)
        if start <= end:
            holding.checked = start
            await warn_of_removed(self._cluster, name, start, f"group {self._group}", deadline)
            return start
        logger.warning(
            "group %s: its position %d of partition %d of stream %s is beyond the end, %d: the stream was deleted and "
            "made again. It is read from the start that was given for a group that has committed nothing",
            self._group, start, name[1], name[0], end,
        )  # fmt: skip
        holding.outlived = start - 1
        self._positions.pop(name, None)
        return await self._start_of(name, holding)

    # --- commits ----------------------------------------------------------------------------------------------

    async def confirm(self, deadline: Deadline) -> float:
        """When a heartbeat was sent, after now, that was answered: `held` is what it was answered with."""
        self._asked_at = asked = self._clock()
        self._membership.hurry()
        self._nudged.set()
        try:
            async with asyncio.timeout(deadline.remaining()):
                while self._assigned_at < asked:
                    self._cluster.connections.check_open()
                    if self._running is None or self._running.done():
                        raise Unavailable(f"{self._consumer} is no member of group {self._group}") from self._failure
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            raise TimedOut(
                f"no coordinator of group {self._group} answered within {deadline.seconds:g} s"
                + (f": {self._calls.last_error}" if self._calls.last_error else "")
            ) from None
        return self._assigned_at

    async def commit(self, wanted: Mapping[Name, int], deadline: Deadline) -> dict[Name, int]:
        """Those that were stored: not the ones of partitions that this member has lost."""
        holdings = {name: self.held[name] for name in wanted if name in self.held}
        stored: dict[Name, int] = {}
        left = {name: wanted[name] for name in holdings}
        limit = asyncio.timeout(deadline.remaining())
        reason: list[BasculeError] = []
        try:
            async with limit, self._committing:
                left = {name: at for name, at in left.items() if at != (holdings[name].committed or 0)}
                while left:
                    left = await self._commit_once(left, holdings, stored, reason, deadline)
                    if left:
                        await asyncio.sleep(limits.CLIENT_RETRY_MIN_S)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimedOut(
                f"the positions of {len(left)} partitions were not stored within {deadline.seconds:g} s"
                + (f": {reason[-1]}" if reason else "")
            ) from None
        return stored

    async def _commit_once(
        self,
        left: dict[Name, int],
        holdings: Mapping[Name, Holding],
        stored: dict[Name, int],
        reason: list[BasculeError],
        deadline: Deadline,
    ) -> dict[Name, int]:
        """Those that are to be tried again."""
        sent = await self.confirm(deadline)
        left = {name: offset for name, offset in left.items() if self.held.get(name) is holdings[name]}
        answers = await asyncio.gather(
            *(self._store(name, holdings[name], offset, sent) for name, offset in left.items()),
            return_exceptions=True,
        )
        for name, answer in zip(list(left), answers, strict=True):
            if isinstance(answer, PASSING):
                reason.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif answer:
                stored[name] = left.pop(name)
        return left

    async def _store(self, name: Name, holding: Holding, offset: int, sent: float) -> bool:
        async with self._stores:
            if self._clock() - sent > limits.CLIENT_COMMIT_FENCE_S or self.held.get(name) is not holding:
                return False
            timeout = limits.CLIENT_COMMIT_FENCE_S
            await self._cursors.set(GROUP + self._group, *name, _cursor(offset), timeout)
            holding.committed, holding.outlived = offset, None
            return True

    # --- the end ----------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """The others get its partitions at once. If no broker can be told, they get them when it has expired."""
        self._left = True
        tasks = [*self._beginning.values(), *([self._running] if self._running is not None else [])]
        was_member = self._running is not None
        self.abandon()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not was_member:
            return
        try:
            outcome = await self._calls.make(Leave(), limits.CLIENT_CLOSE_TIMEOUT_S)
            logger.info("%s left group %s: %s", self._consumer, self._group, type(outcome).__name__)
        except BasculeError as error:
            logger.info("%s could not leave group %s, which notices in time: %s", self._consumer, self._group, error)

    def abandon(self) -> None:
        """Ends its tasks: of one that nobody holds any more, the group notices in time that it is gone."""
        for task in list(self._beginning.values()):
            task.cancel()
        if self._running is not None:
            self._running.cancel()


def _cursor(offset: int) -> int:
    """A cursor names the last message that was processed."""
    return offset - 1 if offset > 0 else BEFORE_THE_FIRST
