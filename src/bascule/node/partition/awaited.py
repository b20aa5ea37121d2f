"""For whom a replica would wait before it leads, on record over restarts.

A log that is not verified may lack records that the other replicas in sync or eligible have, and with a min ISR of 1
none of these is eligible any more once it has left: the metadata forgets it. So the broker remembers, for each log that
is not verified: who was in sync or eligible when the log was last known to be whole, or has been since. With the first
verification (`node.partition.verification`) that is forgotten.

Theory of operation: all of it is in one small file, replaced whole, a moment after something has changed. What a broker
hears of first, that another replica has left, is on disk as a change of the metadata before it can be on record here.
So a record names not only those that have left but all that might. Before the first record is written, after a crash, a
broker may learn of departures too: from the start until then the file has the index of the metadata at which the last
boot ended. A broker that ends within that time begins there again, and takes departures since then for new.

Known to be imperfect: where the snapshot of the metadata has passed that index within that time, it does not help.
"""

import asyncio
import json
import logging
from collections.abc import Iterable

from bascule.core.metadata.streams import Key
from bascule.log.checkpoint import read_checkpoint, write_checkpoint
from bascule.ports import Disk

FILE = "awaited-replicas"
DELAY_S = 0.1
RETRY_S = 1.0
logger = logging.getLogger(__name__)


class AwaitedReplicas:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._records: dict[Key, tuple[str, ...]] = {}
        self._index = 0
        """Where the boot ended before which all that is not verified now was whole; 0 once that is on record."""
        self._stored: bytes | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    # --- a start ---------------------------------------------------------------------------------------------

    async def load(self) -> None:
        content = await read_checkpoint(self._disk, FILE)
        if content is None:
            return
        try:
            self._take(json.loads(content))
            self._stored = content
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logger.error(
                "%s cannot be read: it is not known whom replicas waited for in the last boot: %r", FILE, error
            )

    def _take(self, found: dict[str, object]) -> None:
        index, records = found["index"], found["records"]
        if not isinstance(index, int) or not isinstance(records, dict):
            raise TypeError("another layout")
        self._index = index
        for name, brokers in records.items():
            stream, _, partition = name.partition("/")
            self._records[int(stream), int(partition)] = tuple(map(str, brokers))

    async def begin(self, known_index: int, clean: bool) -> int:
        """The index of the metadata at which the last boot ended that has left its records; `known_index` is where the
        last boot ended, in good order if `clean`. Durable on return, if the disk can be written."""
        if self._index:
            return min(self._index, known_index)
        if not clean and known_index:
            self._index = known_index
            try:
                await self._write()
            except OSError as error:
                logger.warning("%s cannot be written yet: %s", FILE, error)
        return known_index

    def complete(self) -> None:
        """All that is not verified after this start has a record by now."""
        if self._index:
            self._index = 0
            self._changed()

    def keep(self, keys: Iterable[Key]) -> None:
        """There are no other partitions here."""
        rest = {key: self._records[key] for key in keys if key in self._records}
        if len(rest) < len(self._records):
            self._records = rest
            self._changed()

    # --- while the broker runs -------------------------------------------------------------------------------

    def of(self, key: Key) -> tuple[str, ...]:
        return self._records.get(key, ())

    def note(self, key: Key, brokers: Iterable[str]) -> None:
        """That log is not verified, and may lack what these have."""
        noted = tuple(brokers)
        if not noted:
            self.forget(key)
        elif self._records.get(key) != noted:
            self._records[key] = noted
            self._changed()

    def forget(self, key: Key) -> None:
        if self._records.pop(key, None) is not None:
            self._changed()

    # --- the file --------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        said = False
        await asyncio.sleep(DELAY_S)
        while self._encoded() != self._stored and not self._closed:
            try:
                await self._write()
            except Exception as error:  # any but those of the disk are bugs; the file is still to be written
                if not said:
                    ours = None if isinstance(error, OSError) else error
                    text = "%s cannot be written, which is tried again: after a restart less is known: %s"
                    logger.warning(text, FILE, error, exc_info=ours)
                said = True
                await asyncio.sleep(RETRY_S)
        self._task = None

    def _encoded(self) -> bytes:
        records = {f"{stream}/{partition}": brokers for (stream, partition), brokers in self._records.items()}
        return json.dumps({"index": self._index, "records": records}).encode()

    async def _write(self) -> None:
        content = self._encoded()
        await write_checkpoint(self._disk, FILE, content)
        self._stored = content

    async def close(self) -> None:
        """What is to be known by the next start is stored. Raises OSError."""
        self._closed = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._encoded() != self._stored and (self._records or self._index or self._stored is not None):
            await self._write()
