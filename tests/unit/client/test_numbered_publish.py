"""Single messages that are sent again: under which number, for how long, and what the caller is told at last."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from bascule.client import AckPolicy
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline, from_publish_code
from bascule.client.numberedpublish import NumberedPublishes
from bascule.client.producers import Producers
from bascule.client.publisher import Publisher
from bascule.client.requests import Encoder, Prepared
from bascule.client.values import Ack, Outgoing, Stream
from bascule.errors import (
    AckError,
    BasculeError,
    ClientClosed,
    FailedPrecondition,
    SendTimeout,
    Unavailable,
    Unconfirmed,
)
from bascule.testing.loop import run
from bascule.wire.pb import producer_pb2 as pb
from bascule.wire.producers import REFUSALS

LOST = Unconfirmed("the connection was lost")
FORGOTTEN = from_publish_code(AckError.UNKNOWN_PRODUCER, REFUSALS[AckError.UNKNOWN_PRODUCER])


class Server:
    """Answers with these errors first, and acks then. `made`: when its stream was made, each time it is asked."""

    def __init__(self, *errors: BasculeError, made: Sequence[int] = (), takes_s: float = 0.0) -> None:
        self._takes_s = takes_s
        self.sent: list[bytes] = []
        self.producers = 0
        self._errors = list(errors)
        self._made = list(made)
        cluster = cast(Cluster, self)
        self.publishes = NumberedPublishes(cluster, Producers(cluster), cast(Publisher, self))

    def forget(self, stream: str) -> None:
        """It is asked again then."""

    async def stream(self, name: str, deadline: Deadline) -> Stream:
        return Stream(name, name, {}, self._made.pop(0) if self._made else 100)

    async def ask_any(self, method: str, request: bytes, deadline: Deadline, try_s: float | None = None) -> bytes:
        self.producers += 1
        return pb.InitProducerResponse(id=self.producers, epoch=1, creation=7).SerializeToString()

    async def publish_encoded(
        self, stream: str, encoder: Encoder, message: Outgoing | Prepared, partition: int, timeout: float
    ) -> Ack:
        assert isinstance(message, Prepared)
        self.sent.append(message.head)
        number = len(self.sent)
        await asyncio.sleep(self._takes_s)
        if self._errors:
            raise self._errors.pop(0)
        return Ack(stream, partition, number, "", AckPolicy.ALL, 0, 0)

    async def publish(self, value: bytes = b"v", retry_s: float = 10.0) -> Ack:
        return await self.publishes.publish("s", Outgoing(value), 0, retry_s, 1.0)


def test_a_message_keeps_its_number_and_the_next_one_has_the_next() -> None:
    async def main() -> None:
        server = Server(LOST, Unavailable("no leader"), LOST)
        await server.publish()
        await server.publish()
        assert server.producers == 1
        first, *again, following = server.sent
        assert again == [first] * 3
        assert following != first

    run(main())


def test_a_producer_whose_message_has_no_ack_is_given_up() -> None:
    async def main() -> None:
        server = Server(FailedPrecondition("readonly"))
        with pytest.raises(FailedPrecondition, match="readonly"):
            await server.publish()
        await server.publish()
        assert server.producers == 2

    run(main())


def test_a_partition_that_has_forgotten_the_producer_is_given_another_once() -> None:
    async def main() -> None:
        server = Server(FORGOTTEN)
        await server.publish()
        assert (server.producers, len(set(server.sent))) == (2, 2)
        server = Server(FORGOTTEN, FORGOTTEN)
        with pytest.raises(Unconfirmed, match="unknown producer"):
            await server.publish()

    run(main())


def test_what_may_be_stored_gets_no_other_number() -> None:
    async def main() -> None:
        server = Server(LOST, FORGOTTEN)
        with pytest.raises(Unconfirmed):
            await server.publish()
        assert (server.producers, len(set(server.sent))) == (1, 1)

    run(main())


@pytest.mark.parametrize(("error", "said"), [(LOST, Unconfirmed), (SendTimeout("no broker"), SendTimeout)])
def test_it_gives_up_and_says_whether_the_message_may_be_stored(error: BasculeError, said: type[Exception]) -> None:
    async def main() -> None:
        server = Server(*[error] * 1000)
        began = asyncio.get_running_loop().time()
        with pytest.raises(said):
            await server.publish(retry_s=3.0)
        assert 2.0 < asyncio.get_running_loop().time() - began <= 3.0
        assert len(server.sent) > 3

    run(main())


def test_an_error_after_a_try_that_may_have_worked_says_so() -> None:
    async def main() -> None:
        with pytest.raises(Unconfirmed, match="closed"):
            await Server(LOST, ClientClosed("this client is closed")).publish()

    run(main())


def test_a_stream_that_was_made_again_is_not_sent_it() -> None:
    async def main() -> None:
        server = Server(LOST, made=[100, 200])
        with pytest.raises(Unconfirmed, match="made again"):
            await server.publish()
        assert len(server.sent) == 1

    run(main())


def test_few_are_under_way_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("bascule.limits.CLIENT_NUMBERED_PUBLISHES", 3)
        server = Server(*[LOST] * 5)
        await asyncio.gather(*(server.publish(b"%d" % number) for number in range(20)))
        assert server.producers == 3

    run(main())


def test_waiting_for_room_ends_as_the_rest_does_if_nothing_is_acked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("bascule.limits.CLIENT_NUMBERED_PUBLISHES", 2)
        server = Server(*[LOST] * 1000)
        clock = asyncio.get_running_loop().time
        began = clock()
        outcomes = await asyncio.gather(*(server.publish(retry_s=5.0) for _ in range(8)), return_exceptions=True)
        assert clock() - began <= 5.0
        assert {type(each) for each in outcomes} <= {SendTimeout, Unconfirmed}
        server._errors, server._takes_s = [], 60.0
        under_way = [asyncio.ensure_future(server.publish()) for _ in range(2)]
        began = clock()
        waiting = await asyncio.gather(*(server.publish(retry_s=5.0) for _ in range(8)), return_exceptions=True)
        assert clock() - began == pytest.approx(5.0)
        assert {type(each) for each in waiting} == {SendTimeout}
        await asyncio.gather(*under_way)
        assert (await server.publish()).offset > 0, "and there is room again"

    run(main())


def test_waiting_for_room_goes_on_while_others_are_acked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("bascule.limits.CLIENT_NUMBERED_PUBLISHES", 1)
        server = Server(takes_s=3.0)
        acks = await asyncio.gather(*(server.publish(retry_s=5.0) for _ in range(8)))
        assert [ack.offset for ack in acks] == list(range(1, 9))

    run(main())


def test_whoever_waited_for_room_has_its_whole_time_from_the_last_ack_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("bascule.limits.CLIENT_NUMBERED_PUBLISHES", 1)
        server = Server(takes_s=4.0)
        clock = asyncio.get_running_loop().time
        began = clock()
        first, second = asyncio.ensure_future(server.publish()), asyncio.ensure_future(server.publish(retry_s=5.0))
        await first
        server._errors = [LOST] * 1000
        with pytest.raises(Unconfirmed):
            await second
        assert 8.0 < clock() - began <= 13.0

    run(main())


def test_a_wait_for_room_that_is_cancelled_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("bascule.limits.CLIENT_NUMBERED_PUBLISHES", 1)
        server = Server(takes_s=3.0)
        first, second = asyncio.ensure_future(server.publish()), asyncio.ensure_future(server.publish())
        await asyncio.sleep(1.0)
        second.cancel()
        await first
        await server.publish()

    run(main())
