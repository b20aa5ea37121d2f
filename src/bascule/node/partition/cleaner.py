"""Retention: records of partitions that are led here expire, as the limits of their streams say.

Where a partition begins is metadata. This broker works out where each one should begin, and asks for all of them in one
command; when it is applied every replica removes what is below (`replica`). So no replica brings back what was removed,
whoever leads. Nothing above the high watermark expires, nothing at or above the lowest hold, and only whole segments.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import NamedTuple

from bascule.core.metadata.commands import NewStart
from bascule.core.metadata.starts import lowest_hold
from bascule.core.metadata.streams import Hold, Key
from bascule.core.retention import SegmentSize, retained_from
from bascule.errors import BasculeError
from bascule.limits import RAISED_STARTS, WATCH_SLICE
from bascule.log.commitlog import CommitLog
from bascule.node.config.broker import StreamDefaults
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.partition.environment import Environment
from bascule.node.partition.replica import Replica
from bascule.node.partition.replicas import Replicas

logger = logging.getLogger(__name__)

NS = 1_000_000_000
LOOK_EVERY_S = 1.0
"""How often it is looked for partitions whose cleaner interval is over."""


class _Round(NamedTuple):
    """The last time a partition was cleaned."""

    leader_epoch: int
    at: int


class Cleaner:
    def __init__(self, environment: Environment, replicas: Replicas, client: ControllerClient) -> None:
        self._environment = environment
        self._defaults = environment.settings.defaults
        self._own = environment.settings.broker_id
        self._replicas = replicas
        self._client = client
        self._rounds: dict[Key, _Round] = {}
        metrics = environment.metrics
        metrics.gauge("bascule_hold_age_seconds", "Since a hold was set or raised last", self._hold_ages, label="hold")
        metrics.gauge("bascule_hold_bytes", "What a hold keeps, in whole segments", self._hold_bytes, label="hold")

    # --- holds of what is led here ---------------------------------------------------------------------------

    def _holds(self) -> Iterator[tuple[str, Replica, Hold]]:
        for replica in self._replicas.values():
            if replica.partition.holds and replica.leading is not None:
                for hold in replica.partition.holds:
                    yield f"{replica.name}/{hold.name}", replica, hold

    def _hold_ages(self) -> dict[str, float]:
        now = self._environment.ports.clock.time_ns()
        return {name: max(0, now - hold.at) / NS for name, _, hold in self._holds()}

    def _hold_bytes(self) -> dict[str, float]:
        return {name: replica.log.segments.bytes_from(hold.offset) for name, replica, hold in self._holds()}

    # --- rounds ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.clean()

    async def clean(self, at_once: bool = False) -> None:
        """Every partition whose interval is over, or all of them `at_once`."""
        rounds: dict[Key, _Round] = {}
        starts: list[NewStart] = []
        for number, replica in enumerate(list(self._replicas.values())):
            if number % WATCH_SLICE == WATCH_SLICE - 1:
                await asyncio.sleep(0)
            try:
                due, rounds[replica.key] = self._is_due(replica, at_once)
                if due:
                    replica.expire_again()
                if due and replica.leading is not None and (start := self._start_of(replica)) is not None:
                    starts.append(start)
            except Exception:
                logger.exception("%s: what has expired could not be worked out; other partitions go on", replica.name)
        self._rounds = rounds
        for first in range(0, len(starts), RAISED_STARTS):
            await self._raise(starts[first : first + RAISED_STARTS])

    def _is_due(self, replica: Replica, at_once: bool) -> tuple[bool, _Round]:
        now = self._environment.active_clock.monotonic_ns()
        epoch, last = replica.partition.leader_epoch, self._rounds.get(replica.key)
        if last is None or last.leader_epoch != epoch:
            last = _Round(epoch, now)
        if at_once or now - last.at >= self._defaults.cleaner_interval_ns_of(replica.stream.config):
            return True, _Round(epoch, now)
        return False, last

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
        log = replica.log
        max_age_ns = self._defaults.segment_max_age_ns_of(replica.stream.config)
        if max_age_ns and log.segments and self._defaults.retention_of(replica.stream):
            newest = log.segments[-1]
            if not newest.empty and now - newest.first_timestamp >= max_age_ns:
                log.appender.roll()

    async def _raise(self, starts: list[NewStart]) -> None:
        try:
            await self._client.raise_starts(self._own, tuple(starts))
        except BasculeError as error:
            logger.warning(
                "records of %d partitions have expired and are not removed yet: %s; tried again in the next round",
                len(starts),
                error,
            )


def expired_end(replica: Replica, defaults: StreamDefaults, now: int) -> int:
    """Everything below has expired in this log by now, and no hold keeps it; a segment begins there."""
    log, partition = replica.log, replica.partition
    limits = defaults.retention_of(replica.stream)
    if not limits or not log.segments:
        return partition.start
    start = min(retained_from(_sizes(log), limits, now), log.visible_end)
    if (held := lowest_hold(partition)) is not None:
        start = min(start, held)
    return max(partition.start, max((each.base for each in log.segments if each.base <= start), default=0))


def _sizes(log: CommitLog) -> list[SegmentSize]:
    return [
        SegmentSize(
            each.base,
            each.appended.end,
            each.appended.end - each.base,
            each.appended.size,
            each.appended.last_timestamp,
        )
        for each in log.segments
    ]
