"""An append that is refused leaves no hole: the log has failed then, and its role, its machine and its feeds know."""

import asyncio
import errno

import pytest

from bascule.errors import LogError
from bascule.node.partition.replica import Replica
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import open_bench
from bascule.testing.loop import run
from bascule.types import Epoch
from bascule.wire.kernels import decode_records
from tests.harness.batches import batch
from tests.harness.led import Led, replica_of, replicated
from tests.harness.members import Member, isr, leader_of, until
from tests.harness.replicas import log_bytes, logs

COUNT = 30


def offsets(member: Member) -> list[int]:
    data = log_bytes(member)
    return [record[0] for record in decode_records(data, 0, len(data), 1 << 30)[1]]


def refuse(replica: Replica, times: int = 1) -> list[int]:
    """The next appends find that too much waits for the disk. Gives how many bytes each had."""
    scheduler = replica.environment.scheduler
    reserve = scheduler.reserve
    refused: list[int] = []

    def full(count: int) -> None:
        if len(refused) == times:
            scheduler.reserve = reserve  # type: ignore[method-assign]
            reserve(count)
            return
        refused.append(count)
        raise LogError("too much waits for the disk")

    scheduler.reserve = full  # type: ignore[method-assign]
    return refused


async def opened_again_and_not_replaced(made: Led) -> Replica:
    """The leader's log failed and is whole again, but nobody took over leadership, because there is no controller."""

    async def nobody(replica: Replica) -> None:
        raise LogError("no controller is heard")

    replica = replica_of(made.leader)
    made.leader.broker.manager.step_down = nobody  # type: ignore[method-assign,assignment]
    refuse(replica)
    await publish_all(made.members, 1)
    await until(lambda: replica.log.failed is None and replica.reopening.under_way)
    return replica


async def publish_all(members: dict[str, Member], count: int = COUNT) -> dict[int, bytes]:
    """What was acked, by offset."""
    acked: dict[int, bytes] = {}
    for number in range(count):
        try:
            ack = await members["a"].publish("s", b"%d" % number, timeout_s=3.0)
        except AssertionError:
            continue  # refused or not known: sent no more
        acked[ack.offset] = b"%d" % number
    return acked


def test_a_follower_whose_append_was_refused_takes_nothing_behind_the_gap() -> None:
    async def main() -> None:
        made = await replicated()
        members, follower = made.members, made.other
        replica = replica_of(follower)
        refused = refuse(replica)
        publishing = asyncio.ensure_future(publish_all(members))
        await until(lambda: refused)
        assert replica.log.failed is not None
        assert replica.following is not None
        assert replica.following._machine.end == replica.log.end, "the machine stands where its log ends"
        position = replica.following.position
        assert position is not None
        assert position.failing, "it promises nothing more while its log has failed, and says so"
        acked = await publishing
        assert len(acked) == COUNT
        await until(lambda: len(isr(members)) == 3)
        await until(lambda: len({log_bytes(member) for member in members.values()}) == 1)
        assert offsets(follower) == list(range(COUNT + 1))
        assert replica.log.failed is None

    run(main())


def test_a_leader_whose_append_was_refused_loses_nothing_it_acked() -> None:
    async def main() -> None:
        made = await replicated()
        members, leader = made.members, made.leader
        replica = replica_of(leader)
        failed = replica.leading
        assert failed is not None
        refused = refuse(replica)
        publishing = asyncio.ensure_future(publish_all(members))
        await until(lambda: refused)
        assert replica.log.failed is not None
        assert failed._machine.end == replica.log.end, "the machine stands where its log ends"
        acked = await publishing
        assert len(acked) >= COUNT - 10, "writes resumed under another leader or epoch"
        await until(lambda: len(isr(members)) == 3)
        await until(lambda: len({log_bytes(member) for member in members.values()}) == 1)
        assert offsets(leader) == list(range(len(offsets(leader))))
        read = await leader_of(members, "s").read("s")
        assert all(read[offset] == value for offset, value in acked.items())

    run(main())


def test_what_a_leaders_log_refused_is_not_sent_to_its_followers() -> None:
    async def main() -> None:
        made = await replicated()
        replica = replica_of(made.leader)
        assert replica.leading is not None
        feeds = [feed.machine for feed in made.leader.broker.manager.feeds._feeds.values()]
        refused = refuse(replica)
        replica.leading._on_batch(batch(b"refused"), 1)
        assert refused
        assert [feed.buffered_bytes for feed in feeds] == [0, 0]

    run(main())


def test_records_below_the_end_fail_the_log_instead_of_leaving_the_machine_ahead() -> None:
    """That would be a bug of ours: it must be seen, and must not become a hole."""

    async def main() -> None:
        made = await replicated()
        members, follower = made.members, made.other
        replica = replica_of(follower)
        assert replica.following is not None
        replica.log.segments.end += 1  # the log and its machine do not agree any more
        publishing = asyncio.ensure_future(publish_all(members))
        await until(lambda: replica.log.failed is not None)
        assert len(await publishing) == COUNT
        await until(lambda: len({log_bytes(member) for member in members.values()}) == 1)
        assert offsets(follower) == list(range(COUNT + 1))

    run(main())


def test_a_log_that_fails_again_while_its_leader_steps_down_is_opened_again() -> None:
    """The log is whole again, but its last leader could not be replaced yet; the role that comes then writes, and that
    fails too: this role must be told, and the log opened once more."""

    async def main() -> None:
        replica = await opened_again_and_not_replaced(await replicated())
        stream = replica.stream
        first = replica.leading
        item = replica.partition._replace(leader_epoch=Epoch(replica.partition.leader_epoch + 1000))
        replica.take_role(stream, item)
        second = replica.leading
        assert second is not None
        assert second is not first
        refuse(replica)
        second._on_batch(batch(b"x"), 1)
        assert replica.log.failed is not None
        assert second._machine.failed, "the role that came meanwhile knows that its log has failed"
        assert second._machine.end == replica.log.end
        item = item._replace(leader_epoch=Epoch(item.leader_epoch + 1))
        replica.take_role(stream, item)
        third = replica.leading
        await until(lambda: not replica.reopening.under_way)
        assert not replica.log.failed
        assert third is not None
        end = replica.log.end
        third._on_batch(batch(b"y"), 1)
        assert replica.log.end == third._machine.end == end + 1

    run(main())


def test_a_truncation_under_way_is_not_ended_by_a_log_that_was_opened_again() -> None:
    """A follower that came while the last leader of its log was still to be replaced, and has to truncate."""

    async def main() -> None:
        made = await replicated()
        replica, other = await opened_again_and_not_replaced(made), made.other
        epoch = Epoch(replica.partition.leader_epoch + 1000)
        replica.take_role(replica.stream, replica.partition._replace(leader=other.name, leader_epoch=epoch))
        assert replica.following is not None
        machine = replica.following._machine
        machine.truncating = True
        await until(lambda: not replica.reopening.under_way)
        assert machine.truncating, "nothing is taken until the driver says that the truncation is over"

    run(main())


@pytest.mark.parametrize("damaged", [False, True])
def test_a_replica_that_has_received_and_not_stored_what_its_leader_has_is_not_verified(damaged: bool) -> None:
    """It lost a record that it had promised, gets it again, and cannot store it. Asked to lead it must look for the
    others first."""

    async def main() -> None:
        made = await replicated()
        follower = made.other
        await publish_all(made.members, 5)
        follower.kill()
        path = logs(follower)[-1]
        if damaged:
            follower.disk.flip(path, len(follower.disk.content(path)) - 3, 1)
        else:
            follower.disk.put(path, follower.disk.content(path)[:-5])

        def broken(at: str) -> int | None:
            return errno.EIO if at == path and wrote else None

        wrote: list[bool] = []
        await follower.start()
        replica = replica_of(follower)
        assert replica.log.end == 5, "its last record is gone"
        wrote.append(True)
        follower.disk.injected_error = broken
        replica.verification.verified = False
        await until(lambda: replica.log.failed is not None)
        assert not replica.verification.verified
        follower.disk.heal()
        await until(lambda: replica.log.promised_end == 6)
        await until(lambda: replica.verification.verified)

    run(main())


def test_a_log_forgets_the_epoch_and_the_time_of_what_it_could_not_store() -> None:
    """By its last epoch a log is compared with others: one that it never stored would let it win."""

    async def main() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk)
        await bench.store([b"a"])
        time = bench.log.last_timestamp
        disk.fail_at(disk.steps + 1, times=100)
        bench.append([b"b"], epoch=7)
        assert (bench.log.last_epoch, bench.log.end) == (7, 2)
        await bench.log.flushed()
        assert bench.log.failed is not None
        assert (bench.log.last_epoch, bench.log.last_timestamp, bench.log.end) == (1, time, 1)

    run(main())
