"""Publishing that goes on after a lost connection: everything is confirmed once, in order."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator

import pytest

from bascule.client.pipeline import OnAcks, Sendable
from bascule.client.requests import Prepared
from bascule.client.retrying import Attempt, Retrying
from bascule.errors import (
    BasculeError,
    InvalidArgument,
    NotFound,
    PublishError,
    SendTimeout,
    Unavailable,
    Unconfirmed,
)


class Broker:
    """Takes values and breaks off as told: each try takes so many and acks so many of them."""

    def __init__(self, *tries: tuple[int, int], then: Exception | None = None) -> None:
        self.stored: list[bytes] = []
        self._tries = list(tries)
        self._then = then

    async def attempt(self, values: AsyncIterable[Sendable], on_acks: OnAcks) -> int:
        taken: list[bytes] = []
        takes, acks = self._tries.pop(0) if self._tries else (10**9, 10**9)
        last = takes < 10**9
        assert isinstance(values, AsyncIterator)
        async for value in values:
            assert isinstance(value, bytes)
            taken.append(value)
            if len(taken) == takes:
                break
        base = len(self.stored)
        self.stored += taken
        on_acks([(number, base + number, 0) for number in range(min(acks, len(taken)))])
        if last:
            raise self._then or Unconfirmed("the connection was lost", acks)
        return len(taken)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def slowly(count: int) -> AsyncIterator[bytes]:
    for value in numbers(count):
        await asyncio.sleep(0)
        yield value


@pytest.mark.parametrize("source", [numbers, slowly])
def test_what_has_no_ack_is_sent_again_in_order_and_each_is_confirmed_once(source: object) -> None:
    broker = Broker((10, 4), (3, 0), (50, 49))
    acked: list[int] = []
    retries: list[int] = []
    retrying = Retrying(
        lambda acks: acked.extend(index for index, _, _ in acks), lambda count, error: retries.append(count)
    )
    values = numbers(200) if source is numbers else slowly(200)
    assert asyncio.run(retrying.run(values, broker.attempt, 30.0)) == 200
    assert acked == list(range(200))
    assert retries == [6, 6, 1]
    firsts = list(dict.fromkeys(broker.stored))
    assert firsts == numbers(200)


def test_without_progress_it_gives_up_with_the_last_reason() -> None:
    broker = Broker(*[(1, 0)] * 1000)
    with pytest.raises(Unconfirmed, match="connection was lost"):
        asyncio.run(Retrying(None, None).run(numbers(5), broker.attempt, 0.2))


def refusal(cause: BasculeError) -> PublishError:
    error = PublishError("refused", 2, 0)
    error.__cause__ = cause
    return error


def test_a_refused_message_ends_it_and_has_the_number_of_the_source() -> None:
    broker = Broker((10, 0), then=refusal(InvalidArgument("too large")))
    first = Broker((10, 7))

    async def attempt(values: AsyncIterable[Sendable], on_acks: OnAcks) -> int:
        return await (broker if first.stored else first).attempt(values, on_acks)

    with pytest.raises(PublishError, match="message 9 was refused: too large") as caught:
        asyncio.run(Retrying(None, None).run(numbers(30), attempt, 5.0))
    assert caught.value.index == 9


def test_a_refusal_that_passes_is_tried_again() -> None:
    broker = Broker((10, 0), then=refusal(Unavailable("no connection to NATS")))
    assert asyncio.run(Retrying(None, None).run(numbers(30), broker.attempt, 5.0)) == 30


def test_a_source_that_fails_ends_it() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"1"
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="the source broke"):
        asyncio.run(Retrying(None, None).run(broken(), Broker().attempt, 5.0))


def test_what_is_sent_again_keeps_its_number() -> None:
    """Prepared once, when it is first sent."""
    sent: list[Prepared] = []
    tries = [3, 2, 10]

    async def attempt(values: AsyncIterable[Sendable], on_acks: OnAcks) -> int:
        takes, taken = tries.pop(0), 0
        async for value in values:
            assert isinstance(value, Prepared)
            sent.append(value)
            taken += 1
            if taken == takes:
                break
        on_acks([(0, 7, 0)])
        if tries:
            raise Unconfirmed("the connection was lost", 1)
        on_acks([(number, 8, 0) for number in range(1, taken)])
        return taken

    retrying = Retrying(None, None, lambda value, overall: Prepared(b"%d" % overall, 0))
    assert asyncio.run(retrying.run(numbers(5), attempt, 30.0)) == 5
    heads = [int(each.head) for each in sent]
    assert heads == [0, 1, 2, 1, 2, 2, 3, 4]


def attempts(acks: int, then: BasculeError, at_last: BasculeError) -> Attempt:
    """The first try takes three values, acks so many and fails with `then`; each later one takes none."""
    tries = 0

    async def attempt(values: AsyncIterable[Sendable], on_acks: OnAcks) -> int:
        nonlocal tries
        tries += 1
        if tries > 1:
            raise at_last
        taken = 0
        async for _ in values:
            taken += 1
            if taken == 3:
                break
        on_acks([(number, number, 0) for number in range(acks)])
        raise then

    return attempt


@pytest.mark.parametrize("at_last", [SendTimeout("nobody leads"), NotFound("no such stream"), Unavailable("lost")])
def test_what_an_earlier_try_has_sent_is_not_said_to_be_unsent(at_last: BasculeError) -> None:
    lost = Unconfirmed("the connection was lost", 1)
    with pytest.raises(Unconfirmed, match=f"{at_last}.* 2 messages that were sent") as caught:
        asyncio.run(Retrying(None, None).run(numbers(5), attempts(1, lost, at_last), 0.2))
    assert caught.value.acked == 1
    with pytest.raises(type(at_last), match=str(at_last)):
        asyncio.run(Retrying(None, None).run(numbers(5), attempts(3, Unavailable("lost"), at_last), 0.2))


def test_a_refusal_at_last_has_the_number_of_the_source_and_leaves_the_others_unknown() -> None:
    lost, refused = Unconfirmed("the connection was lost", 1), refusal(Unavailable("no NATS"))
    with pytest.raises(Unconfirmed, match="2 messages that were sent"):
        asyncio.run(Retrying(None, None).run(numbers(5), attempts(1, lost, refused), 0.2))
    one, first = refusal(Unavailable("no NATS")), Broker((1, 1))
    one.index = 0

    async def attempt(values: AsyncIterable[Sendable], on_acks: OnAcks) -> int:
        return await (Broker(*[(1, 0)], then=one) if first.stored else first).attempt(values, on_acks)

    with pytest.raises(PublishError, match="message 1 was refused: no NATS") as caught:
        asyncio.run(Retrying(None, None).run(numbers(2), attempt, 0.2))
    assert (caught.value.index, caught.value.acked) == (1, 1)
