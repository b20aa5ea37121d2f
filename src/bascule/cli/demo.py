"""`make demo`: publishing, fail-over and reading end to end, on free ports and in a temporary folder, explained.

Messages reach one replicated stream in the three ways there are: by a client over gRPC, as Liftbridge envelopes over
NATS (with acks) and as plain NATS messages from a program that knows nothing of streams. Then the broker that leads
is killed under a publisher, which goes on with the next leader. Everything is read back by a subscriber and counted by
Spark. Then the pipelines run: the stream is archived into a table, the table and the stream are queried as one, and the
table is audited. Every part is the real thing. The last line says `demo ok` only if all counts agree.

A publisher that loses its broker cannot know which of its last messages were stored. This one is the only publisher of
its stream, so it reads the stream's end, and nothing is stored twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bascule import limits
from bascule.client import Client, Outgoing
from bascule.errors import BasculeError, NotSent, Unavailable, Unconfirmed
from bascule.testing.processes import Process, ProcessError, free_port, poll, script
from bascule.wire import envelope, kernels
from bascule.wire.pb import api_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "orders"
BY_GRPC, BY_ENVELOPE, BY_PLAIN_NATS, AT_FAIL_OVER = 1000, 500, 250, 2000
BROKERS, RESTART_S = 3, 5
KILL_AFTER = 500
"""Acks into the last batch."""
START_TIMEOUT_S = 90.0
TIMEOUT_S = 30.0
ACK_INBOX = "demo.acks"
SOURCE = "coalesce(cast(headers['source'] as string), 'plain NATS')"


class DemoError(BasculeError):
    """A step did not give what it must."""


def main() -> int:
    try:
        from bascule.spark.java import find_java

        find_java()  # before anything is started
        with tempfile.TemporaryDirectory(prefix="bascule-demo-") as folder:
            counts = _demo(Path(folder))
    except (BasculeError, ProcessError, OSError) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    found = ", ".join(f"{what} {count}" for what, count in counts.items())
    if len(set(counts.values())) != 1:
        print(f"demo failed: {found}", file=sys.stderr)
        return 1
    print(f"demo ok: {found}")
    return 0


def _demo(folder: Path) -> dict[str, int]:
    """By step, how many messages it saw."""
    _say(f"Starting a NATS server and {BROKERS} brokers with `bascule up --brokers {BROKERS}` (data in {folder}) ...")
    with _up(folder) as running:
        cluster = _Cluster.of(running)
        _say(f"  clients connect to {cluster.servers}")
        _say(f"  NATS programs to   {cluster.nats_url}")
        published = asyncio.run(_publish(cluster))
        read = asyncio.run(_read_back(cluster.servers, published))
        counts = {"published": published, "read": read, **_in_spark(cluster.servers, folder)}
        asyncio.run(_see_all_in_sync(cluster.servers))
        running.terminate()
    return counts


def _say(line: str) -> None:
    print(line, flush=True)


# --- the cluster ------------------------------------------------------------------------------------------


def _up(folder: Path) -> Process:
    command = [str(script("bascule")), "up", "--json", "--brokers", str(BROKERS), "--data-dir", str(folder / "data")]
    command += ["--port", "0", "--nats-port", str(free_port()), "--restart-after", str(RESTART_S)]
    return Process(command, folder / "up.log").start()


@dataclass(frozen=True)
class _Cluster:
    servers: str
    nats_url: str
    pids: dict[str, int]

    @classmethod
    def of(cls, running: Process) -> _Cluster:
        """With the addresses that it prints once it runs."""

        def addresses() -> list[str]:
            return [line for line in running.logs().splitlines() if line.startswith("{")]

        if not poll(lambda: bool(addresses()) or not running.running, START_TIMEOUT_S) or not addresses():
            raise DemoError(f"the cluster did not start: {running.log_tail()}")
        said = json.loads(addresses()[0])
        return cls(
            ",".join(broker["address"] for broker in said["brokers"]),
            said["nats_url"],
            {broker["id"]: broker["pid"] for broker in said["brokers"]},
        )


async def _see_all_in_sync(servers: str) -> None:
    async with await Client.connect(servers) as client, asyncio.timeout(TIMEOUT_S):
        while len((await client.fetch_metadata([STREAM])).streams[STREAM].partitions[0].isr) < BROKERS:
            await asyncio.sleep(0.1)
    _say(f"The killed broker was started again meanwhile and has caught up: {BROKERS} replicas are in sync.")


# --- publishing -------------------------------------------------------------------------------------------


async def _publish(cluster: _Cluster) -> int:
    nats_url = cluster.nats_url
    async with await Client.connect(cluster.servers) as client:
        _say(f"Creating stream {STREAM}, which records the NATS subject {STREAM}, with a replica on each broker ...")
        await client.create_stream(STREAM, replication_factor=BROKERS, min_isr=BROKERS - 1)
        _say(f"Publishing {BY_GRPC} messages with the client, each acked once all replicas in sync have it on disk ...")
        orders = (Outgoing(b"order %d" % n, headers={"source": b"gRPC"}) for n in range(BY_GRPC))
        published = await client.publish_many(STREAM, orders)
        _say(f"Publishing {BY_ENVELOPE} messages as envelopes over NATS, which are acked the same way ...")
        published += await asyncio.to_thread(_publish_envelopes, nats_url)
        _say(f"Publishing {BY_PLAIN_NATS} plain messages with NATS alone, which nobody acks ...")
        published += await asyncio.to_thread(_publish_plain, nats_url)
        async with asyncio.timeout(TIMEOUT_S):
            while await _stored(client) < published:
                await asyncio.sleep(0.02)
        return published + await _publish_at_fail_over(cluster, client, published)


async def _stored(client: Client) -> int:
    return (await client.fetch_partition_metadata(STREAM, timeout=TIMEOUT_S)).high_watermark + 1


async def _publish_at_fail_over(cluster: _Cluster, client: Client, before: int) -> int:
    leader = (await client.fetch_partition_metadata(STREAM)).leader
    _say(f"Publishing {AT_FAIL_OVER} more, and killing the broker that leads ({leader}) with SIGKILL meanwhile ...")
    done, killed_at, lost, back_at = 0, 0.0, False, 0.0

    def on_acks(acks: list[tuple[int, int, int]]) -> None:
        nonlocal done, killed_at, back_at
        done += len(acks)
        if not killed_at and done >= KILL_AFTER:
            os.kill(cluster.pids[leader], signal.SIGKILL)
            killed_at = time.monotonic()
        elif lost and not back_at:
            back_at = time.monotonic()

    async def rest() -> AsyncIterator[bytes | Outgoing]:
        for number in range(done, AT_FAIL_OVER):
            yield Outgoing(b"order at fail-over %d" % number, headers={"source": b"gRPC, fail-over"})
            if not number % 100:
                await asyncio.sleep(0.005)  # so that it still publishes when the broker is killed

    async with asyncio.timeout(2 * TIMEOUT_S):
        while done < AT_FAIL_OVER:
            try:
                await client.publish_many(STREAM, rest(), on_acks=on_acks)
            except (NotSent, Unconfirmed, Unavailable):
                lost = True
                done = await _stored(client) - before
    now_leads = (await client.fetch_partition_metadata(STREAM)).leader
    pause = f" after {back_at - killed_at:.1f} s" if back_at else ""
    who = f"{leader} is dead; {now_leads} leads" if now_leads != leader else f"{leader} was started again and leads"
    _say(f"  {who}, with everything that was acked, and the publisher went on{pause}")
    return done


def _publish_envelopes(nats_url: str) -> int:
    """Returns how many acks came back."""
    with _nats(nats_url) as connection:
        commands = [f"SUB {ACK_INBOX} 1\r\n".encode()]
        for number in range(BY_ENVELOPE):
            message = pb.Message(
                value=b"order by envelope %d" % number,
                headers={"source": b"NATS envelope"},
                ackInbox=ACK_INBOX,
                ackPolicy="ALL",
            )
            payload = envelope.encode(envelope.MsgType.PUBLISH, message.SerializeToString())
            commands.append(b"PUB %b %d\r\n%b\r\n" % (STREAM.encode(), len(payload), payload))
        connection.sendall(b"".join(commands))
        acks, data = 0, b""
        while acks < BY_ENVELOPE:
            data += _received(connection)
            consumed, _, batches, _ = kernels.split_nats(
                data, 0, len(data), limits.NATS_MAX_CONTROL_LINE, limits.GRPC_MAX_MESSAGE_BYTES
            )
            data = data[consumed:]
            for _, count, batch in batches:
                _check_acks(batch)
                acks += count
        return acks


def _check_acks(batch: bytes) -> None:
    position = 0
    while position < len(batch):
        subject, reply, length = struct.unpack_from("<HHI", batch, position)
        position += 8 + subject + reply
        ack = pb.Ack.FromString(envelope.decode(batch[position : position + length], envelope.MsgType.ACK) or b"")
        if ack.stream != STREAM or ack.ackError:
            raise DemoError(f"an envelope was not accepted: {ack}")
        position += length


def _publish_plain(nats_url: str) -> int:
    with _nats(nats_url) as connection:
        values = [b"plain order %d" % number for number in range(BY_PLAIN_NATS)]
        commands = [b"PUB %b %d\r\n%b\r\n" % (STREAM.encode(), len(value), value) for value in values]
        connection.sendall(b"".join(commands) + b"PING\r\n")
        answer = b""
        while b"PONG" not in answer:
            answer += _received(connection)
    return BY_PLAIN_NATS


@contextmanager
def _nats(url: str) -> Iterator[socket.socket]:
    """NATS is a text protocol: a socket is enough for a client."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "localhost", parts.port or 4222), TIMEOUT_S) as connection:
        connection.sendall(b'CONNECT {"verbose":false,"pedantic":false,"name":"demo"}\r\n')
        yield connection


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(limits.MIB)
    if not data:
        raise DemoError("the NATS server closed the connection")
    return data


# --- reading ----------------------------------------------------------------------------------------------


async def _read_back(address: str, published: int) -> int:
    _say("Reading everything back from the start ...")
    read, values = 0, set[bytes]()
    async with await Client.connect(address) as client:
        subscription = client.subscribe(STREAM, start="earliest", stop=published - 1)
        async with asyncio.timeout(TIMEOUT_S):
            async for batch in subscription.batches():
                if batch[0].offset != read:
                    raise DemoError(f"offset {read} should be next, and {batch[0].offset} came")
                read += len(batch)
                values.update(message.value for message in batch)
    if len(values) != read:
        raise DemoError(f"{read} messages were read, and only {len(values)} of them differ: some are stored twice")
    return read


# --- Spark ------------------------------------------------------------------------------------------------


def _in_spark(servers: str, folder: Path) -> dict[str, int]:
    _say("Reading the stream into a Spark DataFrame (Spark takes a moment) ...")
    with _stderr_into(folder / "spark.log"):
        try:
            from bascule.spark import session

            spark = session("bascule demo", master="local[2]")
        except ImportError as error:
            raise DemoError(f"{error}: pip install 'bascule[spark]' installs Spark") from error
        try:
            reader = spark.read.format("liftbridge").options(servers=servers, streams=STREAM, columns="offset")
            counted: int = reader.load().count()
            _say(f"  {counted} rows")
            return {"spark": counted, **_pipelines(spark, servers, folder)}
        finally:
            spark.stop()


def _pipelines(spark: SparkSession, servers: str, folder: Path) -> dict[str, int]:
    """As `bascule pipeline` runs them."""
    from bascule.pipelines import archive, audit, query

    table = folder / "lake" / STREAM
    config = folder / "pipelines.yaml"
    config.write_text(json.dumps({"servers": servers, "streams": STREAM, "table": str(table)}))
    _say("Archiving the stream into a table of Parquet files (`bascule pipeline archive`) ...")
    archived = archive.Archive(archive.configured(config), spark).run()
    for part in archived.partitions.values():
        _say(
            f"  {part.stream}/{part.partition}: offsets {part.start} to {part.end - 1}, {part.rows} rows, "
            f"{archived.bytes} bytes; the brokers keep what is at or above {part.hold}"
        )
    _say("Counting by source over the table and the stream behind it (`bascule pipeline query`) ...")
    sql = f"select {SOURCE} as source, count(*), min(offset), max(offset) from {STREAM} group by 1 order by 3"
    answer = query.Query(query.configured(config, sql)[0], spark).run(sql)
    for source, count, first, last in answer.rows:
        _say(f"  {source!s:<20} {count!s:>6}   offsets {first} to {last}")
    _say("Auditing the table against its ledger and the brokers (`bascule pipeline audit`) ...")
    audited = audit.Audit(audit.configured(config), spark).run()
    if audited.findings:
        raise DemoError(f"the audit found: {audited.findings[0]}")
    _say(f"  {audited.records} records, each once, in order, undamaged")
    aggregated = sum(int(str(row[1])) for row in answer.rows)
    return {"archived": archived.rows, "aggregated": aggregated, "audited": audited.records}


@contextmanager
def _stderr_into(log: Path) -> Iterator[None]:
    """Java greets on stderr with warnings that mean nothing here. If Spark fails they are shown after all."""
    sys.stderr.flush()
    saved = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except BaseException:
        os.write(saved, log.read_bytes()[-8000:])
        raise
    finally:
        os.dup2(saved, 2)
        os.close(saved)


if __name__ == "__main__":
    sys.exit(main())
