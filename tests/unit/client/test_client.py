"""The client's own decisions, without a broker: bytes, addresses, positions, the choice of a partition."""

import random
import re
import struct
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule import errors, limits
from bascule.client import AckPolicy, Client, Message, Outgoing
from bascule.client.cluster import Cluster
from bascule.client.failures import from_publish_code, from_status, passes_by_itself
from bascule.client.requests import Encoder, Responses, TooLarge, in_turn, partition_for, unfit
from bascule.client.subscription import Reading, Subscription, nanoseconds
from bascule.client.values import Address, metadata_of, parse_address
from bascule.errors import CorruptError, InvalidArgument, RpcError, Status
from bascule.wire import kernels
from bascule.wire.pb import api_pb2 as pb


def requests(frames: bytes) -> list[pb.PublishRequest]:
    consumed, messages, oversized = kernels.split_messages(frames, 0, len(frames), limits.GRPC_MAX_MESSAGE_BYTES)
    assert (consumed, oversized) == (len(frames), 0)
    return [pb.PublishRequest.FromString(message) for _, message in messages]


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", Address("localhost", 9292)),
        ("broker.example:19292", Address("broker.example", 19292)),
        ("[::1]:9393", Address("::1", 9393)),
        (" 127.0.0.1:1 ", Address("127.0.0.1", 1)),
    ],
)
def test_addresses_are_read_with_the_default_port(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":9292", "host:port", "host:0", "host:65536", "http://host:1", "a/b"])
def test_a_bad_address_is_refused_with_the_way_to_write_one(text: str) -> None:
    with pytest.raises(InvalidArgument, match="write HOST:PORT"):
        parse_address(text)


def test_addresses_print_as_they_are_read() -> None:
    for text in ("localhost:9292", "[::1]:9393"):
        assert str(parse_address(text)) == text


def test_a_key_chooses_the_same_partition_as_in_the_go_client() -> None:
    # CRC-32 IEEE check value: crc32("123456789") = 0xCBF43926
    assert partition_for(b"123456789", 1 << 32) == 0xCBF43926
    assert partition_for(b"123456789", 3) == 0xCBF43926 % 3


NAMES = st.text(max_size=8).filter(lambda name: name not in ("subject", "reply"))
"""Servers set these headers themselves."""


@given(
    st.lists(
        st.builds(
            Outgoing,
            st.binary(max_size=300),
            st.none() | st.binary(max_size=20),
            st.none() | st.dictionaries(NAMES, st.binary(max_size=8), max_size=3),
        ),
        max_size=5,
    ),
    st.integers(0, 10**12),
    st.sampled_from(list(AckPolicy)),
    st.integers(0, 9999),
)
def test_encoded_requests_are_what_protobuf_reads(
    messages: list[Outgoing], first: int, policy: AckPolicy, partition: int
) -> None:
    frames = Encoder("orders", policy).encode(messages, [partition] * len(messages), first)
    read = requests(frames)
    assert [(r.value, r.key, dict(r.headers)) for r in read] == [
        (m.value, m.key or b"", dict(m.headers or {})) for m in messages
    ]
    assert [r.correlationId for r in read] == [str(first + n) for n in range(len(messages))]
    assert all(r.stream == "orders" and r.partition == partition and int(r.ackPolicy) == int(policy) for r in read)
    assert all(r.expectedOffset == -1 for r in read), "0 would be a real expectation"


@given(st.lists(st.binary(max_size=20_000), max_size=5), st.integers(0, 10**6), st.integers(0, 20))
def test_bare_values_are_encoded_like_any_other(values: list[bytes], first: int, partition: int) -> None:
    encoder = Encoder("orders", AckPolicy.ALL)
    slow = encoder.encode([Outgoing(value) for value in values], [partition] * len(values), first)
    assert encoder.encode_values(values, [partition], first) == slow


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(0, 10**6), st.integers(0, 12))
def test_bare_values_take_partitions_in_turn_by_their_number(partitions: list[int], first: int, count: int) -> None:
    read = requests(Encoder("orders", AckPolicy.ALL).encode_values([b"v"] * count, partitions, first))
    assert [r.partition for r in read] == [partitions[(first + n) % len(partitions)] for n in range(count)]
    assert [r.partition for r in read] == in_turn(partitions, first, count)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("text", r"the value is text \('text'\), and messages are bytes: encode it"),
        (None, "the value is of type NoneType"),
        (7, "the value is of type int"),
        (Outgoing(b"v", "k"), "the key is text"),  # type: ignore[arg-type]
        (Outgoing(b"v", headers={"a": "b"}), "header 'a' is text"),  # type: ignore[dict-item]
        (Outgoing(b"v", headers={b"a": b"b"}), "the name of header b'a' is not text"),  # type: ignore[dict-item]
    ],
)
def test_what_is_no_bytes_is_explained(message: object, reason: str) -> None:
    assert re.match(reason, unfit(message) or "")


def test_what_can_be_published_fits() -> None:
    for message in (b"", bytearray(b"v"), memoryview(b"v"), Outgoing(b"v", b"k", {"a": b"b"})):
        assert unfit(message) is None


@given(st.binary(max_size=300), st.integers(0, 5), st.integers(1, 10**12))
def test_one_value_is_encoded_as_several_are(value: bytes, partition: int, number: int) -> None:
    encoder = Encoder("s", AckPolicy.ALL)
    assert encoder.encode_value(value, partition, number) == encoder.encode_values([value], [partition], number)
    assert encoder.encode_value(value, partition, number) == encoder.encode([Outgoing(value)], [partition], number)


def test_a_message_that_fits_no_request_is_named() -> None:
    values = [b"", bytes(limits.GRPC_MAX_MESSAGE_BYTES)]
    with pytest.raises(TooLarge, match="send it in parts") as caught:
        Encoder("s", AckPolicy.ALL).encode_values(values, [0], 7)
    assert caught.value.position == 1
    with pytest.raises(TooLarge, match="send it in parts"):
        Encoder("s", AckPolicy.ALL).encode_value(values[1], 0, 7)


def test_responses_are_put_together_from_any_pieces() -> None:
    refused = pb.PublishResponse(asyncError=pb.PublishAsyncError(message="no"), correlationId="1")
    acks = [pb.PublishResponse(ack=pb.Ack(stream="s", offset=n, correlationId=str(n))) for n in (0, 2)]
    sent = [(0, "s", 0, "", 0, 0, 0), refused, (2, "s", 2, "", 0, 0, 0)]
    data = b"".join(framed(response.SerializeToString()) for response in (acks[0], refused, acks[1]))
    dice = random.Random(1)
    for _ in range(20):
        cuts = sorted(dice.choices(range(len(data)), k=6))
        responses = Responses()
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        assert [response for piece in pieces for response in responses.feed(piece)] == sent


def test_statuses_become_the_errors_of_the_same_name() -> None:
    assert type(from_status(RpcError(Status.NOT_FOUND, "x"))) is errors.NotFound
    assert type(from_status(RpcError(Status.UNAVAILABLE, "x"))) is errors.Unavailable
    assert type(from_status(RpcError(Status.ABORTED, "x"))) is RpcError
    assert type(from_publish_code(pb.PublishAsyncError.INCORRECT_OFFSET, "x")) is errors.IncorrectOffset
    assert type(from_publish_code(99, "x")) is errors.UnknownOutcome


def test_only_failures_that_pass_are_tried_again() -> None:
    assert passes_by_itself(errors.Unavailable("gone"))
    assert passes_by_itself(errors.Internal("no known metadata leader"))
    assert not passes_by_itself(errors.Internal("disk full"))
    assert not passes_by_itself(errors.NotFound("no such stream"))
    assert not passes_by_itself(errors.Unconfirmed("may be stored"))


def test_positions_become_the_request_fields_they_name() -> None:
    moment = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
    read = pb.SubscribeRequest.FromString(Reading("s", 2, "new", moment, False, False).request(moment))
    assert (read.stream, read.partition) == ("s", 2)
    assert (read.startPosition, read.startTimestamp) == (pb.StartPosition.TIMESTAMP, nanoseconds(moment))
    assert (read.stopPosition, read.stopTimestamp) == (pb.StopPosition.STOP_TIMESTAMP, nanoseconds(moment))
    read = pb.SubscribeRequest.FromString(Reading("s", 0, 5, "latest", True, True).request(5))
    assert (read.startPosition, read.startOffset, read.reverse, read.resume) == (1, 5, True, True)
    assert read.stopPosition == pb.StopPosition.STOP_LATEST


@given(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_times_go_to_nanoseconds_and_back_exactly(moment: datetime) -> None:
    message = Message(0, b"", b"", nanoseconds(moment), "", 0, "", "", {})
    assert message.time == moment


def stored(count: int) -> bytes:
    """Records as a Bascule broker keeps and sends them."""
    batch = b"".join(struct.pack("<HHI", 1, 0, 5) + b"s" + b"value" for _ in range(count))
    tail = kernels.record_tail(b"", b"s", b"")
    records: bytes = kernels.encode_records(batch, b"", b"s", tail, 0, 1, 1000, 0, 1 << 20, False, b"")[0]
    return records


def reader() -> Subscription:
    cluster = Cluster([Address("localhost", 9292)], None, on_wait=lambda error, seconds: None)
    return Subscription(cluster, Reading("s", 0, "earliest", None, False, False))


def received(data: bytes) -> list[Message]:
    subscription = reader()
    subscription._rest = data
    return subscription._decode()


def test_a_message_without_a_key_has_none() -> None:
    data = b"".join(framed(pb.Message(offset=n, key=b"k" * n, value=b"v").SerializeToString()) for n in range(2))
    assert [message.key for message in received(data)] == [None, b"k"]


def test_no_flipped_bit_of_a_record_reaches_the_caller() -> None:
    good = stored(3)
    assert [message.offset for message in received(good)] == [0, 1, 2]
    size = len(good) // 3
    for bit in range(8 * (size + 5), 8 * 2 * size):  # the second record, without its frame
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError, match="partition 0 of stream s"):
            received(bytes(bad))


def test_messages_of_servers_without_checksums_are_taken_as_they_are() -> None:
    foreign = b"".join(framed(pb.Message(offset=n, value=b"v" * n).SerializeToString()) for n in range(30))
    assert [message.offset for message in received(foreign)] == list(range(30))
    for cut in range(len(foreign)):
        subscription = reader()
        subscription._rest = foreign[:cut]
        first = subscription._decode()
        subscription._rest += foreign[cut:]
        assert len(first) + len(subscription._decode()) == 30


def test_streams_the_broker_does_not_know_are_left_out_of_the_metadata() -> None:
    response = pb.FetchMetadataResponse(
        brokers=[pb.Broker(id="a", host="h", port=1)],
        streamMetadata=[
            pb.StreamMetadata(name="known", subject="k", partitions={0: pb.PartitionMetadata(id=0, leader="a")}),
            pb.StreamMetadata(name="unknown", error=pb.StreamMetadata.UNKNOWN_STREAM),
        ],
    )
    metadata = metadata_of(response)
    assert list(metadata.streams) == ["known"]
    assert metadata.streams["known"].partitions[0].leader == "a"


def test_a_client_that_is_not_awaited_says_so() -> None:
    with pytest.raises(AttributeError, match=r"no client yet that has 'publish': `client = await Client.connect"):
        Client.connect("localhost:9292").publish  # type: ignore[attr-defined]  # noqa: B018
