"""Brokers in memory: a lower min ISR, set while nobody leads, does not end that those lead who have everything."""

import asyncio

import pytest

from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import another, answer
from tests.harness.members import Member, five, item_of, until
from tests.harness.replicas import leads


async def all_away() -> tuple[dict[str, Member], Member, Member]:
    """Both replicas of `s` are down, and have every message: the one that died last is in sync, the other eligible."""
    members = await five(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=2)
    request.minIsr.value = 2
    await members["a"].call("CreateStream", request)
    for number in range(10):
        await members["a"].publish("s", b"%d" % number)
    first, last = (members[name] for name in item_of(members).replicas)
    first.kill(power=False)
    await until(lambda: item_of(members).isr == (last.name,))
    assert item_of(members).eligible == (first.name,)
    await fenced(members, last)
    return members, first, last


async def fenced(members: dict[str, Member], last: Member) -> None:
    """Nobody can take its place: it is still named leader, under another epoch."""
    epoch = item_of(members).leader_epoch
    last.kill(power=False)
    await until(lambda: item_of(members).leader_epoch > epoch)


async def lowered(members: dict[str, Member]) -> None:
    request = admin.AlterStreamRequest(stream="s", settings=admin.StreamSettings(minIsr=1))
    await answer(another(members), "AlterStream", request, timeout_s=60)


async def publishes(member: Member, timeout_s: float) -> None:
    async def works() -> bool:
        try:
            await member.publish("s", b"more", timeout_s=1)
            return True
        except AssertionError:
            return False

    for _ in range(int(timeout_s)):
        if await works():
            return
    raise AssertionError("nothing is committed")


@pytest.mark.parametrize("eligible", [True, False], ids=["the eligible one", "the one in sync"])
def test_one_that_comes_back_alone_leads_under_the_lower_min_isr(eligible: bool) -> None:
    async def main() -> None:
        members, first, last = await all_away()
        await lowered(members)
        back = first if eligible else last
        await back.start()
        await until(lambda: leads(back), 20)
        assert await back.read("s") == [b"%d" % number for number in range(10)]
        await publishes(back, 60)
        other = last if eligible else first
        assert item_of(members).complete == (back.name,), "the other one lacks what is committed now"
        await other.start()
        await until(lambda: len(item_of(members).isr) == 2)
        assert (await other.read("s", replica=True))[:11] == [*(b"%d" % number for number in range(10)), b"more"]

    run(main())


def test_where_somebody_leads_who_is_not_in_sync_is_eligible_no_longer() -> None:
    """The leader commits alone from then on."""

    async def main() -> None:
        members, first, last = await all_away()
        await last.start()
        await until(lambda: leads(last), 20)
        await lowered(members)
        assert item_of(members).complete == (last.name,)
        await last.publish("s", b"alone")
        await fenced(members, last)
        await first.start()
        await asyncio.sleep(20)
        assert not leads(first)

    run(main())
