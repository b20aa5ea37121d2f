"""Reads the records that a follower lacks from the log of a partition led here."""

from bascule.core.partition.epochs import EpochHistory
from bascule.core.replication.feed import Read, WasRead
from bascule.log.commitlog import CommitLog
from bascule.log.reader import Reader


async def read_records(log: CommitLog, epochs: EpochHistory, read: Read) -> WasRead:
    """About `max_bytes` of the records that a follower lacks, also those that are not written to disk yet."""
    reader, max_bytes = read.cursor, read.max_bytes
    if read.offset < log.segments.floor:
        # These records have expired. The follower learns from the metadata where the partition begins.
        return WasRead(b"", read.offset, 0, read.offset, None)
    if not isinstance(reader, Reader) or reader.next_offset < read.offset:
        reader = log.reader(read.offset, uncommitted=True)
    # One epoch per answer: a follower records where each begins.
    epoch, stop_end = epochs.run_at(reader.next_offset, log.end)
    pieces: list[bytes] = []
    while max_bytes > 0:
        piece = await reader.read(max_bytes, stop_end)
        if piece:
            pieces.append(piece)
            max_bytes -= len(piece)
        elif pieces or not stop_end <= reader.next_offset < log.end:
            break
        else:  # the remaining records of that epoch are lost
            epoch, stop_end = epochs.run_at(reader.next_offset, log.end)
    records = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return WasRead(records, reader.given_end, epoch, reader.next_offset, reader)


def records_end(log: CommitLog) -> int:
    """Where the log ends for a follower. The last offsets of a log that was the only replica may be lost: no follower
    can get them, and one that has all before them has caught up."""
    last = log.segments[-1] if log.segments else None
    if last is None or not last.empty or log.damaged:
        return log.end
    return next((each.appended.end for each in reversed(log.segments) if each.first_offset >= 0), log.start)
