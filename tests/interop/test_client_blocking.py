"""The blocking client: the same calls as the other one, callbacks in the caller's thread, and clear errors where it
cannot be used."""

import inspect
import itertools
import os
import signal
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bascule import limits
from bascule.client import (
    Admin,
    Assignment,
    BlockingAdmin,
    BlockingClient,
    BlockingProducer,
    BlockingProducerBatch,
    Client,
    StoredBatch,
    WrittenBatch,
)
from bascule.errors import (
    BasculeError,
    ClientClosed,
    InvalidArgument,
    NotFound,
    NotSent,
    TimedOut,
    Unavailable,
    Unconfirmed,
)
from bascule.testing.processes import BrokerProcess, free_port, start_broker

Acks = list[tuple[int, int, int]]


def test_it_has_the_calls_of_the_other_client_with_the_same_arguments() -> None:
    def arguments(method: object) -> list[tuple[str, object]]:
        return [(p.name, p.default) for p in inspect.signature(method).parameters.values()]  # type: ignore[arg-type]

    others = ("connect", "admin", "numbered_write")  # the last one is what Spark's sink is made of, for an event loop
    names = [name for name in vars(Client) if not name.startswith("_") and name not in others]
    assert len(names) > 12
    for name in names:
        assert arguments(getattr(BlockingClient, name)) == arguments(getattr(Client, name)), name
    calls = [name for name in vars(Admin) if not name.startswith("_")]
    assert len(calls) > 12
    for name in calls:
        assert arguments(getattr(BlockingAdmin, name)) == arguments(getattr(Admin, name)), name
    made = [name for name, _ in arguments(BlockingClient.__init__)]
    assert made == ["self", *(name for name, _ in arguments(Client.connect))]


def test_callbacks_and_sources_run_in_the_thread_of_the_caller_and_may_use_the_client(
    broker: BrokerProcess, stream: str
) -> None:
    threads: dict[int, None] = {}
    acked = 0
    rows = sqlite3.connect(":memory:")  # may only be used in this thread
    rows.execute("create table t (v)")
    rows.executemany("insert into t values (?)", [(b"%d" % n,) for n in range(3000)])

    with BlockingClient(broker.address) as client:

        def source() -> Iterator[bytes]:
            for (value,) in rows.execute("select v from t"):
                threads[threading.get_ident()] = None
                yield value
            client.publish(stream, b"from the source", partition=1)

        def on_acks(acks: Acks) -> None:
            nonlocal acked
            threads[threading.get_ident()] = None
            acked += len(acks)
            client.publish(stream, b"from the callback", partition=1)

        client.create_stream(stream, partitions=2)
        assert client.publish_many(stream, source(), partition=0, on_acks=on_acks) == 3000
        assert acked == 3000
        assert list(threads) == [threading.get_ident()]
        assert [m.value for m in client.subscribe(stream, stop="latest")] == [b"%d" % n for n in range(3000)]
        assert len(list(client.subscribe(stream, 1, stop="latest"))) >= 2
    rows.close()


@pytest.mark.parametrize("retry_s", [0.0, 5.0])
def test_errors_of_callbacks_and_sources_reach_the_caller(broker: BrokerProcess, stream: str, retry_s: float) -> None:
    mine = KeyError("mine")

    def fails(acks: Acks) -> None:
        raise mine

    def source() -> Iterator[bytes]:
        yield from [b"v"] * 100
        raise mine

    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
        with pytest.raises(KeyError) as caught:
            client.publish_many(stream, [b"v"] * 5000, on_acks=fails, retry_s=retry_s)
        assert caught.value is mine
        before = client.fetch_partition_metadata(stream).high_watermark
        confirmed: list[Acks] = []
        with pytest.raises(KeyError) as caught:
            client.publish_many(stream, source(), on_acks=confirmed.append, retry_s=retry_s)
        assert caught.value is mine
        assert "100 messages are confirmed" in mine.__notes__
        assert sum(map(len, confirmed)) == 100
        assert client.fetch_partition_metadata(stream).high_watermark >= before + 100


def test_acks_come_while_a_slow_source_goes_on(broker: BrokerProcess, stream: str) -> None:
    acked = 0
    seen: list[int] = []

    def source() -> Iterator[bytes]:
        for _ in range(40):
            time.sleep(0.02)
            seen.append(acked)
            yield b"v"

    def on_acks(acks: Acks) -> None:
        nonlocal acked
        acked += len(acks)

    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
        assert client.publish_many(stream, source(), on_acks=on_acks) == 40
    assert seen[-1] > 20


def test_a_producer_is_used_from_several_threads(broker: BrokerProcess, stream: str) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
        with client.producer(stream) as producer:
            assert producer.send(b"first").result(5).offset == 0

            def work() -> None:
                receipts = [producer.send(b"v", key=b"k") for _ in range(50)]
                assert all(receipt.result().partition == 0 for receipt in receipts)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            last = producer.send(b"last")
            producer.flush()
            assert last.done()
        assert len(list(client.subscribe(stream, stop="latest"))) == 202


def test_it_administers(broker: BrokerProcess, stream: str) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
        client.publish(stream, b"v")
        assert client.admin.set_hold(stream, 0, "mine") == 0
        assert len(client.admin.describe_stream(stream).partitions) == 1
        with pytest.raises(NotFound):
            client.admin.describe_group(f"no {stream}")


def test_a_source_of_batches_runs_in_the_thread_that_iterates_and_may_block(broker: BrokerProcess, stream: str) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
        threads: dict[int, None] = {}

        def source() -> Iterator[list[bytes]]:
            for number in range(5):
                threads[threading.get_ident()] = None
                client.fetch_metadata()  # the client's own thread is not held up
                yield [b"%d" % number] * 10

        written = list(client.write_batches(stream, source()))
        assert [(each.first_offset, each.last_offset) for each in written] == [(n * 10, n * 10 + 9) for n in range(5)]
        assert list(threads) == [threading.get_ident()]
        for _ in client.write_batches(stream, itertools.repeat([b"v"])):
            break  # what is left of it is not asked for

        def fails() -> Iterator[list[bytes]]:
            yield [b"v"]
            raise KeyError("mine")

        stored: list[WrittenBatch] = []
        with pytest.raises(KeyError, match="mine"):
            stored.extend(client.write_batches(stream, fails()))


def test_each_says_what_it_is(broker: BrokerProcess, stream: str) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
        assert repr(client).startswith("<BlockingClient of <Cluster at ")
        assert repr(client.admin).startswith("<BlockingAdmin of <Cluster at ")
        assert stream in repr(client.arrow(stream))
        with client.producer(stream) as producer:
            receipt = producer.send(b"v")
            receipt.result()
            assert repr(receipt) == f"<BlockingReceipt, Sent(stream='{stream}', partition=0, offset=0)>"


def fail_in_a_batch(producer: BlockingProducer) -> BlockingProducerBatch:
    batch = producer.batch()
    try:
        with batch:
            batch.send(b"never")
            raise KeyError
    except KeyError:
        return batch


def test_a_batch_is_stored_by_a_block_and_takes_nothing_after_it(broker: BrokerProcess, stream: str) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
        with client.producer(stream) as producer:
            assert repr(producer) == f"<BlockingProducer of {stream}, 0 messages in flight>"
            batch = producer.batch()
            with pytest.raises(InvalidArgument, match="in its block"):
                batch.send(b"early")
            with batch:
                batch.send(b"debit", key=b"a", headers={"h": b"v"})
                batch.add(b"credit")
                assert repr(batch) == "<BlockingProducerBatch of 2 messages, not stored>"
            assert batch.stored == StoredBatch(stream, 0, 0, 1)
            with pytest.raises(InvalidArgument, match="in its block"):
                batch.send(b"late")
            with pytest.raises(InvalidArgument, match="in its block"), batch:
                pytest.fail("it is entered once")
            assert fail_in_a_batch(producer).stored is None
        debit, credit = client.subscribe(stream, stop="latest")
        assert (debit.value, debit.key, debit.headers["h"], credit.value) == (b"debit", b"a", b"v", b"credit")


@pytest.mark.parametrize("last_answers_s", [0.0, limits.CLIENT_LAST_ANSWERS_S])
def test_closing_leaves_no_thread_waiting(
    tmp_path: Path, last_answers_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it waits for: for brokers, acks, messages, or the caller's own source and callbacks."""
    monkeypatch.setattr(limits, "CLIENT_LAST_ANSWERS_S", last_answers_s)
    mine = threading.Event()
    outcomes: dict[str, BaseException | object] = {}

    def slow() -> Iterator[bytes]:
        yield b"v"
        mine.wait(30)
        yield b"w"

    def assigned(given: Assignment) -> None:
        mine.wait(30)

    def send_and_flush() -> None:
        flushed.send(b"x")
        flushed.flush()

    with start_broker(tmp_path) as gone:
        client = BlockingClient(gone.address)
        client.create_stream("s")
        producer, flushed = (client.producer("s", retry_for=60) for _ in range(2))
        member = client.consumer("s", group="g", on_assigned=assigned)
        waiting: dict[str, Callable[[], object]] = {
            "publish_many, the source": lambda: client.publish_many("s", slow()),
            "a member of a group": lambda: member.next(60),
            "messages": lambda: list(client.subscribe("s", start="new")),
            "a consumer": lambda: client.consumer("s", start="new").next(),
        }
        unanswered: dict[str, Callable[[], object]] = {
            "metadata": lambda: client.fetch_metadata(timeout=60),
            "a stream": lambda: client.create_stream("x", timeout=60),
            "publish": lambda: client.publish("s", b"x", timeout=60),
            "publish, again and again": lambda: client.publish("s", b"x", retry_s=60),
            "publish_many, again and again": lambda: client.publish_many("s", [b"x"], retry_s=60),
            "a receipt": lambda: producer.send(b"x").result(),
            "a flush": send_and_flush,
        }

        def work(name: str, call: Callable[[], object]) -> None:
            try:
                outcomes[name] = call()
            except BaseException as error:
                outcomes[name] = error

        def begun(calls: dict[str, Callable[[], object]]) -> list[threading.Thread]:
            threads = [threading.Thread(target=work, args=each, name=each[0], daemon=True) for each in calls.items()]
            for thread in threads:
                thread.start()
            time.sleep(0.5)
            return threads

        threads = begun(waiting)
        gone.kill9()
        threads += begun(unanswered)
        client.close()
    mine.set()
    for thread in threads:
        thread.join(20)
    assert [thread.name for thread in threads if thread.is_alive()] == []
    for name, outcome in outcomes.items():
        assert isinstance(outcome, ClientClosed | Unconfirmed | NotSent | Unavailable | TimedOut), (
            f"{name}: {outcome!r}"
        )
    client.close()  # again is harmless


def test_calls_and_closing_at_the_same_time_leave_nobody_waiting(broker: BrokerProcess) -> None:
    for _ in range(20):
        client = BlockingClient(broker.address)
        outcomes: list[type] = []

        def work(client: BlockingClient = client, outcomes: list[type] = outcomes) -> None:
            try:
                while True:
                    client.fetch_metadata()
            except BaseException as error:
                outcomes.append(type(error))

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        closing = [threading.Thread(target=client.close, daemon=True) for _ in range(2)]
        for thread in threads + closing:
            thread.start()
        for thread in threads + closing:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads + closing)
        assert set(outcomes) <= {ClientClosed, Unavailable}
        assert len(outcomes) == 4


def test_after_a_fork_it_says_so(broker: BrokerProcess, stream: str) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process with threads
            child = os.fork()
        if not child:
            signal.alarm(10)
            try:
                said = []
                for attempt in (
                    lambda: client.publish(stream, b"v"),
                    lambda: client.publish_many(stream, [b"v"]),
                    lambda: list(client.subscribe(stream, stop="latest")),
                ):
                    try:
                        attempt()
                    except RuntimeError as error:
                        said.append(str(error))
                client.close()
                os.write(writing, "\n".join(said).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            said = answer.read().splitlines()
        os.waitpid(child, 0)
        assert len(said) == 3
        assert all("connect one in each process" in text for text in said)
        assert client.publish(stream, b"v").offset == 0


def test_timeouts_and_a_closed_client(tmp_path_factory: pytest.TempPathFactory) -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable):
        BlockingClient(f"127.0.0.1:{free_port()}", timeout=0.3)
    assert time.monotonic() - began < 1.5
    with start_broker(tmp_path_factory.mktemp("blocking")) as broker:
        with BlockingClient(broker.address) as client:
            client.create_stream("s")
            client.publish("s", b"v")
            broker.pause()
            for attempt in (
                lambda: client.fetch_metadata(timeout=0.3),
                lambda: client.fetch_partition_metadata("s", timeout=0.3),
                lambda: client.delete_stream("s", timeout=0.3),
                lambda: client.publish("s", b"v", timeout=0.3),
                lambda: client.log_bounds("s", timeout=0.3),
            ):
                began = time.monotonic()
                with pytest.raises(BasculeError):
                    attempt()
                assert time.monotonic() - began < 1.0
            broker.resume()
        for late in (client.fetch_metadata, lambda: client.publish_many("s", [b"v"]), lambda: client.batches("s")):
            with pytest.raises(ClientClosed):
                late()


def test_threads_share_one(broker: BrokerProcess, stream: str) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream)

        def work() -> None:
            for _ in range(20):
                client.publish(stream, b"v")
            client.publish_many(stream, [b"w"] * 100)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(list(client.subscribe(stream, stop="latest"))) == 8 * 120


def test_an_unconfirmed_message_is_no_other_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    with start_broker(tmp_path_factory.mktemp("unconfirmed")) as broker, BlockingClient(broker.address) as client:
        client.create_stream("s")
        client.publish("s", b"v")
        broker.pause()
        with pytest.raises(Unconfirmed):
            client.publish("s", b"v", timeout=0.3)
        broker.resume()
