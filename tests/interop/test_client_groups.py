"""Consumers of a group: they share partitions, go on where the group has committed, and hand over without a loss."""

import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from bascule import limits
from bascule.client import (
    BlockingClient,
    Client,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Outgoing,
    Subscription,
    TimedOut,
)
from bascule.client.cursors import GROUP
from bascule.client.groupconsumer import GroupConsumer
from bascule.testing.jsonlines import JsonProcess, JsonProgram
from bascule.testing.processes import BrokerProcess, start_broker
from tests.harness.clients import with_client

PARTITIONS = 4
TIMEOUT_S = 2.0
"""After which a silent member is gone."""
Read = tuple[int, int]
EVERYTHING = [(p, n) for p in range(PARTITIONS) for n in range(25)]


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    config = {
        "cursors.stream.partitions": 2,
        "groups.consumer.timeout": f"{TIMEOUT_S}s",
        "groups.coordinator.timeout": "1s",
    }
    with start_broker(tmp_path_factory.mktemp("groups"), config=config) as running:
        yield running


async def fill(client: Client, stream: str, each: int = 25) -> None:
    with suppress(NotFound):
        await client.fetch_partition_metadata(stream)
    if stream not in (await client.fetch_metadata([stream])).streams:
        await client.create_stream(stream, partitions=PARTITIONS)
    await client.publish_many(stream, [Outgoing(b"v", partition=p) for _ in range(each) for p in range(PARTITIONS)])


async def drain(consumer: GroupConsumer, into: list[Read], quiet_s: float = 0.3) -> None:
    """Until nothing came for so long."""
    while (message := await consumer.next(timeout=quiet_s)) is not None:
        into.append((message.partition, message.offset))


async def until(condition: Any, timeout_s: float = 15.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


def count(consumer: GroupConsumer) -> int:
    return sum(map(len, consumer.assignment.values()))


def test_members_share_the_partitions_and_each_message_is_read_once(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, 0)
        seen: list[list[Read]] = [[], []]
        async with client.consumer(stream, group=stream) as one, client.consumer(stream, group=stream) as two:
            readers = [
                asyncio.create_task(read(consumer, into)) for consumer, into in zip((one, two), seen, strict=True)
            ]
            await until(lambda: count(one) == count(two) == 2)
            await fill(client, stream)
            await until(lambda: len(seen[0]) + len(seen[1]) == len(EVERYTHING))
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        assert sorted(seen[0] + seen[1]) == EVERYTHING
        assert not {p for p, _ in seen[0]} & {p for p, _ in seen[1]}
        assert stream not in {each.group for each in await client.admin.list_groups()}, "both have left"

    async def read(consumer: GroupConsumer, into: list[Read]) -> None:
        async for message in consumer:
            into.append((message.partition, message.offset))

    with_client(grouped.address, use)


def test_a_group_goes_on_where_it_has_committed(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        seen: list[Read] = []
        while len(seen) < len(EVERYTHING):
            async with client.consumer(stream, group=stream) as consumer:
                async for message in consumer:
                    seen.append((message.partition, message.offset))
                    if len(seen) % 30 == 0 or len(seen) == len(EVERYTHING):
                        break
        assert sorted(seen) == EVERYTHING, "each once"
        cursors = [await client.fetch_cursor(GROUP + stream, stream, p) for p in range(PARTITIONS)]
        assert cursors == [24] * PARTITIONS, "the last message that was processed, as other clients have it"

    with_client(grouped.address, use)


def test_what_is_in_the_hands_of_a_block_that_fails_is_read_again(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        seen: list[Read] = []
        failed: Read = (0, 0)

        async def fails() -> None:
            nonlocal failed
            async with client.consumer(stream, group=stream) as consumer:
                async for message in consumer:
                    if len(seen) == 10:
                        failed = (message.partition, message.offset)
                        raise ZeroDivisionError
                    seen.append((message.partition, message.offset))

        with pytest.raises(ZeroDivisionError):
            await fails()
        async with client.consumer(stream, group=stream) as consumer:
            await drain(consumer, seen)
        assert sorted(seen) == EVERYTHING
        assert seen.count(failed) == 1

    with_client(grouped.address, use)


def test_what_is_handled_is_committed_while_it_runs_and_what_is_in_hand_is_not(
    grouped: BrokerProcess, stream: str
) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.publish_many(stream, [b"v"] * 10)
        async with client.consumer(stream, group=stream, auto_commit=0.05) as consumer:
            for _ in range(3):
                await anext(consumer)
            assert await cursor_is(client, stream, 1)
            await asyncio.sleep(0.2)
            assert await client.fetch_cursor(GROUP + stream, stream) == 1, "the third is not handled"
            first = asyncio.create_task(consumer.next_batch())
            assert len(await first) == 7
            assert await cursor_is(client, stream, 2)
            await asyncio.sleep(0.2)
            assert await client.fetch_cursor(GROUP + stream, stream) == 2, "nothing of a batch before its end"
            assert await consumer.next(timeout=0.2) is None
            assert await cursor_is(client, stream, 9)

    with_client(grouped.address, use)


async def cursor_is(client: Client, stream: str, offset: int) -> bool:
    async with asyncio.timeout(5.0):
        while await client.fetch_cursor(GROUP + stream, stream) != offset:
            await asyncio.sleep(0.02)
    return True


def test_with_explicit_commits_only_these_count(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        async with client.consumer(stream, group=stream, auto_commit=None) as consumer:
            seen: list[Read] = []
            for _ in range(20):
                message = await anext(consumer)
                seen.append((message.partition, message.offset))
            assert await consumer.commit() == {stream: dict(sorted(Counter(p for p, _ in seen).items()))}
            assert await consumer.commit() == {}, "nothing is new"
            await anext(consumer)
        async with client.consumer(stream, group=stream) as consumer:
            await drain(consumer, seen)
        assert sorted(seen) == EVERYTHING

    with_client(grouped.address, use)


def test_what_a_member_has_lost_it_can_no_longer_commit(grouped: BrokerProcess, stream: str) -> None:
    """It reads everything, another member takes half of it over and commits less, and then it commits."""

    async def use(client: Client) -> None:
        await fill(client, stream)
        seen: list[Read] = []
        async with client.consumer(stream, group=stream, auto_commit=None) as one:
            await drain(one, seen)
            assert len(seen) == len(EVERYTHING)
            async with client.consumer(stream, group=stream, auto_commit=None) as two:
                message = await anext(two)
                assert message.offset == 0, "nothing was committed before"
                assert await two.commit() == {stream: {message.partition: 1}}
                retained = {p for p in range(PARTITIONS) if p not in two.assignment[stream]}
                assert await one.commit() == {stream: dict.fromkeys(sorted(retained), 25)}
                for partition in range(PARTITIONS):
                    position = await client.fetch_cursor(GROUP + stream, stream, partition)
                    assert position == (24 if partition in retained else 0 if partition == message.partition else -1)

    with_client(grouped.address, use)


def test_callbacks_come_between_messages_and_nothing_is_given_of_what_was_revoked(
    grouped: BrokerProcess, stream: str
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        told: list[tuple[str, list[int]]] = []

        async def on_revoked(lost: dict[str, list[int]]) -> None:
            told.append(("revoked", lost[stream]))

        one = client.consumer(
            stream,
            group=stream,
            auto_commit=None,
            on_assigned=lambda given: told.append(("assigned", given[stream])),
            on_revoked=on_revoked,
        )
        async with one:
            await anext(one)
            assert told == [("assigned", [0, 1, 2, 3])]
            async with client.consumer(stream, group=stream, auto_commit=None) as two:
                await until(lambda: count(one) == 2)
                assert len(told) == 1, "nobody iterates"
                rest: list[Read] = []
                await drain(one, rest)
                assert told[1] == ("revoked", sorted(two.assignment[stream]))
                assert {p for p, _ in rest} == set(one.assignment[stream])
            await until(lambda: count(one) == 4)
            await drain(one, rest)
            assert told[2] == ("assigned", told[1][1])
        assert told[3:] == [("revoked", [0, 1, 2, 3])]

    with_client(grouped.address, use)


def test_a_callback_runs_to_its_end_however_short_next_waits(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, 1)
        told: list[str] = []
        go_on = asyncio.Event()

        async def on_assigned(given: dict[str, list[int]]) -> None:
            told.append("begun")
            await go_on.wait()
            told.append("ended")

        async def on_revoked(lost: dict[str, list[int]]) -> None:
            told.append("revoked")
            raise ZeroDivisionError

        consumer = client.consumer(stream, group=stream, on_assigned=on_assigned, on_revoked=on_revoked)
        for _ in range(3):
            assert await consumer.next(timeout=0.2 if told else 5.0) is None
            assert told == ["begun"], "and nothing is given before it has ended"
        go_on.set()
        seen: list[Read] = []
        await drain(consumer, seen)
        assert sorted(seen) == [(p, 0) for p in range(PARTITIONS)]
        with pytest.raises(ZeroDivisionError):
            await consumer.close()
        assert told == ["begun", "ended", "revoked"]

    with_client(grouped.address, use)


def test_a_callback_may_close_its_consumer(grouped: BrokerProcess, stream: str) -> None:
    revoked: list[dict[str, list[int]]] = []

    async def use(client: Client) -> None:
        await fill(client, stream, 1)

        async def on_assigned(given: dict[str, list[int]]) -> None:
            await consumer.close()

        consumer = client.consumer(stream, group=stream, on_assigned=on_assigned, on_revoked=revoked.append)
        assert [message async for message in consumer] == []

    with_client(grouped.address, use)
    with BlockingClient(grouped.address) as client:

        def on_assigned(given: dict[str, list[int]]) -> None:
            consumer.close()

        consumer = client.consumer(stream, group=stream, on_assigned=on_assigned, on_revoked=revoked.append)
        assert list(consumer) == []
    assert revoked == [{stream: list(range(PARTITIONS))}] * 2


def test_what_was_given_is_handled_once_next_has_given_none(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)

        async def fails() -> None:
            seen: list[Read] = []
            async with client.consumer(stream, group=stream) as consumer:
                while len(seen) < len(EVERYTHING):
                    await drain(consumer, seen)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fails()
        async with client.consumer(stream, group=stream) as consumer:
            assert await consumer.next(timeout=0.5) is None

    with_client(grouped.address, use)


def test_a_member_that_closes_hands_over_at_once(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        seen: list[Read] = []
        async with client.consumer(stream, group=stream) as one:
            two = client.consumer(stream, group=stream)
            await two.ready()
            await until(lambda: count(one) == 2)
            await drain(two, seen)
            began = asyncio.get_running_loop().time()
            await two.close()
            await two.close()
            await until(lambda: count(one) == 4)
            assert asyncio.get_running_loop().time() - began < TIMEOUT_S * 0.75, "not when it has expired"
            await drain(one, seen)
        assert sorted(seen) == EVERYTHING, "what it had read it has committed"

    with_client(grouped.address, use)


def test_a_member_that_stood_still_loses_its_partitions_and_joins_again(grouped: BrokerProcess, stream: str) -> None:
    """A process is stopped in the middle: its partitions go to the other member, and when it runs again it overwrites
    nothing. No message is left out."""

    async def use(client: Client) -> None:
        await fill(client, stream)
        command = [sys.executable, "-m", "tests.harness.group_worker"]
        with JsonProcess([*command, "-servers", grouped.address, "-stream", stream, "-group", stream]) as worker:
            await until(lambda: any(event["event"] == "read" for event in worker.so_far()))
            os.kill(worker.pid, signal.SIGSTOP)
            seen: list[Read] = []
            async with client.consumer(stream, group=stream) as other:
                while count(other) < PARTITIONS:
                    await drain(other, seen)
                await fill(client, stream)
                await drain(other, seen)
                assert {(p, n) for p in range(PARTITIONS) for n in range(25, 50)} <= set(seen)
                await other.commit()
                os.kill(worker.pid, signal.SIGCONT)
                while count(other) > PARTITIONS / 2:
                    await drain(other, seen)
                await asyncio.sleep(0.5)  # it commits every 0.2 s
                cursors = [await client.fetch_cursor(GROUP + stream, stream, p) for p in range(PARTITIONS)]
                assert cursors == [49] * PARTITIONS

    with_client(grouped.address, use)


def test_a_group_that_begins_with_new_messages_misses_none_though_it_never_committed(
    grouped: BrokerProcess, stream: str
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        first = client.consumer(stream, group=stream, start="new", auto_commit=None)
        await first.ready()
        await fill(client, stream, 5)
        assert (await anext(first)).offset == 25
        await first.close()
        seen: list[Read] = []
        async with client.consumer(stream, group=stream, start="new") as second:
            await drain(second, seen)
        assert sorted(seen) == [(p, n) for p in range(PARTITIONS) for n in range(25, 30)]

    with_client(grouped.address, use)


def test_iterating_can_be_cancelled_and_goes_on(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        seen: list[Read] = []
        async with client.consumer(stream, group=stream) as consumer:
            while len(seen) < len(EVERYTHING):
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.002):
                        async for message in consumer:
                            seen.append((message.partition, message.offset))
            assert await consumer.next(timeout=0.05) is None
            first = asyncio.create_task(anext(consumer))
            await asyncio.sleep(0.05)
            with pytest.raises(RuntimeError, match="two tasks"):
                await anext(consumer)
            first.cancel()
        assert sorted(seen) == EVERYTHING
        assert await consumer.next() is None, "it is closed"

    with_client(grouped.address, use)


def test_a_consumer_that_is_dropped_leaves_no_task(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        async for _ in client.consumer(stream, group=stream):
            break
        await asyncio.sleep(0.1)

    with_client(grouped.address, use)


def test_what_goes_wrong_is_told(grouped: BrokerProcess, broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        wrongs: list[dict[str, Any]] = [
            {"partitions": [0]},
            {"stop": "latest"},
            {"last": 3},
            {"start": {}},
            {"start": 7},
            {"start": "latest"},
            {"auto_commit": 0},
            {"group": ""},
        ]
        for wrong in wrongs:
            with pytest.raises(InvalidArgument):
                client.consumer(stream, **{"group": stream, **wrong})
        with pytest.raises(InvalidArgument, match="group="):
            client.consumer(stream, on_revoked=lambda lost: None)  # type: ignore[call-overload]
        with pytest.raises(FailedPrecondition, match="stream does not exist"):
            await client.consumer("nowhere", group=stream).ready()
        async with client.consumer(stream, group=stream, start=datetime.now(UTC)) as consumer:
            assert await consumer.next(timeout=0.1) is None
            await client.delete_stream(stream)
            with pytest.raises(NotFound, match="no such stream"):
                await anext(consumer)

    async def use_without_cursors(client: Client) -> None:
        await client.create_stream(stream)
        with pytest.raises(FailedPrecondition, match=r"cursors\.stream\.partitions"):
            async with client.consumer(stream, group=stream):
                pytest.fail("it has no cursors")
        assert await client.admin.list_groups() == [], "it has left"

    with_client(grouped.address, use)
    with_client(broker.address, use_without_cursors)


def test_an_error_of_a_callback_reaches_whoever_iterates(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        seen: list[Read] = []
        async with client.consumer(stream, group=stream, on_assigned=lambda given: 1 // 0) as consumer:  # type: ignore[arg-type, return-value]
            with pytest.raises(ZeroDivisionError):
                await anext(consumer)
            await drain(consumer, seen)
        assert sorted(seen) == EVERYTHING

    with_client(grouped.address, use)


def test_an_id_of_its_own_is_free_again_when_the_member_before_has_expired(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        gone = client.consumer(stream, group=stream, member="worker-1")
        await gone.ready()
        gone._member.abandon()  # as if its process had been killed
        async with client.consumer(stream, group=stream, member="worker-1") as consumer:
            assert consumer.id == "worker-1"
            assert count(consumer) == PARTITIONS
        await gone._parts.close()

    with_client(grouped.address, use)


def test_members_of_another_client_share_the_group_and_its_positions(
    grouped: BrokerProcess, stream: str, go_against: Callable[[BrokerProcess], JsonProgram]
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, 0)
        seen: list[Read] = []
        async with client.consumer(stream, group=stream, auto_commit=0.2) as consumer:
            go = go_against(grouped).start(
                "consume", stream=stream, group=stream, consumer="go", checkpoint="100ms", timeout="60s"
            )
            theirs: list[Read] = []
            with go:
                while count(consumer) != PARTITIONS / 2:
                    await drain(consumer, seen)
                await fill(client, stream)

                def arrived() -> bool:
                    theirs.extend((e["partition"], e["offset"]) for e in go.so_far() if e["event"] == "message")
                    return len(theirs) == len(EVERYTHING) / 2

                await until(arrived)
                await drain(consumer, seen)
                assert len(seen) == len(EVERYTHING) / 2
                await asyncio.sleep(0.5)  # its checkpoint
            await until(lambda: count(consumer) == PARTITIONS)
            await drain(consumer, seen)
        assert sorted(seen + theirs) == EVERYTHING, "it goes on where the other one has got to"

    with_client(grouped.address, use)


def test_the_blocking_consumer_of_a_group_does_the_same(grouped: BrokerProcess, stream: str) -> None:
    told: list[tuple[str, list[int], int]] = []
    with BlockingClient(grouped.address) as client:
        client.create_stream(stream, partitions=2)
        client.publish_many(stream, [b"v"] * 20, spread=True)

        def on_revoked(lost: dict[str, list[int]]) -> None:
            told.append(("revoked", lost[stream], threading.get_ident()))
            consumer.commit()

        with client.consumer(
            stream,
            group=stream,
            auto_commit=None,
            on_assigned=lambda given: told.append(("assigned", given[stream], threading.get_ident())),
            on_revoked=on_revoked,
        ) as consumer:
            assert consumer.next(timeout=5) is not None
            assert consumer.commit() != {}
            assert sum(len(batch) for _, batch in zip(range(2), consumer.batches(), strict=False)) == 19
            assert consumer.assignment == {stream: [0, 1]}
            assert consumer.next(timeout=0.05) is None
        assert told == [(what, [0, 1], threading.get_ident()) for what in ("assigned", "revoked")]
        with client.consumer(stream, group=stream) as consumer:
            assert consumer.next(timeout=0.3) is None, "it was committed when it was revoked"


def test_commits_do_not_wait_for_partitions_that_begin(
    grouped: BrokerProcess, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those have no leader: it takes a while until that is an error."""

    async def use(client: Client) -> None:
        partitions = limits.CLIENT_GROUP_AT_ONCE + 8
        await client.create_stream(stream, partitions=partitions)
        await client.publish(stream, b"v")
        never = asyncio.Event()
        ready = Subscription.ready

        async def hangs(subscription: Subscription) -> None:
            if subscription._reading.partition:
                await never.wait()
            await ready(subscription)

        monkeypatch.setattr(Subscription, "ready", hangs)
        consumer = client.consumer(stream, group=stream, auto_commit=None)
        consumer._opened = True  # it does not wait for all partitions
        async with asyncio.timeout(60):
            while (message := await consumer.next(timeout=0.1)) is None:
                pass
        assert message.partition == 0
        assert await consumer.commit(timeout=10) == {stream: {0: 1}}
        monkeypatch.undo()
        never.set()
        await consumer.close()

    with_client(grouped.address, use)


def test_a_commit_keeps_its_timeout_also_behind_another_one(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.publish(stream, b"v")
        async with client.consumer(stream, group=stream, auto_commit=None) as consumer:
            await anext(consumer)
            async with consumer._member._committing:
                with pytest.raises(TimedOut, match=r"the positions of 1 partitions were not stored within 0.1 s"):
                    await consumer.commit(timeout=0.1)
            assert await consumer.commit() == {stream: {0: 1}}

    with_client(grouped.address, use)
