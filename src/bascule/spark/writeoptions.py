"""The options of `format("liftbridge")` for writing, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bascule.errors import InvalidArgument
from bascule.spark.optionvalues import TLS_OPTIONS, Tls, flag_of, known_options, list_of, number_of, required, tls_of

WRITE_OPTIONS: dict[str, str] = {
    "servers": "Addresses of brokers, separated by commas; one is enough. Required.",
    "stream": "The stream that is written to, whatever the column stream says. This or streams is required.",
    "streams": "Names of streams, separated by commas, of which the column stream names one in each row. If it is one, "
    "the column may be missing.",
    "producerId": "Of a batch write: a run with the same id stores nothing again that another one has stored, if it "
    "has the same rows in the same order. Default: another one for each run.",
    "producerBatch": "Of a batch write: its number, from 0 on, among many of the same producerId that are written one "
    "after the other, as foreachBatch does. A later one replaces the earlier ones, which cannot be run again then. "
    "Default: 0, the only one.",
    "orderBy": "Columns, separated by commas, that tell the rows of a task apart, such as the id of an order: each "
    "task writes its rows in this order, so that after a shuffle it is the same again. They may be columns that are "
    "not written. A task holds its rows in memory then, at most 256 MiB. Default: as Spark gives them.",
    "bypassOthers": "true: write also to streams whose messages others take as well (a group, another stream on the "
    "same subject); these miss what is written. Default: false.",
    **TLS_OPTIONS,
}
"""Every option with what it means: docs/spark.md shows them."""

SPARKS_OWN = ("checkpointlocation",)
"""What Spark gives every sink."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    servers: tuple[str, ...]
    streams: tuple[str, ...]
    by_column: bool
    """Each row names its stream."""
    producer_id: str
    producer_batch: int
    order_by: tuple[str, ...]
    bypass_others: bool
    tls: Tls | None


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """InvalidArgument names the option, and what would be right."""
    options = known_options(
        {name: value for name, value in given.items() if name.lower() not in SPARKS_OWN}, WRITE_OPTIONS
    )
    one, several = list_of(options, "stream"), list_of(options, "streams")
    if bool(one) == bool(several) or len(one) > 1:
        raise InvalidArgument(
            'give either the option "stream" with the stream that is written to, or "streams" with those that the '
            'column stream names: .option("stream", "orders")'
        )
    producer, batch = options.get("producerId", "").strip(), number_of(options, "producerBatch")
    if batch is not None and not producer:
        raise InvalidArgument('the option "producerBatch" is of a batch of many, and "producerId" names them all')
    return WriteOptions(
        servers=required(options, "servers", "localhost:9292"),
        streams=one or several,
        by_column=not one,
        producer_id=producer,
        producer_batch=batch or 0,
        order_by=list_of(options, "orderBy"),
        bypass_others=flag_of(options, "bypassOthers", False),
        tls=tls_of(options),
    )
