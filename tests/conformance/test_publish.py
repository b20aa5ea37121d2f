"""Publish, PublishAsync and PublishToSubject."""

import queue
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import TIMEOUT_S, Outcome, Server, outcome, status, unique
from tests.harness.envelopes import ack_of

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
UNKNOWN = grpc.StatusCode.UNKNOWN
MAX_PAYLOAD = 1024 * 1024
OCC = api.NullableBool(value=True)
Code = api.PublishAsyncError.Code
Errors = dict[str, tuple[int, str]]


def refused(server: Server, timeout: float = TIMEOUT_S, **fields: Any) -> Outcome:
    request = api.PublishRequest(**fields)
    return status(server.any.Publish, request, timeout)


def all_answers(server: Server, *requests: api.PublishRequest) -> list[api.PublishResponse]:
    """What a PublishAsync call answers until its end, after these requests and a half-close."""
    return list(server.any.PublishAsync(iter(requests), timeout=TIMEOUT_S))


def answer(server: Server, **fields: Any) -> api.PublishResponse:
    """The one answer to the first of two requests; the second one shows that the call goes on."""
    other = server.create("goes-on")
    answers = all_answers(
        server,
        api.PublishRequest(correlationId="first", **fields),
        api.PublishRequest(correlationId="second", stream=other, value=b"x"),
    )
    by_id = {each.correlationId: each for each in answers}
    assert sorted(by_id) == ["first", "second"], answers
    assert (by_id["second"].ack.offset, by_id["second"].HasField("asyncError")) == (0, False)
    return by_id["first"]


def error(server: Server, **fields: Any) -> tuple[int, str]:
    found = answer(server, **fields)
    assert found.HasField("ack"), "an empty ack goes with an error, for old clients"
    assert found.ack == api.Ack()
    return found.asyncError.code, found.asyncError.message


# --- Publish -------------------------------------------------------------------------------------------------


def test_publish_without_a_stream(server: Server) -> None:
    """1.5 Publish: stream empty; 7.2 TestLegacyPublish."""
    assert refused(server, value=b"x") == (INVALID, "no stream provided")


def test_publish_to_an_unknown_stream(server: Server) -> None:
    """1.5 Publish: unknown stream; 7.2 TestPublishNoSuchStream."""
    name = unique("unknown")
    assert refused(server, stream=name) == (NOT_FOUND, f"no such stream: {name}")


@pytest.mark.parametrize("partition", [1, -1, 2**31 - 1])
def test_publish_to_an_unknown_partition(server: Server, partition: int) -> None:
    """1.5 Publish: unknown partition; 7.2 TestPublishNoSuchPartition."""
    assert refused(server, stream=server.create(), partition=partition) == (
        NOT_FOUND,
        f"no such partition: {partition}",
    )


def test_publish_to_a_readonly_partition(server: Server) -> None:
    """1.5 Publish: partition readonly."""
    name = server.create(partitions=2)
    server.set_readonly(name, 1)
    expected = (grpc.StatusCode.FAILED_PRECONDITION, "readonly partition: 1")
    assert refused(server, stream=name, partition=1) == expected
    assert server.publish(name).offset == 0


def test_publish_with_concurrency_control_needs_an_ack_policy(server: Server) -> None:
    """1.5 Publish: OCC stream and ackPolicy NONE."""
    name = server.create(optimisticConcurrencyControl=OCC)
    text = "stream with concurrency control must have AckPolicy set"
    assert refused(server, stream=name, ackPolicy=api.NONE) == (INVALID, text)


def test_readonly_is_checked_before_concurrency_control(server: Server) -> None:
    """1.5 Publish: readonly before OCC."""
    name = server.create(optimisticConcurrencyControl=OCC)
    server.set_readonly(name)
    assert refused(server, stream=name, ackPolicy=api.NONE)[1] == "readonly partition: 0"


def test_publish_at_a_wrong_offset(server: Server) -> None:
    """1.5 Publish: ack INCORRECT_OFFSET; 11.24."""
    name = server.create(optimisticConcurrencyControl=OCC)
    assert refused(server, stream=name, expectedOffset=7) == (UNKNOWN, "incorrect expected offset")
    assert server.partition(name).newestOffset == -1


def test_publish_more_than_nats_takes(server: Server) -> None:
    """1.5 Publish: NATS publish failed; 7.2 TestStreamPublishSubscribe."""
    expected = (UNKNOWN, "failed to publish to NATS: nats: maximum payload exceeded")
    assert refused(server, stream=server.create(), value=bytes(MAX_PAYLOAD)) == expected


def test_publish_without_an_ack_in_time(server: Server) -> None:
    """1.5 Publish: no ack before deadline; 2.5: below minISR nothing commits and ALL acks wait."""
    name = server.create(minIsr=api.NullableInt32(value=7))
    assert refused(server, 0.5, stream=name, ackPolicy=api.ALL)[0] is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("policy", [api.LEADER, api.ALL])
def test_publish_without_a_deadline_returns_at_once(server: Server, policy: "api.AckPolicy") -> None:
    """1.5 Publish: no deadline, no ack."""
    name = server.create()
    request = api.PublishRequest(stream=name, value=b"x", ackPolicy=policy)
    assert server.any.Publish(request) == api.PublishResponse()
    assert server.holds(name, 1)[0].value == b"x"


def test_publish_with_policy_none_has_no_ack(server: Server) -> None:
    """1.5 Publish: ackPolicy NONE; 2.5: NONE is never acked."""
    name = server.create()
    request = api.PublishRequest(stream=name, value=b"x", ackPolicy=api.NONE)
    assert server.any.Publish(request, timeout=TIMEOUT_S) == api.PublishResponse()
    assert server.holds(name, 1)[0].value == b"x"


def test_publish_with_a_deadline_returns_the_ack(server: Server) -> None:
    """1.5 Publish: one ack; correlationId and asyncError stay unset on the unary method."""
    name = server.create()
    request = api.PublishRequest(stream=name, value=b"x", correlationId="c")
    response = server.any.Publish(request, timeout=TIMEOUT_S)
    assert response.ack.correlationId == "c"
    assert (response.correlationId, response.HasField("asyncError")) == ("", False)


def test_an_ack_has_all_its_fields(server: Server) -> None:
    """1.4 Ack; 2.4: partition n is published to S.n; 2.4: an unset ackInbox becomes one of <ns>.ack."""
    name = server.create(subject=(subject := unique("acked")), partitions=2)
    before = time.time_ns()
    ack = server.publish(name, partition=1, correlationId="c1", ackPolicy=api.ALL)
    after = time.time_ns()
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == (name, subject, f"{subject}.1")
    assert (ack.offset, ack.correlationId, ack.ackPolicy, ack.ackError) == (0, "c1", api.ALL, api.Ack.OK)
    assert ".ack." in ack.ackInbox
    assert before <= ack.receptionTimestamp <= ack.commitTimestamp <= after
    assert server.stored(name, 1)[0].timestamp == ack.receptionTimestamp
    assert server.publish(name, partition=1).offset == 1


def test_an_ack_inbox_of_ones_own_gets_the_ack_too(server: Server) -> None:
    """2.4: ackInbox names where the ack goes."""
    name, inbox = server.create(), unique("inbox")
    with server.nats() as nats:
        nats.subscribe(inbox.encode())
        ack = server.publish(name, ackInbox=inbox, correlationId="mine")
        assert ack.ackInbox == inbox
        assert ack_of(nats.messages(1)[0].payload) == ack


@pytest.mark.differs("ackInbox or PublishToSubject subject with blanks, control characters, wildcards")
@pytest.mark.parametrize("inbox", ["x\r\nPUB inject 1\r\nz\r\n", "a b", "a.*", ">", ".", "a..b"])
def test_an_ack_inbox_cannot_inject_nats_commands(server: Server, inbox: str) -> None:
    """2.4: an unsafe ackInbox is refused."""
    code, text = refused(server, stream=server.create(), ackInbox=inbox)
    assert (code, text.partition(":")[0]) == (INVALID, "ackInbox is invalid")


def test_key_value_and_headers_come_back(server: Server) -> None:
    """7.2 TestStreamPublishSubscribe: publish, subscribe, play back from an offset."""
    name = server.create()
    for number in range(5):
        server.publish(name, b"v%d" % number, key=b"k%d" % number, headers={"h": b"%d" % number}, ackPolicy=api.ALL)
    with server.reading(name, startPosition=api.OFFSET, startOffset=2) as reading:
        for number, message in zip(range(2, 5), reading.take(3), strict=True):
            assert (message.offset, message.key, message.value) == (number, b"k%d" % number, b"v%d" % number)
            assert (message.stream, message.partition, message.headers["h"]) == (name, 0, b"%d" % number)


# --- PublishAsync --------------------------------------------------------------------------------------------


def test_publish_async_acks(server: Server) -> None:
    """1.5 PublishAsync: a successful ack; 7.2 TestPublishAsync."""
    name = server.create()
    found = answer(server, stream=name, value=b"x", ackPolicy=api.ALL)
    assert (found.ack.stream, found.ack.offset, found.ack.correlationId) == (name, 0, "first")
    assert not found.HasField("asyncError")


def test_publish_async_with_policy_none_answers_nothing(server: Server) -> None:
    """1.5 PublishAsync: NONE is not answered on success."""
    name = server.create()
    requests = [api.PublishRequest(stream=name, correlationId=str(n), ackPolicy=api.NONE) for n in range(3)]
    last = api.PublishRequest(stream=name, correlationId="last")
    assert [each.correlationId for each in all_answers(server, *requests, last)] == ["last"]
    server.holds(name, 4)


def test_publish_async_errors_are_sent_with_policy_none(server: Server) -> None:
    """1.5 PublishAsync: errors are sent for NONE, too."""
    name = unique("unknown")
    assert error(server, stream=name, ackPolicy=api.NONE) == (Code.NOT_FOUND, f"no such stream: {name}")


def test_publish_async_to_an_unknown_stream(server: Server) -> None:
    """1.5 PublishAsync: NOT_FOUND stream."""
    name = unique("unknown")
    assert error(server, stream=name) == (Code.NOT_FOUND, f"no such stream: {name}")
    assert error(server) == (Code.NOT_FOUND, "no such stream: ")


def test_publish_async_to_an_unknown_partition(server: Server) -> None:
    """1.5 PublishAsync: NOT_FOUND partition."""
    assert error(server, stream=server.create(), partition=5) == (Code.NOT_FOUND, "no such partition: 5")


def test_publish_async_to_a_readonly_partition(server: Server) -> None:
    """1.5 PublishAsync: READONLY."""
    name = server.create()
    server.set_readonly(name)
    assert error(server, stream=name) == (Code.READONLY, "readonly partition: 0")


def test_publish_async_with_concurrency_control_needs_an_ack_policy(server: Server) -> None:
    """1.5 PublishAsync: BAD_REQUEST without AckPolicy; 7.2 TestPublishAsyncWithConcurrencyNoAckPolicy."""
    name = server.create(optimisticConcurrencyControl=OCC)
    text = "stream with concurrency control must have AckPolicy set"
    assert error(server, stream=name, ackPolicy=api.NONE) == (Code.BAD_REQUEST, text)


def test_publish_async_more_than_nats_takes(server: Server) -> None:
    """1.5 PublishAsync: INTERNAL failed to publish to NATS; 11.26."""
    text = "failed to publish to NATS: nats: maximum payload exceeded"
    began = time.monotonic()
    assert error(server, stream=server.create(), value=bytes(MAX_PAYLOAD)) == (Code.INTERNAL, text)
    assert time.monotonic() - began < 5.0, "what was not sent is not waited for"


def test_publish_async_at_a_wrong_offset(server: Server) -> None:
    """1.5 PublishAsync: INCORRECT_OFFSET; 7.2 TestPublishAsyncWithConcurrencyErrorWrongOffset."""
    name = server.create(optimisticConcurrencyControl=OCC)
    found = answer(server, stream=name, expectedOffset=3)
    assert (found.asyncError.code, found.asyncError.message) == (Code.INCORRECT_OFFSET, "incorrect expected offset")
    assert server.partition(name).newestOffset == -1


def test_publish_async_replaces_the_ack_inbox(server: Server) -> None:
    """1.5 PublishAsync: the request's ackInbox is replaced by one of the session."""
    name, inbox = server.create(), unique("inbox")
    with server.nats() as nats:
        nats.subscribe(inbox.encode())
        found = answer(server, stream=name, value=b"x", ackInbox=inbox)
        assert found.ack.ackInbox not in ("", inbox)
        assert nats.pending() == []


def test_publish_async_answers_while_the_call_is_open(server: Server) -> None:
    """10: an idle PublishAsync call is held, and answers as messages come."""
    name = server.create()
    requests: queue.Queue[api.PublishRequest | None] = queue.Queue()
    call = server.any.PublishAsync(iter(requests.get, None), timeout=TIMEOUT_S)
    for number in range(3):
        requests.put(api.PublishRequest(stream=name, correlationId=str(number)))
        assert next(call).ack.offset == number
    requests.put(None)
    assert list(call) == []
    assert call.code() is grpc.StatusCode.OK


def test_publish_async_waits_for_acks_after_a_half_close(server: Server) -> None:
    """1.5 PublishAsync: after a half-close the server waits up to 5 s for acks, then ends OK."""
    name = server.create(minIsr=api.NullableInt32(value=7))
    began = time.monotonic()
    assert all_answers(server, api.PublishRequest(stream=name, ackPolicy=api.ALL, correlationId="never")) == []
    assert 4.0 < time.monotonic() - began < 10.0


def test_publish_async_keeps_the_order(server: Server) -> None:
    """2.5: acks of LEADER policy come in offset order; 3.5: messages of one publisher keep their order."""
    name = server.create()

    def requests() -> Iterator[api.PublishRequest]:
        for number in range(2000):
            yield api.PublishRequest(stream=name, value=b"%d" % number, correlationId=str(number))

    offsets = [each.ack.offset for each in all_answers(server, *requests())]
    assert offsets == list(range(2000))
    assert [message.value for message in server.holds(name, 2000)] == [b"%d" % number for number in range(2000)]


@pytest.mark.differs("Publish, PublishAsync, and another stream on the same subject (an archive on `>`)")
def test_publish_answers_for_the_stream_that_was_named(server: Server) -> None:
    """2.4: other streams on the same subject store the message, too."""
    base = unique("named")
    archive = server.create("archive", f"{base}.>")
    name = server.create("named", f"{base}.in")
    for number in range(3):
        assert server.publish(name, b"%d" % number).stream == name
    acks = [each.ack for each in all_answers(server, *(api.PublishRequest(stream=name) for _ in range(3)))]
    assert [(ack.stream, ack.offset) for ack in acks] == [(name, 3), (name, 4), (name, 5)]
    server.holds(archive, 6)


def test_a_wildcard_subject_is_published_to_literally(server: Server) -> None:
    """2.4: a stream on wildcards stores what Publish sends, under the literal subject."""
    base = unique("literal")
    name = server.create("literal", f"{base}.>")
    assert server.publish(name, b"x").msgSubject == f"{base}.>"
    assert [message.subject for message in server.holds(name, 1)] == [f"{base}.>"]


# --- PublishToSubject ----------------------------------------------------------------------------------------


def to_subject(server: Server, timeout: float | None = TIMEOUT_S, **fields: Any) -> api.PublishToSubjectResponse:
    response: api.PublishToSubjectResponse = server.any.PublishToSubject(
        api.PublishToSubjectRequest(**fields), timeout=timeout
    )
    return response


def test_publish_to_a_subject(server: Server) -> None:
    """1.5 PublishToSubject: the first ack; 7.2 TestPublishToSubject."""
    base = unique("to-subject")
    name = server.create("to-subject", f"{base}.*")
    fields: dict[str, Any] = {
        "key": b"k",
        "value": b"x",
        "headers": {"h": b"1"},
        "correlationId": "c",
        "ackPolicy": api.ALL,
    }
    ack = to_subject(server, subject=f"{base}.a", **fields).ack
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == (name, f"{base}.*", f"{base}.a")
    assert (ack.offset, ack.correlationId, ack.ackPolicy) == (0, "c", api.ALL)
    (message,) = server.stored(name)
    assert (message.key, message.value, message.subject, message.headers["h"]) == (b"k", b"x", f"{base}.a", b"1")


def test_publish_to_a_subject_without_a_deadline_has_no_ack(server: Server) -> None:
    """1.5 PublishToSubject: the same deadline rule as Publish."""
    name = server.create()
    assert to_subject(server, None, subject=name, value=b"x") == api.PublishToSubjectResponse()
    assert to_subject(server, subject=name, value=b"x", ackPolicy=api.NONE) == api.PublishToSubjectResponse()
    server.holds(name, 2)


def test_publish_to_a_subject_of_nobody(server: Server) -> None:
    """1.5 PublishToSubject: no ack in time."""
    ended = outcome(lambda: to_subject(server, 0.3, subject=unique("nobody"), value=b"x"))
    assert ended[0] is grpc.StatusCode.DEADLINE_EXCEEDED


def test_publish_to_a_subject_returns_error_acks_as_they_are(server: Server) -> None:
    """1.5 PublishToSubject: an ackError is not turned into a status; 2.6: PublishToSubject always carries 0."""
    name = server.create(optimisticConcurrencyControl=OCC)
    assert to_subject(server, subject=name, value=b"first").ack.ackError == api.Ack.OK
    assert to_subject(server, subject=name, value=b"second").ack.ackError == api.Ack.INCORRECT_OFFSET
    assert server.values(name) == [b"first"]


@pytest.mark.differs("ackInbox or PublishToSubject subject with blanks, control characters, wildcards")
@pytest.mark.parametrize("subject", ["", "a b", "x\r\nPUB y 0\r\n\r\n", "a.*", "a..b", ".a"])
def test_unsafe_subjects_are_refused(server: Server, subject: str) -> None:
    """1.5 PublishToSubject: subjects are validated."""
    code, text = outcome(lambda: to_subject(server, subject=subject, value=b"x"))
    assert (code, text.partition(":")[0]) == (INVALID, "Subject is invalid")
