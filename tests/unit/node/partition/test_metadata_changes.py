"""A change of a partition's metadata within a leader epoch reaches the role that its replica has, on every broker."""

import asyncio

import pytest

from bascule.node.partition.following import Following
from bascule.node.partition.leading import Leading
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from tests.harness.led import make_stream
from tests.harness.members import isr, leader_of, three, until


def test_it_reaches_the_leader_and_the_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[tuple[str, str, tuple[str, ...]]] = []
    real = Leading.changed

    def leading_changed(role: Leading) -> None:
        reached.append(("leading", role._environment.settings.broker_id, role._replica.partition.isr))
        real(role)

    def following_changed(role: Following) -> None:
        reached.append(("following", role.leader, role._replica.partition.isr))

    monkeypatch.setattr(Leading, "changed", leading_changed)
    monkeypatch.setattr(Following, "changed", following_changed)

    async def main() -> None:
        members = await three(MemoryNats())
        await make_stream(members)
        leader = leader_of(members, "s").name
        gone = next(name for name in members if name != leader)
        reached.clear()
        members[gone].kill()
        del members[gone]
        await until(lambda: len(isr(members)) == 2, 60.0)
        await asyncio.sleep(1)
        remaining = isr(members)
        assert ("leading", leader, remaining) in reached
        assert ("following", leader, remaining) in reached

    run(main())
