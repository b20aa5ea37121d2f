"""What comes over NATS: envelopes, what is none, and what is stored of each."""

import time
from typing import Any

import pytest

from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import Server, unique
from tests.harness.envelopes import ACK, MAGIC, ack_of, envelope, message, with_crc

MESSAGE = api.Message(key=b"k", value=b"v", headers={"h": b"1"}).SerializeToString()


def stored(server: Server, data: bytes) -> api.Message:
    """What becomes of these bytes on a stream's subject; one more message after it shows that it was one."""
    name = server.create()
    with server.nats() as nats:
        nats.publish(name.encode(), data)
        nats.publish(name.encode(), b"after")
        nats.flush()
    first, second = server.holds(name, 2)
    assert second.value == b"after"
    return first


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(envelope(MESSAGE), id="2.1: header of 8 bytes"),
        pytest.param(with_crc(MESSAGE), id="2.1: header of 12 bytes with a CRC-32C"),
        pytest.param(envelope(MESSAGE, length=12), id="2.1: header length 12 without the CRC flag"),
        pytest.param(envelope(MESSAGE, length=20), id="2.1: any header length without the CRC flag"),
        pytest.param(envelope(MESSAGE, flags=0b1010_1010), id="2.1: other flags are ignored"),
    ],
)
def test_an_envelope_is_unwrapped(server: Server, data: bytes) -> None:
    found = stored(server, data)
    assert (found.key, found.value, found.headers["h"]) == (b"k", b"v", b"1")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"plain", id="2.2: a plain message"),
        pytest.param(b"", id="2.2: an empty message"),
        pytest.param(MAGIC + b"\0\x08\0", id="2.1: fewer than 8 bytes"),
        pytest.param(envelope(MESSAGE, magic=b"\xb9\x0e\x43\xb5"), id="2.1: wrong magic number"),
        pytest.param(envelope(MESSAGE, version=1), id="2.1: unknown version"),
        pytest.param(envelope(MESSAGE, ACK), id="2.1: wrong type"),
        pytest.param(with_crc(MESSAGE, wrong=True), id="2.1: CRC mismatch"),
        pytest.param(envelope(MESSAGE, flags=1), id="2.1: CRC flag and a header of 8 bytes"),
        pytest.param(with_crc(MESSAGE, length=13), id="2.1: CRC flag and a header of 13 bytes"),
        pytest.param(envelope(b"\xff\xff\xff\xff"), id="2.1: payload is no protobuf"),
    ],
)
def test_everything_else_is_stored_whole(server: Server, data: bytes) -> None:
    """2.2: the entire NATS payload is stored as an opaque value, without key, headers and ack."""
    found = stored(server, data)
    assert found.value == data
    assert (found.key, sorted(found.headers)) == (b"", ["reply", "subject"])


@pytest.mark.differs("an envelope whose header length points past the message")
@pytest.mark.parametrize("length", [9, 255])
def test_a_header_longer_than_the_message_is_no_envelope(server: Server, length: int) -> None:
    """2.1: header length beyond the message; 11.3."""
    data = envelope(b"")[:5] + bytes((length,)) + envelope(b"")[6:]
    assert stored(server, data).value == data


def test_acks_have_a_plain_header(server: Server) -> None:
    """2.1: the server emits no CRC; 2.5: acks are envelopes of type 1 on the ackInbox."""
    name, inbox = server.create(), unique("inbox")
    with server.nats() as nats:
        nats.subscribe(inbox.encode())
        nats.publish(name.encode(), message(ackInbox=inbox, correlationId="c"))
        ack = ack_of(nats.messages(1)[0].payload)
    assert (ack.stream, ack.msgSubject, ack.ackInbox, ack.correlationId) == (name, name, inbox, "c")


# --- what is stored ------------------------------------------------------------------------------------------


def test_an_envelope_is_stored_with_subject_and_reply(server: Server) -> None:
    """2.3: header subject; 2.3: header reply; 1.4 Message: what subscribers are given."""
    name = server.create()
    fields: dict[str, Any] = {"key": b"k", "headers": {"a": b"1", "subject": b"mine", "reply": b"mine"}}
    with server.nats() as nats:
        nats.publish(name.encode(), message(b"v", ackInbox="in.box", correlationId="c", ackPolicy=api.ALL, **fields))
        nats.publish(name.encode(), message(b"v", **fields), reply=b"answer.here")
        nats.flush()
    without, with_reply = server.holds(name, 2)
    assert dict(without.headers) == {"a": b"1", "subject": name.encode(), "reply": b""}
    assert dict(with_reply.headers) == {"a": b"1", "subject": name.encode(), "reply": b"answer.here"}
    assert (without.subject, without.replySubject) == (name, "")
    assert (with_reply.subject, with_reply.replySubject) == (name, "answer.here")
    assert (without.ackInbox, without.correlationId, without.ackPolicy) == ("", "", api.LEADER), "not stored"


def test_a_plain_message_has_no_key_and_two_headers(server: Server) -> None:
    """2.3: a plain NATS message."""
    name = server.create()
    with server.nats() as nats:
        nats.publish(name.encode(), b"plain", reply=b"back")
        nats.flush()
    (found,) = server.holds(name, 1)
    assert (found.key, found.value) == (b"", b"plain")
    assert dict(found.headers) == {"subject": name.encode(), "reply": b"back"}


def test_timestamps_are_the_leaders(server: Server) -> None:
    """2.3: the timestamp is the leader's clock, never the publisher's."""
    name = server.create()
    before = time.time_ns()
    with server.nats() as nats:
        nats.publish(name.encode(), message(timestamp=1))
        nats.flush()
    (found,) = server.holds(name, 1)
    assert before <= found.timestamp <= time.time_ns()


def test_nats_headers_are_not_recorded(server: Server) -> None:
    """2.3: NATS message headers (HPUB) are not recorded."""
    name = server.create()
    with server.nats() as nats:
        nats.publish_with_headers(name.encode(), b"NATS/1.0\r\nA: 1\r\n\r\n", b"value")
        nats.flush()
    (found,) = server.holds(name, 1)
    assert (found.value, sorted(found.headers)) == (b"value", ["reply", "subject"])


def test_routing_is_by_subject_alone(server: Server) -> None:
    """2.3: stream, partition, subject and replySubject in an envelope are ignored."""
    name, other = server.create(partitions=2), server.create("other")
    with server.nats() as nats:
        routed = message(b"v", stream=other, partition=1, subject=other, replySubject="x")
        nats.publish(name.encode(), routed)
        nats.flush()
    (found,) = server.holds(name, 1)
    assert (found.stream, found.partition, found.subject, found.replySubject) == (name, 0, name, "")
    assert server.partition(other).newestOffset == server.partition(name, 1).newestOffset == -1


def test_every_stream_on_a_subject_acks(server: Server) -> None:
    """2.3: each stream on the subject sends its own ack."""
    subject, inbox = unique("acks"), unique("inbox")
    names = [server.create("acks", subject) for _ in range(3)]
    with server.nats() as nats:
        nats.subscribe(inbox.encode())
        nats.publish(subject.encode(), message(ackInbox=inbox))
        acks = [ack_of(each.payload) for each in nats.messages(3)]
    assert sorted(ack.stream for ack in acks) == sorted(names)
    assert {(ack.partitionSubject, ack.offset) for ack in acks} == {(subject, 0)}
