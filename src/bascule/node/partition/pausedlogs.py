"""The logs of paused partitions, open for a moment: to be scrubbed, or because another replica asks for records.

Nothing of a paused partition is open, so nobody would notice damage at rest in its logs, and another copy may be bad by
the time it is opened. So each log is opened once a day, and read at a low rate. Damage is repaired from other replicas
as at other times: a broker that is asked for a log which it has closed opens it, and answers when it is asked again.

Such a log has no role: it is not fed, feeds nobody, has no subscription, and is not among the replicas of this broker.
Nobody else may have the same log open, so it ends before a change of the metadata is carried out that opens it, or
removes its files (`end`), and begins only while no such change waits. Few are open at a time.
"""

import asyncio
import logging

from bascule.core.metadata.streams import Key, Partition, Stream
from bascule.errors import BasculeError, LogError
from bascule.limits import PAUSED_LOGS_AT_ONCE
from bascule.log.tail import Tail
from bascule.node.partition.environment import Environment
from bascule.node.partition.ports import PartitionBroker
from bascule.node.partition.replica import Replica
from bascule.node.partition.replicas import Replicas

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
LENT_S = 10.0
"""A log stays open for so long after another replica last asked for it."""
REPAIR_S = 20.0
"""And for so long after it was read, if it is damaged; what is not repaired by then is found in the next round."""
SCRUB_PAUSE_S = 0.2
"""Between two logs."""
AGAIN = "it is read again in a day, or when another replica asks; report this"
SCRUB_TRIES = 120
"""To open one of them, while changes of the metadata are carried out or others are open."""
SCRUB_BYTES_A_SECOND = 16 * 1024 * 1024


class _OpenLog:
    def __init__(self, replica: Replica, until: float) -> None:
        self.replica = replica
        self.until = until
        self.ready = asyncio.Event()
        """It is open, or could not be opened."""
        self.over = asyncio.Event()
        self.task: asyncio.Task[None]


class PausedLogs:
    def __init__(self, environment: Environment, broker: PartitionBroker, replicas: Replicas) -> None:
        self._environment = environment
        self._broker = broker
        self._replicas = replicas
        self._logs: dict[Key, _OpenLog] = {}
        self._closed = False

    def __contains__(self, key: Key) -> bool:
        return key in self._logs

    def __len__(self) -> int:
        return len(self._logs)

    async def run(self) -> None:
        """Opens what others ask for."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for key in self._replicas.take_wanted():
                self._begin(key, LENT_S)

    async def scrub(self) -> None:
        """Read all records of all paused partitions here once, one after the other."""
        for stream in list(self._replicas.streams()):
            for item in stream:
                if not item.paused or self._replicas.closed((stream.creation_index, item.id)) is None:
                    continue
                try:
                    await self._scrub(stream, item.id)
                except (LogError, OSError) as error:
                    logger.warning(
                        "%s/%d: not all records could be read; the next try is in a day: %s",
                        stream.name,
                        item.id,
                        error,
                    )
                await asyncio.sleep(SCRUB_PAUSE_S)

    async def _scrub(self, stream: Stream, number: int) -> None:
        key = (stream.creation_index, number)
        for _ in range(SCRUB_TRIES):
            if not self._replicas.is_paused(stream.name, number):
                return
            if found := self._begin(key, float("inf"), stream.name):
                break
            await asyncio.sleep(LOOK_EVERY_S)
        else:
            return
        await found.ready.wait()
        try:
            if not found.over.is_set():
                await self._read(found)
        finally:
            await self.end(key)

    async def _read(self, found: _OpenLog) -> None:
        log = found.replica.log
        await found.replica.repair.scrub(SCRUB_BYTES_A_SECOND)
        until = asyncio.get_running_loop().time() + REPAIR_S
        while log.damaged and not found.over.is_set() and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(LOOK_EVERY_S)

    # --- one of them -----------------------------------------------------------------------------------------

    def _paused_here(self, key: Key, name: str) -> tuple[Stream, Partition] | None:
        """The partition, if it is paused, this broker has closed its log, and no change waits to be carried out."""
        if self._closed or self._replicas.behind or self._replicas.closed(key) is None:
            return None
        stream = self._replicas.stream(key[0], name)
        item = None if stream is None else stream.partition(key[1])
        if stream is None or item is None or not item.paused:
            return None
        return (stream, item) if self._environment.settings.broker_id in item.replicas else None

    def _begin(self, key: Key, seconds: float, name: str = "") -> _OpenLog | None:
        """It opens, or stays open; None if it cannot be opened now. `name` is its stream's, if that is known."""
        until = asyncio.get_running_loop().time() + seconds
        found = self._logs.get(key)
        if found is not None:
            found.until = max(found.until, until)
            return None if found.over.is_set() else found
        paused = self._paused_here(key, name)
        if paused is None or len(self._logs) >= PAUSED_LOGS_AT_ONCE:
            return None
        found = self._logs[key] = _OpenLog(Replica(self._environment, self._broker, *paused), until)
        found.task = asyncio.get_running_loop().create_task(self._hold(key, found))
        return found

    async def _hold(self, key: Key, found: _OpenLog) -> None:
        replica, loop = found.replica, asyncio.get_running_loop()
        try:
            await replica.open()
        except Exception as error:
            if isinstance(error, BasculeError | OSError):
                logger.error("%s is paused, and cannot be opened to be read: %s", replica.name, error)
            else:  # a bug, in this partition: the others are opened
                self._environment.jobs.note_failure(_work(replica), error, AGAIN)
            del self._logs[key]
            found.over.set()
            found.ready.set()
            return
        try:
            before = self._replicas.closed(key)
            if before is not None:
                replica.first_received = before.first_received
                replica.verification.verified = before.verified and replica.tail is Tail.SURE
            self._replicas.lend(key, replica)
            found.ready.set()
            while not found.over.is_set() and loop.time() < found.until:
                await self._wait(found)
        finally:
            found.over.set()
            self._replicas.lend(key, None)
            await self._close(key, replica)

    async def _wait(self, found: _OpenLog) -> None:
        left = found.until - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(None if left == float("inf") else left):
                await found.over.wait()
        except TimeoutError:
            pass

    async def _close(self, key: Key, replica: Replica) -> None:
        try:
            self._replicas.add_closed(key, await replica.pause())
        except (BasculeError, OSError) as error:
            logger.error("%s is paused, and could not be closed in good order: %s", replica.name, error)
        except Exception as error:
            self._environment.jobs.note_failure(_work(replica), error, AGAIN)
        finally:
            del self._logs[key]

    async def end(self, key: Key) -> None:
        """Returns when nothing of it is open here."""
        found = self._logs.get(key)
        if found is not None:
            found.over.set()
            await asyncio.wait([found.task])

    async def close(self) -> None:
        self._closed = True
        for key in list(self._logs):
            await self.end(key)


def _work(replica: Replica) -> str:
    return f"the reading of {replica.name}, which is paused"
