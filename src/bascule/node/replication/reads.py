"""Reads the records that a follower lacks from the log of a partition led here."""

from bascule.core.partition.epochs import EpochHistory
from bascule.core.replication.feed import Read, WasRead
from bascule.limits import FEED_PARTITION_BYTES
from bascule.log.commitlog import CommitLog
from bascule.log.reader import Reader
from bascule.wire.kernels import open_batch, scan_records


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
    return await _with_whole_batches(read, reader, pieces, epoch)


async def _with_whole_batches(read: Read, reader: Reader, pieces: list[bytes], epoch: int) -> WasRead:
    """A follower appends what it gets at once: an atomic batch is never given in two answers, so that no replica's log
    ends in the middle of one."""
    while True:
        records = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        position, _, missing = open_batch(records, 0, len(records))
        if not missing:
            break
        batch_end = reader.given_end + missing
        piece = await reader.read(FEED_PARTITION_BYTES, batch_end)
        if piece:
            pieces = [records, piece]
        elif reader.next_offset >= batch_end:
            break  # the rest of it is lost
        else:  # it cannot be read now
            whole = records[:position]
            end = scan_records(whole, 0, position, 0)[3] if whole else read.offset
            return WasRead(whole, end, epoch if whole else 0, end, None)
    return WasRead(records, reader.given_end, epoch, reader.next_offset, reader)


def records_end(log: CommitLog) -> int:
    """Where the log ends for a follower. The last offsets of a log that was the only replica may be lost: no follower
    can get them, and one that has all before them has caught up."""
    last = log.segments[-1] if log.segments else None
    if last is None or not last.empty or log.damaged:
        return log.end
    return next((each.appended.end for each in reversed(log.segments) if each.first_offset >= 0), log.start)
