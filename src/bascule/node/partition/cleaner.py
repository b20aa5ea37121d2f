"""The cleaner: records of partitions that are led here expire, as the limits of their streams say, and small segments
of all partitions here are merged.

Where a partition begins is metadata. This broker works out where each one should begin, and asks for all of them in one
command; when it is applied every replica removes what is below (`replica`). So no replica brings back what was removed,
whoever leads. Nothing above the high watermark expires, nothing at or above the lowest hold, and only whole segments.

Each replica merges its segments by itself (`core.merging`), one partition at a time, in the round in which the interval
of the partition is over and those after it, until there are few.

The interval of a partition goes on while it is paused (`rounds`): one that is paused more often than it is cleaned has
its turn as soon as it is open again.
"""

import asyncio
import logging
from collections.abc import Iterator

from bascule.core.merging import Run, Small, next_run
from bascule.core.metadata.commands import NewStart
from bascule.core.metadata.starts import lowest_hold
from bascule.core.metadata.streams import Hold, Key, Partition, Stream
from bascule.core.retention import SegmentSize, retained_from
from bascule.errors import BasculeError
from bascule.limits import MERGE_TIME_S, MERGED_FROM_SEGMENTS, RAISED_STARTS, WATCH_SLICE
from bascule.log.commitlog import CommitLog
from bascule.node.config.broker import StreamDefaults
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.partition.environment import Environment
from bascule.node.partition.replica import Replica
from bascule.node.partition.replicas import Replicas
from bascule.node.partition.rounds import Rounds

logger = logging.getLogger(__name__)

NS = 1_000_000_000
LOOK_EVERY_S = 1.0
"""How often it is looked for partitions whose cleaner interval is over."""


class Cleaner:
    def __init__(self, environment: Environment, replicas: Replicas, client: ControllerClient) -> None:
        self._environment = environment
        self._defaults = environment.settings.defaults
        self._own = environment.settings.broker_id
        self._replicas = replicas
        self._client = client
        self._rounds = Rounds(replicas)
        """Files that are left are removed, and segments are merged."""
        self._led_rounds = Rounds(replicas)
        """Records expire, where this broker leads."""
        self._many: dict[Key, None] = {}
        """Partitions that may have many small segments, in the order in which they are looked at."""
        metrics = environment.metrics
        metrics.gauge(
            "bascule_hold_age_seconds",
            "Since a hold was set or raised last",
            self._hold_ages,
            label="hold",
            combine=max,
        )
        self._merged = metrics.counter("bascule_merged_segments_total", "Small segments that were merged into others")
        metrics.gauge("bascule_hold_bytes", "What a hold keeps, in whole segments", self._hold_bytes, label="hold")

    # --- holds of what is led here ---------------------------------------------------------------------------

    def _holds(self) -> Iterator[tuple[str, Stream, Partition, Hold]]:
        """Also of paused partitions: their holds keep records all the same."""
        for stream, item in self._replicas.led_here():
            for hold in item.holds:
                yield f"{stream.name}/{item.id}/{hold.name}", stream, item, hold

    def _hold_ages(self) -> dict[str, float]:
        now = self._environment.ports.clock.time_ns()
        return {name: max(0, now - hold.at) / NS for name, _, _, hold in self._holds()}

    def _hold_bytes(self) -> dict[str, float]:
        held: dict[str, float] = {}
        for name, stream, item, hold in self._holds():
            if (known := self._replicas.summary(stream, item.id)) is not None:
                held[name] = known.bytes_from(hold.offset)
        return held

    # --- rounds ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.clean()
            await self.merge()

    async def clean(self, at_once: bool = False) -> None:
        """Every partition whose interval is over, or all of them `at_once`."""
        starts: list[NewStart] = []
        for number, replica in enumerate(list(self._replicas.values())):
            if number % WATCH_SLICE == WATCH_SLICE - 1:
                await asyncio.sleep(0)
            try:
                start = self._look(replica, at_once)
                if start is not None:
                    starts.append(start)
            except Exception:
                logger.exception("%s: what has expired could not be worked out; other partitions go on", replica.name)
        self._rounds.forget_gone()
        self._led_rounds.forget_gone()
        for first in range(0, len(starts), RAISED_STARTS):
            await self._raise(starts[first : first + RAISED_STARTS])

    async def merge(self) -> None:
        """Small segments of some partitions, for a while: the next round goes on with the others."""
        loop = asyncio.get_running_loop()
        until = loop.time() + MERGE_TIME_S
        paused: dict[Key, None] = {}
        while self._many and loop.time() < until:
            key = next(iter(self._many))
            del self._many[key]
            replica = self._replicas.get(key)
            if replica is None:
                paused[key] = None
                continue
            if len(replica.log.segments) < MERGED_FROM_SEGMENTS:
                continue
            run = run_to_merge(replica, self._defaults)
            if run is not None:
                old = replica.log.segments[run.first : run.end]
                merged = await replica.merge(old[0].base, old[-1].appended.end)
                self._merged.add(number=merged)
                if merged or replica.paused:
                    self._many[key] = None
            await asyncio.sleep(0)
        for key in self._replicas.gone(paused):
            del paused[key]
        self._many |= paused

    def _look(self, replica: Replica, at_once: bool) -> NewStart | None:
        """Where the partition should begin, if this broker leads it and that changes."""
        if self._takes_turn(self._rounds, replica, at_once):
            replica.expire_again()
            self._many[replica.key] = None
        leads = replica.leading is not None and not replica.only_replicates
        if leads and self._takes_turn(self._led_rounds, replica, at_once):
            return self._start_of(replica)
        return None

    def _takes_turn(self, rounds: Rounds, replica: Replica, at_once: bool) -> bool:
        now = self._environment.active_clock.monotonic_ns()
        due = rounds.is_due(replica.key, now, self._defaults.cleaner_interval_ns_of(replica.stream.config))
        if due or at_once:
            rounds.had_turn(replica.key, now)
        return due or at_once

    def _start_of(self, replica: Replica) -> NewStart | None:
        """Where the partition should begin; None if that is where it begins now."""
        now = self._environment.ports.clock.time_ns()
        start = expired_end(replica, self._defaults, now)
        self._roll(replica, now)
        stream, partition = replica.stream, replica.partition
        if start <= partition.start:
            return None
        return NewStart(stream.name, stream.creation_index, partition.id, partition.leader_epoch, start)

    def _roll(self, replica: Replica, now: int) -> None:
        """An active segment that is too old: what it holds may expire in the next round."""
        if is_too_old(replica, self._defaults, now):
            replica.log.appender.roll()

    async def _raise(self, starts: list[NewStart]) -> None:
        try:
            await self._client.raise_starts(self._own, tuple(starts))
        except BasculeError as error:
            logger.warning(
                "records of %d partitions have expired and are not removed yet: %s; tried again in the next round",
                len(starts),
                error,
            )


def run_to_merge(replica: Replica, defaults: StreamDefaults) -> Run | None:
    """Which segments of this log should be merged next; None if they are few, or not small."""
    log = replica.log
    small = [
        Small(
            mergeable,
            each.appended.size,
            each.records,
            each.first_timestamp,
            each.appended.last_timestamp,
        )
        for each, mergeable in zip(log.segments, log.mergeable(), strict=True)
    ]
    return next_run(small, defaults.merge_bounds_of(replica.stream)) if log.failed is None else None


def is_too_old(replica: Replica, defaults: StreamDefaults, now: int) -> bool:
    """Whether its active segment is to be the active one no more."""
    log, config = replica.log, replica.stream.config
    max_age_ns = defaults.segment_max_age_ns_of(config)
    removes = defaults.retention_of(replica.stream) or defaults.compacts(config)
    if not max_age_ns or not log.segments or not removes:
        return False
    newest = log.segments[-1]
    return not newest.empty and now - newest.first_timestamp >= max_age_ns


def expired_end(replica: Replica, defaults: StreamDefaults, now: int, rolled: bool = False) -> int:
    """Everything below has expired in this log by now, and no hold keeps it; a segment begins there. As if an active
    one that is too old were `rolled`, if that is asked: a replica rolls it when the partition begins at its end."""
    log, partition = replica.log, replica.partition
    limits = defaults.retention_of(replica.stream)
    if not limits or not log.segments:
        return partition.start
    sizes = _sizes(log)
    if rolled and is_too_old(replica, defaults, now):
        sizes.append(SegmentSize(log.end, log.end, 0, 0, sizes[-1].last_timestamp))
    start = min(retained_from(sizes, limits, now), log.visible_end)
    # Segments that compaction emptied go with what has expired, and not by themselves: whoever is to read on below
    # would take it for a loss.
    expired = (each.end for each in sizes if each.messages and each.end <= start)
    start = min(start, max(expired, default=partition.start))
    if (held := lowest_hold(partition)) is not None:
        start = min(start, held)
    return max(partition.start, max((each.base for each in sizes if each.base <= start), default=0))


def _sizes(log: CommitLog) -> list[SegmentSize]:
    return [
        SegmentSize(
            each.base,
            each.appended.end,
            each.records,
            each.appended.size,
            each.appended.last_timestamp,
        )
        for each in log.segments
    ]
