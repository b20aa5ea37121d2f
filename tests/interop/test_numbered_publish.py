"""Single messages of the Python client that are sent again until their ack comes, and stored once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from bascule.client import AckPolicy, Client
from bascule.client.publisher import Session
from bascule.client.requests import PlainAck
from bascule.errors import AckError, InvalidArgument, NotFound, Unconfirmed
from bascule.testing.processes import BrokerProcess, start_broker
from bascule.wire.pb import api_pb2 as pb
from tests.harness.cluster_load import read_all

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def losing(monkeypatch: pytest.MonkeyPatch, lost: int) -> list[int]:
    """The next so many acks are not heard, as if the connection had been lost just before; what they said."""
    heard = Session._acked
    gone: list[int] = []

    def acked(session: Session, ack: PlainAck) -> None:
        if len(gone) < lost:
            gone.append(ack[0])
            session._end(Unconfirmed("lost, by the test"))
        else:
            heard(session, ack)

    monkeypatch.setattr(Session, "_acked", acked)
    return gone


def test_a_message_whose_acks_are_lost_is_stored_once(shared: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with await Client.connect(shared.address) as client:
            await client.create_stream("lossy")
            gone = losing(monkeypatch, 3)
            ack = await client.publish("lossy", b"first", key=b"k", retry_s=PATIENCE_S)
            assert (len(gone), ack.offset) == (3, 0)
            ack = await client.publish("lossy", b"second", headers={"h": b"1"}, retry_s=PATIENCE_S)
            assert (ack.stream, ack.partition, ack.offset) == ("lossy", 0, 1)
            assert await read_all(client, stream="lossy") == [(0, b"first"), (1, b"second")]

    asyncio.run(main())


def test_without_retry_a_lost_ack_is_told_and_nothing_is_sent_again(
    shared: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with await Client.connect(shared.address) as client:
            await client.create_stream("told")
            losing(monkeypatch, 1)
            with pytest.raises(Unconfirmed):
                await client.publish("told", b"first")
            losing(monkeypatch, 1_000)
            with pytest.raises(Unconfirmed):
                await client.publish("told", b"second", retry_s=0.3)
            monkeypatch.undo()
            assert await read_all(client, stream="told") == [(0, b"first"), (1, b"second")]

    asyncio.run(main())


def test_many_at_once_are_stored_once_each(shared: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with await Client.connect(shared.address) as client:
            await client.create_stream("many")
            losing(monkeypatch, 5)
            acks = await asyncio.gather(
                *(client.publish("many", b"%d" % number, retry_s=PATIENCE_S) for number in range(200))
            )
            stored = await read_all(client, stream="many")
            assert sorted(stored) == sorted((ack.offset, b"%d" % number) for number, ack in enumerate(acks))
            assert len({offset for offset, _ in stored}) == 200

    asyncio.run(main())


def test_a_stream_that_was_made_again_does_not_get_it_twice(
    shared: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with await Client.connect(shared.address) as client, await Client.connect(shared.address) as other:
            await client.create_stream("anew")
            remade = asyncio.Event()
            heard = Session._acked

            def acked(session: Session, ack: PlainAck) -> None:
                if remade.is_set():
                    heard(session, ack)
                else:
                    session._end(Unconfirmed("lost, by the test"))

            async def remake() -> None:
                while not await read_all(other, stream="anew"):
                    await asyncio.sleep(0.01)
                await other.delete_stream("anew")
                await other.create_stream("anew")
                remade.set()

            monkeypatch.setattr(Session, "_acked", acked)
            making = asyncio.create_task(remake())
            with pytest.raises((Unconfirmed, NotFound)):
                await client.publish("anew", b"once", retry_s=PATIENCE_S)
            await making

    asyncio.run(main())


@pytest.mark.parametrize("fields", [{"ack": AckPolicy.LEADER}, {"ack": AckPolicy.NONE}, {"expected_offset": 3}])
def test_what_cannot_be_sent_again_is_refused(shared: BrokerProcess, fields: dict[str, object]) -> None:
    async def main() -> None:
        async with await Client.connect(shared.address) as client:
            with pytest.raises(InvalidArgument, match="retry_s"):
                await client.publish("none", b"v", retry_s=1.0, **fields)  # type: ignore[arg-type]

    asyncio.run(main())


@pytest.mark.slow
def test_each_is_stored_once_over_kills_of_the_broker(tmp_path: Path) -> None:
    async def main(broker: BrokerProcess) -> None:
        async with await Client.connect(broker.address) as client:
            await client.create_stream("killed")
            done = asyncio.Event()

            async def publish(name: int) -> list[bytes]:
                acked: list[bytes] = []
                while not done.is_set():
                    value = b"%d-%d" % (name, len(acked))
                    await client.publish("killed", value, timeout=1.0, retry_s=PATIENCE_S)
                    acked.append(value)
                return acked

            publishing = [asyncio.create_task(publish(name)) for name in range(4)]
            for _ in range(2):
                await asyncio.sleep(0.3)
                await asyncio.to_thread(broker.kill9)
                await asyncio.to_thread(lambda: broker.start().wait_ready())
            done.set()
            values = [value for acked in await asyncio.gather(*publishing) for value in acked]
            assert sorted(value for _, value in await read_all(client, stream="killed")) == sorted(values)

    with start_broker(tmp_path) as broker:
        asyncio.run(main(broker))


def test_a_duplicate_whose_offset_is_not_known_any_more_is_stored(
    shared: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with await Client.connect(shared.address) as client:
            await client.create_stream("old")

            def acked(session: Session, ack: PlainAck) -> None:
                monkeypatch.undo()
                told = pb.PublishResponse(correlationId=str(ack[0]))
                told.asyncError.code = cast(pb.PublishAsyncError.Code, int(AckError.DUPLICATE))
                session._answered(told)

            monkeypatch.setattr(Session, "_acked", acked)
            ack = await client.publish("old", b"v", retry_s=PATIENCE_S)
            assert (ack.stream, ack.offset) == ("old", -1)

    asyncio.run(main())
