"""A commit log without a broker: opened on any disk, with a record of its callbacks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bascule.errors import LogError
from bascule.log import cleanshutdown
from bascule.log.appender import LogConfig
from bascule.log.commitlog import CommitLog
from bascule.log.promised import PromisedEnds
from bascule.log.sync import GROUP, SyncMode, SyncScheduler
from bascule.ports import Clock, Disk
from bascule.testing.records import encode, values

FOLDER = "streams/test@1/0"


class ManualClock:
    """`ports.Clock` that only moves when a test moves it."""

    def __init__(self, now_ns: int = 1_000_000) -> None:
        self.now_ns = now_ns

    def time_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns


@dataclass
class Bench:
    disk: Disk
    scheduler: SyncScheduler
    clock: ManualClock
    promises: list[int] = field(default_factory=list)
    failures: list[LogError] = field(default_factory=list)
    assertions: list[AssertionError] = field(default_factory=list)
    log: CommitLog = field(init=False)

    def on_promised(self, end: int) -> None:
        self.promises.append(end)

    def log_failed(self, error: LogError) -> None:
        self.failures.append(error)

    def assertion_failed(self, error: AssertionError) -> None:
        self.assertions.append(error)

    def append(self, bodies: Sequence[bytes], offset: int | None = None, epoch: int = 1) -> None:
        """Queue one batch; record n gets timestamp n * 10 at least."""
        first = self.log.end if offset is None else offset
        self.log.append(*encode(bodies, first, max(first * 10, self.log.last_timestamp + 1), epoch))

    async def store(self, bodies: Sequence[bytes], offset: int | None = None) -> None:
        """Append one batch, and wait until it is promised and visible, or the log has failed."""
        self.append(bodies, offset)
        await self.log.flushed()
        self.log.set_visible_end(self.log.promised_end)

    async def read_all(self, start: int = 0, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
        self.log.set_visible_end(self.log.promised_end)
        reader = self.log.reader(start)
        found: list[tuple[int, bytes]] = []
        while (records := await reader.read(max_bytes)) is not None:
            found += values(records)
        return found

    async def close(self) -> None:
        await self.log.close()
        await self.scheduler.close()


def nothing_is_fatal(reason: str) -> None:
    """`on_fatal` where there is no process to end."""
    raise AssertionError(reason)


class NoReports:
    """Nobody follows."""

    def push(self) -> None:
        pass


def make_scheduler(
    disk: Disk, clock: Clock, mode: SyncMode = GROUP, on_pressure: Callable[[bool], None] = lambda pressed: None
) -> SyncScheduler:
    """A group commit for logs without a broker, without followers and without backpressure."""

    return SyncScheduler(disk, clock, mode, on_pressure, NoReports(), on_fatal=nothing_is_fatal)


async def open_bench(
    disk: Disk,
    segment_max_bytes: int = 1 << 20,
    segment_max_age_ns: int = 0,
    mode: SyncMode = GROUP,
    clock: ManualClock | None = None,
    folder: str = FOLDER,
    scheduler: SyncScheduler | None = None,
    ends: PromisedEnds | None = None,
    replicated: bool = False,
) -> Bench:
    clock = clock or ManualClock()
    bench = Bench(disk, scheduler or make_scheduler(disk, clock, mode), clock)
    config = LogConfig(segment_max_bytes, segment_max_age_ns)
    bench.log = CommitLog(disk, bench.scheduler, folder, config, clock, bench, replicated, ends)
    await bench.log.open()
    return bench


async def start_ends(disk: Disk, on_fatal: Callable[[str], None] = nothing_is_fatal) -> PromisedEnds:
    """What a broker does at its start before it opens its logs."""
    clean = await cleanshutdown.read(disk)
    ends = PromisedEnds(disk, on_fatal)
    await ends.load(clean.ends if clean else None)
    await ends.begin()
    await cleanshutdown.remove(disk)
    return ends


async def stop_ends(ends: PromisedEnds, *benches: Bench) -> None:
    """A clean shutdown."""
    for bench in benches:
        await bench.close()
    await ends.close()
    await cleanshutdown.leave(benches[0].disk, True, ends.clean_ends())
