"""What a run of numbered messages does when some are refused for good, or its numbers are: the others are stored once,
in their order, however late copies of what was sent arrive."""

import asyncio
import random
from collections.abc import AsyncIterable, AsyncIterator, Iterator

import pytest

from bascule.client.failures import Forgotten, MadeAgain
from bascule.client.pipeline import OnAcks, Sendable
from bascule.client.producers import Numbering, ProducerSession
from bascule.client.requests import Prepared
from bascule.client.retrying import Retrying
from bascule.errors import BasculeError, FailedPrecondition, InvalidArgument, PublishError, Unconfirmed
from bascule.wire.pb import producer_pb2 as pb


class Numbers(Numbering):
    """Without a cluster: identities are counted."""

    def __init__(self, partitions: int) -> None:
        self._ids = iter(range(1, 1000))
        self._session = ProducerSession(self._next())
        self._partitions = partitions
        self.prepare = self._prepared

    def _next(self) -> pb.InitProducerResponse:
        return pb.InitProducerResponse(id=next(self._ids), epoch=1, creation=1)

    def _prepared(self, value: object, overall: int) -> Prepared:
        assert isinstance(value, bytes)
        partition = overall % self._partitions
        producer = self._session.number(partition)
        return Prepared(value, partition, producer)

    def numbered_anew(self, message: Prepared) -> Prepared:
        return message._replace(producer=self._session.number(message.partition))

    async def begin_anew(self, partition: int) -> None:
        self._session.begin_anew(partition, self._next())


class Leaders:
    """Of the partitions: each takes the next number of a producer, and refuses some messages."""

    def __init__(self, refuse: dict[bytes, BasculeError]) -> None:
        self.refuse = refuse
        self.stored: dict[int, list[bytes]] = {}
        self.next: dict[tuple[int, bytes], int] = {}
        self.copies: list[Prepared] = []
        self.lost: Iterator[bool] = iter(())
        self.forgotten: tuple[bytes, BasculeError] | None = None
        """An identity, and how its messages are refused."""

    def take(self, message: Prepared) -> BasculeError | int | None:
        """Why it is refused, or its offset; None if it has no answer that says so."""
        place, sequence = (message.partition, message.producer[:-8]), int.from_bytes(message.producer[-8:], "little")
        known = self.next.get(place, 0)
        if self.forgotten is not None and place[1] == self.forgotten[0]:
            return self.forgotten[1]
        if sequence < known:
            return -1
        if message.head in self.refuse:
            return self.refuse[message.head]
        if sequence > known:
            return None if known else Forgotten("unknown producer")
        self.next[place] = known + 1
        self.stored.setdefault(message.partition, []).append(message.head)
        return len(self.stored[message.partition]) - 1

    async def attempt(self, values: AsyncIterable[Sendable], on_acks: OnAcks) -> int:
        refusals: dict[int, BasculeError] = {}
        acks = number = 0
        async for message in values:
            assert isinstance(message, Prepared)
            self.copies.append(message)
            answer = self.take(message)
            if next(self.lost, False):
                raise Unconfirmed("the connection was lost", acks)
            if isinstance(answer, BasculeError):
                refusals[number] = answer
            elif answer is not None:
                on_acks([(number, answer, message.partition)])
                acks += 1
            number += 1
            if refusals and number % 7 == 0:
                break
        if refusals:
            error = PublishError("refused", min(refusals), acks)
            error.refusals = refusals
            error.__cause__ = refusals[min(refusals)]
            raise error
        return acks


class Told:
    def __init__(self) -> None:
        self.failed: dict[int, BasculeError] = {}
        self.unknown: set[int] | None = None

    def refused(self, number: int, error: BasculeError) -> None:
        self.failed[number] = error

    def given_up(self, unknown: set[int]) -> None:
        self.unknown = set(unknown)


def messages(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("bad", [[0], [5], [0, 1, 2, 3], [10, 11, 49], [7, 29]])
def test_what_is_behind_a_refused_message_is_stored_once_however_late_copies_arrive(
    partitions: int, bad: list[int]
) -> None:
    leaders = Leaders({b"%d" % number: InvalidArgument("too large") for number in bad})
    told = Told()
    retrying = Retrying(None, None, numbering=Numbers(partitions), outcomes=told)
    confirmed = asyncio.run(retrying.run(messages(50), leaders.attempt, 5.0))
    assert sorted(told.failed) == bad
    assert confirmed == 50 - len(bad)
    good = {part: [b"%d" % n for n in range(part, 50, partitions) if n not in bad] for part in range(partitions)}
    assert leaders.stored == good
    chance = random.Random(1)
    for copy in chance.sample(leaders.copies, len(leaders.copies)) * 2:
        if copy.head not in leaders.refuse:
            leaders.take(copy)
    assert leaders.stored == good, "no copy of a number that was given up is ever stored"


def test_what_is_before_a_refused_message_is_sent_again_first() -> None:
    """Its ack did not come although the refusal behind it did: order is kept, and each is stored once."""
    leaders = Leaders({b"4": InvalidArgument("too large")})
    told = Told()
    unheard = {b"2"}

    async def attempt(values: AsyncIterable[Sendable], on_acks: OnAcks) -> int:
        taken: list[bytes] = []

        async def noting() -> AsyncIterator[Sendable]:
            async for message in values:
                assert isinstance(message, Prepared)
                taken.append(message.head)
                yield message

        def heard(acks: list[tuple[int, int, int]]) -> None:
            on_acks([each for each in acks if taken[each[0]] not in unheard])

        try:
            return await leaders.attempt(noting(), heard)
        finally:
            unheard.clear()

    retrying = Retrying(None, None, numbering=Numbers(1), outcomes=told)
    assert asyncio.run(retrying.run(messages(10), attempt, 5.0)) == 9
    assert sorted(told.failed) == [4]
    assert leaders.stored == {0: [each for each in messages(10) if each != b"4"]}


def test_a_refused_message_that_may_be_stored_already_ends_the_run_as_unknown() -> None:
    """An earlier try had no answer."""
    leaders = Leaders({})
    leaders.lost = iter([False, True])
    told = Told()

    async def attempt(values: AsyncIterable[Sendable], on_acks: OnAcks) -> int:
        try:
            return await leaders.attempt(values, on_acks)
        finally:
            leaders.next.clear()
            leaders.refuse = {b"1": InvalidArgument("too large")}

    retrying = Retrying(None, None, numbering=Numbers(1), outcomes=told)
    with pytest.raises(PublishError):
        asyncio.run(retrying.run(messages(5), attempt, 5.0))
    assert told.failed == {}
    assert told.unknown is not None
    assert 1 in told.unknown


def test_what_is_refused_because_of_its_partition_is_not_tried_again() -> None:
    leaders = Leaders({b"%d" % number: FailedPrecondition("readonly") for number in range(1, 20, 2)})
    told = Told()
    retrying = Retrying(None, None, numbering=Numbers(2), outcomes=told)
    assert asyncio.run(retrying.run(messages(20), leaders.attempt, 5.0)) == 10
    assert sorted(told.failed) == list(range(1, 20, 2))
    assert leaders.stored == {0: [b"%d" % number for number in range(0, 20, 2)]}


@pytest.mark.parametrize("kind", [Forgotten, MadeAgain])
def test_a_partition_that_does_not_know_the_producer_any_more_gets_another_one(kind: type[BasculeError]) -> None:
    leaders = Leaders({})

    async def source() -> AsyncIterable[bytes]:
        for number, value in enumerate(messages(10)):
            if number == 6:
                while len(leaders.copies) < 6:
                    await asyncio.sleep(0)
                leaders.forgotten = leaders.copies[0].producer[:-8], kind("it is not known")
            yield value

    async def main() -> int:
        return await Retrying(None, None, numbering=Numbers(1)).run(source(), leaders.attempt, 5.0)

    assert asyncio.run(main()) == 10
    assert leaders.stored == {0: messages(10)}


def test_a_partition_that_may_have_stored_a_message_gets_no_other_producer() -> None:
    """It has: the connection was lost before the ack came, and the producer was forgotten then."""
    leaders = Leaders({})
    leaders.lost = iter([False, False, False, True])
    told = Told()

    async def attempt(values: AsyncIterable[Sendable], on_acks: OnAcks) -> int:
        try:
            return await leaders.attempt(values, on_acks)
        finally:
            leaders.forgotten = leaders.copies[0].producer[:-8], Forgotten("unknown producer")

    retrying = Retrying(None, None, numbering=Numbers(1), outcomes=told)
    with pytest.raises(Unconfirmed):
        asyncio.run(retrying.run(messages(5), attempt, 0.2))
    assert leaders.stored == {0: messages(4)}
    assert told.unknown is not None
    assert 3 in told.unknown
