"""What a message costs a program that uses a Python client: Bascule's, nats-py's of JetStream, gufo_liftbridge.

`python -m bench.pythonclients CLIENT WAY ADDRESS STREAM COUNT` runs one of them in a process of its own, and prints how
many messages it published or read, in what time, and with how much processor time of its own. The three publish and
read the same messages, with the acks that their servers give by default, in the way that their documentation has it.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gufo.liftbridge.client import LiftbridgeClient
from nats import connect
from nats.aio.client import Client as Nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig
from nats.js.client import JetStreamContext

from bascule.client import Client, Outgoing

VALUE = bytes(128)
KEY = b"customer 7"
HEADERS = {"source": b"web", "trace": b"0123456789abcdef"}
TEXTS = {name: content.decode() for name, content in HEADERS.items()}
AT_ONCE = 1000
"""Publishes of a program that gathers them; messages of JetStream in flight, and asked for in one request."""

Run = Callable[[str, str, str, int], Coroutine[Any, Any, dict[str, float]]]


class Meter:
    """Of what is inside its block."""

    def __init__(self, messages: int) -> None:
        self._messages = messages

    def __enter__(self) -> dict[str, float]:
        self.found = {"messages": float(self._messages)}
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self.found

    def __exit__(self, *exc: object) -> None:
        self.found["seconds"] = time.perf_counter() - self._wall
        self.found["cpu_seconds"] = time.process_time() - self._cpu


async def gathered(publish: Callable[[], Awaitable[object]], count: int) -> None:
    for _ in range(count // AT_ONCE):
        await asyncio.gather(*(publish() for _ in range(AT_ONCE)))


# --- Bascule ------------------------------------------------------------------------------------------------


async def bascule(way: str, address: str, stream: str, count: int) -> dict[str, float]:
    async with Client.connect(address) as client:
        if not way.startswith(("iterated", "columns", "filled")):
            await client.create_stream(stream)
            try:
                await BASCULE[way](client, stream, AT_ONCE)
                with Meter(count) as found:
                    await BASCULE[way](client, stream, count)
            finally:
                await client.delete_stream(stream)
            return found
        if way == "columns":
            async for _ in client.arrow(stream):  # imports take longer than a million messages
                break
        with Meter(count) as found:
            await BASCULE[way](client, stream, count)
        return found


async def awaited(client: Client, stream: str, count: int) -> None:
    for _ in range(count):
        await client.publish(stream, VALUE)


async def gathering(client: Client, stream: str, count: int) -> None:
    await gathered(lambda: client.publish(stream, VALUE), count)


async def pipelined(client: Client, stream: str, count: int) -> None:
    await client.publish_many(stream, (VALUE for _ in range(count)))


async def pipelined_keyed(client: Client, stream: str, count: int) -> None:
    await client.publish_many(stream, (Outgoing(VALUE, KEY, HEADERS) for _ in range(count)))


async def produced(client: Client, stream: str, count: int) -> None:
    async with client.producer(stream) as producer:
        for _ in range(count):
            await producer.send(VALUE)


async def produced_keyed(client: Client, stream: str, count: int) -> None:
    async with client.producer(stream) as producer:
        for _ in range(count):
            await producer.send(VALUE, key=KEY, headers=HEADERS)


async def filled(client: Client, stream: str, count: int) -> None:
    await client.create_stream(stream)
    await pipelined(client, stream, count)


async def filled_keyed(client: Client, stream: str, count: int) -> None:
    await client.create_stream(stream)
    await pipelined_keyed(client, stream, count)


async def iterated(client: Client, stream: str, count: int) -> None:
    read = 0
    async for message in client.subscribe(stream, stop="latest"):
        read += len(message.value) > 0
    assert read == count, f"{read} of {count}"


async def iterated_in_batches(client: Client, stream: str, count: int) -> None:
    read = 0
    async for batch in client.subscribe(stream, stop="latest").batches():
        read += len(batch)
    assert read == count, f"{read} of {count}"


async def columns(client: Client, stream: str, count: int) -> None:
    read = 0
    async for batch in client.arrow(stream):
        read += batch.num_rows
    assert read == count, f"{read} of {count}"


BASCULE = {
    "awaited": awaited,
    "gathered": gathering,
    "pipelined": pipelined,
    "pipelined-keyed": pipelined_keyed,
    "produced": produced,
    "produced-keyed": produced_keyed,
    "filled": filled,
    "filled-keyed": filled_keyed,
    "iterated": iterated,
    "iterated-keyed": iterated,
    "iterated-in-batches": iterated_in_batches,
    "columns": columns,
}


# --- nats-py ------------------------------------------------------------------------------------------------


async def jetstream(way: str, address: str, stream: str, count: int) -> dict[str, float]:
    nats: Nats = await connect(address)
    js = nats.jetstream(publish_async_max_pending=AT_ONCE)
    try:
        if way.startswith("iterated"):
            with Meter(count) as found:
                await js_iterated(js, stream, count)
            return found
        await js.add_stream(StreamConfig(name=stream, subjects=[stream]))
        if way.startswith("filled"):
            await js_pipelined(js, stream, count, TEXTS if way == "filled-keyed" else None)
            return {"messages": count, "seconds": 1.0, "cpu_seconds": 1.0}
        try:
            await JETSTREAM[way](js, stream, AT_ONCE)
            with Meter(count) as found:
                await JETSTREAM[way](js, stream, count)
        finally:
            await js.delete_stream(stream)
        return found
    finally:
        await nats.close()


async def js_awaited(js: JetStreamContext, stream: str, count: int) -> None:
    for _ in range(count):
        await js.publish(stream, VALUE)


async def js_gathered(js: JetStreamContext, stream: str, count: int) -> None:
    await gathered(lambda: js.publish(stream, VALUE), count)


async def js_pipelined(js: JetStreamContext, stream: str, count: int, headers: dict[str, str] | None = None) -> None:
    for _ in range(count):
        await js.publish_async(stream, VALUE, wait_stall=30.0, headers=headers)
    await js.publish_async_completed()


async def js_pipelined_keyed(js: JetStreamContext, stream: str, count: int) -> None:
    await js_pipelined(js, stream, count, TEXTS)


async def js_iterated(js: JetStreamContext, stream: str, count: int) -> None:
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
    subscription = await js.pull_subscribe(stream, config=config)
    read = 0
    while read < count:
        for message in await subscription.fetch(min(AT_ONCE, count - read)):
            read += len(message.data) > 0


JETSTREAM: dict[str, Callable[[JetStreamContext, str, int], Awaitable[None]]] = {
    "awaited": js_awaited,
    "gathered": js_gathered,
    "pipelined": js_pipelined,
    "pipelined-keyed": js_pipelined_keyed,
}


# --- gufo_liftbridge ----------------------------------------------------------------------------------------


async def gufo(way: str, address: str, stream: str, count: int) -> dict[str, float]:
    async with LiftbridgeClient([address]) as client:
        if way == "iterated":
            with Meter(count) as found:
                await gufo_iterated(client, stream, count)
            return found
        await client.create_stream(stream, subject=stream, wait_for_stream=True)
        try:
            await GUFO[way](client, stream, AT_ONCE)
            with Meter(count) as found:
                await GUFO[way](client, stream, count)
        finally:
            await client.delete_stream(stream)
        return found


async def gufo_awaited(client: LiftbridgeClient, stream: str, count: int) -> None:
    for _ in range(count):
        await client.publish(VALUE, stream=stream)


async def gufo_pipelined(client: LiftbridgeClient, stream: str, count: int) -> None:
    requests = (client.get_publish_request(VALUE, stream=stream) for _ in range(count))
    async for _ in client.publish_bulk(requests, wait=True):
        pass


async def gufo_iterated(client: LiftbridgeClient, stream: str, count: int) -> None:
    read = 0
    async for message in client.subscribe(stream, partition=0, start_offset=0):
        read += len(message.value) > 0
        if read == count:
            return


GUFO: dict[str, Callable[[LiftbridgeClient, str, int], Awaitable[None]]] = {
    "awaited": gufo_awaited,
    "pipelined": gufo_pipelined,
}

CLIENTS: dict[str, Run] = {"bascule": bascule, "jetstream": jetstream, "gufo": gufo}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pythonclients", description=__doc__)
    for name in ("client", "way", "address", "stream"):
        parser.add_argument(name)
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(CLIENTS[given.client](given.way, given.address, given.stream, given.count))))


if __name__ == "__main__":
    main()
