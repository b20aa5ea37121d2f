"""A failed assertion in a partition's machine or driver ends the role of that partition on that broker, and nothing
else: it is said and counted, nothing is retried, another replica leads, and the other partitions go on."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from bascule.core.partition import follower as follower_machine
from bascule.core.partition.roles import MOVES, Role
from bascule.errors import StartError, Status
from bascule.log.appender import Appender
from bascule.log.healing import Healing
from bascule.node.partition.leading import Leading
from bascule.node.partition.replica import Replica
from bascule.node.process import assemble as assemble_module
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.types import Epoch
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import create
from tests.harness.led import replica_of, replicated
from tests.harness.members import Member, isr, leader_of, three, until

PLANTED = "planted: two and two are five"


def wrong(*_: object, **__: object) -> NoReturn:
    raise AssertionError(PLANTED)


def failures(member: Member) -> int:
    return sum(count for name, count in member.broker.environment.jobs.failures.values.items() if "assertion" in name)


def machine(replica: Replica) -> Any:
    role = replica.leading or replica.following
    assert role is not None
    return role._machine


LEADER: dict[str, Callable[[Replica], tuple[object, str]]] = {
    "the machine, when messages arrive": lambda replica: (machine(replica), "arrived"),
    "the machine, when its log has promised": lambda replica: (machine(replica), "promised"),
    "the machine, when a follower has fetched": lambda replica: (machine(replica), "fetched"),
    "the machine, as time passes": lambda replica: (machine(replica), "step"),
    "the driver, when it appends": lambda replica: (replica.leading, "_append"),
    "the driver, when it sends acks": lambda replica: (replica.leading, "_send_acks"),
    "the log, when more is exposed": lambda replica: (replica.log, "set_visible_end"),
    "the epochs, when the log has promised": lambda replica: (replica, "_promised"),
    "the log, when a group commit takes what waits": lambda replica: (replica.log.appender, "take"),
    "the log, when a group commit is over": lambda replica: (replica.log.appender, "finish"),
    "the log, after it has promised": lambda replica: (replica.log.appender, "_enqueue_for_indexes"),
}


@pytest.mark.parametrize("where", LEADER)
def test_a_leader_ends_its_role_and_another_replica_leads(
    where: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        made = await replicated()
        members, member = made.members, made.leader
        await create(members, partitions=3, name="t")
        replica = replica_of(member)
        monkeypatch.setattr(*LEADER[where](replica), wrong)
        if "time" not in where:
            request = api.PublishRequest(stream="s", value=b"in the middle of which it fails", ackPolicy=api.LEADER)
            await made.other.call("Publish", request, timeout_s=1.0)
        await until(lambda: replica.roles.role is Role.FAILED)
        assert (replica.leading, replica.following) == (None, None)
        await until(lambda: leader_of(members, "s") is not member)
        through = leader_of(members, "s")
        ack = await through.publish("s", b"goes on")
        assert (await through.read("s"))[ack.offset] == b"goes on"
        assert member.name not in isr(members), "it counts for nobody"
        for number in range(3):
            await through.publish("t", b"the other partitions go on", number)
        assert member.fatal == ""
        assert failures(member) >= 1
        said = [record.getMessage() for record in caplog.records if PLANTED in record.getMessage()]
        assert "s/0 (leading)" in said[0]
        assert "restart this broker, and report this" in said[0]

    with caplog.at_level(logging.ERROR):
        run(main())


def test_nothing_is_retried_until_the_broker_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        made = await replicated()
        members, member = made.members, made.leader
        replica = replica_of(member)
        calls: list[object] = []

        def counted(*args: object, **named: object) -> NoReturn:
            calls.append(args)
            raise AssertionError(PLANTED)

        monkeypatch.setattr(Leading, "_append", counted)
        member.nats.publish(b"s", b"once")
        await until(lambda: replica.roles.role is Role.FAILED)
        assert len(calls) == 1
        monkeypatch.undo()
        for _ in range(20):
            member.nats.publish(b"s", b"more")
            await asyncio.sleep(2)
        assert replica.roles.role is Role.FAILED
        assert failures(member) == 1
        await until(lambda: leader_of(members, "s") is not member)
        member.kill()
        await member.start()
        await until(lambda: len(isr(members)) == 3)
        assert replica_of(member).roles.role is Role.FOLLOWING

    run(main())


def test_a_leader_without_other_replicas_says_why_it_takes_no_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        for name in "st":
            request = api.CreateStreamRequest(name=name, subject=name, replicationFactor=1)
            await members["a"].call("CreateStream", request)
        member = leader_of(members, "s")
        await member.publish("s", b"stays")
        replica = replica_of(member)
        monkeypatch.setattr(machine(replica), "arrived", wrong)
        member.nats.publish(b"s", b"lost")
        await until(lambda: replica.roles.role is Role.FAILED)
        publish = api.PublishRequest(stream="s", value=b"x", ackPolicy=api.LEADER)
        status, text, _ = await member.call("Publish", publish)
        assert status is not Status.OK
        assert PLANTED in text
        assert "restart that broker" in text
        await leader_of(members, "t").publish("t", b"goes on")
        member.kill()
        await member.start()
        await until(lambda: (led := member.broker.replicas.find("s", 0)) is not None and led.leading is not None)
        assert await member.read("s") == [b"stays"]
        await member.publish("s", b"goes on")

    run(main())


FOLLOWER: dict[str, Callable[[Replica], tuple[object, str]]] = {
    "the machine, when its leader answers": lambda replica: (machine(replica), "step"),
    "the driver, when it appends": lambda replica: (replica.following, "_execute"),
    "the log, when it appends": lambda replica: (replica.log, "append"),
    "the log, when a group commit takes what waits": lambda replica: (replica.log.appender, "take"),
    "the log, when a group commit is over": lambda replica: (replica.log.appender, "finish"),
    "the log, when more is exposed": lambda replica: (replica.log, "set_visible_end"),
}


@pytest.mark.parametrize("where", FOLLOWER)
def test_a_follower_ends_its_role_and_nobody_waits_for_it(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        made = await replicated()
        members, member = made.members, made.other
        await create(members, partitions=3, name="t")
        replica = replica_of(member)
        monkeypatch.setattr(*FOLLOWER[where](replica), wrong)
        before = asyncio.get_running_loop().time()
        await made.leader.publish("s", b"in the middle of which it fails")
        await until(lambda: replica.roles.role is Role.FAILED)
        await until(lambda: member.name not in isr(members))
        assert asyncio.get_running_loop().time() - before < 3, "the leader is told, and waits for no lag time"
        await made.leader.publish("s", b"goes on")
        for number in range(3):
            await leader_of(members, "t", number).publish("t", b"goes on", number)
        await asyncio.sleep(30)
        assert (replica.roles.role, failures(member), member.fatal) == (Role.FAILED, 1, "")
        assert member.name not in isr(members)
        monkeypatch.undo()
        member.kill()
        await member.start()
        await until(lambda: len(isr(members)) == 3)

    run(main())


def test_a_replica_that_has_failed_and_is_named_leader_asks_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had failed as a follower, and all the others went away."""

    async def main() -> None:
        made = await replicated()
        member = made.other
        replica = replica_of(member)
        replica.assertion_failed(AssertionError(PLANTED))
        await until(lambda: member.name not in isr(made.members))
        await asyncio.sleep(1)  # it knows of that too
        epoch = replica.partition.leader_epoch
        asked: list[object] = []

        async def step_down(replica: object) -> None:
            asked.append(replica)

        monkeypatch.setattr(member.broker.manager, "step_down", step_down)
        named = replica.partition._replace(leader=member.name, leader_epoch=Epoch(epoch + 1000))
        replica.take_role(replica.stream, named)
        await asyncio.sleep(60)
        assert (replica.roles.role, replica.leading) == (Role.FAILED, None)
        assert 4 <= len(asked) <= 7, "with pauses that grow"
        assert PLANTED in str(replica.refusal)
        replica.take_role(replica.stream, named._replace(leader=made.leader.name, leader_epoch=Epoch(epoch + 1001)))
        await asyncio.sleep(60)
        assert len(asked) <= 7
        assert replica.refusal is None, "another one leads"

    run(main())


@pytest.mark.parametrize("where", ["reopening", "coming to lead", "truncating", "healing", "a reader that heals"])
def test_work_in_the_background_ends_the_role_too(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        made = await replicated()
        replica = replica_of(made.other)
        following = replica.following
        assert following is not None
        match where:
            case "reopening":
                monkeypatch.setattr(replica.log, "reopen", wrong)
                made.other.disk.injected_error = lambda path: 5 if path.startswith("streams/") else None
                made.leader.nats.publish(b"s", b"which it cannot store")
            case "coming to lead":
                monkeypatch.setattr(replica.repair, "ahead", wrong)
                replica.verification.withdraw()
                epoch = Epoch(replica.partition.leader_epoch + 1000)
                named = replica.partition._replace(leader=made.other.name, leader_epoch=epoch)
                replica.take_role(replica.stream, named)
            case "truncating":
                monkeypatch.setattr(replica, "truncate", wrong)
                following._execute([follower_machine.Truncate(0)])
            case _:
                monkeypatch.setattr(replica.repair, "_ask_around", wrong)
                segment = replica.log.segments[-1]
                replica.log.damaged[segment] = None
                if where == "healing":
                    replica.repair.start()
                else:
                    assert await replica.repair.on_damage(segment, wait=True) is Healing.UNKNOWN
        await until(lambda: replica.roles.role is Role.FAILED)
        assert (replica.following, replica.leading) == (None, None)
        if where != "coming to lead":  # the others do not know of that
            await made.leader.publish("s", b"goes on")
            await until(lambda: made.other.name not in isr(made.members))

    run(main())


def test_an_illegal_move_ends_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        made = await replicated()
        replica = replica_of(made.other)
        monkeypatch.setitem(MOVES, Role.NONE, (Role.FAILED, Role.ENDED))
        epoch = Epoch(replica.partition.leader_epoch + 1000)
        replica.take_role(replica.stream, replica.partition._replace(leader="x", leader_epoch=epoch))
        assert replica.roles.role is Role.FAILED
        assert replica.roles.failure == "s/0: from none to following"
        assert replica.following is None

    run(main())


def test_a_role_that_cannot_even_be_closed_is_over_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        made = await replicated()
        replica = replica_of(made.leader)
        leading = replica.leading
        assert leading is not None
        monkeypatch.setattr(leading._machine.pending, "close", wrong)
        monkeypatch.setattr(leading._machine, "arrived", wrong)
        made.nats.publish(b"s", b"x")
        await until(lambda: replica.roles.role is Role.FAILED)
        assert leading._subscription is None
        await until(lambda: leader_of(made.members, "s") is not made.leader)

    run(main())


def test_a_broker_does_not_start_without_its_assertions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Optimized:
        flags = type("flags", (), {"optimize": 1})

    async def main() -> None:
        with pytest.raises(StartError, match="-O or PYTHONOPTIMIZE"):
            await Member("a", MemoryNats(), seed=True).start()

    monkeypatch.setattr(assemble_module, "sys", Optimized)
    run(main())


@pytest.mark.parametrize("how", ["-O", "-OO"])
def test_a_server_started_with_optimization_says_so_and_ends(how: str, tmp_path: Any) -> None:
    """As a process: nothing before that needs an assertion, and none is needed to notice."""
    main = "from bascule.cli.main import main; main()"
    arguments = ["server", "--data-dir", str(tmp_path / "data"), "--embedded-nats", "--raft-bootstrap-seed"]
    command = [sys.executable, how, "-c", main, *arguments, "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert "PYTHONOPTIMIZE" in ended.stderr


def test_a_log_raises_what_it_asserts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An assertion that fails in an append is none of the disk's errors, after which the log is opened again."""

    async def main() -> None:
        made = await replicated()
        replica = replica_of(made.leader)
        monkeypatch.setattr(Appender, "_queue", wrong)
        made.nats.publish(b"s", b"x")
        await until(lambda: replica.roles.role is Role.FAILED)
        assert PLANTED in replica.roles.failure

    run(main())
