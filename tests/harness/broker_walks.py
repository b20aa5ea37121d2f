"""Three brokers in memory, watched: what a broker does from its start to its end, which roles a replica takes and why,
what becomes of a log that fails or is damaged, how a member comes and goes, and the way of one message.
"""

import asyncio
import functools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from bascule.core.metadata.commands import BeginRemoval, Command, DrainBroker, UndrainBroker
from bascule.core.metadata.state import Metadata
from bascule.core.partition import leader as leader_events
from bascule.core.partition.roles import Role
from bascule.core.raft.machine import Raft
from bascule.log.commitlog import CommitLog
from bascule.node.controller.voters import STEADY_S
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.partition.following import Following
from bascule.node.partition.leading import Leading
from bascule.node.partition.manager import ReplicaManager
from bascule.node.partition.repair import Repair
from bascule.node.partition.replica import Replica
from bascule.node.partition.roles import Roles
from bascule.node.process.broker import Broker
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.types import Epoch
from bascule.wire.pb import admin_pb2 as admin
from tests.harness.administration import answer, controller_of, create
from tests.harness.diagrams import Edge
from tests.harness.members import Member, leader_of, three, until
from tests.harness.replicas import flip, loaded, logs

# --- watching ------------------------------------------------------------------------------------------------------

Watch = Callable[[Any, tuple[Any, ...]], Callable[[], None] | None]
"""Called with the object and the arguments before; what it returns is called after."""


@contextmanager
def watched(owner: type, name: str, watch: Watch) -> Iterator[None]:
    real = getattr(owner, name)

    @functools.wraps(real)
    def plain(self: Any, *args: Any, **named: Any) -> Any:
        after = watch(self, args)
        try:
            return real(self, *args, **named)
        finally:
            if after:
                after()

    @functools.wraps(real)
    async def waiting(self: Any, *args: Any, **named: Any) -> Any:
        after = watch(self, args)
        result = await real(self, *args, **named)
        if after:
            after()
        return result

    with mock.patch.object(owner, name, waiting if asyncio.iscoroutinefunction(real) else plain):
        yield


# --- start and stop of a broker ------------------------------------------------------------------------------------

STEPS: tuple[tuple[type, str], ...] = (
    (Cluster, "enter"),
    (ReplicaManager, "open"),
    (Cluster, "start"),
    (Cluster, "caught_up"),
    (Cluster, "broker_started"),
    (ReplicaManager, "take_roles"),
    (Broker, "start"),
    (ControllerClient, "hand_over"),
    (Cluster, "resign"),
    (Broker, "stop"),
    (Broker, "close"),
)


def broker_of(watched_one: Any) -> str:
    match watched_one:
        case ControllerClient():
            return watched_one._own
        case ReplicaManager():
            return watched_one._cluster.broker_id
        case Broker():
            return watched_one.cluster.broker_id
        case _:
            return str(watched_one.broker_id)


def run_of_a_broker(*, majority: bool) -> list[str]:
    """What a member that starts again has done, in this order, each step named once when it is done first. Without a
    majority the others come when it already serves."""
    trace: list[str] = []

    def watch(owner: type, name: str) -> Watch:
        def note(watched_one: Any, args: tuple[Any, ...]) -> Callable[[], None] | None:
            if broker_of(watched_one) != "c":
                return None
            return lambda: trace.append(f"{owner.__name__}.{name}")

        return note

    async def main() -> None:
        members = await three(MemoryNats())
        await create(members)
        for name in "c" if majority else "abc":
            members[name].kill()
        trace.clear()
        await members["c"].start()
        if not majority:
            await asyncio.gather(members["a"].start(), members["b"].start())
            await until(lambda: "ReplicaManager.take_roles" in trace)
        broker = members["c"].broker
        await until(lambda: len(broker.cluster.raft.membership.voters) == 3)
        for step in (broker.hand_over(5.0), broker.stop(), broker.close()):
            await members["c"].process.start(step)  # type: ignore[union-attr]

    with ExitStack() as stack:
        for owner, name in STEPS:
            stack.enter_context(watched(owner, name, watch(owner, name)))
        run(main())
    return list(dict.fromkeys(trace))


# --- a replica's roles ---------------------------------------------------------------------------------------------


def role_edges(length: int = 400) -> set[Edge]:
    """Replicas of one broker that are told by chance who leads, under ever newer epochs, truncated now and then, or
    told that all their records have expired, and sometimes given time; in the end some fail and each is closed. A move
    is named after what makes it."""
    seen: set[Edge] = set()
    moves = Roles._move

    def move(roles: Roles, role: Role) -> None:
        before = roles.role
        moves(roles, role)
        if roles._environment.settings.broker_id == "b":
            cause = sys._getframe(1).f_code.co_name
            seen.add((before.value.replace(" ", "_"), cause, role.value.replace(" ", "_")))

    async def main() -> None:
        members = await three(MemoryNats())
        ends = [(truncated, failed) for truncated in (False, True) for failed in (False, True)]
        await create(members, partitions=len(ends))
        chance = random.Random(1)
        for number, (truncated, failed) in enumerate(ends):
            replica = members["b"].broker.replicas.find("s", number)
            assert replica is not None
            await walk(replica, chance, length // len(ends))
            if truncated:
                truncate(replica, 1.0)
            if failed:
                replica.assertion_failed(AssertionError("planted"))
            await replica.close()

    def truncate(replica: Replica, time_s: float) -> None:
        assert replica.following is not None
        replica.following._machine.truncating = True
        replica.begin_truncation(asyncio.sleep(time_s))

    async def walk(replica: Replica, chance: random.Random, steps: int) -> None:
        for epoch in range(1000, 1000 + steps):
            leader, unclean = chance.choice(("a", "b", "b", "")), chance.random() < 0.2
            # As if this broker had just started, or not; a leader is always verified.
            replica.verification.verified = replica.leading is not None or chance.random() < 0.3
            replica.log.record.torn_from = 0 if chance.random() < 0.2 else None
            expired = leader == "a" and chance.random() < 0.3
            partition = replica.partition._replace(
                leader=leader,
                isr=("a", "c") if expired else ("a", "b", "c"),
                start=replica.log.end + 10 if expired else replica.partition.start,
                leader_epoch=Epoch(epoch),
                epoch=Epoch(epoch),
                unclean_epoch=Epoch(epoch if unclean else 0),
            )
            if chance.random() < 0.15:
                replica.resign()
            else:
                replica.take_role(replica.stream, partition)
            if replica.roles.role is Role.FOLLOWING and chance.random() < 0.3:
                truncate(replica, chance.choice((0.0, 1.0, 2.0)))
            await asyncio.sleep(chance.choice((0.0, 0.0, 1.5)))
        await asyncio.sleep(5)
        replica.take_role(replica.stream, replica.partition._replace(leader="a", leader_epoch=Epoch(5000)))

    with mock.patch.object(Roles, "_move", move), mock.patch.object(Repair, "torn_from", torn_from):
        run(main())
    return seen


async def torn_from(repair: Repair) -> int | None:
    """Instead of asking the others, which are not torn."""
    record = repair._log.record
    torn, record.torn_from = record.torn_from, None
    return repair._log.end if torn is not None else None


# --- a replica's log -----------------------------------------------------------------------------------------------


def log_edges() -> set[Edge]:
    """A leader whose disk fails for a while, and a follower with a flipped bit: how each log fares."""
    seen: set[Edge] = set()

    def fares(log: CommitLog) -> str:
        return "failed" if log.failed is not None else "damaged" if log.damaged else "whole"

    known: dict[CommitLog, str] = {}

    def watch(log_of: Callable[[Any], CommitLog], cause: str) -> Watch:
        def note(watched_one: Any, args: tuple[Any, ...]) -> Callable[[], None]:
            def look() -> None:
                log = log_of(watched_one)
                before = known.get(log, "[*]")
                known[log] = fares(log)
                if known[log] != before:
                    seen.add((before, cause, known[log]))

            if cause != "open":
                look()
            return look

        return note

    async def main() -> None:
        members = await loaded()
        leader = leader_of(members, "s")
        leader.disk.injected_error = lambda path: 5 if path.startswith("streams/") else None
        leader.nats.publish(b"s", b"a plain message")
        await asyncio.sleep(0.3)
        leader.disk.heal()
        await asyncio.sleep(10)
        victim = next(m for m in members.values() if m is not leader_of(members, "s"))
        flip(20)(victim.disk, logs(victim)[0], random.Random(1))
        await victim.read("s", replica=True)
        await asyncio.sleep(10)
        for _ in range(6):
            await members["a"].publish("s", b"so that the last segment has some")
        victim.kill()
        flip(20)(victim.disk, logs(victim)[-1], random.Random(1))
        await victim.start()
        await asyncio.sleep(10)

    with (
        watched(Replica, "open", watch(lambda replica: replica.log, "open")),
        watched(Replica, "log_failed", watch(lambda replica: replica.log, "log_failed")),
        watched(CommitLog, "reopen", watch(lambda log: log, "reopen")),
        watched(Repair, "on_damage", watch(lambda repair: repair._log, "on_damage")),
        watched(Repair, "_heal", watch(lambda repair: repair._log, "heal")),
    ):
        run(main())
    return seen


# --- a member ------------------------------------------------------------------------------------------------------


def member_edges() -> set[Edge]:
    """Two brokers join. One loses its disk, drains, is called back, is removed and comes back empty; the other dies and
    is removed."""
    seen: set[Edge] = set()
    known: dict[str, str] = {}
    members: dict[str, Member] = {}

    def stands(name: str) -> str:
        cluster = members["a"].broker.cluster
        membership, brokers = cluster.raft.membership, cluster.metadata.brokers
        past = [incarnation for each, incarnation in brokers.removed if each == name]
        if name not in membership.everyone:
            return "removed" if past else "unknown"
        if membership.incarnation_of(name) in past:
            return "dropped"
        for state, those in (("removing", brokers.removing), ("draining", brokers.draining)):
            if name in those:
                return state
        return "voter" if name in membership.voters else "learner"

    def look(cause: str) -> None:
        for name in "de":
            before = known.get(name, "unknown")
            known[name] = stands(name)
            if known[name] != before:
                seen.add((before, cause, known[name]))

    def watch(metadata: Any, args: tuple[Any, ...]) -> Callable[[], None] | None:
        if not members or metadata is not members["a"].broker.cluster.metadata:
            return None
        return lambda: look(type(args[1]).__name__)

    async def settle() -> None:
        await asyncio.sleep(STEADY_S + 3.0)

    async def remove(name: str) -> None:
        request = admin.RemoveBrokerRequest(broker=name)
        while not (await answer(controller_of(members), "RemoveBroker", request)).done:
            await asyncio.sleep(0.1)

    async def command(command: Command) -> None:
        await controller_of(members).broker.controller.proposals.propose(lambda: command)
        await settle()

    async def empty(name: str) -> None:
        members[name].kill()
        await asyncio.sleep(5)
        members[name].disk = MemoryDisk()
        await members[name].start()
        await settle()

    async def main() -> None:
        members.update(await three(MemoryNats()))
        await create(members)
        for name in "de":
            members[name] = await Member(name, members["a"].nats).start()
            await settle()
        await empty("d")
        for step in (DrainBroker, UndrainBroker, BeginRemoval, UndrainBroker, DrainBroker):
            await command(step("d"))
        members["e"].kill()
        await asyncio.sleep(5)
        for name in "de":
            await remove(name)
            await settle()
        await empty("d")

    def watch_raft(raft: Any, args: tuple[Any, ...]) -> Callable[[], None] | None:
        own = bool(members) and raft is members["a"].broker.cluster.raft.raft
        return (lambda: look("membership")) if own else None

    with (
        watched(Metadata, "_carry_out", watch),
        watched(Raft, "step", watch_raft),
        watched(Raft, "propose_membership", watch_raft),
    ):
        run(main())
    return seen


# --- the way of a message ------------------------------------------------------------------------------------------

Moment = tuple[str, str]
"""Who, and the event it received or the effect it asked for."""


def way_of_a_message(*, slow_leader: bool) -> dict[str, list[Moment]]:
    """One message acked by ALL, as the leader and each follower lived through it: by follower, in order."""
    moments: list[tuple[str, Moment]] = []
    recording = False

    def note(owner: type, name: str, who: str, what: Callable[[tuple[Any, ...]], list[object]]) -> Any:
        def watch(role: Any, args: tuple[Any, ...]) -> None:
            if recording:
                own = role._replica.environment.settings.broker_id
                heard = [each for each in what(args) if not isinstance(each, leader_events.Tick)]  # whenever it is time
                moments.extend((getattr(each, "replica", own), (who, type(each).__name__)) for each in heard)

        return watched(owner, name, watch)

    async def main() -> tuple[str, list[str]]:
        nonlocal recording
        members = await three(MemoryNats())
        await create(members, partitions=1)
        await members["a"].publish("s", b"the first")
        await asyncio.sleep(1)
        leader = leader_of(members, "s").name
        for member in members.values():
            member.disk.sync_delay_s = 0.02 if slow_leader is (member.name == leader) else 0.001
        recording = True
        await members["a"].publish("s", b"the one")
        await asyncio.sleep(0.5)
        return leader, [name for name in members if name != leader]

    with (
        note(Leading, "step", "leader", lambda args: [args[0]]),
        note(Leading, "_on_batch", "leader", lambda args: [leader_events.Arrived(*args)]),
        note(Leading, "promised", "leader", lambda args: [leader_events.Promised(*args)]),
        note(Leading, "fetched", "leader", lambda args: [leader_events.Fetched(*args)]),
        note(Leading, "_execute", "leader", lambda args: args[0]),
        note(Following, "answered", "follower", lambda args: [Answered()]),
        note(Following, "promised", "follower", lambda args: [Promised()]),
        note(Following, "_execute", "follower", lambda args: args[0]),
    ):
        leader, followers = run(main())
    return {each: [moment for name, moment in moments if name in (leader, each)] for each in followers}


class Answered:
    """Stands for the follower's event of that name."""


class Promised:
    """Likewise."""
