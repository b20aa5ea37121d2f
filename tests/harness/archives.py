"""What an archive must have: the log, row by row, as a subscriber reads it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bascule.client import BlockingClient
from bascule.spark.connecting import connect
from bascule.spark.options import read_options
from bascule.testing.processes import BrokerProcess


class Killed(BaseException):
    """Ends the driver as a kill would: nothing below catches it."""


def log_of(client: BlockingClient, stream: str, partitions: int) -> list[tuple[object, ...]]:
    return [
        (
            stream,
            number,
            message.offset,
            message.timestamp,
            message.key,
            message.value,
            message.subject,
            sorted(message.headers.items()),
        )
        for number in range(partitions)
        for message in client.subscribe(stream, number, start="earliest", stop="latest")
    ]


def rows_of(table: Any) -> list[tuple[object, ...]]:
    """The same of a table, with every row that it has."""
    return [
        (
            row.stream,
            row.partition,
            row.offset,
            row.timestamp_ns,
            None if row.key is None else bytes(row.key),
            bytes(row.value),
            row.subject,
            sorted((name, bytes(value)) for name, value in row.headers.items()),
        )
        for row in table.orderBy("stream", "partition", "offset").collect()
    ]


def holds_of(broker: BrokerProcess, stream: str) -> dict[tuple[int, str], int]:
    """By partition and name, where each hold is."""

    async def ask() -> dict[tuple[int, str], int]:
        async with await connect(read_options({"servers": broker.address, "streams": stream})) as client:
            answer = await client.admin.describe_stream(stream)
            return {(item.partition, each.name): each.offset for item in answer.partitions for each in item.holds}

    return asyncio.run(ask())


def remove(broker: BrokerProcess, stream: str, before: int) -> None:
    """Everything below that offset of partition 0."""

    async def ask() -> None:
        async with await connect(read_options({"servers": broker.address, "streams": stream})) as client:
            await client.admin.delete_records(stream, 0, before)

    asyncio.run(ask())


def crash_at(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: int, error: type[BaseException] = Killed
) -> None:
    """The driver is gone before that call, counted from 1."""
    real, calls = getattr(module, name), 0

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return real(*arguments)

    monkeypatch.setattr(module, name, counted)


def flip(folder: Path, stream: str, value: bytes) -> None:
    """A bit of the only record with this value, on the disk of a broker."""
    for path in folder.glob(f"streams/{stream}@*/**/*.log"):
        position = path.read_bytes().find(b"\x1a" + bytes((len(value),)) + value)
        if position >= 0:
            with path.open("r+b") as file:
                file.seek(position + 2)
                file.write(bytes((value[0] ^ 1,)))
            return
    raise AssertionError(f"no log has {value!r}")
