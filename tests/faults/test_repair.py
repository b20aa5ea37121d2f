"""Three brokers as processes. Each in turn is stopped, one of its files is harmed, and it comes back: the others go on,
it heals from them byte for byte, and at last one of the harmed alone serves everything that was acked."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from bascule.client import Client
from bascule.errors import DeadlineExceeded, NotSent, Unavailable, Unconfirmed
from bascule.testing.processes import HOST
from bascule.testing.records import record_starts
from bascule.wire.pb import api_pb2 as api
from tests.harness.cluster_load import STREAM, Brokers, until

SEGMENT_BYTES = 4_000
PER_ROUND = 40
WHOLE_S = 20.0
ACKED_S = 20.0
GIVE_UP_S = 0.5

Harm = Callable[[bytearray, list[int], random.Random], bytes]
"""A file's bytes, where its records begin -> what it holds afterwards."""


def flip(inside: int) -> Harm:
    """A bit at this place of a record that is not the last one."""

    def harm(data: bytearray, starts: list[int], chance: random.Random) -> bytes:
        data[chance.choice(starts[:-1]) + inside] ^= 1 << chance.randrange(8)
        return bytes(data)

    return harm


def flip_crc(data: bytearray, starts: list[int], chance: random.Random) -> bytes:
    data[chance.choice(starts[1:]) - 1] ^= 1 << chance.randrange(8)
    return bytes(data)


def flip_last(data: bytearray, starts: list[int], chance: random.Random) -> bytes:
    data[starts[-1] + 30] ^= 1 << chance.randrange(8)
    return bytes(data)


def cut(shift: int) -> Harm:
    return lambda data, starts, chance: bytes(data[: chance.choice(starts[1:]) + shift])


def empty(data: bytearray, starts: list[int], chance: random.Random) -> bytes:
    return b""


HARMS: dict[str, Harm] = {
    "a length": flip(4),
    "a CRC": flip_crc,
    "a field": flip(6),
    "a value": flip(30),
    "the last record": flip_last,
    "cut between records": cut(0),
    "cut before the end of a record": cut(-1),
    "cut after the start of a record": cut(1),
    "emptied": empty,
}


def harm_one_file(folder: Path, harm: Harm, sealed: bool, chance: random.Random) -> None:
    (partition,) = (folder / "streams").glob(f"{STREAM}@*/0")
    files = sorted(partition.glob("*.log"))
    path = chance.choice(files[1:-1]) if sealed else files[-1]
    before = path.read_bytes()
    path.write_bytes(harm(bytearray(before), record_starts(before), chance))
    assert path.read_bytes() != before


async def publish(brokers: Brokers, numbers: Iterator[int]) -> list[bytes]:
    """Until so many are acked. What comes while a leader is away may be lost, and is then not acked."""
    acked: list[bytes] = []
    async with await Client.connect(brokers.addresses, timeout=20.0) as client:
        async with asyncio.timeout(ACKED_S):
            while len(acked) < PER_ROUND:
                number = next(numbers)
                value = b"value %06d" % number + b"." * (number % 50)
                try:
                    await client.publish(STREAM, value, timeout=GIVE_UP_S)
                    acked.append(value)
                except (NotSent, Unconfirmed, Unavailable, DeadlineExceeded):
                    pass
    return acked


def served(port: int, newest: int, timeout_s: float) -> tuple[grpc.StatusCode, list[bytes]]:
    """What one broker alone shows of the stream, up to this offset: which is the newest one a leader would say."""
    request = api.SubscribeRequest(
        stream=STREAM,
        startPosition=api.EARLIEST,
        stopPosition=api.STOP_OFFSET,
        stopOffset=newest,
        readISRReplica=True,
    )
    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        subscribe = channel.unary_stream(
            "/proto.API/Subscribe",
            request_serializer=api.SubscribeRequest.SerializeToString,
            response_deserializer=api.Message.FromString,
        )
        values: list[bytes] = []
        with pytest.raises(grpc.RpcError) as ended:
            values.extend(message.value for message in subscribe(request, timeout=timeout_s) if message.value)
        return ended.value.code(), values


@pytest.mark.slow
def test_each_kind_of_damage_of_each_replica_heals_while_the_others_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        chance = random.Random(4)
        config = {"streams.segment.max.bytes": SEGMENT_BYTES, "clustering.min.insync.replicas": 1}
        with Brokers(tmp_path, peers=True, config=config) as brokers:
            async with await Client.connect(brokers.addresses) as client:
                await client.create_stream(STREAM, replication_factor=3, timeout=20.0)
            numbers = itertools.count()
            acked = [value for _ in range(3) for value in await publish(brokers, numbers)]
            for number, (what, harm) in enumerate(HARMS.items()):
                victim = brokers["abc"[number % 3]]
                await asyncio.to_thread(victim.kill9 if number % 2 else victim.terminate)
                harm_one_file(victim.data_dir, harm, sealed=number % 2 == 0, chance=chance)
                victim.start()
                acked += await publish(brokers, numbers)
                await asyncio.to_thread(victim.wait_ready)
                acked += await publish(brokers, numbers)
                await until(lambda: same_bytes(brokers), WHOLE_S, f"{what}: the replicas still differ")
                await until_in_sync(brokers)
                assert "Traceback" not in victim.logs()
            known = dict.fromkeys(acked)
            async with await Client.connect(brokers.addresses) as client:
                newest = (await client.fetch_partition_metadata(STREAM)).newest_offset
            # A replica exposes what it knows to be committed, which it learns from the next answer of its leader.
            await until(
                lambda: served(victim.port, newest, 1.0)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED,
                WHOLE_S,
                "not exposed",
            )
            for name in "abc":
                if brokers[name] is not victim:
                    brokers[name].kill9()
            status, values = served(victim.port, newest, 20.0)
            assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert [value for value in values if value in known] == acked

    asyncio.run(main())


def same_bytes(brokers: Brokers) -> bool:
    return len({brokers.log_bytes(name, 0) for name in brokers.brokers}) == 1


async def until_in_sync(brokers: Brokers) -> None:
    async with await Client.connect(brokers.addresses) as client:
        async with asyncio.timeout(WHOLE_S):
            while len((await client.fetch_metadata([STREAM])).streams[STREAM].partitions[0].isr) < 3:
                await asyncio.sleep(0.05)
