"""Three brokers in memory: they join, replicate, lose each other and come back, on a virtual clock."""

import asyncio
import random

import pytest

from bascule.errors import Status
from bascule.node.partition.repair import Repair
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, encode
from bascule.wire.nats import messages
from bascule.wire.pb import api_pb2 as api
from bascule.wire.replication import FetchRequest, encode_request
from tests.harness.members import isr, leader_of, three, until


def test_brokers_join_and_leaders_are_spread() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", partitions=6, replicationFactor=3)
        assert (await members["c"].call("CreateStream", request))[:2] == (Status.OK, "")
        _, _, (data,) = await members["b"].call("FetchMetadata", api.FetchMetadataRequest())
        response = api.FetchMetadataResponse.FromString(data)
        assert sorted(broker.id for broker in response.brokers) == ["a", "b", "c"]
        partitions = response.streamMetadata[0].partitions
        assert sorted(item.leader for item in partitions.values()) == ["a", "a", "b", "b", "c", "c"]
        status, text, _ = await members["b"].call("CreateStream", request)
        assert (status, text) == (Status.ALREADY_EXISTS, "stream already exists")

    run(main())


def test_acked_by_all_means_on_every_replica() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        for number in range(50):
            ack = await members["b"].publish("s", b"%d" % number)
            assert ack.offset == number
            for member in members.values():
                replica = member.broker.replicas.find("s", 0)
                assert replica is not None
                assert replica.log.promised_end > number
        leader = leader_of(members, "s")
        expected = [b"%d" % number for number in range(50)]
        assert await leader.read("s") == expected
        await asyncio.sleep(1)
        for member in members.values():
            assert await member.read("s", replica=True) == expected

    run(main())


def test_a_killed_leader_is_replaced_and_nothing_acked_is_lost() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        expected = []
        for round_number in range(6):
            for number in range(10):
                expected.append(b"%d %d" % (round_number, number))
                living = next(member for member in members.values() if member.process is not None)
                await living.publish("s", expected[-1])
            victim = leader_of(members, "s")
            began = asyncio.get_running_loop().time()
            victim.kill()
            await until(lambda victim=victim: leader_of(members, "s") is not victim)
            living = next(member for member in members.values() if member.process is not None)
            expected.append(b"%d after" % round_number)
            deadline = asyncio.get_running_loop().time() + 10
            while True:
                try:
                    await living.publish("s", expected[-1], timeout_s=0.5)
                    break
                except AssertionError:
                    assert asyncio.get_running_loop().time() < deadline
            assert asyncio.get_running_loop().time() - began < 4.0, "writes stood still for too long"
            await victim.start()
            await until(lambda: len(isr(members)) == 3)
        got = await leader_of(members, "s").read("s")
        assert [value for value in got if value in expected] == list(dict.fromkeys(got))
        assert list(dict.fromkeys(got)) == expected

    run(main())


@pytest.mark.parametrize("seed", range(5))
def test_all_killed_at_once_come_back_with_everything_acked(seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        acked = []
        for boot in range(3):
            for number in range(20):
                value = b"%d %d" % (boot, number)
                await members["b"].publish("s", value, timeout_s=20.0)
                acked.append(value)
            for member in members.values():
                member.kill(chance)
            await asyncio.gather(*(member.start() for member in members.values()))
            await until(lambda: len(isr(members)) == 3)
        assert await leader_of(members, "s").read("s") == acked

    run(main())


def test_a_wiped_broker_refills() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        for number in range(30):
            await members["a"].publish("s", b"%d" % number)
        victim = next(member for member in members.values() if member is not leader_of(members, "s"))
        victim.kill()
        victim.disk = MemoryDisk()
        victim.seed = False
        await asyncio.sleep(3)
        await victim.start()
        await until(lambda: len(isr(members)) == 3)
        assert await victim.read("s", replica=True) == [b"%d" % number for number in range(30)]

    run(main())


def test_mutated_and_invented_fetch_requests_do_not_stop_replication() -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        captured: list[tuple[bytes, bytes]] = []
        spy = nats.connect("spy")
        spy.subscribe(
            b"ns.*.replicate.*",
            lambda batch, count: captured.extend((item.subject, item.payload) for item in messages(batch)),
        )
        for number in range(20):
            await members["a"].publish("s", b"%d" % number)
        chance = random.Random(1)
        for _ in range(2000):
            subject, payload = chance.choice(captured)
            mutated = bytearray(payload)
            mutated[chance.randrange(len(mutated))] ^= 1 << chance.randrange(8)
            nats.publish(subject, bytes(mutated))
        unknown_broker = encode_request(FetchRequest(7, 7, 1, 1, 0, 0, "unknown", True, []))
        nats.publish(captured[0][0], encode(MsgType.REPLICATION_REQUEST, unknown_broker, crc=True))
        await asyncio.sleep(1)
        for number in range(20):
            await members["b"].publish("s", b"after %d" % number)
        assert len(isr(members)) == 3

    run(main())


def test_a_leader_to_be_that_trips_over_an_error_leads_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody else waits for it: with the task that compares its log gone, the partition would have no leader."""
    real, left = Repair.ahead, [True, True, True]

    async def ahead(repair: Repair) -> str | None:
        if left:
            left.pop()
            raise RuntimeError("an error of ours")
        return await real(repair)

    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await members["a"].publish("s", b"kept")
        for member in members.values():
            member.kill()
        monkeypatch.setattr(Repair, "ahead", ahead)
        await asyncio.gather(*(member.start() for member in members.values()))
        await until(
            lambda: not left and bool((led := leader_of(members, "s").broker.replicas.find("s", 0)) and led.leading)
        )
        await members["a"].publish("s", b"more", timeout_s=30.0)
        assert await leader_of(members, "s").read("s") == [b"kept", b"more"]

    run(main())
