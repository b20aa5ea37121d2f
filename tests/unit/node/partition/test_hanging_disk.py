"""Brokers in memory, of which one has a disk that hangs: its syncs do not end, and no error says so."""

import asyncio
import errno
from collections.abc import Sequence
from functools import partial

from bascule.ports import Write
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.acks import Publishing, create
from tests.harness.administration import answer
from tests.harness.members import Member, followers, isr, item_of, leader_of, three, until


def hang(member: Member, part: str, error: OSError | None = None) -> asyncio.Event:
    """Writes to paths with this in them end when the event is set: well, or all with this error that came before."""
    commit, released = member.disk.commit, asyncio.Event()

    async def hanging(writes: Sequence[Write], sync: bool) -> list[OSError | None]:
        if released.is_set() or not any(part in write.path for write in writes):
            return await commit(writes, sync)
        await released.wait()
        return [error] * len(writes) if error is not None else await commit(writes, sync)

    member.disk.commit = hanging  # type: ignore[method-assign]
    return released


def test_a_follower_whose_disk_hangs_leaves_the_in_sync_set_and_comes_back_when_it_goes_on() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members["a"], "s", "s", replicationFactor=3)
        await until(lambda: len(isr(members)) == 3)
        await members["a"].publish("s", b"before")
        late = next(member for member in followers(members) if not member.broker.controller.active)
        released = hang(late, "streams/s@")
        ack = await leader_of(members, "s").publish("s", b"meanwhile", timeout_s=25.0)
        assert ack.offset == 1
        assert late.name not in isr(members)
        assert late.name in [peer.id for peer in leader_of(members, "s").broker.cluster.peers.alive()]
        released.set()
        await until(lambda: len(isr(members)) == 3)
        assert await late.read("s", replica=True) == [b"before", b"meanwhile"]

    run(main())


def test_a_leader_whose_disk_hangs_hands_on_to_one_that_has_stored_what_it_has_not() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members["a"], "s", "s", replicationFactor=3)
        await until(lambda: len(isr(members)) == 3)
        await members["a"].publish("s", b"before")
        late = leader_of(members, "s")
        released = hang(late, "streams/s@")
        sent = asyncio.ensure_future(members["a"].publish("s", b"meanwhile", timeout_s=60.0))
        await until(lambda: leader_of(members, "s") is not late, 40.0)
        led_by = next(member for member in members.values() if member is not late)
        assert (await led_by.publish("s", b"after", timeout_s=25.0)).offset == 2
        assert late.name not in isr(members)
        released.set()
        await until(lambda: len(isr(members)) == 3)
        assert await late.read("s", replica=True) == [b"before", b"meanwhile", b"after"]
        sent.cancel()

    run(main())


def test_a_leader_whose_disk_hangs_stays_where_nobody_could_commit_without_it() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members["a"], "s", "s", replicationFactor=2, minIsr=api.NullableInt32(value=2))
        await until(lambda: len(isr(members)) == 2)
        await members["a"].publish("s", b"before")
        late = leader_of(members, "s")
        released = hang(late, "streams/s@")
        sent = asyncio.ensure_future(members["a"].publish("s", b"meanwhile", timeout_s=120.0))
        await asyncio.sleep(60.0)
        assert leader_of(members, "s") is late
        released.set()
        assert (await sent).offset == 1

    run(main())


def test_a_broker_that_stores_no_metadata_counts_as_dead_until_its_disk_goes_on() -> None:
    """It hears of no change, so it cannot lead what it is given; and what it says of messages that it receives must not
    come before the acks of those that lead."""

    async def main() -> None:
        def in_sync(stream: str) -> int:
            return len(item_of(members, stream).isr)

        def left(stream: str) -> bool:
            item = item_of(others, stream)
            return item.leader not in ("", late.name) and late.name not in item.isr

        nats = MemoryNats()
        members, client = await three(nats), Publishing(nats)
        for name in ("s", "second", "third"):  # each broker leads one
            await create(members["a"], name, name, replicationFactor=3)
        await until(lambda: in_sync("s") == in_sync("second") == in_sync("third") == 3)
        late = next(member for member in followers(members) if not member.broker.controller.active)
        others = {name: member for name, member in members.items() if member is not late}
        sender = next(iter(others.values()))
        assert late.name in [item_of(members, name).leader for name in ("second", "third")]
        released = hang(late, "")
        await create(sender, "new", "new", replicationFactor=3)  # which it does not hear of
        await until(lambda: late.name not in [peer.id for peer in sender.broker.cluster.peers.alive()], 40.0)
        for name in ("s", "second", "third", "new"):
            await until(partial(left, name), 40.0)
            client.send(name, subject=name)
            await until(lambda name=name: name in client.taken)
            assert (await sender.publish(name, b"by another broker", timeout_s=5.0)).offset == 1
        assert not client.errors
        released.set()
        await until(lambda: in_sync("s") == in_sync("third") == in_sync("new") == 3, 40.0)
        assert await late.read("new", replica=True) == [b"new", b"by another broker"]

    run(main())


def test_a_follower_whose_log_falls_back_behind_the_start_begins_there_once_it_takes_writes_again() -> None:
    """What it had received was deleted before its disk had stored it, and then its disk failed."""

    async def main() -> None:
        members = await three(MemoryNats())
        await create(members["a"], "s", "s", replicationFactor=3)
        await until(lambda: len(isr(members)) == 3)
        for number in range(5):
            await members["a"].publish("s", b"%d" % number)
        late = next(member for member in followers(members) if not member.broker.controller.active)
        others = {name: member for name, member in members.items() if member is not late}
        late.kill()
        await until(lambda: late.name not in item_of(others).isr)
        for number in range(5, 20):
            await leader_of(others, "s").publish("s", b"%d" % number)
        released = hang(late, "streams/s@", OSError(errno.EIO, "input/output error"))
        await late.start()
        await until(lambda: (found := late.broker.replicas.find("s", 0)) is not None and found.log.end == 20)
        replica = late.broker.replicas.find("s", 0)
        assert replica is not None
        request = admin.DeleteRecordsRequest(stream="s", before=15)
        await answer(leader_of(others, "s"), "DeleteRecords", request)
        await until(lambda: replica.log.segments.floor == 15)
        assert replica.log.promised_end == 5
        released.set()
        await until(lambda: replica.log.failed is not None)
        await until(lambda: late.name in item_of(others).isr)
        assert (replica.log.start, replica.log.end) == (15, 20)
        assert await late.read("s", replica=True) == [b"%d" % number for number in range(15, 20)]

    run(main())
