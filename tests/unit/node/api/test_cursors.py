"""SetCursor and FetchCursor: answered by the leader of the cursor's partition alone, never older than acked or
fetched."""

import asyncio
import random
import zlib
from typing import Any

import pytest

from bascule import limits
from bascule.core.cursors.keys import CursorName
from bascule.core.metadata.streams import CURSORS
from bascule.errors import Status
from bascule.node.api import cursorlog
from bascule.node.config.broker import CursorSettings
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.kernels import decode_records
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node
from tests.harness.members import REPLICATION, Member, three, until

ANSWERED = (Status.OK, "")
MISSING = (Status.INTERNAL, "Cursors stream does not exist")


async def one(partitions: int = 1, disk: MemoryDisk | None = None, seed: int = 1, **fields: Any) -> Node:
    cursors = CursorSettings(partitions=partitions, **fields)
    node = await Node(disk or MemoryDisk(), MemoryNats(), seed=seed, cursors=cursors).start()
    await until(lambda: node.broker.cluster.metadata.stream(CURSORS) is not None)
    return node


async def set_cursor(node: Node | Member, offset: int, cursor: str = "c", stream: str = "s", partition: int = 0) -> Any:
    request = api.SetCursorRequest(stream=stream, partition=partition, cursorId=cursor, offset=offset)
    return (await node.call("SetCursor", request))[:2]


async def fetch_cursor(node: Node | Member, cursor: str = "c", stream: str = "s", partition: int = 0) -> Any:
    """The offset, or how it failed."""
    request = api.FetchCursorRequest(stream=stream, partition=partition, cursorId=cursor)
    status, text, responses = await node.call("FetchCursor", request)
    return api.FetchCursorResponse.FromString(responses[0]).offset if status is Status.OK else (status, text)


# --- one broker ------------------------------------------------------------------------------------------------------


def test_a_cursor_is_what_it_was_set_to_last() -> None:
    async def main() -> None:
        node = await one(partitions=4)
        assert await fetch_cursor(node) == -1, "it was never set"
        for offset in (5, 7, 3, 0, -1, 2**63 - 1, -(2**63), 4):
            assert await set_cursor(node, offset) == ANSWERED
            assert await fetch_cursor(node) == offset, "also if it was set back"
        assert await set_cursor(node, 9, cursor="other") == ANSWERED
        assert await set_cursor(node, 10, stream="there is no such stream") == ANSWERED
        assert await set_cursor(node, 11, partition=77) == ANSWERED
        assert await fetch_cursor(node) == 4
        assert await fetch_cursor(node, cursor="other") == 9
        assert await fetch_cursor(node, stream="there is no such stream") == 10
        assert await fetch_cursor(node, partition=77) == 11

    run(main())


def test_a_cursor_counts_as_never_set_once_its_stream_was_made_again() -> None:
    async def main() -> None:
        node = await one()
        assert await set_cursor(node, 3, cursor="early", stream="orders") == ANSWERED
        await node.create("orders")
        assert await set_cursor(node, 9, stream="orders") == ANSWERED
        assert await fetch_cursor(node, stream="orders") == 9
        status, *_ = await node.call("DeleteStream", api.DeleteStreamRequest(name="orders"))
        assert status is Status.OK
        assert await fetch_cursor(node, stream="orders") == 9, "nobody can be misled"
        await node.create("orders")
        assert await fetch_cursor(node, stream="orders") == -1, "offset 9 of this stream is another message"
        assert await fetch_cursor(node, cursor="early", stream="orders") == 3, "set before there was any such stream"
        assert await set_cursor(node, 4, stream="orders") == ANSWERED
        assert await fetch_cursor(node, stream="orders") == 4

    run(main())


def test_a_cursor_of_an_earlier_release_counts() -> None:
    async def main() -> None:
        node = await one()
        await node.create("orders")
        cursor = CursorName("c", "orders", 0)
        await node.publish(CURSORS, cursor.value(8), key=cursor.key)
        assert await fetch_cursor(node, stream="orders") == 8

    run(main())


def test_what_is_refused() -> None:
    async def main() -> None:
        node = await one()
        long = "x" * 2000
        for method, request in (("SetCursor", api.SetCursorRequest), ("FetchCursor", api.FetchCursorRequest)):

            async def ask(*, method: str = method, request: Any = request, **fields: Any) -> tuple[Status, str]:
                return (await node.call(method, request(**fields)))[:2]

            assert await ask() == (Status.INVALID_ARGUMENT, "No stream provided")
            assert await ask(cursorId="c") == (Status.INVALID_ARGUMENT, "No stream provided")
            assert await ask(stream="s") == (Status.INVALID_ARGUMENT, "No cursorId provided")
            assert (await ask(stream="s", cursorId=long))[0] is Status.INVALID_ARGUMENT
            assert (await ask(stream=long, cursorId="c"))[0] is Status.INVALID_ARGUMENT

    run(main())


def test_without_the_stream_there_are_no_cursors() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        assert await set_cursor(node, 5) == MISSING
        assert await fetch_cursor(node) == MISSING

    run(main())


def test_a_call_right_after_the_start_waits_for_the_stream() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats(), cursors=CursorSettings(partitions=1)).start()
        assert await set_cursor(node, 5) == ANSWERED

    run(main())


def test_the_stream_of_the_cursors_is_as_configured_and_no_client_makes_or_deletes_it() -> None:
    async def main() -> None:
        node = await one(partitions=3)
        stream = node.broker.cluster.metadata.stream(CURSORS)
        assert stream is not None
        assert (stream.subject, len(stream.partitions)) == ("ns.cursors", 3)
        assert stream.config.compact_enabled
        assert stream.config.auto_pause_disable_if_subscribers
        assert (stream.config.retention_max_age, stream.config.retention_max_bytes) == (0, 0), "no cursor expires"
        reserved = (Status.INVALID_ARGUMENT, "Stream is reserved")
        create = api.CreateStreamRequest(name=CURSORS, subject="x")
        assert (await node.call("CreateStream", create))[:2] == reserved
        assert (await node.call("DeleteStream", api.DeleteStreamRequest(name=CURSORS)))[:2] == reserved

    run(main())


def test_cursors_survive_losses_of_power_and_the_index_is_made_anew() -> None:
    async def main() -> None:
        node = await one(partitions=2)
        for round in range(4):
            for number in range(40):
                assert await set_cursor(node, 1000 * round + number, cursor=f"c{number}") == ANSWERED
            node.power_off(random.Random(round))
            node = await one(2, node.disk, seed=round + 2)
            for number in (39, 0, 17):
                assert await fetch_cursor(node, cursor=f"c{number}") == 1000 * round + number
            assert await fetch_cursor(node, cursor="never set") == -1

    run(main())


def test_an_idle_partition_is_paused_and_both_calls_resume_it() -> None:
    async def main() -> None:
        node = await one(auto_pause_ns=2_000_000_000)
        assert await set_cursor(node, 5) == ANSWERED
        for expected in (5, 6, 7):
            await until(lambda: not len(node.broker.replicas))
            item = node.broker.cluster.metadata.partition(CURSORS, 0)
            assert item is not None
            assert item.paused
            if expected == 6:
                assert await set_cursor(node, 6) == ANSWERED
            assert await fetch_cursor(node) == min(expected, 6)

    run(main())


def test_never_paused_if_the_time_is_zero() -> None:
    async def main() -> None:
        node = await one(auto_pause_ns=0)
        assert await set_cursor(node, 5) == ANSWERED
        await asyncio.sleep(300)
        assert len(node.broker.replicas) == 1

    run(main())


def test_what_clients_publish_to_the_stream_counts_if_it_is_a_cursor_and_else_does_no_harm() -> None:
    async def main() -> None:
        node = await one()
        cursor = CursorName("c", "s", 0)
        assert await set_cursor(node, 5) == ANSWERED
        await node.publish(CURSORS, cursor.value(8), key=cursor.key)
        assert await fetch_cursor(node) == 8
        await node.publish(CURSORS, b"\xff\xff no cursor", key=cursor.key)
        await node.publish(CURSORS, CursorName("other", "s", 0).value(9), key=cursor.key)
        node.nats.publish(b"ns.cursors", b"plain", b"reply.\xff")
        await node.publish(CURSORS, b"", key=b"")
        await asyncio.sleep(0.1)
        assert await fetch_cursor(node) == 8
        assert await fetch_cursor(node, cursor="other") == -1, "its key is another one"
        assert await set_cursor(node, 6) == ANSWERED
        assert await fetch_cursor(node) == 6

    run(main())


def test_two_cursors_with_the_same_key_do_not_mix() -> None:
    async def main() -> None:
        node = await one()
        assert await set_cursor(node, 1, cursor="a,b", stream="c") == ANSWERED
        assert await set_cursor(node, 2, cursor="a", stream="b,c") == ANSWERED
        for _ in range(2):
            assert await fetch_cursor(node, cursor="a,b", stream="c") == 1
            assert await fetch_cursor(node, cursor="a", stream="b,c") == 2

    run(main())


@pytest.mark.parametrize("most", [0, 3, 100])
def test_cursors_are_found_also_where_index_and_cache_are_too_small(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CURSOR_INDEX_ENTRIES", most)
    monkeypatch.setattr(limits, "CACHED_CURSORS", 2)
    monkeypatch.setattr(limits, "CURSOR_SCAN_BYTES", 300)

    async def main() -> None:
        node = await one()
        for round in range(3):
            for number in range(10):
                assert await set_cursor(node, 10 * round + number, cursor=f"c{number}") == ANSWERED
            for number in (9, 0, 5, 0, 9):
                assert await fetch_cursor(node, cursor=f"c{number}") == 10 * round + number
            assert await fetch_cursor(node, cursor="never set") == -1

    run(main())


def test_the_log_is_read_once_and_not_for_each_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = 0

    def counting(buffer: bytes, start: int, end: int, limit: int) -> Any:
        nonlocal decoded
        result = decode_records(buffer, start, end, limit)
        decoded += len(result[1])
        return result

    monkeypatch.setattr(cursorlog, "decode_records", counting)

    async def main() -> None:
        node = await one()
        for number in range(300):
            assert await set_cursor(node, number, cursor=f"c{number % 100}") == ANSWERED
        assert decoded == 0, "nobody has asked"
        assert await fetch_cursor(node, cursor="never set") == -1
        assert decoded == 300
        for number in range(100):
            assert await fetch_cursor(node, cursor=f"c{number}") == 200 + number
            assert await fetch_cursor(node, cursor=f"c{number}") == 200 + number, "cached"
            assert await fetch_cursor(node, cursor=f"never set {number}") == -1
        assert decoded == 300 + 100

    run(main())


def test_calls_that_set_the_same_cursor_come_one_after_the_other() -> None:
    async def main() -> None:
        node = await one()
        calls = [set_cursor(node, offset) for offset in range(50)]
        assert set(await asyncio.gather(*calls)) == {ANSWERED}
        assert await fetch_cursor(node) == 49, "in the order in which they came"
        values = [value for _, value in await node.read(CURSORS)]
        assert values == [CursorName("c", "s", 0).value(offset) for offset in range(50)]

    run(main())


def test_a_read_that_was_overtaken_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up that takes long may end after the cursor was set anew, and after another call has read that."""
    original = cursorlog.CursorLog._value_at
    slow = True

    async def value_at(self: cursorlog.CursorLog, offset: int) -> bytes | None:
        value = await original(self, offset)
        if slow:
            await asyncio.sleep(1)
        return value

    monkeypatch.setattr(cursorlog.CursorLog, "_value_at", value_at)

    async def main() -> None:
        nonlocal slow
        node = await one()
        assert await set_cursor(node, 1) == ANSWERED
        assert await fetch_cursor(node, cursor="another one") == -1  # the index has all there is
        early = asyncio.create_task(fetch_cursor(node))
        await asyncio.sleep(0.5)
        slow = False
        assert await set_cursor(node, 2) == ANSWERED
        assert await fetch_cursor(node, cursor="another one") == -1  # the index has the new record by now
        assert await early == 1
        assert await fetch_cursor(node) == 2

    run(main())


# --- three brokers ---------------------------------------------------------------------------------------------------


async def cluster(partitions: int = 3, **fields: Any) -> dict[str, Member]:
    members = await three(MemoryNats(), cursors=CursorSettings(partitions, 3, **fields))
    await until(lambda: len(led_by(members)) == partitions)
    return members


def led_by(members: dict[str, Member]) -> dict[int, str]:
    """Who leads which partition, as a living broker knows it that knows most."""
    known = [m.broker.cluster.metadata for m in members.values() if m.process is not None]
    stream = max(known, key=lambda metadata: metadata.index).stream(CURSORS)
    return {item.id: item.leader for item in stream or () if item.leader}


def number_of(cursor: str, partitions: int = 3) -> int:
    return zlib.crc32(f"{cursor},s,0".encode()) % partitions


async def somewhere(members: dict[str, Member], cursor: str, offset: int) -> None:
    """Set it, as a client does that looks for the leader."""

    async def done() -> bool:
        leader = led_by(members).get(number_of(cursor))
        member = members.get(leader or "")
        if member is None or member.process is None:
            return False
        return await set_cursor(member, offset, cursor) == ANSWERED  # type: ignore[no-any-return]

    for _ in range(100):
        if await done():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("nobody sets it")


async def fetched(members: dict[str, Member], cursor: str) -> int:
    for _ in range(100):
        member = members.get(led_by(members).get(number_of(cursor), ""))
        if member is not None and member.process is not None:
            answer = await fetch_cursor(member, cursor)
            if isinstance(answer, int):
                return answer
        await asyncio.sleep(0.1)
    raise AssertionError("nobody knows")


def test_only_the_leader_of_its_partition_answers() -> None:
    async def main() -> None:
        members = await cluster()
        for cursor in ("c", "d", "e", "f"):
            number = number_of(cursor)
            leader = led_by(members)[number]
            elsewhere = (Status.FAILED_PRECONDITION, f"Server not leader for cursors partition {number}")
            for name, member in members.items():
                expected = ANSWERED if name == leader else elsewhere
                assert await set_cursor(member, 5, cursor) == expected
                assert await fetch_cursor(member, cursor) == (5 if name == leader else elsewhere)

    run(main())


def test_a_paused_partition_is_resumed_by_its_leader_and_by_nobody_else() -> None:
    async def main() -> None:
        members = await cluster(auto_pause_ns=2_000_000_000)
        number = number_of("c")
        await somewhere(members, "c", 5)
        await until(lambda: all(not len(member.broker.replicas) for member in members.values()))
        leader = members[led_by(members)[number]]
        for member in members.values():
            if member is not leader:
                assert (await fetch_cursor(member, "c"))[0] is Status.FAILED_PRECONDITION
                assert (await set_cursor(member, 6, "c"))[0] is Status.FAILED_PRECONDITION
        item = leader.broker.cluster.metadata.partition(CURSORS, number)
        assert item is not None
        assert item.paused
        assert await fetch_cursor(leader, "c") == 5

    run(main())


def test_nothing_acked_is_forgotten_when_leaders_die() -> None:
    async def main() -> None:
        members = await cluster()
        cursors = [f"c{number}" for number in range(6)]
        for round in range(3):
            for cursor in cursors:
                await somewhere(members, cursor, round)
                assert await fetched(members, cursor) == round
            victim = members[led_by(members)[number_of(cursors[round])]]
            victim.kill(random.Random(round))
            for cursor in cursors:
                assert await fetched(members, cursor) == round
            await victim.start()
            await until(lambda: all(len(item.isr) == 3 for item in stream_of(members)))

    run(main())


def stream_of(members: dict[str, Member]) -> Any:
    known = [m.broker.cluster.metadata for m in members.values() if m.process is not None]
    return max(known, key=lambda metadata: metadata.index).stream(CURSORS)


def test_a_leader_that_was_replaced_unawares_answers_nothing_old() -> None:
    """It has the old value in memory, and cannot reach the cluster: it must not answer with that."""

    async def main() -> None:
        members = await cluster()
        await somewhere(members, "c", 1)
        number = number_of("c")
        old = members[led_by(members)[number]]
        assert await fetch_cursor(old, "c") == 1
        others = {name: member for name, member in members.items() if member is not old}
        for bus in old.buses:
            bus.disconnect()
        await until(lambda: led_by(others)[number] != old.name)
        await somewhere(others, "c", 2)
        answer = await fetch_cursor(old, "c")
        assert answer != 1
        assert answer[0] in (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.FAILED_PRECONDITION)
        assert await fetched(others, "c") == 2

    run(main())


def test_a_new_leader_answers_when_what_it_has_is_committed_again() -> None:
    """It has the cursor that was acked, but has not learnt yet that it is committed: until it has, it must not say that
    the cursor was never set."""

    async def main() -> None:
        members = await cluster()
        number = number_of("c")
        old = members[led_by(members)[number]]
        assert await set_cursor(old, 1) == ANSWERED
        for member in members.values():
            member.buses[REPLICATION].disconnect()
        item = old.broker.cluster.metadata.partition(CURSORS, number)
        assert item is not None
        other = next(name for name in item.isr if name != old.name)
        await old.broker.client.give_way(CURSORS, item, other)
        await until(lambda: led_by(members)[number] == other)
        await until(lambda: leads(members[other], number))
        answer = await fetch_cursor(members[other])
        assert answer != -1
        assert answer[0] is Status.UNAVAILABLE
        for member in members.values():
            member.buses[REPLICATION].reconnect()
        assert await fetched(members, "c") == 1

    run(main())


def test_who_sets_a_cursor_is_told_at_once_that_its_leader_leads_no_longer() -> None:
    """No ack comes any more: the caller is to ask the next leader, and not to wait for its own deadline."""

    async def main() -> None:
        members = await cluster()
        number = number_of("c")
        old = members[led_by(members)[number]]
        for member in members.values():
            member.buses[REPLICATION].disconnect()
        request = api.SetCursorRequest(stream="s", cursorId="c", offset=1)
        setting = asyncio.create_task(old.call("SetCursor", request, 60.0))
        await asyncio.sleep(0.2)
        assert not setting.done(), "the others do not have it"
        item = old.broker.cluster.metadata.partition(CURSORS, number)
        assert item is not None
        other = next(name for name in item.isr if name != old.name)
        await old.broker.client.give_way(CURSORS, item, other)
        async with asyncio.timeout(2.0):
            status, text, _ = await setting
        assert status is Status.UNAVAILABLE
        assert "is not led by this broker any more; the message may be stored or not" in text
        assert (await set_cursor(old, 2))[0] is Status.FAILED_PRECONDITION
        for member in members.values():
            member.buses[REPLICATION].reconnect()
        await somewhere(members, "c", 3)
        assert await fetched(members, "c") == 3

    run(main())


def leads(member: Member, number: int) -> bool:
    replica = member.broker.replicas.find(CURSORS, number)
    return replica is not None and replica.leading is not None


def test_a_broker_that_leads_again_forgets_what_it_knew() -> None:
    """It comes to lead again without a restart: what it had in memory may be old."""

    async def main() -> None:
        members = await cluster()
        number = number_of("c")
        await somewhere(members, "c", 1)
        first = members[led_by(members)[number]]
        assert await fetch_cursor(first, "c") == 1
        for offset in range(2, 8):
            item = first.broker.cluster.metadata.partition(CURSORS, number)
            assert item is not None
            leader = members[item.leader]
            other = next(name for name in item.isr if name != item.leader)
            await leader.broker.client.give_way(CURSORS, item, other)
            await until(lambda other=other: led_by(members)[number] == other)
            await somewhere(members, "c", offset)
            assert await fetched(members, "c") == offset
            await until(lambda: all(len(each.isr) == 3 for each in stream_of(members)))

    run(main())


# --- damage ----------------------------------------------------------------------------------------------------------


def damage(node: Node | Member, key: bytes, number: int) -> None:
    """A flipped bit in a record of that key, counted from 0."""
    path = next(each for each in node.disk.paths() if each.startswith("streams/__cursors") and each.endswith(".log"))
    data = node.disk.content(path)
    found = [at for at in range(len(data)) if data.startswith(key, at)]
    node.disk.flip(path, found[number] + 2, 0)


@pytest.mark.parametrize("entries", [1 << 20, 0], ids=["indexed", "searched"])
def test_a_cursor_whose_newest_value_may_be_damaged_is_not_known(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CURSOR_INDEX_ENTRIES", entries)

    async def main() -> None:
        node = await one(auto_pause_ns=0)
        for cursor, offset in (("before", 1), ("c", 10), ("c", 20), ("after", 5)):
            assert await set_cursor(node, offset, cursor=cursor) == ANSWERED
        damage(node, b"c,s,0", 1)
        node.power_off(random.Random(1))
        node = await one(disk=node.disk, seed=4, auto_pause_ns=0)
        assert await fetch_cursor(node, "after") == 5, "it is newer than what is damaged"
        for cursor in ("c", "before", "never set"):
            status, text = await fetch_cursor(node, cursor)
            assert status is Status.DATA_LOSS
            assert text.startswith(f"cursor {cursor} of s/0 is not known: records of streams/__cursors")
            assert text.endswith("set it again")
        assert await set_cursor(node, 30) == ANSWERED
        assert await fetch_cursor(node) == 30
        assert await fetch_cursor(node, "after") == 5

    run(main())


def test_what_was_lost_is_known_when_compaction_has_been_there() -> None:
    async def main() -> None:
        node = await one(auto_pause_ns=0)
        for cursor, offset in (("before", 1), ("c", 10), ("c", 20)):
            assert await set_cursor(node, offset, cursor=cursor) == ANSWERED
        assert await set_cursor(node, 1, cursor="after") == ANSWERED
        damage(node, b"c,s,0", 1)
        for seed in (4, 5):
            node.power_off(random.Random(seed))
            node = await one(disk=node.disk, seed=seed, auto_pause_ns=0)
            for offset in range(60):
                assert await set_cursor(node, offset, cursor="after") == ANSWERED
            await asyncio.sleep(1.0)
            await node.broker.compactor.compact(at_once=True)
            replica = node.broker.replicas.find(CURSORS, 0)
            assert replica is not None
            assert sum(each.records for each in replica.log.segments) < 40
            for cursor in ("c", "before"):
                assert (await fetch_cursor(node, cursor))[0] is Status.DATA_LOSS
            assert await fetch_cursor(node, "after") == 59

    run(main())


def test_a_cursor_that_is_damaged_under_a_running_broker_is_not_known_either() -> None:
    async def main() -> None:
        node = await one(auto_pause_ns=0)
        for cursor, offset in (("c", 10), ("c", 20), ("after", 5)):
            assert await set_cursor(node, offset, cursor=cursor) == ANSWERED
        damage(node, b"c,s,0", 1)
        node.disk.cached = False
        assert (await fetch_cursor(node))[0] is Status.DATA_LOSS
        assert await fetch_cursor(node, "after") == 5

    run(main())


def test_a_damaged_cursor_is_answered_from_another_replica() -> None:
    async def main() -> None:
        members = await three(MemoryNats(), cursors=CursorSettings(partitions=1, replication_factor=3, auto_pause_ns=0))
        await until(lambda: members["a"].broker.cluster.metadata.stream(CURSORS) is not None)
        leader = members[members["a"].broker.cluster.metadata.streams[CURSORS].partitions[0].leader]
        for cursor, offset in (("c", 10), ("c", 20), ("after", 5)):
            assert await set_cursor(leader, offset, cursor=cursor) == ANSWERED
        damage(leader, b"c,s,0", 1)
        leader.disk.cached = False
        assert await fetch_cursor(leader) == 20
        assert await fetch_cursor(leader, "never set") == -1

    run(main())
