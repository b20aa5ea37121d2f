"""Whatever a NATS or gRPC peer sends, through real sockets: it is stored as it is, refused, or hung up on. It never
stops the broker, and never reaches NATS as a command.
"""

import os
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from bascule.testing.probe import PREFACE
from bascule.testing.processes import BrokerProcess, poll, start_broker
from bascule.wire.envelope import MAGIC, MsgType, decode, encode
from bascule.wire.pb import api_pb2 as api
from tests.harness import http2_peer
from tests.harness.grpc_calls import TIMEOUT_S, create, publish, status_of, stored, values
from tests.harness.raw_nats import RawNats
from tests.harness.stub import Stub

MAX_BYTES = 10_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("input")
    with start_broker(folder, config={"clustering.replication.max.bytes": MAX_BYTES}) as process:
        yield process
        assert process.running, process.log_tail()
        assert "Traceback" not in process.logs()


@pytest.fixture(scope="module")
def stub(broker: BrokerProcess) -> Iterator[Stub]:
    with Stub(broker.address) as stub:
        yield stub


@pytest.fixture
def nats(broker: BrokerProcess) -> Iterator[RawNats]:
    with RawNats(broker.nats_url) as client:
        yield client


def ack_of(payload: bytes) -> api.Ack:
    content = decode(payload, MsgType.ACK)
    assert content is not None
    return api.Ack.FromString(content)


def envelope(value: bytes, **fields: object) -> bytes:
    return encode(MsgType.PUBLISH, api.Message(value=value, **fields).SerializeToString())  # type: ignore[arg-type]


def publish_and_settle(stub: Stub, nats: RawNats, subject: str, payloads: list[bytes]) -> list[api.Message]:
    """What is stored once everything up to a last, acked message is."""
    for payload in payloads:
        nats.publish(subject.encode(), payload)
    nats.flush()
    publish(stub, subject, b"last", ackPolicy=api.ALL)
    messages = stored(stub, subject)
    assert messages[-1].value == b"last"
    return messages[:-1]


# --- envelopes --------------------------------------------------------------------------------------------------------

GOOD = envelope(b"good", key=b"k")
WITH_CRC = encode(MsgType.PUBLISH, api.Message(value=b"good").SerializeToString(), crc=True)

BAD = {
    "nothing at all": b"",
    "a piece of the magic number": MAGIC[:3],
    "a truncated header": GOOD[:7],
    "a header length beyond the message": MAGIC + bytes((0, 255, 0, 0)) + b"short",
    "a header length one beyond the message": MAGIC + bytes((0, 14, 0, 0)) + b"short",
    "a header length beyond the message, with CRC": MAGIC + bytes((0, 200, 1, 0)) + b"crc!short",
    "a CRC in a header of eight bytes": MAGIC + bytes((0, 8, 1, 0)) + GOOD[8:],
    "a truncated CRC": MAGIC + bytes((0, 12, 1, 0)) + b"cr",
    "a wrong CRC": WITH_CRC[:8] + bytes(4) + WITH_CRC[12:],
    "a changed byte under a CRC": WITH_CRC[:-1] + b"?",
    "an unknown version": GOOD[:4] + b"\x01" + GOOD[5:],
    "an unknown type": GOOD[:7] + b"\x63" + GOOD[8:],
    "an Ack": encode(MsgType.ACK, api.Ack(stream="x").SerializeToString()),
    "a replication request": encode(MsgType.REPLICATION_REQUEST, b""),
    "protobuf garbage": encode(MsgType.PUBLISH, b"\xff" * 20),
    "a truncated field": encode(MsgType.PUBLISH, api.Message(value=b"value").SerializeToString()[:-2]),
    "a field number of zero": encode(MsgType.PUBLISH, b"\x00\x01"),
    "a group without an end": encode(MsgType.PUBLISH, b"\x0b"),
    "an ackInbox that is no UTF-8": encode(MsgType.PUBLISH, b"\x52\x02\xff\xfe"),
    "a correlationId that is no UTF-8": encode(MsgType.PUBLISH, b"\x5a\x02\xc3\x28"),
    "a name of a header that is no UTF-8": encode(MsgType.PUBLISH, b"\x4a\x07\x0a\x02\xff\xfe\x12\x01v"),
    "no envelope": bytes(range(256)),
}


def test_what_is_no_valid_envelope_is_stored_as_the_plain_message_it_is(stub: Stub, nats: RawNats) -> None:
    create(stub, "envelopes")
    messages = publish_and_settle(stub, nats, "envelopes", list(BAD.values()))
    assert dict(zip(BAD, [message.value for message in messages], strict=True)) == BAD
    for message in messages:
        assert (message.key, dict(message.headers)) == (b"", {"subject": b"envelopes", "reply": b""})
        assert (message.ackInbox, message.correlationId) == ("", "")


def test_valid_envelopes_are_opened_however_long_their_header_is(stub: Stub, nats: RawNats) -> None:
    create(stub, "valid")
    padded = GOOD[:5] + bytes((8 + 5,)) + GOOD[6:8] + b"extra" + GOOD[8:]
    messages = publish_and_settle(stub, nats, "valid", [GOOD, WITH_CRC, padded, encode(MsgType.PUBLISH, b"")])
    assert [message.value for message in messages] == [b"good", b"good", b"good", b""]
    assert messages[0].key == b"k"


def test_random_bytes_behind_a_good_header_never_stop_the_stream(stub: Stub, nats: RawNats) -> None:
    create(stub, "random")
    chance = random.Random(2024)
    payloads = [encode(MsgType.PUBLISH, chance.randbytes(chance.randrange(60)), crc=bool(n % 2)) for n in range(2000)]
    messages = publish_and_settle(stub, nats, "random", payloads)
    assert [message.offset for message in messages] == list(range(len(payloads)))


def test_what_publishers_may_not_decide_is_not_taken_from_their_envelopes(stub: Stub, nats: RawNats) -> None:
    create(stub, "claims")
    claim = envelope(
        b"v",
        offset=77,
        timestamp=5,
        stream="other",
        partition=9,
        subject="other",
        replySubject="other",
        headers={"subject": b"forged", "reply": b"forged", "own": b"kept"},
    )
    (message,) = publish_and_settle(stub, nats, "claims", [claim + b"\xa2\x7d\x0c" + bytes(12)])  # and our own trailer
    assert (message.offset, message.stream, message.partition, message.subject) == (0, "claims", 0, "claims")
    assert message.timestamp > 5
    assert dict(message.headers) == {"subject": b"claims", "reply": b"", "own": b"kept"}


# --- acks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inbox",
    [
        "inbox\r\nPUB injected 3\r\nbad\r\nPUB inbox",
        "inbox injected",
        "inbox\tinjected",
        "injected.>",
        "injected.*",
        ".injected",
        "injected.",
        "injected..twice",
        "injected\x00",
        "x" * 5000,
    ],
    ids=range(10),
)
def test_an_inbox_that_is_no_subject_gets_no_ack_and_injects_nothing(stub: Stub, nats: RawNats, inbox: str) -> None:
    name = f"inbox-{abs(hash(inbox))}"
    create(stub, name)
    nats.subscribe(b"injected", 1)
    nats.subscribe(b"injected.>", 2)
    nats.subscribe(b"inbox", 3)
    nats.subscribe(b"sound", 4)
    nats.publish(name.encode(), envelope(b"bad inbox", ackInbox=inbox))
    nats.publish(name.encode(), envelope(b"sound inbox", ackInbox="sound"))
    (only,) = nats.messages(1)
    assert (only.subject, ack_of(only.payload).offset) == (b"sound", 1)
    assert values(stub, name) == [b"bad inbox", b"sound inbox"]
    assert nats.pending() == []


def test_a_message_over_the_bound_gets_its_ack_and_is_not_stored(stub: Stub, nats: RawNats) -> None:
    create(stub, "large")
    nats.subscribe(b"large-acks")
    fitting = envelope(b"x" * (MAX_BYTES - 100), ackInbox="large-acks", correlationId="fits")
    fitting = envelope(b"x" * (MAX_BYTES - 100 + MAX_BYTES - len(fitting)), ackInbox="large-acks", correlationId="fits")
    assert len(fitting) == MAX_BYTES
    for policy in (api.LEADER, api.ALL, api.NONE):
        message = envelope(b"x" * MAX_BYTES, ackInbox="large-acks", correlationId="large", ackPolicy=policy)
        nats.publish(b"large", message)
    nats.publish(b"large", b"plain" * MAX_BYTES)
    nats.publish(b"large", fitting)
    acks = [ack_of(message.payload) for message in nats.messages(4)]
    assert [(ack.correlationId, ack.ackError) for ack in acks] == [("large", api.Ack.TOO_LARGE)] * 3 + [("fits", 0)]
    assert [len(value) for value in values(stub, "large")] == [len(api.Message.FromString(fitting[8:]).value)]
    code, text = status_of(lambda: publish(stub, "large", b"x" * MAX_BYTES))
    assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, "message exceeds max replication size")


def test_expected_offsets_are_checked_for_whoever_publishes(stub: Stub, nats: RawNats) -> None:
    create(stub, "occ", optimisticConcurrencyControl=api.NullableBool(value=True))
    nats.subscribe(b"occ-acks")
    expected = [0, 0, 5, 1, -1, 3, 2]
    for index, offset in enumerate(expected):
        message = envelope(b"%d" % index, offset=offset, ackInbox="occ-acks", correlationId=str(index))
        nats.publish(b"occ", message)
    nats.publish(b"occ", b"a plain message expects 0")
    acks = [ack_of(message.payload) for message in nats.messages(len(expected))]
    wrong = [ack.correlationId for ack in acks if ack.ackError == api.Ack.INCORRECT_OFFSET]
    right = [(ack.correlationId, ack.offset) for ack in acks if ack.ackError == api.Ack.OK]
    assert right == [("0", 0), ("3", 1), ("4", 2), ("5", 3)]
    assert wrong == ["1", "2", "6"]
    nats.flush()
    assert values(stub, "occ") == [b"0", b"3", b"4", b"5"]


# --- subjects ---------------------------------------------------------------------------------------------------------


def test_a_stream_on_everything_skips_the_clusters_own_subjects_and_does_not_feed_itself(
    tmp_path: Path,
) -> None:
    with start_broker(tmp_path) as broker, Stub(broker.address) as stub, RawNats(broker.nats_url) as nats:
        create(stub, "all", subject=">")
        create(stub, "orders")
        for number in range(20):  # their acks go through inboxes of the cluster
            publish(stub, "orders", b"%d" % number)
        nats.publish(b"liftbridge-default.ack.somebody.x", b"own")
        nats.publish(b"liftbridge-defaults.other", b"not own")
        nats.subscribe(b"acks")
        nats.publish(b"anything", envelope(b"acked", ackInbox="acks", correlationId="c"))
        (ack,) = nats.messages(1)
        offset = ack_of(ack.payload).offset
        assert poll(lambda: len(stored(stub, "all")) > offset + 1), "it stores the foreign ack too, as anything else"
        publish(stub, "orders", b"end")
        messages = stored(stub, "all")
        assert [message.value for message in messages if message.subject == "orders"] == values(stub, "orders")
        others = [message.subject for message in messages if message.subject != "orders"]
        assert others == ["liftbridge-defaults.other", "anything", "acks"]
        (copy,) = [message for message in messages if message.subject == "acks"]
        assert copy.value == ack.payload


def test_several_streams_on_one_subject_each_store_and_ack(stub: Stub, nats: RawNats) -> None:
    for name in ("shared-a", "shared-b"):
        create(stub, name, subject="shared.x")
    create(stub, "shared-wild", subject="shared.*")
    nats.subscribe(b"shared-acks")
    for number in range(3):
        nats.publish(b"shared.x", envelope(b"%d" % number, ackInbox="shared-acks", correlationId=str(number)))
    acks = [ack_of(message.payload) for message in nats.messages(9)]
    told = sorted((ack.stream, ack.offset, ack.correlationId) for ack in acks)
    assert told == [
        (name, number, str(number)) for name in ("shared-a", "shared-b", "shared-wild") for number in range(3)
    ]
    for name in ("shared-a", "shared-b", "shared-wild"):
        assert values(stub, name) == [b"0", b"1", b"2"]
    assert publish(stub, "shared-a", b"by grpc").offset == 3
    assert poll(lambda: all(len(values(stub, name)) == 4 for name in ("shared-b", "shared-wild")))


def test_streams_of_one_group_share_the_messages_and_others_get_all_of_them(stub: Stub, nats: RawNats) -> None:
    for name in ("group-a", "group-b"):
        create(stub, name, subject="grouped", group="workers")
    create(stub, "group-all", subject="grouped")
    nats.subscribe(b"group-acks")
    count = 200
    for number in range(count):
        nats.publish(b"grouped", envelope(b"%d" % number, ackInbox="group-acks"))
    acks = [ack_of(message.payload) for message in nats.messages(2 * count)]
    assert len({(ack.stream, ack.offset) for ack in acks}) == 2 * count
    parts = values(stub, "group-a"), values(stub, "group-b")
    assert all(parts), "both got some"
    everything = [b"%d" % number for number in range(count)]
    assert sorted(parts[0] + parts[1]) == sorted(everything)
    assert values(stub, "group-all") == everything


@pytest.mark.parametrize("subject", ["wild.>", "tame.*.x", "meek.*"])
def test_publishing_to_a_stream_with_wildcards_uses_its_subject_as_it_stands(stub: Stub, subject: str) -> None:
    name = f"wild-{subject.count('>')}-{subject.count('.')}"
    create(stub, name, subject=subject)
    assert publish(stub, name, b"literal", ackPolicy=api.ALL).offset == 0
    responses = stub.PublishAsync(
        iter([api.PublishRequest(stream=name, value=b"literal too", correlationId="c")]), timeout=TIMEOUT_S
    )
    assert [response.ack.offset for response in responses] == [1]
    (first, second) = stored(stub, name)
    assert first.subject == second.subject == subject
    assert first.headers["subject"] == subject.encode()


def test_headers_of_nats_itself_are_dropped_and_the_payload_is_whole(stub: Stub, nats: RawNats) -> None:
    create(stub, "hpub")
    headers = b"NATS/1.0\r\nsecret: value\r\n\r\n"
    nats.publish_with_headers(b"hpub", headers, b"plain")
    nats.publish_with_headers(b"hpub", headers, envelope(b"enveloped", headers={"own": b"1"}))
    nats.publish_with_headers(b"hpub", headers, b"")
    messages = publish_and_settle(stub, nats, "hpub", [])
    assert [message.value for message in messages] == [b"plain", b"enveloped", b""]
    assert sorted(messages[0].headers) == ["reply", "subject"]
    assert sorted(messages[1].headers) == ["own", "reply", "subject"]


def test_the_reply_subject_is_stored(stub: Stub, nats: RawNats) -> None:
    create(stub, "replies")
    nats.publish(b"replies", b"plain", reply=b"answer.here")
    nats.publish(b"replies", envelope(b"enveloped"), reply=b"answer.there")
    nats.publish(b"replies", b"odd", reply=b"odd\xff")
    messages = publish_and_settle(stub, nats, "replies", [])
    assert [message.replySubject for message in messages] == ["answer.here", "answer.there", "odd\ufffd"]
    assert [message.headers["reply"] for message in messages] == [b"answer.here", b"answer.there", b"odd\xff"]


def test_subjects_that_are_no_utf8_are_stored_readably(stub: Stub, nats: RawNats) -> None:
    create(stub, "odd-subjects", subject="odd.*")
    nats.publish(b"odd.\xff\xfe", b"v")
    nats.subscribe(b"odd-acks")
    nats.publish(b"odd.sound", envelope(b"w", ackInbox="odd-acks"))
    nats.messages(1)
    first, second = stored(stub, "odd-subjects")
    assert first.subject == "odd.\ufffd\ufffd"
    assert first.headers["subject"] == b"odd.\xff\xfe"
    assert second.subject == "odd.sound"


# --- the gRPC port ----------------------------------------------------------------------------------------------------


def hung_up(broker: BrokerProcess, data: bytes) -> bytes:
    """What the broker answers before it closes the connection. A reset counts as closing."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_S) as connection:
        answer = b""
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionError:
            pass
        return answer


def tls_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def test_peers_that_speak_something_else_are_hung_up_on(broker: BrokerProcess, stub: Stub) -> None:
    create(stub, "calm")
    chance = random.Random(7)
    assert b"HTTP/1.1" in hung_up(broker, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "a browser is told something"
    strange = [
        b"POST /proto.API/FetchMetadata HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        tls_hello(),
        b"",
        b"\0" * 10_000,
        b"PING\r\nCONNECT {}\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        PREFACE[:10],
        PREFACE,
        PREFACE + b"\xff" * 100_000,
        PREFACE + http2_peer.settings() + b"\0\0\0\x63\0\0\0\0\0" * 10,
        *(chance.randbytes(5000) for _ in range(20)),
        *(PREFACE + http2_peer.settings() + chance.randbytes(5000) for _ in range(20)),
    ]
    for data in strange:
        hung_up(broker, data)
    assert publish(stub, "calm").offset == 0


def test_malformed_requests_on_a_good_connection_fail_alone(broker: BrokerProcess, stub: Stub) -> None:
    create(stub, "alone")
    for method in ("CreateStream", "Publish", "Subscribe", "PublishAsync", "FetchMetadata"):
        call = stub.channel.stream_stream(f"/proto.API/{method}")
        code, _ = status_of(lambda call=call: list(call(iter([b"\xff" * 50]), timeout=TIMEOUT_S)))  # type: ignore[misc]
        assert code is grpc.StatusCode.INTERNAL, method
    call = stub.channel.unary_unary("/proto.API/NoSuchMethod")
    assert status_of(lambda: call(b"", timeout=TIMEOUT_S))[0] is grpc.StatusCode.UNIMPLEMENTED
    huge = api.PublishRequest(stream="alone", value=bytes(5_000_000))
    assert status_of(lambda: stub.Publish(huge, timeout=TIMEOUT_S))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert publish(stub, "alone").offset == 0


def test_ten_thousand_streams_opened_and_reset_end_that_connection_only(broker: BrokerProcess, stub: Stub) -> None:
    create(stub, "reset")
    subscription = stub.Subscribe(api.SubscribeRequest(stream="reset"), timeout=60)
    assert next(subscription) == api.Message()
    headers = [(name, "/proto.API/Subscribe" if name == ":path" else value) for name, value in http2_peer.REQUEST]
    reset = (8).to_bytes(4, "big")
    with socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_S) as attacker:
        attacker.sendall(PREFACE + http2_peer.settings())
        sent = 0
        try:
            for first in range(1, 20_001, 200):
                ids = range(first, first + 200, 2)
                attacker.sendall(
                    b"".join(http2_peer.request(i, headers=headers) + http2_peer.raw(3, 0, i, reset) for i in ids)
                )
                sent += len(ids)
            while attacker.recv(65536):
                pass
        except ConnectionError:
            pass
        else:
            assert sent == 10_000
    assert publish(stub, "reset", b"still here").offset == 0
    assert next(subscription).value == b"still here"
    subscription.cancel()
    connections = f"/proc/{broker.pid}/fd"
    assert poll(lambda: len(os.listdir(connections)) < 200)
