"""A failed assertion in Raft, in its driver or in the metadata ends the process, and nothing of that Raft is believed
or heard until it has ended."""

from typing import NoReturn

import pytest

from bascule.core.metadata.state import Metadata
from bascule.core.raft.machine import Raft
from bascule.errors import Status, Unavailable
from bascule.log.raftlog import RaftStorage
from bascule.node.membership.raft import RaftDriver
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import controller_of
from tests.harness.led import is_controller
from tests.harness.members import Member, three, until

PLANTED = "planted: two leaders in one term"


def wrong(*_: object, **__: object) -> NoReturn:
    raise AssertionError(PLANTED)


def create(name: str) -> api.CreateStreamRequest:
    return api.CreateStreamRequest(name=name, subject=name, replicationFactor=2)


PLACES: dict[str, tuple[type, str]] = {
    "a message of a peer": (Raft, "step"),
    "a tick": (Raft, "tick"),
    "a proposal": (Raft, "propose"),
    "what is ready": (Raft, "ready"),
    "a command that is applied": (Metadata, "_carry_out"),
    "the driver": (RaftDriver, "_answer"),
    "its log": (RaftStorage, "save"),
    "its log, after what was saved is durable": (RaftStorage, "_take"),
}


@pytest.mark.parametrize("where", PLACES)
def test_the_process_ends_and_the_others_go_on(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        victim = controller_of(members)
        owner, name = PLACES[where]
        driver = victim.broker.cluster.raft
        metadata = victim.broker.cluster.metadata
        target = {Raft: driver.raft, Metadata: metadata, RaftDriver: driver, RaftStorage: driver.storage}[owner]
        monkeypatch.setattr(target, name, wrong)
        await victim.call("CreateStream", create("s"), timeout_s=1.0)
        await until(lambda: victim.fatal)
        assert PLANTED in victim.fatal
        assert "start the broker again, and report this" in victim.fatal
        assert len(victim.ends) == 1, "it is said once"
        await believes_nothing_more(victim, monkeypatch)
        victim.kill()
        others = {each: member for each, member in members.items() if member is not victim}
        await until(lambda: any(is_controller(member) for member in others.values()))
        status, text, _ = await next(iter(others.values())).call("CreateStream", create("t"))
        assert status is Status.OK, text

    run(main())
    assert [record for record in caplog.records if record.exc_info], "and how it came about"


async def believes_nothing_more(victim: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    driver = victim.broker.cluster.raft
    steps: list[object] = []
    monkeypatch.setattr(driver.raft, "step", steps.append)
    monkeypatch.setattr(driver.raft, "tick", lambda: steps.append("tick"))
    before = driver.raft.log.last_index
    for _ in range(20):
        with pytest.raises(Unavailable):
            await driver.propose(b"")
    assert (steps, driver.raft.log.last_index) == ([], before)
    monkeypatch.undo()
