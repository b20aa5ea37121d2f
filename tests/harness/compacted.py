"""Logs with keyed records, passes over them, and what must hold afterwards."""

import random
from collections.abc import Sequence

from bascule import limits
from bascule.log.compaction import NO_END, Order, Protected
from bascule.testing.disk import MemoryDisk
from bascule.testing.keyed import Keyed, Stored, encode_keyed, problems, stored_in
from bascule.testing.logs import Bench, open_bench

KEYS = 7
LARGE = 1 << 20
SMALL = 8 * limits.KEY_SLOT_BYTES
"""Room for six keys."""
SEGMENT = 300
"""Three or four records."""
SECRET = bytes(16)


def order(
    bench: Bench,
    bound: int | None = None,
    until: int = 1 << 62,
    tombstones_until: int = 0,
    notes_tombstones: bool = True,
    now: int = 1 << 61,
    most: int = 1 << 30,
    map_bytes: int = LARGE,
    protected: bytes = b"",
    from_start: bool = False,
    epoch_ends: bytes = b"",
    tombstones_end: int = NO_END,
    noted_end: int = 0,
) -> Order:
    def joins(group: object, segment: object, nbytes: int, records: int, more: int) -> bool:
        return nbytes <= most

    def below() -> int:
        return bench.log.visible_end if bound is None else bound

    return Order(
        below,
        until,
        lambda: Protected(protected, epoch_ends),
        tombstones_until,
        tombstones_end,
        lambda: True,
        now,
        notes_tombstones,
        noted_end,
        joins,
        from_start,
        SECRET,
        map_bytes,
    )


async def put(bench: Bench, messages: Sequence[Keyed]) -> None:
    for message in messages:
        log = bench.log
        log.append(*encode_keyed([message], log.end, max(log.end * 10, log.last_timestamp + 1)))
        await log.flushed()
        log.set_visible_end(log.promised_end)


def some(count: int, first: int = 0, keys: int = KEYS) -> list[Keyed]:
    return [
        Keyed(b"k%d" % (random.Random(number).randrange(keys)), b"v%d" % number)
        for number in range(first, first + count)
    ]


async def filled(disk: MemoryDisk, messages: Sequence[Keyed], **settings: object) -> Bench:
    bench = await open_bench(disk, SEGMENT, **settings)  # type: ignore[arg-type]
    await put(bench, messages)
    return bench


async def stored(bench: Bench, start: int = 0) -> list[Stored]:
    bench.log.set_visible_end(bench.log.promised_end)
    reader, found = bench.log.reader(start), b""
    while (records := await reader.read()) is not None:
        found += records
    return stored_in(found)


def files(disk: MemoryDisk, suffix: str) -> list[str]:
    return [path for path in disk.paths() if path.endswith(suffix)]


async def check(bench: Bench, written: Sequence[Stored], gone_until: int = -1) -> list[Stored]:
    """Nothing is lost, and everything finds what is left: forwards, backwards, by offset and by time."""
    found = await stored(bench)
    assert problems(written, found, gone_until) == []
    reader, backwards = bench.log.reverse_reader(bench.log.end), []
    while (records := await reader.read(100)) is not None:
        backwards += stored_in(records)
    assert backwards == found[::-1]
    for number, each in enumerate(found):
        assert await bench.log.offset_at_or_after(each.timestamp) == each.offset
        assert await bench.log.offset_at_or_before(each.timestamp) == each.offset
        after = found[number - 1].offset + 1 if number else 0
        for start in (each.offset, after):
            records = await bench.log.reader(start).read(1)
            assert records is not None
            assert stored_in(records)[0] == each, "a reader in a hole goes on after it"
    segments = bench.log.segments
    assert [each.appended.end for each in segments[:-1]] == [each.base for each in segments[1:]]
    assert sum(each.records for each in segments) == len(found)
    assert not bench.log.damaged
    return found
