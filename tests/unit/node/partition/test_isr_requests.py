"""Requests of a leader to change the in-sync set are for the partition as it was when the leader decided."""

import asyncio
from typing import Any

import pytest

from bascule.core.metadata.streams import Partition
from bascule.core.partition.leader import ExpandFailed
from bascule.errors import Unavailable
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.types import Epoch
from bascule.wire.pb import api_pb2 as api
from tests.harness.members import REPLICATION, Member, followers, item_of, leader_of, three, until


class Behind:
    """A stream of which one follower is out of the in-sync set, and the requests that its leader sends for it."""

    def __init__(self, members: dict[str, Member], late: Member, monkeypatched: Any) -> None:
        self.members, self.late = members, late
        self.leader = leader_of(members, "s")
        replica = self.leader.broker.replicas.find("s", 0)
        assert replica is not None
        assert replica.leading is not None
        self.replica, self.leading = replica, replica.leading
        self.sent: list[int] = []
        client = self.leader.broker.client
        expand = client.expand_isr

        async def expand_isr(stream: str, partition: Partition, other: str) -> None:
            self.sent.append(partition.epoch)
            await expand(stream, partition, other)

        monkeypatched.setattr(client, "expand_isr", expand_isr)

    def catches_up(self) -> None:
        """Its reports say that it has everything that the leader has."""
        now, end = self.leader.broker.environment.active_clock.monotonic_ns(), self.replica.log.promised_end
        for _ in range(2):
            self.leading.fetched(self.late.name, end, end, now)

    def changes(self, isr: tuple[str, ...] = ()) -> None:
        """Another command has changed the partition, and this broker carries it out."""
        now = self.replica.partition
        self.replica.take_role(self.replica.stream, now._replace(epoch=Epoch(now.epoch + 1), isr=isr or now.isr))

    async def on_the_leader(self, *steps: Any) -> None:
        """All in one turn of the loop, in which no request leaves."""

        async def turn() -> None:
            for step in steps:
                step()

        assert self.leader.process is not None
        await self.leader.process.start(turn())


async def _behind(monkeypatch: Any) -> Behind:
    members = await three(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
    request.minIsr.value = 2
    await members["a"].call("CreateStream", request)
    await members["a"].publish("s", b"first")
    late = followers(members)[0]
    late.buses[REPLICATION].disconnect()
    await until(lambda: late.name not in item_of(members).isr, 30.0)
    return Behind(members, late, monkeypatch)


def test_a_request_names_the_epoch_that_the_leader_knew_when_it_decided(monkeypatch: Any) -> None:
    async def main() -> None:
        behind = await _behind(monkeypatch)
        decided_at = behind.replica.partition.epoch
        await behind.on_the_leader(behind.catches_up)
        await until(lambda: bool(behind.sent), 5.0)
        assert behind.sent[0] == decided_at
        await until(lambda: behind.late.name in item_of(behind.members).isr, 5.0)

    run(main())


def test_a_request_is_not_sent_for_an_epoch_that_began_after_the_leader_decided(monkeypatch: Any) -> None:
    """The leader has dropped its decision with the change, and does not count on the replica any more: in the in-sync
    set it would lack what is acked from then on."""

    async def main() -> None:
        behind = await _behind(monkeypatch)
        decided_at = behind.replica.partition.epoch
        await behind.on_the_leader(behind.catches_up, behind.changes)
        await behind.leader.publish("s", b"acked after the change")
        assert [epoch for epoch in behind.sent if epoch != decided_at] == []
        assert behind.late.name not in item_of(behind.members).isr

    run(main())


def test_the_fate_of_a_dropped_request_says_nothing_of_the_next_one(monkeypatch: Any) -> None:
    """A replica that is asked in again, for the new epoch, counts until the outcome of that request is known."""

    async def main() -> None:
        behind = await _behind(monkeypatch)
        peers, failed = behind.leader.broker.cluster.peers, []
        alive = [peer for peer in peers.alive() if peer.id != behind.late.name]
        monkeypatch.setattr(peers, "alive", lambda: alive)
        step = behind.leading.step

        def watched(event: Any) -> None:
            if isinstance(event, ExpandFailed):
                failed.append(event.replica)
            step(event)

        monkeypatch.setattr(behind.leading, "step", watched)
        await behind.on_the_leader(behind.catches_up, behind.changes, behind.catches_up)
        await until(lambda: bool(failed), 5.0)
        assert failed == [behind.late.name], "only the request that is open has an outcome"

    run(main())


def test_a_broker_that_has_lost_its_disk_is_not_asked_in_for_what_it_reported_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was out, had caught up, and died before it was in. It is out before and after its start. Whenever its leader
    looks then: it is in sync only with all that is committed."""

    async def main() -> None:
        behind = await _behind(monkeypatch)
        late, leader, members = behind.late, behind.leader, behind.members
        client, asked = leader.broker.client, asyncio.Event()

        async def no_answer(*_: Any, **__: Any) -> None:
            asked.set()
            raise Unavailable("the controller does not answer")

        with monkeypatch.context() as controller:
            controller.setattr(client, "expand_isr", no_answer)
            controller.setattr(client, "shrink_isr", no_answer)
            late.buses[REPLICATION].reconnect()
            await asked.wait()
            late.kill()
            late.wipe()
            before = item_of(members).epoch
            starting = asyncio.create_task(late.start())
            await until(lambda: item_of(members).epoch > before)  # its lost disk is on record
        now, replica = leader.broker.environment.active_clock.monotonic_ns, behind.replica
        while late.name not in item_of(members).isr:
            await behind.on_the_leader(lambda: behind.leading.watch(now()))
            await asyncio.sleep(0.002)
        known = late.broker.replicas.find("s", 0)
        assert known is not None, "in sync without a log"
        assert known.log.promised_end >= replica.log.visible_end == 1
        await starting

    run(main())
