"""A broker compacts the streams that ask for it: below the high watermark, below holds, on every replica by itself."""

import asyncio
import random
import struct
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from bascule.core.metadata.streams import CURSORS
from bascule.core.partition.epochs import EpochHistory
from bascule.errors import Status
from bascule.limits import MAX_PARTITION_PRODUCERS
from bascule.node.api.bulk import compacted_end
from bascule.node.config.broker import CursorSettings
from bascule.node.partition import compactor
from bascule.node.partition.compactor import protected_offsets
from bascule.node.partition.replica import Replica
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.keyed import Keyed, Stored, encode_keyed, newest, problems, stored_in
from bascule.testing.logs import open_bench
from bascule.testing.loop import run
from bascule.testing.records import SUBJECT, pack_batch
from bascule.wire import kernels
from bascule.wire.envelope import MsgType, encode
from bascule.wire.kernels import ProducerTable, observe_producers
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as bulk
from bascule.wire.producers import numbered, producer_prefix
from bascule.wire.record import origin
from tests.harness.administration import another, answer, partitions_of
from tests.harness.broker import Node
from tests.harness.compacted import order
from tests.harness.members import leader_of, three, until

COMPACTED: dict[str, Any] = {
    "segmentMaxBytes": api.NullableInt64(value=400),
    "cleanerInterval": api.NullableInt64(value=1_000),
    "compactEnabled": api.NullableBool(value=True),
}
KEYS = 9


def replica_of(node: Any, stream: str = "s", partition: int = 0) -> Replica:
    replica: Replica | None = node.broker.replicas.find(stream, partition)
    assert replica is not None
    return replica


async def records_of(node: Any) -> list[Stored]:
    """All that its log has."""
    reader, found = replica_of(node).log.reader(0, uncommitted=True), b""
    while (records := await reader.read()) is not None:
        found += records
    return stored_in(found)


async def publish(node: Any, first: int, count: int, **fields: Any) -> None:
    for number in range(first, first + count):
        request = api.PublishRequest(
            stream="s", key=b"k%d" % (number % KEYS), value=b"v%d" % number, ackPolicy=api.ALL, **fields
        )
        status, text, _ = await node.call("Publish", request)
        assert status is Status.OK, text


def is_compacted(node: Any) -> bool:
    """Only its active segment may have what is superseded."""
    segments = replica_of(node).log.segments
    return sum(each.records for each in segments[:-1]) <= KEYS + 4 < segments.end / 3


def test_a_stream_that_asks_for_it_is_compacted_and_others_are_not() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", **COMPACTED)
        await publish(node, 0, 60)
        written = await records_of(node)
        await asyncio.sleep(5.0)
        assert is_compacted(node)
        found = await records_of(node)
        assert problems(written, found) == []
        values = {each.name: each.values for each in node.broker.environment.metrics.read()}
        assert values["bascule_compacted_records_total"][""] == 60 - len(found)
        assert values["bascule_compacted_bytes_total"][""] > 0
        node.power_off(random.Random(1))
        node = await Node(node.disk, MemoryNats(), seed=2).start()
        assert await records_of(node) == found
        assert (await node.publish("s", b"next", key=b"k1")).offset == 60

    run(main())


def test_cursors_are_compacted_with_the_default_settings_though_their_partition_is_paused_in_between() -> None:
    async def main() -> None:
        settings = CursorSettings(partitions=1, auto_pause_ns=60 * 10**9)
        node = await Node(MemoryDisk(), MemoryNats(), cursors=settings).start()
        pauses = 0
        for number in range(200):
            request = api.SetCursorRequest(stream="s", cursorId="c", offset=number)
            assert (await node.call("SetCursor", request))[0] is Status.OK
            if number % 4 == 3:
                await asyncio.sleep(120.0)  # the cleaner's interval is five minutes
                pauses += node.broker.cluster.metadata.streams[CURSORS].partitions[0].paused
        assert pauses == 50
        status, _, answer = await node.call("FetchCursor", api.FetchCursorRequest(stream="s", cursorId="c"))
        assert status is Status.OK
        assert api.FetchCursorResponse.FromString(answer[0]).offset == 199
        assert sum(each.records for each in replica_of(node, CURSORS).log.segments) < 60

    run(main())


def test_an_idle_partition_is_not_paused_during_a_pass() -> None:
    """Else a pass that takes longer than a partition is idle would never end."""

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", autoPauseTime=api.NullableInt64(value=2_500), **COMPACTED)
        await publish(node, 0, 60)
        log = replica_of(node).log
        node.disk.latency_s = lambda: 1.0
        await until(lambda: log.compaction.running)
        await until(lambda: replica_of(node).paused or not log.compaction.running, 600.0)
        assert not replica_of(node).paused
        node.disk.latency_s = None
        await until(lambda: node.broker.cluster.metadata.streams["s"].partitions[0].paused)

    run(main())


def test_a_stream_that_does_not_ask_for_it_is_not_compacted() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", **{**COMPACTED, "compactEnabled": api.NullableBool(value=False)})
        await publish(node, 0, 60)
        await asyncio.sleep(5.0)
        assert len(await records_of(node)) == 60

    run(main())


def test_the_newest_record_of_each_key_is_on_every_replica_also_after_a_fail_over() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", partitions=1, replicationFactor=3, **COMPACTED)
        status, text, _ = await members["a"].call("CreateStream", request)
        assert status is Status.OK, text
        leader = leader_of(members, "s")
        await publish(leader, 0, 60)
        written = await records_of(leader)
        await until(lambda: all(is_compacted(member) for member in members.values()))
        for member in members.values():
            assert problems(written, await records_of(member)) == []
        wanted = newest(written)
        leader.kill(random.Random(1))
        others = [member for member in members.values() if member is not leader]
        await until(lambda: any(replica_of(member).leading is not None for member in others))
        new = next(member for member in others if replica_of(member).leading is not None)
        await publish(new, 60, 40)
        await until(lambda: all(is_compacted(member) for member in others))
        for member in others:
            left = newest(await records_of(member))
            assert set(left) == set(wanted)

    run(main())


def test_a_replica_that_lost_its_disk_is_fed_from_what_compaction_left() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", partitions=1, replicationFactor=3, **COMPACTED)
        assert (await members["b"].call("CreateStream", request))[0] is Status.OK
        await publish(leader_of(members, "s"), 0, 60)
        first = leader_of(members, "s")
        first.kill(random.Random(1), power=False)
        rest = {name: member for name, member in members.items() if member is not first}
        await until(lambda: any(replica_of(member).leading is not None for member in rest.values()))
        await publish(leader_of(rest, "s"), 60, 60)  # under another leader epoch
        await first.start()
        await until(lambda: all(is_compacted(member) for member in members.values()))
        leader = leader_of(members, "s")
        wanted = newest(await records_of(leader))
        wiped = next(member for member in members.values() if member is not leader)
        wiped.kill(random.Random(2))
        wiped.wipe()
        await wiped.start()
        await until(lambda: wiped.name in replica_of(leader).partition.isr and leader.broker.replicas.find("s", 0))
        await until(lambda: is_compacted(wiped))
        assert newest(await records_of(wiped)) == wanted
        history = replica_of(leader).epochs.entries
        assert [epoch for epoch, _ in replica_of(wiped).epochs.entries] == [epoch for epoch, _ in history]
        assert [replica_of(wiped).epochs.end_of(epoch, 120) for epoch, _ in history] == [
            replica_of(leader).epochs.end_of(epoch, 120) for epoch, _ in history
        ]
        await until(
            lambda: (
                len(leader.broker.cluster.raft.membership.voters) == 3
                and not leader.broker.cluster.raft.membership.learners
            )
        )
        third = next(member for member in members.values() if member not in (leader, wiped))
        leader.kill(random.Random(3))
        others = {wiped.name: wiped, third.name: third}
        await until(lambda: any(replica_of(member).leading is not None for member in others.values()))
        await publish(leader_of(others, "s"), 120, KEYS)
        assert newest(await records_of(wiped)) == newest(await records_of(third))
        assert newest(await records_of(wiped)).keys() == wanted.keys()

    run(main())


def test_a_replica_that_was_fed_from_a_compacted_log_says_in_which_segment_its_last_gap_is() -> None:
    async def main() -> None:
        bench = await open_bench(MemoryDisk(), 300, replicated=True)
        for offset in (1, 5, 6, 8, *range(12, 30)):
            bench.log.append(*encode_keyed([Keyed(b"k%d" % offset, b"v" * 60)], offset, offset * 10))
        await bench.log.flushed()
        defaults = SimpleNamespace(compacts=lambda config: True)
        replica: Any = SimpleNamespace(
            log=bench.log,
            environment=SimpleNamespace(settings=SimpleNamespace(defaults=defaults)),
            stream=SimpleNamespace(config=None),
        )
        bench.log.set_visible_end(10)
        assert compacted_end(replica) == 10
        bench.log.set_visible_end(30)
        segment = bench.log.segments.at(11)
        assert segment is not None
        assert 12 < compacted_end(replica) == segment.appended.end < 20
        defaults.compacts = lambda config: False
        assert compacted_end(replica) == 0, "then they are lost"

    run(main())


def test_a_bulk_read_of_what_is_gone_reads_on_and_says_that_offsets_may_be_missing() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", **COMPACTED)
        await publish(node, 0, 60)
        await asyncio.sleep(5.0)
        found = await records_of(node)
        assert found[0].offset > 0
        status, text, answers = await node.call("/bascule.v1.Log/Read", bulk.ReadRequest(stream="s", partition=0))
        assert status is Status.OK, text
        read = [bulk.ReadResponse.FromString(answer) for answer in answers]
        assert stored_in(b"".join(each.records for each in read)) == found
        assert (read[0].start, read[0].logStart, read[-1].end) == (0, 0, 60)
        offsets = [each.offset for each in found]
        gaps = [after for before, after in pairwise([-1, *offsets]) if after > before + 1]
        assert gaps[-1] <= read[0].compactedEnd < 60, "what was not compacted may lack nothing"

    run(main())


def test_segments_that_compaction_emptied_do_not_expire_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "joins", lambda *_: False)

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", **COMPACTED, retentionMaxAge=api.NullableInt64(value=90_000))
        for first in range(0, 240, 60):
            await publish(node, first, 60)
            await asyncio.sleep(8.0)
        log = replica_of(node).log
        assert log.segments[0].base == 0
        assert log.segments[0].records == 0, "the first segment has nothing left"
        assert replica_of(node).partition.start == 0
        await asyncio.sleep(120.0)
        assert replica_of(node).partition.start > 200, "with the records behind them they do"

    run(main())


def test_nothing_at_or_above_a_hold_is_compacted() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", **COMPACTED)
        await publish(node, 0, 60)
        request = admin.SetHoldRequest(stream="s", name="archive", offset=20)
        status, text, _ = await node.call("/bascule.v1.Admin/SetHold", request)
        assert status is Status.OK, text
        await asyncio.sleep(5.0)
        offsets = [each.offset for each in await records_of(node)]
        assert set(range(20, 60)) <= set(offsets)
        assert len(offsets) < 60

    run(main())


def test_a_tombstone_deletes_its_key_with_one_replica_and_stays_while_it_is_young() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", compactTombstoneDelay=api.NullableInt64(value=20_000), **COMPACTED)
        await publish(node, 0, 20)
        request = api.PublishRequest(stream="s", key=b"k3", ackPolicy=api.ALL)
        request.headers["bascule-tombstone"] = b""
        assert (await node.call("Publish", request))[0] is Status.OK
        for number in range(20, 60):
            await publish(node, number if number % KEYS != 3 else 4, 1)
        await asyncio.sleep(5.0)
        assert [each.offset for each in await records_of(node) if each.message.key == b"k3"] == [20]
        await asyncio.sleep(60.0)
        assert b"k3" not in newest(await records_of(node))
        assert set(newest(await records_of(node))) == {b"k%d" % number for number in range(KEYS)} - {b"k3"}

    run(main())


def test_the_last_committed_record_of_a_producer_stays_though_a_later_one_is_not_committed() -> None:
    """A fail-over truncates the later one, and what the producer has stored is then read from the log again."""
    table = struct.pack("<QQQqI", 7, 3, 3, 1, 1) + struct.pack("<qII", 10, 0, 3)  # sequences 0 to 2 at 10 to 12
    replica: Any = SimpleNamespace(
        producers=SimpleNamespace(snapshot=lambda: table, ready=True),
        log=SimpleNamespace(visible_end=12, end=13),
        epochs=EpochHistory([(1, 0), (4, 7)]),
    )
    ends = struct.pack("<q", 6)
    assert protected_offsets(replica) == (struct.pack("<q", 11), ends)
    replica.log.visible_end = 13
    assert protected_offsets(replica) == (struct.pack("<q", 12), ends)
    replica.log.visible_end = 10
    assert protected_offsets(replica) is None, "nothing is compacted before it is known"


def test_retention_by_messages_does_not_count_what_compaction_had_removed_where_a_replica_was_fed_from() -> None:
    """It would expire the newest records of keys, on all replicas."""

    async def main() -> None:
        members = await three(MemoryNats())
        limit = api.NullableInt64(value=200)
        request = api.CreateStreamRequest(
            name="s", subject="s", partitions=1, replicationFactor=2, retentionMaxMessages=limit, **COMPACTED
        )
        assert (await members["a"].call("CreateStream", request))[0] is Status.OK
        leader = leader_of(members, "s")
        for first in range(0, 600, 60):
            await publish(leader, first, 60)
            await until(lambda: is_compacted(leader))
        wiped = members[next(name for name in replica_of(leader).partition.replicas if name != leader.name)]
        wiped.kill(random.Random(2))
        wiped.wipe()
        await wiped.start()
        await until(lambda: wiped.name in replica_of(leader).partition.isr and bool(wiped.broker.replicas.find("s", 0)))
        await until(lambda: len(leader.broker.cluster.raft.membership.voters) == 3)
        wanted = newest(await records_of(leader)).keys()
        assert len(await records_of(wiped)) < 50
        await answer(leader, "DrainBroker", admin.DrainBrokerRequest(broker=leader.name))
        await until(lambda: replica_of(wiped).leading is not None)
        for number in range(20):
            assert (await wiped.call("Publish", api.PublishRequest(stream="s", key=b"z%d" % number)))[0] is Status.OK
        await asyncio.sleep(10.0)
        assert newest(await records_of(wiped)).keys() > wanted

    run(main())


async def publish_each(node: Any, keys: Iterable[bytes]) -> None:
    for key in keys:
        request = api.PublishRequest(stream="s", key=key, ackPolicy=api.ALL)
        async with asyncio.timeout(30.0):
            while (await node.call("Publish", request, 1.0))[0] is not Status.OK:
                await asyncio.sleep(0.2)


def test_after_an_accepted_loss_a_compacted_replica_has_what_the_elected_one_has() -> None:
    """It has removed records that only those which are truncated supersede."""

    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", partitions=1, replicationFactor=2, **COMPACTED)
        assert (await members["a"].call("CreateStream", request))[0] is Status.OK
        item = partitions_of(members["a"])[0]
        full = members[item.leader]
        short = members[next(name for name in item.replicas if name != full.name)]
        third = another(members, full.name, short.name)
        await publish_each(third, [*(b"k%d" % number for number in range(KEYS)), b""])
        await until(lambda: replica_of(short).log.visible_end == KEYS + 1)
        short.kill()
        await until(lambda: partitions_of(third)[0].isr == (full.name,))
        await publish_each(third, [b"k%d" % (number % KEYS) for number in range(KEYS, 60)])
        await until(lambda: is_compacted(full))
        full.kill()
        await short.start()
        await asyncio.sleep(3.0)
        shown = await answer(third, "ElectLeader", admin.ElectLeaderRequest(stream="s"))
        accepted = admin.ElectLeaderRequest(stream="s", acceptLoss=True, inSync=shown.inSync, replica=short.name)
        assert (await answer(third, "ElectLeader", accepted)).done
        await publish_each(third, [b"other"])
        await full.start()
        await until(lambda: len(partitions_of(third)[0].isr) == 2)
        wanted = newest(await records_of(short)).keys()
        assert wanted == {*(b"k%d" % number for number in range(KEYS)), b"other"}
        assert newest(await records_of(full)).keys() == wanted
        short.kill()
        await until(lambda: replica_of(full).leading is not None)
        await publish_each(third, [b"another"])
        assert newest(await records_of(full)).keys() == wanted | {b"another"}

    run(main())


def test_what_is_committed_while_a_pass_waits_is_protected_too() -> None:
    """The last record of a producer, say: a replica that is fed from this log would expect an older sequence."""

    async def main() -> None:
        bench = await open_bench(MemoryDisk(), 200, replicated=True)
        log, table = bench.log, ProducerTable(1, 0, MAX_PARTITION_PRODUCERS)
        tail = kernels.record_tail(origin("test", 0), SUBJECT, b"")

        def append(key: bytes, sequence: int = -1) -> None:
            said = numbered(producer_prefix(7, 7, 1, 0), sequence) if sequence >= 0 else b""
            body = api.Message(offset=-1, key=key, value=b"v" * 60, producer=said).SerializeToString()
            batch, now = pack_batch([encode(MsgType.PUBLISH, body)]), (log.end + 1) * 10
            log.append(
                *kernels.encode_records(
                    batch, origin("test", 0), SUBJECT, tail, log.end, 1, now, 0, 1 << 20, False, b"", table
                )[:4]
            )

        append(b"a", 0)
        append(b"x")
        append(b"y")
        await log.flushed()
        log.set_visible_end(log.promised_end)
        for key, sequence in ((b"b", 1), (b"x", -1), (b"y", -1), (b"b", -1), (b"z", -1), (b"z", -1)):
            append(key, sequence)
        await log.flushed()
        replica: Any = SimpleNamespace(producers=table, log=log, replicated=True, epochs=EpochHistory([(1, 0)]))
        async with log.segments.changing:
            asked = order(bench)._replace(protected=partial(protected_offsets, replica))
            under_way = asyncio.create_task(log.compact(asked))
            await asyncio.sleep(0.1)
            log.set_visible_end(log.promised_end)
        assert (await under_way).records > 0
        reader, found = log.reader(0), b""
        while (records := await reader.read()) is not None:
            found += records
        fed = ProducerTable(1, 0, MAX_PARTITION_PRODUCERS)
        observe_producers(fed, found, 0, len(found))
        assert fed.expected(7, 7, 1000) == table.expected(7, 7, 1000) == 2

    run(main())


def test_segments_that_compaction_emptied_become_few_files_also_under_a_small_limit_of_messages() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", **COMPACTED, retentionMaxMessages=api.NullableInt64(value=200))
        await publish(node, 0, KEYS)
        for first in range(0, 600, 60):
            await publish(node, first, 60)
            await asyncio.sleep(2.0)
        await asyncio.sleep(10.0)
        segments = replica_of(node).log.segments
        assert replica_of(node).partition.start == 0
        assert len(newest(await records_of(node))) == KEYS
        assert len(segments) <= 20, [(each.base, each.records) for each in segments]
        assert sum(not each.records for each in segments) <= 1

    run(main())
