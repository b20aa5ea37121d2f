"""The compactor: of each key only the newest record stays, in streams that ask for it.

Each replica compacts its own log, one partition at a time on each broker, so that there is one map of keys. Nothing
at or above the high watermark or the lowest hold is touched. Three kinds of records stay whatever their keys are, for a
replica that is fed from a compacted log must learn from it what the whole log would say:

- the last record of each leader epoch: an epoch begins where the one before it ends. Also where there is no other
  replica yet: all logs must have the same ones;
- the last record of each idempotent producer: the next sequence is one more. The last *committed* one, for a later one
  may be truncated, and what the producer has stored is then read from the log again;
- tombstones, where there are other replicas, from the end on that all of them are cleared to
  (`core.metadata.tombstones`): one of them may still have, or be given, what they delete.

More keys than fit into the map take several passes, a sweep: all of them treat tombstones alike.

The interval of a partition goes on while it is paused (`rounds`), and a pass that a pause interrupts begins again with
the resumption. An idle partition is not paused during one (`autopause`).
"""

import asyncio
import hashlib
import logging
import struct
from functools import partial
from typing import NamedTuple

from bascule.core.compaction import is_due, joins, shared_tombstones_due, tombstones_due
from bascule.core.metadata.starts import lowest_hold
from bascule.core.metadata.streams import Key
from bascule.limits import COMPACT_PASSES, WATCH_SLICE
from bascule.log.compaction import NO_END, NO_TOMBSTONES, Compacted, Order, Progress, Protected
from bascule.node.partition.environment import Environment
from bascule.node.partition.replica import Replica
from bascule.node.partition.replicas import Replicas
from bascule.node.partition.rounds import Rounds
from bascule.wire.producers import last_offsets

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""How often it is looked for partitions whose cleaner interval is over."""


class _Sweep(NamedTuple):
    """What the passes over one log, from the first keys to the last, do with tombstones."""

    from_start: bool
    tombstones_until: int
    tombstones_end: int
    notes_tombstones: bool
    noted_end: int
    epoch: int
    """Of tombstones, when it began."""


class Compactor:
    def __init__(self, environment: Environment, replicas: Replicas) -> None:
        self._environment = environment
        self._defaults = environment.settings.defaults
        self._replicas = replicas
        self._rounds = Rounds(replicas)
        self._sweeps: dict[Key, _Sweep] = {}
        """Those that are not over."""
        self._secret = hashlib.blake2b(environment.ports.random.token(32).encode(), digest_size=16).digest()
        metrics = environment.metrics
        self._records = metrics.counter("bascule_compacted_records_total", "Records that compaction has removed")
        self._bytes = metrics.counter("bascule_compacted_bytes_total", "Bytes that compaction has removed")
        self._tombstones = metrics.counter("bascule_compacted_tombstones_total", "Tombstones among these records")
        self._passes = metrics.counter("bascule_compaction_passes_total", "Passes of compaction over a log")
        metrics.gauge(
            "bascule_compaction_left_bytes",
            "What the pass of compaction that is under way has still to read",
            self._left,
            label="partition",
        )

    def _left(self) -> dict[str, float]:
        return {each.name: left for each in self._replicas.values() if (left := each.log.compaction.left_bytes)}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.compact()

    async def compact(self, at_once: bool = False) -> None:
        """Every partition whose interval is over, or all of them `at_once`."""
        for number, replica in enumerate(list(self._replicas.values())):
            if number % WATCH_SLICE == WATCH_SLICE - 1:
                await asyncio.sleep(0)
            now = self._environment.active_clock.monotonic_ns()
            due = self._rounds.is_due(replica.key, now, self._defaults.cleaner_interval_ns_of(replica.stream.config))
            if self._defaults.compacts(replica.stream.config) and (at_once or due) and await self._compact(replica):
                self._rounds.had_turn(replica.key, now)
        self._rounds.forget_gone()
        self._sweeps = {key: sweep for key, sweep in self._sweeps.items() if key in self._replicas}

    async def _compact(self, replica: Replica) -> bool:
        """Whether it had its turn: else it is tried again as soon as it is looked at."""
        for _ in range(COMPACT_PASSES):
            if protected_offsets(replica) is None:
                return False  # a producer has just begun, and its records are soon committed; or it is just opened
            sweep = self._sweeps.pop(replica.key, None)
            if (begun := await self._begin(replica, sweep)) is None:
                return not replica.paused
            order, going_on = begun
            if (done := await replica.compact(order)) is None:
                return not replica.paused
            if done.too_early:
                if sweep is not None:
                    self._sweeps[replica.key] = sweep
                return False
            self._count(replica, done)
            if done.ended:
                break
            self._sweeps[replica.key] = going_on._replace(from_start=False)
        return True

    def _count(self, replica: Replica, done: Compacted) -> None:
        self._passes.add()
        self._records.add(number=done.records)
        self._bytes.add(number=done.nbytes)
        self._tombstones.add(number=done.tombstones)
        if done.records:
            logger.info(
                "%s is compacted: removed %d records, %d of them tombstones, and %d bytes, in %d segments, with the "
                "newest records of %d keys%s",
                replica.name,
                done.records,
                done.tombstones,
                done.nbytes,
                done.segments,
                done.keys,
                "" if done.ended else "; more keys than fit: another pass follows",
            )

    async def _begin(self, replica: Replica, sweep: _Sweep | None) -> tuple[Order, _Sweep] | None:
        """What the next pass may do, which goes on with a `sweep` or begins one; None if there is nothing to do."""
        log, config = replica.log, replica.stream.config
        if log.failed is not None or not log.segments:
            return None
        now = self._environment.ports.clock.time_ns()
        until = now - self._defaults.compact_min_lag_ns_of(config)
        progress = await self._progress(replica, now)
        segments = log.compaction.compactable(bound_of(replica), until)
        total = sum(each.appended.size for each in segments)
        new = sum(each.appended.size for each in segments if each.appended.end > progress.clean_end)
        go_on = sweep is not None and new > 0
        if sweep is None or not tombstones_go(replica, sweep.tombstones_end, sweep.epoch):
            sweep = self._sweep(replica, progress, now)
        if not segments or not (sweep.from_start or go_on or is_due(total, new)):
            return None
        order = Order(
            bound=lambda: bound_of(replica),
            until=until,
            protected=partial(protected_offsets, replica),
            tombstones_until=sweep.tombstones_until,
            tombstones_end=sweep.tombstones_end,
            tombstones_go=partial(tombstones_go, replica, sweep.tombstones_end, sweep.epoch),
            now=now,
            notes_tombstones=sweep.notes_tombstones,
            noted_end=sweep.noted_end,
            joins=partial(joins, self._defaults.merge_bounds_of(replica.stream)),
            from_start=sweep.from_start,
            secret=self._secret,
            map_bytes=self._defaults.key_map_bytes,
        )
        return order, sweep

    async def _progress(self, replica: Replica, now: int) -> Progress:
        """How far it is compacted. If all logs are cleared to a higher end than the one that tombstones wait for, or
        have waited for, they wait for that one from now on."""
        compaction = replica.log.compaction
        progress = await compaction.load()
        if progress.alone_until >= 0 and progress.alone_end <= progress.gone_end < shared_end(replica, progress):
            try:
                await compaction.tombstones_wait(shared_end(replica, progress), now)
            except OSError as error:
                logger.warning("%s: its tombstones do not wait yet, its disk fails: %s", replica.name, error)
        return compaction.progress or progress

    def _sweep(self, replica: Replica, progress: Progress, now: int) -> _Sweep:
        """Tombstones go in a sweep over all keys, when they have waited for long enough; those that stay then wait from
        now on. Other sweeps only note that there are some."""
        delay_ns = self._defaults.tombstone_delay_ns_of(replica.stream.config)
        due = tombstones_due(progress.alone_until, progress.alone_at, now, delay_ns)
        until, end, epoch = progress.alone_until, NO_END, replica.partition.tombstones_epoch
        if replica.replicated:
            known = progress.alone_end, progress.gone_end, progress.cleared_end, progress.clean_end
            due = due and shared_tombstones_due(*known)
            until, end = NO_END, min(progress.alone_end, shared_end(replica, progress))
        noted_end = shared_end(replica, progress)
        if due:
            return _Sweep(True, until, end, True, noted_end, epoch)
        return _Sweep(False, 0, 0, progress.alone_until == NO_TOMBSTONES, noted_end, epoch)


def shared_end(replica: Replica, progress: Progress) -> int:
    """The logs of all replicas are cleared to there, and this one knows it of its own; 0 where there is one."""
    partition = replica.partition
    if not replica.replicated or progress.epoch != partition.tombstones_epoch:
        return 0
    return min(partition.tombstones_end, progress.cleared_end)


def tombstones_go(replica: Replica, end: int, epoch: int) -> bool:
    """Nobody has what those below this end delete, as it was since this epoch of them; or there is nobody else."""
    partition = replica.partition
    return not replica.replicated or (end <= partition.tombstones_end and epoch == partition.tombstones_epoch)


def bound_of(replica: Replica) -> int:
    """Nothing at or above is compacted; nothing at all without contact with the controller: SetHold does not wait for a
    broker whose lease is over."""
    if replica.environment.lease.over():
        return 0
    held = lowest_hold(replica.partition)
    return replica.log.visible_end if held is None else min(held, replica.log.visible_end)


def protected_offsets(replica: Replica) -> Protected | None:
    """Records that stay, whatever their keys are. None if it is not known for a producer."""
    if not replica.producers.ready:
        return None
    of_producers = last_offsets(replica.producers.snapshot(), replica.log.visible_end)
    if of_producers is None:
        return None
    return Protected(_packed(of_producers), _packed([start - 1 for _, start in replica.epochs.entries[1:]]))


def _packed(offsets: list[int]) -> bytes:
    return b"".join(struct.pack("<q", offset) for offset in sorted(offsets))
