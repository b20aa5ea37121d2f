"""When an ack is sent, and optimistic concurrency."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import grpc
import pytest

from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import TIMEOUT_S, Server, status, unique
from tests.harness.envelopes import ack_of, message
from tests.harness.raw_nats import RawNats

OCC = api.NullableBool(value=True)


class Inbox:
    """A publisher on NATS with an inbox for its acks."""

    def __init__(self, nats: RawNats) -> None:
        self._nats = nats
        self.name = unique("inbox")
        nats.subscribe(self.name.encode())

    def publish(self, subject: str, **fields: Any) -> None:
        self._nats.publish(subject.encode(), message(ackInbox=self.name, **fields))
        self._nats.flush()

    def acks(self, count: int) -> list[api.Ack]:
        return [ack_of(each.payload) for each in self._nats.messages(count)]

    def ack(self) -> api.Ack:
        (ack,) = self.acks(1)
        return ack

    def nothing_came(self) -> bool:
        return self._nats.pending() == []


@contextmanager
def inbox_of(server: Server) -> Iterator[Inbox]:
    with server.nats() as nats:
        yield Inbox(nats)


def test_policy_leader(server: Server) -> None:
    """2.5: LEADER is acked."""
    with inbox_of(server) as inbox:
        inbox.publish(server.create(), correlationId="c")
        ack = inbox.ack()
    assert (ack.ackPolicy, ack.ackError, ack.correlationId) == (api.LEADER, api.Ack.OK, "c")


def test_policy_all_means_committed(server: Server) -> None:
    """2.5: ALL is acked when the message is committed, and visible at the same moment."""
    name = server.create()
    with inbox_of(server) as inbox:
        inbox.publish(name, ackPolicy=api.ALL)
        assert inbox.ack().ackPolicy == api.ALL
    assert server.partition(name).highWatermark == 0


def test_policy_none_is_never_acked(server: Server) -> None:
    """2.5: NONE is never acked, and becomes visible."""
    name = server.create()
    with inbox_of(server) as inbox:
        inbox.publish(name, ackPolicy=api.NONE, value=b"silent")
        inbox.publish(name, correlationId="the next")
        assert inbox.ack().correlationId == "the next"
        assert inbox.nothing_came()
    assert server.holds(name, 2)[0].value == b"silent"


def test_without_an_inbox_there_is_no_ack(server: Server) -> None:
    """2.5: no inbox, no ack, whatever the policy."""
    name = server.create()
    with server.nats() as nats:
        nats.subscribe(b">")
        for policy in (api.LEADER, api.ALL):
            nats.publish(name.encode(), message(ackPolicy=policy, correlationId="no inbox"))
        nats.flush()
        assert len(server.holds(name, 2)) == 2
        assert server.publish(name, b"later", ackPolicy=api.ALL).offset == 2
        acks = [each for each in nats.pending() if b"no inbox" in each.payload and each.subject != name.encode()]
    assert acks == []


def test_below_min_isr_nothing_commits(server: Server) -> None:
    """2.5: below minISR LEADER acks go out, ALL acks wait, and nothing is visible."""
    name = server.create(minIsr=api.NullableInt32(value=7))
    with inbox_of(server) as inbox:
        inbox.publish(name, ackPolicy=api.ALL, correlationId="all")
        inbox.publish(name, correlationId="leader")
        assert inbox.ack().correlationId == "leader"
        item = server.partition(name)
        assert (item.highWatermark, item.newestOffset) == (-1, 1)
        assert inbox.nothing_came()


def test_leader_acks_come_in_the_order_of_offsets(server: Server) -> None:
    """2.5: LEADER acks in offset order."""
    name = server.create()
    with inbox_of(server) as inbox:
        for number in range(200):
            inbox.publish(name, correlationId=str(number))
        acks = inbox.acks(200)
    assert [(ack.offset, ack.correlationId) for ack in acks] == [(number, str(number)) for number in range(200)]


def test_all_acks_come_in_the_order_of_offsets(server: Server) -> None:
    """2.5: ALL acks in offset order; 2.5: commitTimestamp is when the ack is sent."""
    name = server.create()
    with inbox_of(server) as inbox:
        for _ in range(200):
            inbox.publish(name, ackPolicy=api.ALL)
        acks = inbox.acks(200)
    assert [ack.offset for ack in acks] == list(range(200))
    assert all(ack.receptionTimestamp <= ack.commitTimestamp for ack in acks)
    assert all(one.receptionTimestamp <= other.receptionTimestamp for one, other in pairwise(acks))


def test_a_readonly_partition_drops_what_comes_over_nats(server: Server) -> None:
    """2.5: a message by NATS on a readonly partition is dropped, without an ack; 3.12: NATS messages are dropped."""
    name = server.create()
    server.set_readonly(name)
    with inbox_of(server) as inbox:
        inbox.publish(name, value=b"dropped")
        server.set_readonly(name, readonly=False)
        assert poll(lambda: server.publish(name, b"kept").offset >= 0)
        assert inbox.nothing_came()
    assert server.values(name) == [b"kept"]


# --- optimistic concurrency ----------------------------------------------------------------------------------


def test_the_expected_offset_is_the_one_the_message_would_get(server: Server) -> None:
    """2.6: the check; 2.6: the first message expects 0; 7.2 TestPublishAsyncWithConcurrencyCorrectOffset."""
    name = server.create(optimisticConcurrencyControl=OCC)
    for number in range(3):
        assert server.publish(name, expectedOffset=number).offset == number
    for wrong in (0, 2, 4, -2):
        request = api.PublishRequest(stream=name, expectedOffset=wrong)
        ended = status(server.any.Publish, request)
        assert ended == (grpc.StatusCode.UNKNOWN, "incorrect expected offset")
    assert server.partition(name).newestOffset == 2


def test_minus_one_expects_nothing(server: Server) -> None:
    """2.6: -1 disables the check; 7.2 TestPublishAsyncWithConcurrencyIgnoreOffset."""
    name = server.create(optimisticConcurrencyControl=OCC)
    assert [server.publish(name, expectedOffset=-1).offset for _ in range(3)] == [0, 1, 2]


def test_without_concurrency_control_the_field_is_ignored(server: Server) -> None:
    """2.6: when OCC is off the field is ignored."""
    name = server.create()
    assert [server.publish(name, expectedOffset=77).offset for _ in range(2)] == [0, 1]


def test_an_unset_expectation_is_zero(server: Server) -> None:
    """2.6: the default 0 is a real expectation; 11.19."""
    name = server.create(optimisticConcurrencyControl=OCC)
    request = api.PublishRequest(stream=name)
    assert server.any.Publish(request, timeout=TIMEOUT_S).ack.offset == 0
    ended = status(server.any.Publish, request)
    assert ended == (grpc.StatusCode.UNKNOWN, "incorrect expected offset")


def test_plain_messages_expect_offset_zero(server: Server) -> None:
    """2.6: plain NATS messages count as 0; 11.19."""
    name = server.create(optimisticConcurrencyControl=OCC)
    with server.nats() as nats:
        nats.publish(name.encode(), b"first")
        nats.publish(name.encode(), b"dropped")
        nats.flush()
    server.holds(name, 1)
    assert server.publish(name, b"third").offset == 1
    assert server.values(name) == [b"first", b"third"]


@pytest.mark.parametrize("policy", [api.LEADER, api.ALL, api.NONE])
def test_a_wrong_offset_is_acked_as_an_error_whatever_the_policy(server: Server, policy: "api.AckPolicy") -> None:
    """2.5: INCORRECT_OFFSET error ack, also with NONE."""
    name = server.create(optimisticConcurrencyControl=OCC)
    with inbox_of(server) as inbox:
        inbox.publish(name, offset=5, ackPolicy=policy, correlationId="c")
        ack = inbox.ack()
    assert (ack.ackError, ack.offset, ack.correlationId) == (api.Ack.INCORRECT_OFFSET, 0, "c")
    assert server.partition(name).newestOffset == -1


def test_of_many_that_expect_the_same_offset_one_wins(server: Server) -> None:
    """7.2 TestMultiplePublishAsyncWithConcurrency."""
    name = server.create(optimisticConcurrencyControl=OCC)
    requests = [api.PublishRequest(stream=name, value=b"%d" % n, correlationId=str(n)) for n in range(20)]
    answers = list(server.any.PublishAsync(iter(requests), timeout=TIMEOUT_S))
    won = [each.correlationId for each in answers if not each.HasField("asyncError")]
    assert (won, len(answers)) == (["0"], 20)
    assert server.values(name) == [b"0"]


def test_who_lost_tries_again_with_what_the_leader_says(server: Server) -> None:
    """7.2 TestMultiplePublishAsyncWithConcurrencyRetryWithFetchMetadata."""
    name = server.create(optimisticConcurrencyControl=OCC)
    server.fill(name, 3)
    newest = server.partition(name).newestOffset
    assert server.publish(name, expectedOffset=newest + 1).offset == 3


def test_a_leader_ack_waits_for_no_other_replica(server: Server) -> None:
    """2.5: a LEADER ack needs the leader alone."""
    name = server.create(minIsr=api.NullableInt32(value=7))
    began = time.monotonic()
    assert server.publish(name).offset == 0
    assert time.monotonic() - began < 5.0
