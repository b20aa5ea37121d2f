"""How a cluster is founded and joined, with brokers in memory on a virtual clock: who waits, for whom, and who never
founds a second one."""

import asyncio
import logging

import pytest

from bascule.errors import StartError
from bascule.node.identity import settle
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from bascule.wire.subjects import RESERVED_IDS
from tests.unit.test_broker import SeededRandom
from tests.unit.test_cluster import Member, leader_of, three, until


@pytest.mark.parametrize("word", RESERVED_IDS)
def test_a_word_of_internal_subjects_is_no_id(word: str) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        with pytest.raises(StartError, match="cannot be the id of a broker"):
            await settle(disk, SeededRandom(1), word)
        assert await settle(disk, SeededRandom(1), "a") == "a", "nothing was stored"

    run(main())


def test_a_wiped_broker_waits_for_its_cluster_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Alone it is refused by nobody: there is no majority that could let it in for far longer than ten tries take."""

    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await members["a"].publish("s", b"kept")
        victim = next(member for member in members.values() if member is not leader_of(members, "s"))
        for member in members.values():
            member.kill()
        victim.disk = MemoryDisk()
        victim.seed = False
        coming = asyncio.ensure_future(victim.start())
        await asyncio.sleep(40.0)
        assert not coming.done() or coming.exception() is None, "it gave up"
        assert "no controller answers in namespace ns" in caplog.text
        assert "raft-bootstrap-seed" not in caplog.text
        for member in members.values():
            if member is not victim:
                await member.start()
        await coming
        await until(lambda: len(victim.broker.cluster.raft.membership.everyone) == 3)
        await until(lambda: victim.broker.cluster.metadata.stream("s") is not None)

    with caplog.at_level(logging.WARNING):
        run(main())


def test_a_wiped_broker_waits_out_its_last_life() -> None:
    """Started the moment it was wiped, it is still alive for the others."""

    async def main() -> None:
        members = await three(MemoryNats())
        victim = members["c"]
        victim.kill()
        victim.disk = MemoryDisk()
        await victim.start()
        await until(lambda: "c" in members["a"].broker.cluster.raft.membership.voters)

    run(main())


def test_the_id_of_a_live_broker_is_refused_for_good() -> None:
    async def main() -> None:
        nats = MemoryNats()
        await three(nats)
        double = Member("b", nats)
        double.boots = 10  # other chances
        with pytest.raises(StartError, match="a broker named b is in the cluster and alive"):
            await double.start()

    run(main())
