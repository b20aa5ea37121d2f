"""Several partitions printed as one: by time, and in order within each, whatever the clocks of the leaders say."""

import asyncio
from collections.abc import AsyncIterator
from itertools import chain, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.cli.merge import arriving, by_time
from bascule.client import Message


def message(partition: int, offset: int, timestamp: int) -> Message:
    return Message(offset, None, b"", timestamp, "s", partition, "s", "", {})


async def source(batches: list[list[Message]]) -> AsyncIterator[list[Message]]:
    for batch in batches:
        await asyncio.sleep(0)
        yield batch


Partitions = list[list[list[int]]]
"""Timestamps in batches."""
partitions = st.lists(st.lists(st.lists(st.integers(0, 50), max_size=5), max_size=4), min_size=1, max_size=4)


def messages_of(times: Partitions) -> list[list[list[Message]]]:
    made = []
    for number, batches in enumerate(times):
        offset, partition = 0, []
        for batch in batches:
            partition.append([message(number, offset + place, time) for place, time in enumerate(batch)])
            offset += len(batch)
        made.append(partition)
    return made


async def collected(batches: AsyncIterator[list[Message]]) -> list[Message]:
    return [each async for batch in batches for each in batch]


@given(partitions)
def test_each_message_comes_once_and_partitions_keep_their_order(times: Partitions) -> None:
    made = messages_of(times)
    for merge in (by_time, arriving):
        merged = asyncio.run(collected(merge([source(each) for each in made])))
        for number, batches in enumerate(made):
            expected = [each for batch in batches for each in batch]
            assert [each for each in merged if each.partition == number] == expected


@given(partitions)
def test_where_clocks_do_not_jump_back_everything_is_by_time(times: Partitions) -> None:
    steady: Partitions = []
    for batches in times:
        rising = iter(sorted(chain.from_iterable(batches)))
        steady.append([list(islice(rising, len(batch))) for batch in batches])
    merged = asyncio.run(collected(by_time([source(each) for each in messages_of(steady)])))
    assert [each.timestamp for each in merged] == sorted(each.timestamp for each in merged)


def test_a_source_that_fails_ends_what_follows() -> None:
    async def broken() -> AsyncIterator[list[Message]]:
        yield [message(0, 0, 1)]
        raise ValueError("it broke")

    async def endless() -> AsyncIterator[list[Message]]:
        await asyncio.Event().wait()
        yield []

    async def run() -> None:
        followed = arriving([broken(), endless()])
        assert await anext(followed) == [message(0, 0, 1)], "what arrived before is given first"
        with pytest.raises(ValueError, match="it broke"):
            await anext(followed)

    asyncio.run(run())
