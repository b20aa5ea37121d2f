"""The stream in which writes register: so that a batch that is run again is known, and is the same.

The first task of a batch registers the batch: which partitions its streams have, and where they end before anything of
it is stored. All other tasks, of this try of the batch and of every later one, find that record instead of storing
theirs: the batch is an idempotent producer of this stream, with one message. Then each task registers itself in the
same way. When the batch commits, the driver looks for tasks that an earlier try had and this one has not.

See docs/decisions/spark-sink.md.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from bascule import limits
from bascule.client import Client, Identity, Outgoing, WriteTo
from bascule.client.numberedwrite import OWN_IDS_FROM
from bascule.client.requests import frame_messages
from bascule.errors import AlreadyExists, BasculeError, FailedPrecondition, NotFound
from bascule.spark.retrying import asked_again

REGISTRY = "spark-writes"
SUPERSEDED = "is not the latest one"
"""In what is told of a batch that a later one has replaced: it was stored as a whole before that one began."""
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class BatchId:
    """Of a write: rows that are the same whenever they are written again."""

    name: str
    """Of the query, or of the batch write."""
    number: int
    """Of the micro-batch, or of one batch write of many, from 0 on."""

    def producer(self, part: str) -> Identity:
        """Of a part of the batch, such as a task: its number tells it from other batches, the latest one wins."""
        digest = blake2b(f"{self.name}\n{part}".encode(), digest_size=8).digest()
        return Identity(OWN_IDS_FROM | (int.from_bytes(digest, "little") >> 2), self.number + 1)

    def of_task(self, task: int) -> Identity:
        return self.producer(f"task {task}")


class Target(NamedTuple):
    """A stream that is written to, when the batch began."""

    creation: int
    ends: tuple[int, ...]
    """Of each partition."""


class Registered(NamedTuple):
    offset: int
    """In the registry. Everything else about the batch comes later."""
    targets: dict[str, Target]
    again: bool
    """Another try of the batch, or another task of it, was here before."""


async def create_registry(client: Client, replicas: int) -> None:
    """What is older than a replay can be is removed from it."""
    age_ms = limits.SPARK_REGISTRY_DAYS * DAY_MS
    try:
        await client.create_stream(REGISTRY, replication_factor=replicas, retention_max_age_ms=age_ms)
    except AlreadyExists:  # another task was faster; the broker that is asked next may not know it yet
        for _ in range(100):
            if REGISTRY in (await client.fetch_metadata([REGISTRY])).streams:
                return
            await asyncio.sleep(0.1)


async def register(client: Client, batch: BatchId, task: int, streams: Sequence[str]) -> Registered:
    """The batch as its first task found it. FailedPrecondition if a stream is another one since."""
    targets = await asked_again(lambda: targets_of(client, streams))
    first, offset = await _store(client, batch, "batch", {"targets": targets})
    if not first:
        found = await asked_again(lambda: _read(client, batch, offset))
        targets = _same(batch, found, targets)
    again = not (await _store(client, batch, f"task {task}", {"task": task}))[0]
    return Registered(offset, targets, again)


async def targets_of(client: Client, streams: Sequence[str]) -> dict[str, Target]:
    known = (await client.fetch_metadata([*streams, REGISTRY])).streams
    if missing := [name for name in streams if name not in known]:
        raise NotFound(f"no such stream: {', '.join(missing)}. Create it first: bascule stream create {missing[0]}")
    if REGISTRY not in known:
        await create_registry(client, max(len(known[name].partitions[0].replicas) for name in streams))
    found = {}
    for name in streams:
        ends, creation = [], 0
        for number in sorted(known[name].partitions):
            bounds = await client.log_bounds(name, number)
            creation = bounds.creation
            ends.append(bounds.end)
        found[name] = Target(creation, tuple(ends))
    return found


async def check_tasks(client: Client, batch: BatchId, registered: int, tasks: int) -> None:
    """FailedPrecondition if an earlier try of the batch had more tasks than this one: what they stored is not among
    what this one stored, or twice."""
    async for piece in client.read_range(REGISTRY, 0, registered):
        for message in piece.messages():
            entry = _entry(message.value)
            if entry.get("name") == batch.name and entry.get("batch") == batch.number and entry.get("task", 0) >= tasks:
                raise FailedPrecondition(
                    f"batch {batch.number} of {batch.name} has {tasks} tasks, and had task {entry['task']} when it was "
                    f"run before: its rows are stored twice, or not at all. {SAME_AGAIN}"
                )


SAME_AGAIN = (
    "A batch that is run again must have the same rows in the same tasks and in the same order: keep the number of "
    'partitions, and after a shuffle name columns that tell rows apart, .option("orderBy", "id"). To go on, begin with '
    "a new checkpointLocation"
)


async def _store(client: Client, batch: BatchId, part: str, content: dict[str, Any]) -> tuple[bool, int]:
    """Whether this is the first time, and where the first one is."""
    entry = {"name": batch.name, "batch": batch.number, **content}
    to = WriteTo(REGISTRY, 0, bypass_others=True)
    write = client.numbered_write(to, batch.producer(part), limits.SPARK_WRITE_RETRY_S)
    try:
        await write.open()
        await write.send(1, frame_messages([Outgoing(json.dumps(entry).encode(), batch.name.encode())]))
        await write.finish()
    except FailedPrecondition as error:
        check_latest(batch, error)
        raise
    finally:
        write.close()
    assert write.acked is not None, "what is finished is acked"
    return not write.repeated, write.acked.firstOffset


def check_latest(batch: BatchId, error: FailedPrecondition) -> None:
    """FailedPrecondition if a broker refused the batch because it has a later one."""
    if "producer fenced" in str(error):
        raise FailedPrecondition(
            f"batch {batch.number} of {batch.name} {SUPERSEDED}: a later one was written already. Another driver runs "
            "the same query, or its checkpoint went back; if it is new, give the write another producerId"
        ) from error


async def _read(client: Client, batch: BatchId, offset: int) -> dict[str, Any]:
    async for piece in client.read_range(REGISTRY, 0, offset, offset + 1):
        for message in piece.messages():
            entry = _entry(message.value)
            if entry.get("name") == batch.name and entry.get("batch") == batch.number and "targets" in entry:
                return entry
    raise FailedPrecondition(
        f"batch {batch.number} of {batch.name} was begun before, and stream {REGISTRY} does not tell any more how: it "
        "is not known what is stored of it"
    )


def _entry(value: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(value)
    except (ValueError, struct.error):
        return {}
    return entry if isinstance(entry, dict) else {}


def _same(batch: BatchId, found: dict[str, Any], targets: dict[str, Target]) -> dict[str, Target]:
    """As they were at first."""
    before = {name: Target(creation, tuple(ends)) for name, (creation, ends) in found["targets"].items()}
    for name, now in targets.items():
        then = before.get(name)
        if then is None:
            raise _another(batch, f"did not write to stream {name}")
        if then.creation != now.creation:
            raise _another(batch, f"wrote to a stream {name} that was deleted since, and made again")
        if len(then.ends) != len(now.ends):
            raise _another(batch, f"found {len(then.ends)} partitions in stream {name}, and it has {len(now.ends)} now")
    return before


def _another(batch: BatchId, what: str) -> BasculeError:
    return FailedPrecondition(
        f"batch {batch.number} of {batch.name} {what}, when it was run before: it would not be stored once. Begin with "
        "a new checkpointLocation, or another producerId"
    )
