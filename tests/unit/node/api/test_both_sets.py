"""Who is in sync and who is eligible to lead: shown to clients and to administrators, by every broker."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from bascule.cli import stream as stream_commands
from bascule.client.values import metadata_of
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import answer
from tests.harness.members import REPLICATION, Member, followers, item_of, leader_of, three, until


async def with_an_eligible_one() -> tuple[dict[str, Member], Member, Member, Member]:
    """Min ISR 2 of 3: the leader alone in sync, one eligible and dead, one that lags."""
    members = await three(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
    request.minIsr.value = 2
    await members["a"].call("CreateStream", request)
    await members["a"].publish("s", b"0")
    eligible, lags = followers(members)
    leader = leader_of(members, "s")
    lags.buses[REPLICATION].disconnect()
    await until(lambda: lags.name not in item_of(members).isr)
    eligible.kill()
    await until(lambda: item_of(members).eligible == (eligible.name,))
    return members, leader, eligible, lags


def info(monkeypatch: pytest.MonkeyPatch, described: admin.DescribeStreamResponse) -> list[str]:
    """What `bascule stream info s` prints of that answer."""

    async def describe_stream(name: str) -> admin.DescribeStreamResponse:
        assert name == "s"
        return described

    @asynccontextmanager
    async def connected(server: str) -> AsyncIterator[Any]:
        yield SimpleNamespace(admin=SimpleNamespace(describe_stream=describe_stream))

    monkeypatch.setattr(stream_commands, "connected", connected)
    result = CliRunner().invoke(stream_commands.info, ["s"])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_metadata_shows_both_to_clients_on_every_broker() -> None:
    async def main() -> None:
        _, leader, eligible, lags = await with_an_eligible_one()
        for member in (leader, lags):
            _, _, (data,) = await member.call("FetchMetadata", api.FetchMetadataRequest(streams=["s"]))
            fetched = metadata_of(api.FetchMetadataResponse.FromString(data)).streams["s"].partitions[0]
            assert (fetched.isr, fetched.eligible) == ((leader.name,), (eligible.name,))
        await eligible.start()
        await until(lambda: len(item_of({"leader": leader}).isr) == 2)
        _, _, (data,) = await leader.call("FetchMetadata", api.FetchMetadataRequest(streams=["s"]))
        fetched = metadata_of(api.FetchMetadataResponse.FromString(data)).streams["s"].partitions[0]
        assert (len(fetched.isr), fetched.eligible) == (2, ()), "kept encodings are of the present sets"

    run(main())


def test_status_and_description_show_both_to_administrators() -> None:
    async def main() -> None:
        _, leader, eligible, lags = await with_an_eligible_one()
        for member in (leader, lags):
            status = await answer(member, "ClusterStatus", admin.ClusterStatusRequest())
            (under,) = status.underReplicated
            away = [name for name in item_of({"leader": leader}).replicas if name != leader.name]
            assert under.reason == f"not in sync: {', '.join(away)}; eligible to lead: {eligible.name}"
            (below,) = status.belowMinIsr
            assert below.reason == (f"1 in sync, 2 needed: nothing is committed; eligible to lead: {eligible.name}")
            described = await answer(member, "DescribeStream", admin.DescribeStreamRequest(stream="s"))
            (item,) = described.partitions
            sets = {each.broker: (each.alive, each.inSync, each.eligible) for each in item.replicas}
            assert sets == {
                leader.name: (True, True, False),
                eligible.name: (False, False, True),
                lags.name: (True, False, False),
            }

    run(main())


def test_the_command_shows_both_and_a_dead_member_is_not_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[str, str, str, Any]:
        _, leader, eligible, lags = await with_an_eligible_one()
        described = await answer(lags, "DescribeStream", admin.DescribeStreamRequest(stream="s"))
        return leader.name, eligible.name, lags.name, described

    leader, eligible, _, described = run(main())
    lines = info(monkeypatch, described)
    assert lines[0] == "stream s on subject s, min ISR 2"
    heads, row = lines[1], lines[2]

    def column(name: str, following: str) -> str:
        return row[heads.index(name) : heads.index(following)].strip()

    assert column("in sync", "eligible") == leader
    assert column("eligible", "start") == eligible
    assert row[heads.index("state") :].strip() == "under-replicated, below min ISR"


def test_the_log_of_the_leader_names_both(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        _, leader, eligible, _ = await with_an_eligible_one()
        expected = f"s/0 has {leader.name} of {', '.join(item_of({'leader': leader}).replicas)}"
        expected += f", eligible to lead: {eligible.name}"

        def said() -> bool:
            return any(each.getMessage().endswith(f"have changed: {expected}") for each in caplog.records)

        await until(said, 2.0)

    run(main())


def test_nobody_says_that_all_are_in_sync_while_one_is_dead(caplog: pytest.LogCaptureFixture) -> None:
    """Not even before the metadata says so."""
    caplog.set_level(logging.INFO)

    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
        request.minIsr.value = 3
        await members["a"].call("CreateStream", request)
        await members["a"].publish("s", b"0")
        for victim in followers(members):
            caplog.clear()
            victim.kill()
            await until(lambda: any("under-replicated: 1" in each.getMessage() for each in caplog.records))
            assert not any("alive and in sync" in each.getMessage() for each in caplog.records)
            described = await answer(leader_of(members, "s"), "DescribeStream", admin.DescribeStreamRequest(stream="s"))
            (item,) = described.partitions
            assert (item.underReplicated, item.belowMinIsr) == (True, True)
            await victim.start()
            await until(lambda: any("alive and in sync" in each.getMessage() for each in caplog.records))
            assert len(item_of(members).isr) == 3

    run(main())


def test_without_a_controller_the_state_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker that is left may lead, and calls itself in sync; who else is, and whether it still leads, only a
    controller knows."""

    async def main() -> tuple[Any, Any]:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s"))
        last = leader_of(members, "s")
        known = await answer(last, "DescribeStream", admin.DescribeStreamRequest(stream="s"))
        for member in followers(members):
            member.kill()
        await asyncio.sleep(5)
        return known, await answer(last, "DescribeStream", admin.DescribeStreamRequest(stream="s"))

    known, alone = run(main())
    assert (known.current, alone.current) == (True, False)
    assert info(monkeypatch, known)[2].endswith("  ok")
    assert info(monkeypatch, alone)[2].endswith("  not known: no controller answers")
