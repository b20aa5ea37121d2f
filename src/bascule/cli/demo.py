"""`make demo`: the main job end to end, on free ports and in a temporary folder, in words for a newcomer.

Messages reach one stream in the three ways there are: by a client over gRPC, as Liftbridge envelopes over
NATS (with acks) and as plain NATS messages from a program that knows nothing of streams. They are read back
by a subscriber and counted by Spark. Every part is the real thing. The last line says `demo ok` only if all
three counts agree.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bascule import limits
from bascule.client import Client, Outgoing
from bascule.errors import BasculeError
from bascule.testing.processes import ProcessError, start_broker
from bascule.wire import envelope, kernels
from bascule.wire.pb import api_pb2 as pb

STREAM = "orders"
BY_GRPC, BY_ENVELOPE, BY_PLAIN_NATS = 1000, 500, 250
TIMEOUT_S = 30.0
ACK_INBOX = "demo.acks"


class DemoError(BasculeError):
    """A step did not give what it must."""


def main() -> int:
    try:
        from bascule.spark.java import find_java

        find_java()  # before anything is started
        with tempfile.TemporaryDirectory(prefix="bascule-demo-") as folder:
            published, read, counted = _demo(Path(folder))
    except (BasculeError, ProcessError, OSError) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    if not published == read == counted:
        print(f"demo failed: published {published}, read {read}, spark {counted}", file=sys.stderr)
        return 1
    print(f"demo ok: published {published}, read {read}, spark {counted}")
    return 0


def _demo(folder: Path) -> tuple[int, int, int]:
    _say(f"Starting a NATS server and a broker (data in {folder}) ...")
    with start_broker(folder) as broker:
        _say(f"  clients connect to {broker.address}, NATS programs to {broker.nats_url}")
        published = asyncio.run(_publish(broker.address, broker.nats_url))
        read = asyncio.run(_read_back(broker.address, published))
        _say("Reading the stream into a Spark DataFrame and counting by source (Spark takes a moment) ...")
        counts = _count_with_spark(broker.address, folder / "spark.log")
        for source, count in counts:
            _say(f"  {source:<16} {count:>6}")
        broker.terminate()
    return published, read, sum(count for _, count in counts)


def _say(line: str) -> None:
    print(line, flush=True)


# --- publishing -------------------------------------------------------------------------------------------


async def _publish(address: str, nats_url: str) -> int:
    async with await Client.connect(address) as client:
        _say(f"Creating stream {STREAM}, which records the NATS subject {STREAM} ...")
        await client.create_stream(STREAM)
        _say(f"Publishing {BY_GRPC} messages with the client, each acked once it is on disk ...")
        orders = (Outgoing(b"order %d" % n, headers={"source": b"gRPC"}) for n in range(BY_GRPC))
        published = await client.publish_many(STREAM, orders)
        _say(f"Publishing {BY_ENVELOPE} messages as envelopes over NATS, which are acked the same way ...")
        published += await asyncio.to_thread(_publish_envelopes, nats_url)
        _say(f"Publishing {BY_PLAIN_NATS} plain messages with NATS alone, which nobody acks ...")
        published += await asyncio.to_thread(_publish_plain, nats_url)
        async with asyncio.timeout(TIMEOUT_S):
            while (await client.fetch_partition_metadata(STREAM)).high_watermark + 1 < published:
                await asyncio.sleep(0.02)
    return published


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
    """NATS is a text protocol: a socket is client enough."""
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
    read = 0
    async with await Client.connect(address) as client:
        subscription = client.subscribe(STREAM, start="earliest", stop=published - 1)
        async with asyncio.timeout(TIMEOUT_S):
            async for batch in subscription.batches():
                if batch[0].offset != read:
                    raise DemoError(f"offset {read} should be next, and {batch[0].offset} came")
                read += len(batch)
    return read


def _count_with_spark(address: str, log: Path) -> list[tuple[str, int]]:
    with _stderr_into(log):
        try:
            from bascule.spark import session

            spark = session("bascule demo", master="local[2]")
        except ImportError as error:
            raise DemoError(f"{error}: pip install 'bascule[spark]' installs Spark") from error
        try:
            orders = spark.read.format("liftbridge").option("servers", address).option("streams", STREAM).load()
            source = "coalesce(cast(headers['source'] as string), 'plain NATS') as source"
            rows = orders.selectExpr(source).groupBy("source").count().orderBy("source").collect()
            return [(row["source"], row["count"]) for row in rows]
        finally:
            spark.stop()


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
