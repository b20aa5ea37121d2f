"""Three brokers in memory, and files taken away under one of them: another one leads, what was acked is read, and the
files come back from the others."""

import asyncio

import pytest

from bascule.errors import Status
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.members import Member, leader_of, until
from tests.harness.replicas import COUNT, EXPECTED, loaded, log_bytes, logs, whole_again


async def folder_of(member: Member) -> str:
    return logs(member)[0].rpartition("/")[0]


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize("what", ["first", "sealed", "active", "folder"])
def test_what_was_taken_away_comes_back_from_the_others(what: str, leads: bool) -> None:
    async def scenario() -> None:
        members = await loaded()
        leader = leader_of(members, "s")
        harmed = next(member for member in members.values() if (member is leader) == leads)
        other = next(member for member in members.values() if member is not harmed)
        await asyncio.sleep(2)
        names = logs(harmed)
        path = {"first": names[0], "sealed": names[1], "active": names[-1], "folder": await folder_of(harmed)}[what]
        whole = log_bytes(harmed)
        harmed.disk.vanish(path)
        await asyncio.sleep(1)
        replica = harmed.broker.replicas.find("s", 0)
        assert replica is not None
        if leads:
            assert replica.log.failed is not None
            await until(lambda: leader_of(members, "s") is not harmed)
        await until(lambda: log_bytes(harmed) == whole, 60)
        for member in members.values():
            assert await member.read("s", replica=True) == EXPECTED
        await whole_again(members)
        await other.publish("s", b"and on")
        harmed.kill()
        await harmed.start()
        await until(lambda: log_bytes(harmed) == log_bytes(other), 60)

    run(scenario())


def test_nothing_acked_is_lost_when_the_leaders_folder_goes_under_load() -> None:
    async def scenario() -> None:
        members = await loaded()
        leader = leader_of(members, "s")
        other = next(member for member in members.values() if member is not leader)
        await asyncio.sleep(2)
        leader.disk.vanish(await folder_of(leader))
        acked: list[bytes] = []
        for number in range(60):
            request = api.PublishRequest(stream="s", value=b"late %d" % number, ackPolicy=api.ALL)
            status, _, _ = await other.call("Publish", request, 1.0)
            if status is Status.OK:
                acked.append(request.value)
            await asyncio.sleep(0.05)
        assert len(acked) > 20
        assert leader_of(members, "s") is not leader
        leader.kill()
        found = await leader_of(members, "s").read("s")
        assert found[:COUNT] == EXPECTED
        assert [each for each in found if each in acked] == acked

    run(scenario())


def test_a_broker_without_its_data_folder_leads_nothing_and_comes_back() -> None:
    async def scenario() -> None:
        members = await loaded()
        leader = leader_of(members, "s")
        others = [member for member in members.values() if member is not leader]
        leader.disk.gone = True
        await until(lambda: bool(leader.broker.files.gone), 2)
        await until(lambda: leader_of({member.name: member for member in others} | members, "s") is not leader)
        await others[0].publish("s", b"without it", timeout_s=20)
        leader.disk.gone = False
        await until(lambda: not leader.broker.files.gone, 5)
        await until(lambda: log_bytes(leader) == log_bytes(others[0]), 90)

    run(scenario())


def test_one_replica_takes_no_writes_until_its_files_are_back() -> None:
    async def scenario() -> None:
        members = await loaded()
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="one", subject="one"))
        for number in range(5):
            await members["a"].publish("one", b"%d" % number)
        holder = leader_of(members, "one")
        folder = next(path for path in holder.disk.paths() if path.startswith("streams/one@")).rpartition("/")[0]
        await asyncio.sleep(2)
        put_back = holder.disk.vanish(folder)
        await asyncio.sleep(1)
        request = api.PublishRequest(stream="one", value=b"never", ackPolicy=api.ALL)
        for _ in range(5):  # it tries to go on, and must not
            status, text, _ = await holder.call("Publish", request, 2.0)
            assert status is not Status.OK
            assert "removed, moved or replaced" in text
            await asyncio.sleep(2)
        assert await holder.read("one") == [b"%d" % number for number in range(5)]
        put_back()
        replica = holder.broker.replicas.find("one", 0)
        assert replica is not None
        await until(lambda: replica.log.failed is None, 60)
        await holder.publish("one", b"5")
        assert await holder.read("one") == [b"%d" % number for number in range(6)]

    run(scenario())
