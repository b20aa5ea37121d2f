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
from bascule.core.replication import fetcher
from bascule.node.membership import metadata, peers
from bascule.node.partition import opening, peerlogs, reopening, repair

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
        _limit("RAFT_SNAPSHOT_CHUNK_BYTES", 100, 1_000),
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
    )
}


def draw(chance: random.Random) -> tuple[tuple[str, float], ...]:
    return tuple((name, chance.choice(knob.values)) for name, knob in KNOBS.items() if chance.random() < LIKELY)


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
