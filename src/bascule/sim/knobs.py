"""Bounds that are smaller in some runs, so that they are reached ("buggify").

A knob is a constant of a module that the contract does not fix. Code reads it at call time, as a global of the module,
so that setting it for a run changes that run; where a module imported a name of `limits`, the name there is set too. A
run draws some knobs and resets them at its end: the next run in the same process has the usual values.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from bascule import limits
from bascule.core.metadata.operations import Operations
from bascule.core.partition import candidate
from bascule.core.replication import fetcher
from bascule.node.membership import metadata, peers
from bascule.node.partition import compactor, opening, peerlogs, producers, reopening, repair

LIKELY = 0.3
LAYERS = ("bascule.core.", "bascule.log.", "bascule.node.", "bascule.wire.")
Values = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Knob:
    owner: ModuleType | type
    name: str
    values: Values

    @property
    def usual(self) -> float:
        value: float = getattr(self.owner, self.name)
        return value

    @property
    def places(self) -> list[ModuleType | type]:
        """Where it is to be set: also in the modules of a broker that imported the name from `limits`."""
        if self.owner is not limits:
            return [self.owner]
        loaded = [module for path, module in sorted(sys.modules.items()) if path.startswith(LAYERS)]
        return [limits, *(module for module in loaded if self.name in vars(module))]


def _limit(name: str, *values: float) -> Knob:
    return Knob(limits, name, values)


KNOBS = {
    f"{knob.owner.__name__.rpartition('.')[2]}.{knob.name}": knob
    for knob in (
        # the log
        _limit("INDEX_INTERVAL_BYTES", 64, 500),
        _limit("RECOVERY_READ_BYTES", 1_000, 5_000),
        _limit("RESYNC_BYTES", 100, 1_000),
        _limit("MAX_DAMAGE_NOTES", 1, 2),
        _limit("QUARANTINE_BYTES", 0, 2_000),
        _limit("SYNC_RESULTS_SLICE", 1, 2),
        _limit("UNSYNCED_HIGH_BYTES", 2_000, 8_000),
        _limit("UNSYNCED_LOW_BYTES", 500, 1_500),
        _limit("SUBSCRIBER_BUFFER_BYTES", 1_000, 10_000),
        _limit("SUBSCRIBER_READ_BYTES", 300, 3_000),
        # merging
        _limit("MERGED_FROM_SEGMENTS", 3, 6),
        _limit("MERGED_LEAST_SEGMENTS", 2, 3),
        _limit("MERGED_AT_ONCE", 2, 5),
        _limit("MERGED_LEAST_BYTES", 1_000, 5_000),
        _limit("MERGED_SHARE", 2, 4),
        _limit("MERGE_READ_FILES", 1, 2),
        # acks
        _limit("PUBLISH_OUTSTANDING_ACKS", 3, 20),
        _limit("PENDING_ACK_BYTES", 50_000, 200_000),
        _limit("PENDING_SWEEP_BYTES", 300, 3_000),
        _limit("GONE_CALLS", 1, 10),
        _limit("CACHED_ROUTES", 1),
        # replication
        _limit("FEED_BUFFERED_BYTES", 0, 1_000, 5_000),
        _limit("FEED_RESPONSE_BYTES", 8_000, 30_000),
        _limit("FEED_PARTITION_BYTES", 4_000, 15_000),
        _limit("FEED_SLICE", 1, 3),
        _limit("FEED_WAITING_REQUESTS", 1, 5),
        _limit("FEED_PAST_SESSIONS", 1, 2),
        Knob(fetcher, "IDLE_REPORT_S", (0.1, 0.3)),
        Knob(fetcher, "IDLE_FULL_S", (0.2, 1.0, 5.0)),
        Knob(peerlogs, "READ_BYTES", (500, 5_000)),
        Knob(peerlogs, "ASKED_AT_ONCE", (1, 2)),
        Knob(repair, "SCRUB_READ_BYTES", (500, 5_000)),
        Knob(repair, "SCRUB_EVERY_S", (0.5, 3.0)),
        Knob(repair, "AGAIN_S", (0.2, 1.0)),
        Knob(opening, "OPEN_AT_ONCE", (1, 2)),
        Knob(reopening, "REOPEN_FIRST_S", (0.1, 0.5)),
        # Raft and metadata
        _limit("RAFT_APPEND_BYTES", 100, 1_000),
        _limit("RAFT_SNAPSHOT_CHUNK_BYTES", 300, 1_000),
        _limit("RAFT_INFLIGHT_APPENDS", 1, 3),
        _limit("RAFT_TRAILING_ENTRIES", 0, 2, 10),
        _limit("RAFT_PINNED_ENTRIES", 5, 50),
        _limit("RAFT_SNAPSHOT_STALL_TICKS", 5, 20),
        _limit("RAFT_UNCOMMITTED_ENTRIES", 4, 20),
        _limit("RAFT_APPLY_ENTRIES", 1, 3),
        _limit("APPLY_SLICE", 1, 30),
        _limit("RAFT_PENDING_READS", 2, 10),
        _limit("REMEMBERED_OPERATIONS", 64, 200),
        Knob(Operations, "remembered", (64, 200)),
        Knob(metadata, "REMEMBERED_OUTCOMES", (16, 100)),
        Knob(peers, "REMEMBERED_BOOTS", (1, 4)),
        # bulk writes
        _limit("BULK_WRITE_UNACKED_BYTES", 300, 5_000),
        _limit("BULK_WRITE_UNACKED", 1, 3),
        _limit("OVERLAP_SLICE", 1),
        # producers
        _limit("PRODUCER_CHECKPOINT_BYTES", 500, 5_000),
        _limit("PRODUCER_CLOSE_BYTES", 1, 500),
        _limit("PRODUCER_REBUILD_BYTES", 300, 3_000),
        Knob(producers, "SNAPSHOT_SHARE", (0, 1)),
        # New ones at the end: the ones before are then drawn as they were.
        _limit("MAX_UNSYNCED_BYTES", 60_000, 120_000),
        # compaction
        _limit("COMPACT_READ_BYTES", 300, 2_000),
        _limit("COMPACT_SLICE_BYTES", 500, 4_000),
        _limit("COMPACT_SYNC_BYTES", 500, 4_000),
        _limit("COMPACT_BYTES_A_SECOND", 20_000, 200_000),
        _limit("COMPACT_PASSES", 1, 3),
        Knob(compactor, "LOOK_EVERY_S", (0.1, 0.3)),
        # what is on record about ends, and who leads by it
        _limit("PROMISED_ENDS_BYTES", 200, 2_000),
        _limit("PROMISED_ENDS_GROWTH", 1, 2),
        _limit("CACHED_ENDS", 3, 20),
        Knob(candidate, "PATIENCE_S", (1.5, 3.0)),
        _limit("DAMAGE_PATIENCE_S", 1.0, 4.0),
        # responses
        _limit("METADATA_PIECE_BYTES", 100, 1_000),
        _limit("METADATA_SLICE_ENTRIES", 1, 3),
        _limit("BULK_READ_BYTES", 300, 3_000),
        _limit("UNREAD_BYTES", 20_000, 100_000),
        _limit("UNREAD_LEAST_BYTES", 100, 1_000),
        _limit("PENDING_REFUSAL_BYTES", 500, 5_000),
        # cursors and retention
        _limit("CURSOR_SCAN_BYTES", 100, 1_000),
        _limit("CURSOR_INDEX_ENTRIES", 0, 2),
        _limit("CURSOR_INDEX_LAG", 0, 5),
        _limit("CACHED_CURSORS", 1, 2),
        _limit("EXPIRED_AT_ONCE", 1, 2),
        _limit("RAISED_STARTS", 1),
        # producers, again
        _limit("MAX_PARTITION_PRODUCERS", 2, 4, 6),
    )
}


NEEDED = {"limits.MAX_UNSYNCED_BYTES": {"limits.FEED_PARTITION_BYTES": 15_000, "limits.FEED_RESPONSE_BYTES": 30_000}}
"""With the first of these the others are small too: a follower that catches up must not get more at once than it may
ever take."""

TOO_SLOW_TOGETHER = (
    {"limits.RAFT_APPEND_BYTES": 100, "limits.RAFT_INFLIGHT_APPENDS": 1},
    {"limits.RAFT_SNAPSHOT_CHUNK_BYTES": 300, "limits.RAFT_PINNED_ENTRIES": 5},
)
"""With one command a round trip hundreds of partitions need longer than the bounds of the checks for their in-sync
sets; while a snapshot travels in small chunks more is committed than is retained, and the next snapshot begins."""


TOO_SLOW_WITH_HUNDREDS = ("peerlogs.ASKED_AT_ONCE",)
"""After a crash of all brokers each of hundreds of partitions would wait for its turn to ask the other replicas for
their log ends, longer than the bounds of the checks."""


ALWAYS_DRAWN = ("limits.MERGED_FROM_SEGMENTS", "limits.MERGED_LEAST_SEGMENTS", "limits.MERGED_SHARE")
"""No run has a hundred segments in a partition: with the usual values nothing would be merged."""


def draw(chance: random.Random, some: bool = True, hundreds: bool = False) -> tuple[tuple[str, float], ...]:
    """Without `some` only those that every run draws; with `hundreds` of partitions."""
    drawn = {
        name: chance.choice(knob.values)
        for name, knob in KNOBS.items()
        if name in ALWAYS_DRAWN or (some and chance.random() < LIKELY)
    }
    for name in NEEDED.keys() & drawn.keys():
        drawn |= {other: value for other, value in NEEDED[name].items() if other not in drawn}
    for together in TOO_SLOW_TOGETHER:
        if drawn.items() >= together.items():
            del drawn[next(reversed(together))]
    return tuple((name, value) for name, value in drawn.items() if not (hundreds and name in TOO_SLOW_WITH_HUNDREDS))


def producers_known(settings: tuple[tuple[str, float], ...]) -> int:
    """A partition knows a producer as long as fewer others than this were used since; 0: always, by all that a run
    does."""
    most = int(dict(settings).get("limits.MAX_PARTITION_PRODUCERS", 0))
    return most - max(1, most // 8) if most else 0


@contextmanager
def turned(settings: tuple[tuple[str, float], ...]) -> Iterator[None]:
    """The knobs have these values inside the `with` block."""
    changes = [(owner, KNOBS[name].name, value) for name, value in settings for owner in KNOBS[name].places]
    before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in changes]
    for owner, attribute, value in changes:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)
