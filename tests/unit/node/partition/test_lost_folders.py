"""Three brokers in memory, of which one lost the files of a partition while all were down: a log without any file looks
as if it had never had a record."""

import asyncio
import random

import pytest

from bascule.log.tail import Tail
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.members import REPLICATION, Member, followers, item_of, leader_of, three, until
from tests.harness.replicas import leads
from tests.harness.stops import stop

ENDS = "promised-ends"
LOST = {
    "partition": ("streams/s@",),
    "partition and ends": ("streams/s@", ENDS),
    "all streams and ends": ("streams/", ENDS),
}


async def down(lost: str, count: int, on_record: bool, power: bool) -> tuple[dict[str, Member], Member, Member]:
    """In sync are two, the third is behind; of the two the leader has lost these files."""
    members = await three(MemoryNats())
    for name in "st":
        request = api.CreateStreamRequest(name=name, subject=name, replicationFactor=3)
        request.minIsr.value = 2
        await members["a"].call("CreateStream", request)
    await members["a"].publish("t", b"another stream")
    await asyncio.sleep(1)
    behind = followers(members)[0]
    behind.buses[REPLICATION].disconnect()
    await until(lambda: behind.name not in item_of(members).isr)
    for number in range(count):
        await leader_of(members, "s").publish("s", b"%d" % number)
    await asyncio.sleep(1 if on_record else 0)
    harmed = leader_of(members, "s")
    whole = next(member for member in members.values() if member not in (harmed, behind))
    for member in members.values():
        member.kill(random.Random(1), power)
    for path in harmed.disk.paths():
        if path.startswith(LOST[lost]):
            harmed.disk.vanish("streams" if lost.startswith("all") and "/" in path else path.rpartition("/")[0] or path)
    return members, harmed, whole


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize(
    ("lost", "count", "on_record"),
    [
        ("partition", 1, False),
        ("partition", 20, True),
        ("partition and ends", 20, True),
        ("all streams and ends", 20, True),
    ],
)
def test_an_empty_replica_does_not_lead_before_the_one_with_the_records_is_back(
    lost: str, count: int, on_record: bool, power: bool
) -> None:
    async def main() -> None:
        members, harmed, whole = await down(lost, count, on_record, power)
        behind = next(member for member in members.values() if member not in (harmed, whole))
        await asyncio.gather(harmed.start(), behind.start())
        await asyncio.sleep(8)
        assert not leads(harmed)
        assert not leads(behind)
        await whole.start()
        await until(lambda: len(item_of(members).isr) == 3)
        assert await leader_of(members, "s").read("s") == [b"%d" % number for number in range(count)]

    run(main())


def test_a_broker_that_has_its_metadata_and_nothing_else_says_that_it_knows_no_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        _, harmed, _ = await down("all streams and ends", 1, True, False)
        await harmed.start()
        assert f"{ENDS}: missing or damaged" in caplog.text

    run(main())


@pytest.mark.parametrize("how", ["kill", "stop", "stop and power"])
def test_a_partition_that_never_had_a_record_is_sure_of_that_without_the_others(how: str) -> None:
    """But for a power loss every promise is on record, and so is that there was none."""

    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
        await members["a"].call("CreateStream", request)
        await until(lambda: len(item_of(members).isr) == 3)
        await asyncio.sleep(1)
        for _ in range(2):
            for member in members.values():
                if how == "kill":
                    member.kill(random.Random(1), power=False)
                else:
                    await stop(member)
                    member.process = None
                if how == "stop and power":
                    member.disk.crash(random.Random(1))
            await asyncio.gather(*(member.start() for member in members.values()))
            tails = [each.tail for member in members.values() if (each := member.broker.replicas.find("s", 0))]
            assert tails == [Tail.SURE] * 3
            await until(lambda: any(map(leads, members.values())))

    run(main())


def test_partitions_without_a_record_are_led_soon_after_a_power_loss_of_all() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3, partitions=50)
        request.minIsr.value = 2
        await members["a"].call("CreateStream", request)
        await asyncio.sleep(1)
        for member in members.values():
            member.kill(random.Random(1))
        back = [members["a"], members["b"]]
        await asyncio.gather(*(member.start() for member in back))
        replicas = [each for member in back for each in member.broker.replicas.values() if each.stream.name == "s"]
        await until(lambda: sum(each.leading is not None for each in replicas) == 50, 5)

    run(main())
