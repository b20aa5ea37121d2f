"""The log of a Delta table beside the files of an archive: readers of Delta see each batch as a whole, or not at all.

    <table>/_delta_log/<version>.json   the files of one batch, and its number

It follows from the ledger: each committed batch whose files are in the table gets one version, and a run begins with
what an earlier one did not come to. Which batches are there is said by the log itself (`txn`: the id of the table, and
the number of the batch), so no batch is in it twice. A version belongs to whoever writes its name first: others, such
as OPTIMIZE of Spark, may write versions in between. The format is that of the Delta protocol for readers of version 1
and writers of version 2: https://github.com/delta-io/delta/blob/master/PROTOCOL.md.

Known to be imperfect: no checkpoints are written, so that a reader opens one small file for each batch. Spark writes a
checkpoint when it writes to the table (OPTIMIZE), and removes versions that are older than a month: what these said of
batches is in the checkpoint.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from bascule.client.columns import COLUMNS
from bascule.errors import CorruptError, FailedPrecondition
from bascule.pipelines.durable import make_folder, sync_folders
from bascule.pipelines.ledger import Batch, Ledger, StoredFile

FOLDER = "_delta_log"
PARTITIONED_BY = ("stream", "partition", "date")
_TYPES: dict[str, object] = {
    "int": "integer",
    "bigint": "long",
    "map<string,binary>": {"type": "map", "keyType": "string", "valueType": "binary", "valueContainsNull": True},
}
_ENTRY_DIGITS = 20
Action = dict[str, Any]


class DeltaLog:
    """Written by the one pipeline that has locked the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._folder = ledger.table / FOLDER

    def follow(self) -> None:
        """All that the ledger has committed; the files are in the table by now."""
        make_folder(self._folder)
        for each in self._folder.glob(".*.new"):
            each.unlink()  # of a driver that died
        last = self._last()
        for number in self._ledger.numbers():
            if number > last:
                self._add(self._ledger.read(number))

    def _add(self, batch: Batch) -> None:
        while True:
            versions = self._versions()
            version = versions[-1] + 1 if versions else 0
            head = [] if versions else self._begin(batch)
            if self._write(version, [*head, *self._actions(batch)]):
                return

    def _begin(self, batch: Batch) -> list[Action]:
        about = {
            "id": self._ledger.about()["id"],
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(_schema()),
            "partitionColumns": list(PARTITIONED_BY),
            "configuration": {"delta.appendOnly": "true"},
            "createdTime": batch.time_ns // 1_000_000,
        }
        return [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": about}]

    def _actions(self, batch: Batch) -> Iterator[Action]:
        at = batch.time_ns // 1_000_000
        what = {"mode": "Append", "partitionBy": json.dumps(PARTITIONED_BY)}
        told = {"timestamp": at, "operation": "WRITE", "operationParameters": what, "isBlindAppend": True}
        yield {"commitInfo": {**told, "engineInfo": "bascule", "userMetadata": f"batch {batch.number}"}}
        yield {"txn": {"appId": self._ledger.about()["id"], "version": batch.number, "lastUpdated": at}}
        for each in batch.files:
            yield {"add": _added(each, at)}

    def _last(self) -> int:
        """The newest batch that is in the log; -1 if none is."""
        versions, name = self._versions(), self._ledger.about()["id"]
        for version in reversed(versions):
            for action in self._read(version) if self._path(version).exists() else ():
                if (txn := action.get("txn")) is not None and txn.get("appId") == name:
                    return int(txn["version"])
        if (found := self._checkpointed(name)) is not None:
            return found
        if versions:
            raise FailedPrecondition(
                f"{self._folder} does not say which batches of the archive it has: others wrote it, or removed its old "
                "versions. Archive into a table of its own, or restore that folder from a copy"
            )
        return -1

    def _checkpointed(self, name: str) -> int | None:
        """The same, of the newest checkpoint that others have written: they remove old versions then."""
        checkpoints = self._checkpoints()
        found = None
        for path in checkpoints.get(max(checkpoints, default=0), []):
            import pyarrow.parquet as pq

            for txn in pq.read_table(path, columns=["txn"]).column("txn").to_pylist():
                if txn is not None and txn["appId"] == name:
                    found = max(found or 0, int(txn["version"]))
        return found

    def _checkpoints(self) -> dict[int, list[Path]]:
        """The files of each, by version."""
        found: dict[int, list[Path]] = {}
        for path in self._folder.glob("*.checkpoint*.parquet"):
            version = path.name[:_ENTRY_DIGITS]
            if version.isdecimal():
                found.setdefault(int(version), []).append(path)
        return found

    def _versions(self) -> list[int]:
        """Those that are there, and that of the newest checkpoint."""
        names = (path.stem for path in self._folder.glob("*.json"))
        found = {int(name) for name in names if len(name) == _ENTRY_DIGITS and name.isdecimal()}
        return sorted(found | {max(self._checkpoints(), default=-1)} - {-1})

    def _read(self, version: int) -> list[Action]:
        path = self._path(version)
        try:
            return [json.loads(line) for line in path.read_text().splitlines()]
        except ValueError as error:
            raise CorruptError(f"{path} is damaged: {error}. Restore it from a copy of the table") from None

    def _write(self, version: int, actions: Sequence[Action]) -> bool:
        """Whether nobody else has written this version."""
        temporary = self._folder / f".{uuid.uuid4().hex}.new"
        with temporary.open("w") as file:
            file.write("".join(f"{json.dumps(each)}\n" for each in actions))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, self._path(version))
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        sync_folders([self._folder])
        return True

    def _path(self, version: int) -> Path:
        return self._folder / f"{version:0{_ENTRY_DIGITS}}.json"


def _schema() -> Action:
    types = {**{name: each.spark for name, each in COLUMNS.items()}, "date": "date"}
    fields = [
        {"name": name, "type": _TYPES.get(spark, spark), "nullable": True, "metadata": {}}
        for name, spark in types.items()
    ]
    return {"type": "struct", "fields": fields}


def _added(file: StoredFile, at: int) -> Action:
    values = dict(folder.partition("=")[::2] for folder in Path(file.path).parts[:-1])
    stats = {"numRecords": file.rows, "minValues": {"offset": file.first}, "maxValues": {"offset": file.last}}
    return {
        "path": quote(file.path, safe="/="),
        "partitionValues": {name: unquote(values[name]) for name in PARTITIONED_BY},
        "size": file.bytes,
        "modificationTime": at,
        "dataChange": True,
        "stats": json.dumps({**stats, "nullCount": {"offset": 0}}),
    }
