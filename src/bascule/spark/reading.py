"""A task of a query: one range of a partition as Arrow batches, in an executor.

A task that does not reach the end of its range fails; it never returns fewer messages quietly. Offsets that compaction
removed, or retention before the query was planned, are simply not there. Others that are missing are damaged on the
broker's disk, which it does not serve: the task fails, or notes them (`quarantine`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from bascule import limits
from bascule.client.columns import batch_of_messages, batch_of_range
from bascule.errors import BasculeError, CorruptError, FailedPrecondition, NotFound, OutOfRange, Unavailable
from bascule.spark.connecting import connected
from bascule.spark.planning import is_paused, paused
from bascule.spark.position import has_bulk_reads, same_stream
from bascule.spark.quarantine import DamagedError, damage, note
from bascule.spark.retrying import NO_ANSWER, Tried

if TYPE_CHECKING:
    from bascule.client import BlockingClient, Message
    from bascule.spark.options import ReadOptions
    from bascule.spark.planning import StreamRange

logger = logging.getLogger(__name__)

RESUMES = 3
"""How often a task resumes its partition: one that is paused again and again is paused for a reason."""


def read(options: ReadOptions, names: Sequence[str], wanted: StreamRange) -> Iterator[Any]:
    with connected(options, limits.SPARK_RETRY_S) as client:
        task = _BulkTask if has_bulk_reads(wanted.creation) else _SubscribedTask
        yield from task(client, options, names, wanted).batches()


class _BulkTask:
    def __init__(self, client: BlockingClient, options: ReadOptions, names: Sequence[str], wanted: StreamRange) -> None:
        self._client = client
        self._options = options
        self._names = names
        self._wanted = wanted
        self._position = wanted.start
        self._replica = _follower(client, wanted) if options.from_replicas else ""
        """The broker that is read from; empty: the leader."""
        self._resumes = RESUMES if options.paused == "resume" else 0
        self._tried = Tried(limits.SPARK_RETRY_S)

    def batches(self) -> Iterator[Any]:
        wanted = self._wanted
        while self._position < wanted.end:
            before, replica = self._position, self._replica
            try:
                yield from self._read(replica)
            except BasculeError as error:
                if not replica and self._ends_or_waits(error):
                    return
                if replica:
                    logger.info("%s/%d is read from its leader: %s", wanted.stream, wanted.partition, error)
                self._replica = ""
                continue
            if self._position == before and not replica:
                raise _short(wanted, before)
            self._replica = ""  # a follower has given all that it knows to be committed

    def _read(self, replica: str) -> Iterator[Any]:
        wanted = self._wanted
        for given in self._client.read_range(
            wanted.stream,
            wanted.partition,
            self._position,
            wanted.end,
            creation=wanted.creation,
            replica=replica,
            max_bytes=limits.SPARK_READ_BYTES,
        ):
            missing = given.missing()
            if replica and (missing or given.compacted_end > given.start):
                return
            batch = batch_of_range(self._names, wanted.stream, wanted.partition, given) if given.count else None
            for each in missing:
                self._damaged(each)
            self._position = given.end
            self._tried.over()
            if batch is not None:
                yield batch

    def _ends_or_waits(self, error: BasculeError) -> bool:
        try:
            return self._ends(error)
        except NO_ANSWER as unanswered:  # also to what `_ends` asks
            time.sleep(self._tried.pause_after(unanswered))
            return False

    def _ends(self, error: BasculeError) -> bool:
        """What the leader answers: whether the task has no more to read. Raises it if the query fails."""
        wanted = self._wanted
        if isinstance(error, OutOfRange):
            if self._options.fail_on_loss:
                raise _told(error) from None
            self._position = max(self._position, self._client.log_bounds(wanted.stream, wanted.partition).start)
            logger.warning("%s; the query goes on at offset %d", error, self._position)
            return False
        if is_paused(error):
            if not self._resumes:
                raise paused(wanted.stream, wanted.partition) from None
            self._resumes -= 1
            self._client.resume_stream(wanted.stream, [wanted.partition])
            return False
        if isinstance(error, FailedPrecondition) and not self._options.fail_on_loss and "made again" in str(error):
            logger.warning("%s; the query goes on without what it held", error)
            return True
        if isinstance(error, NotFound) and not self._options.fail_on_loss:
            logger.warning("stream %s was deleted; the query goes on without what it held", wanted.stream)
            return True
        if isinstance(error, FailedPrecondition | NotFound):
            raise _told(error) from None
        if isinstance(error, CorruptError) and not isinstance(error, DamagedError):
            raise CorruptError(f"{error} (from offset {self._position} on)") from None
        raise error

    def _damaged(self, offsets: range) -> None:
        wanted = self._wanted
        if self._options.quarantine:
            note(self._options.quarantine, wanted.stream, wanted.partition, wanted.creation, offsets)
        elif self._options.fail_on_loss:
            raise DamagedError(wanted.stream, wanted.partition, offsets)
        logger.warning("%s; the query goes on without", damage(wanted.stream, wanted.partition, offsets))


def _follower(client: BlockingClient, wanted: StreamRange) -> str:
    """A follower in sync; another one for other ranges. Empty: there is none, or not the partition, which the leader
    tells, or no broker answers now."""
    try:
        stream = client.fetch_metadata([wanted.stream]).streams.get(wanted.stream)
    except NO_ANSWER:
        return ""
    partition = stream.partitions.get(wanted.partition) if stream is not None else None
    followers = sorted(each for each in partition.isr if each != partition.leader) if partition is not None else []
    return followers[crc32(b"%d" % wanted.start) % len(followers)] if followers else ""


def _told(error: Exception) -> Exception:
    return type(error)(
        f'{error}. Messages that were to be read are gone; set the option "failOnDataLoss" to false to go on without '
        "them"
    )


def _short(wanted: StreamRange, end: int) -> Unavailable:
    return Unavailable(
        f"partition {wanted.partition} of stream {wanted.stream} ended at offset {end}, and {wanted.end} was committed "
        "before: was the stream deleted meanwhile?"
    )


class _SubscribedTask:
    """Of a server without bulk reads. It does not say why an offset is not there: retention removes messages under a
    task, and compaction anywhere, so each gap counts as lost."""

    def __init__(self, client: BlockingClient, options: ReadOptions, names: Sequence[str], wanted: StreamRange) -> None:
        self._client = client
        self._options = options
        self._names = names
        self._wanted = wanted
        self._position = wanted.start
        self._tried = Tried(limits.SPARK_RETRY_S)

    def batches(self) -> Iterator[Any]:
        for messages in _gathered(self._messages()):
            yield batch_of_messages(self._names, messages)

    def _messages(self) -> Iterator[list[Message]]:
        """Of a subscription that is lost for good another one goes on where it was."""
        wanted, there = self._wanted, False
        while True:
            try:
                there = self._is_there()
                if there:
                    yield from self._subscribed()
                break
            except NO_ANSWER as error:
                time.sleep(self._tried.pause_after(error))
            except NotFound as error:
                if self._options.fail_on_loss:
                    raise _told(error) from None
                logger.warning("stream %s was deleted; the query goes on without what it held", wanted.stream)
                return
        if there and self._position < wanted.end:
            if self._options.fail_on_loss:
                raise _short(wanted, self._position)
            self._lost(range(self._position, wanted.end))

    def _subscribed(self) -> Iterator[list[Message]]:
        wanted = self._wanted
        for batch in self._client.batches(
            wanted.stream,
            wanted.partition,
            start=self._position,
            stop=wanted.end - 1,
            resume_paused=self._options.paused == "resume",
        ):
            last = batch[-1].offset
            messages = [each for each in batch if each.offset < wanted.end] if last >= wanted.end else batch
            self._look_for_gaps(messages, min(last + 1, wanted.end))
            self._tried.over()
            yield messages
            if self._position >= wanted.end:
                return

    def _is_there(self) -> bool:
        """Whether the stream is the one that was planned. Raises if the query fails."""
        wanted = self._wanted
        known = self._client.fetch_metadata([wanted.stream]).streams.get(wanted.stream)
        if known is not None and same_stream(-known.creation_timestamp, wanted.creation):
            return True
        what = f"Stream {wanted.stream} was deleted" + (" and made again" if known is not None else "")
        if self._options.fail_on_loss:
            raise _told(FailedPrecondition(what))
        logger.warning("%s; the query goes on without what it held", what)
        return False

    def _look_for_gaps(self, messages: Sequence[Message], end: int) -> None:
        """And moves on to `end`."""
        if end - self._position != len(messages):
            for message in messages:
                if message.offset > self._position:
                    self._lost(range(self._position, message.offset))
                self._position = max(self._position, message.offset + 1)
            if self._position < end:
                self._lost(range(self._position, end))
        self._position = end

    def _lost(self, offsets: range) -> None:
        wanted = self._wanted
        what = (
            f"offsets {offsets.start} to {offsets.stop - 1} of {wanted.stream}/{wanted.partition} are not there: they "
            "were removed before they were read, or compacted, which this server does not tell apart"
        )
        if self._options.fail_on_loss:
            raise OutOfRange(f'{what}. Set the option "failOnDataLoss" to false to go on without them')
        logger.warning("%s; the query goes on without them", what)


def _gathered(batches: Iterator[list[Message]]) -> Iterator[list[Message]]:
    """Network reads are small; Arrow batches should not be."""
    gathered: list[Message] = []
    size = 0
    for batch in batches:
        gathered += batch
        size += sum(len(message.value) for message in batch)
        if size >= limits.SPARK_BATCH_BYTES or len(gathered) >= limits.SPARK_BATCH_ROWS:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered
