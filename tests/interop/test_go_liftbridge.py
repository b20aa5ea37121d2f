"""go-liftbridge, unchanged, against a real broker: what a Go program sees is what Liftbridge promises it.

The Go program only reports; every expectation is here.
"""

import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from bascule.testing.jsonlines import Event, JsonProgram
from bascule.testing.processes import BrokerProcess, start_broker

LEADER, ALL = 0, 1


def values(events: list[Event]) -> list[str]:
    return [event["value"] for event in events if event["event"] == "message"]


def offsets(events: list[Event]) -> list[int]:
    return [event["offset"] for event in events if event["event"] in ("message", "ack")]


def ending(events: list[Event]) -> str:
    """How a subscription ended, by the name a Go program compares it with."""
    found: list[str] = [event["is"] for event in events if event["event"] == "end"]
    assert len(found) == 1, events  # the program hears of a short one before its call of Subscribe returns
    return found[0]


def filled(go: JsonProgram, stream: str, count: int) -> list[Event]:
    """A new stream with this many messages; their acks."""
    assert go.one("create", stream=stream)["event"] == "created"
    acks = go("publish", stream=stream, count=count, policy="all")
    assert offsets(acks) == list(range(count))
    return acks


# --- streams ----------------------------------------------------------------------------------------------


def test_a_stream_is_created_once(go: JsonProgram, stream: str) -> None:
    assert go.one("create", stream=stream)["event"] == "created"
    assert go.one("create", stream=stream)["is"] == "ErrStreamExists"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"stream": "__cursors"}, "Stream is reserved"),
        ({"stream": "bad-subject", "subject": "with blank"}, "Subject is invalid"),
        ({"stream": "bad-subject", "subject": "empty..token"}, "Subject is invalid"),
        ({"stream": "many", "replication_factor": 3}, "Invalid replicationFactor 3, cluster size 1"),
    ],
)
def test_what_cannot_be_created_says_why(go: JsonProgram, flags: dict[str, object], text: str) -> None:
    refused = go.one("create", **flags)
    assert refused["event"] == "error"
    assert text in refused["text"]
    assert "InvalidArgument" in refused["text"]


def test_a_deleted_stream_is_gone_and_its_name_starts_again_at_zero(go: JsonProgram, stream: str) -> None:
    filled(go, stream, 3)
    assert go.one("delete", stream=stream)["event"] == "deleted"
    assert go.one("delete", stream=stream)["is"] == "ErrNoSuchStream"
    filled(go, stream, 2)
    assert offsets(go("subscribe", stream=stream, start="earliest", count=2)) == [0, 1]


def test_metadata_names_the_broker_and_every_stream(go: JsonProgram, broker: BrokerProcess, stream: str) -> None:
    before = time.time_ns()
    go.one("create", stream=stream, subject=f"{stream}.subject", partitions=3)
    events = go("metadata")
    brokers = [event for event in events if event["event"] == "broker"]
    assert [(found["host"], found["port"]) for found in brokers] == [("127.0.0.1", broker.port)]
    (found,) = [event for event in events if event["event"] == "stream" and event["name"] == stream]
    assert found["subject"] == f"{stream}.subject"
    assert found["partitions"] == [0, 1, 2]
    assert before <= found["created_ns"] <= time.time_ns()


def test_partition_metadata_counts_what_is_committed(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream)
    empty = go.one("partition-metadata", stream=stream)
    assert (empty["high_watermark"], empty["newest_offset"]) == (-1, -1)
    go("publish", stream=stream, count=4, policy="all")
    found = go.one("partition-metadata", stream=stream)
    assert (found["high_watermark"], found["newest_offset"], found["paused"]) == (3, 3, False)
    assert found["replicas"] == found["isr"] == [found["leader"]]


# --- publishing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "number"), [("leader", LEADER), ("all", ALL)])
def test_an_ack_says_where_the_message_went(go: JsonProgram, stream: str, policy: str, number: int) -> None:
    go.one("create", stream=stream, subject=f"{stream}.in", partitions=2)
    before = time.time_ns()
    ack = go.one("publish", stream=stream, policy=policy, correlation="mine", partition=1)
    assert ack["event"] == "ack"
    assert (ack["stream"], ack["offset"], ack["policy"]) == (stream, 0, number)
    assert (ack["partition_subject"], ack["message_subject"]) == (f"{stream}.in", f"{stream}.in.1")
    assert ack["correlation"] == "mine"
    assert before <= ack["received_ns"] <= ack["committed_ns"] <= time.time_ns()


def test_a_publish_without_ack_is_stored_all_the_same(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream)
    with go.start("subscribe", stream=stream, start="new", count=1) as reading:
        reading.next("subscribed")
        assert go.one("publish", stream=stream, policy="none", value="silent")["event"] == "sent"
        assert reading.next("message")["value"] == "silent"


def test_many_publishes_in_flight_are_each_acked_once_and_in_order(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream)
    count = 500
    acks = go("publish", stream=stream, count=count, correlation="c#", **{"async": True})
    assert [(ack["offset"], ack["correlation"]) for ack in acks] == [(n, f"c{n}") for n in range(count)]
    read = go("subscribe", stream=stream, start="earliest", stop="latest")
    assert values(read) == [f"value {n}" for n in range(count)]


def test_key_value_and_headers_come_back_with_subject_and_reply(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream)
    headers = "colour=red,empty="
    ack = go.one("publish", stream=stream, key="k", value="väl", headers=headers, policy="all")
    message = go("subscribe", stream=stream, start="earliest", count=1)[-1]
    assert (message["key"], message["value"], message["offset"]) == ("k", "väl", 0)
    assert (message["stream"], message["partition"], message["subject"], message["reply"]) == (stream, 0, stream, "")
    assert message["headers"] == {"colour": "red", "empty": "", "subject": stream, "reply": ""}
    assert message["timestamp_ns"] == ack["received_ns"]


def test_publishing_where_nothing_is_says_so(go: JsonProgram, stream: str) -> None:
    assert go.one("publish", stream="never-made")["is"] == "ErrNoSuchPartition"
    go.one("create", stream=stream)
    assert go.one("publish", stream=stream, partition=7)["is"] == "ErrNoSuchPartition"


def test_keys_choose_partitions_by_crc32(go: JsonProgram, stream: str) -> None:
    partitions, count = 4, 20
    go.one("create", stream=stream, partitions=partitions)
    go("publish", stream=stream, key="key #", count=count, partitioner="key", policy="all")
    for partition in range(partitions):
        mine = [f"value {n}" for n in range(count) if zlib.crc32(b"key %d" % n) % partitions == partition]
        assert mine, "the keys should reach every partition"
        read = go("subscribe", stream=stream, partition=partition, start="earliest", count=len(mine))
        assert values(read) == mine
        # The client hands over the first message before, or after, its Subscribe has returned.
        assert {event["partition"] for event in read if event["event"] == "message"} == {partition}


def test_round_robin_fills_partitions_evenly(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream, partitions=3)
    go("publish", stream=stream, count=9, partitioner="round-robin", policy="all")
    for partition in range(3):
        assert go.one("partition-metadata", stream=stream, partition=partition)["newest_offset"] == 2


def test_expected_offsets_are_checked_where_asked_for(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream, concurrency_control=True)
    assert offsets(go("publish", stream=stream, count=3, expected=0)) == [0, 1, 2]
    assert go.one("publish", stream=stream, expected=1)["text"] == "incorrect expected offset"
    assert go.one("publish", stream=stream, expected=9)["text"] == "incorrect expected offset"
    assert go.one("publish", stream=stream)["offset"] == 3, "without an expectation there is no check"
    assert go.one("publish", stream=stream, expected=4)["offset"] == 4


def test_concurrency_control_needs_an_ack(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream, concurrency_control=True)
    refused = go("publish", stream=stream, policy="none", timeout="2s", **{"async": True})
    assert [event["text"] for event in refused] == ["stream with concurrency control must have AckPolicy set"]


def test_expected_offsets_mean_nothing_elsewhere(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream)
    assert go.one("publish", stream=stream, expected=5)["offset"] == 0


def test_a_commit_that_cannot_happen_times_out_at_the_client(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream, min_isr=2)
    assert go.one("publish", stream=stream, policy="leader")["offset"] == 0
    assert go.one("publish", stream=stream, policy="all", timeout="500ms")["is"] == "ErrAckTimeout"
    found = go.one("partition-metadata", stream=stream)
    assert (found["high_watermark"], found["newest_offset"]) == (-1, 1)


# --- straight to NATS -------------------------------------------------------------------------------------


def test_publish_to_subject_returns_the_ack_of_a_stream_on_it(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream, subject=f"{stream}.in")
    ack = go.one("publish-to-subject", subject=f"{stream}.in", correlation="c", key="k", policy="all")
    assert (ack["event"], ack["stream"], ack["offset"], ack["correlation"]) == ("ack", stream, 0, "c")
    assert go("subscribe", stream=stream, start="earliest", count=1)[-1]["key"] == "k"


def test_publish_to_a_subject_nobody_stores_times_out(go: JsonProgram) -> None:
    assert go.one("publish-to-subject", subject="nobody.here", timeout="300ms")["is"] == "ErrAckTimeout"


def test_envelopes_over_nats_are_stored_and_acked(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream)
    flags = {"count": 5, "correlation": "c#", "key": "k#", "headers": "a=b", "policy": "all", "inbox": "my.inbox"}
    acks = go("envelope", subject=stream, **flags)
    assert [(ack["offset"], ack["correlation"], ack["inbox"]) for ack in acks] == [
        (n, f"c{n}", "my.inbox") for n in range(5)
    ]
    events = go("subscribe", stream=stream, start="earliest", count=5)
    read = [event for event in events if event["event"] == "message"]
    assert [(message["key"], message["value"]) for message in read] == [(f"k{n}", f"value {n}") for n in range(5)]
    assert read[0]["headers"] == {"a": "b", "subject": stream, "reply": ""}


def test_every_stream_on_a_subject_stores_and_acks_its_own_copy(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=f"{stream}-exact", subject=f"{stream}.x")
    go.one("create", stream=f"{stream}-wild", subject=f"{stream}.*")
    inbox = f"inbox.{stream}"
    with go.start("envelope", subject=f"{stream}.x", count=1, inbox=inbox) as first:
        first.next("ack")
    for name in ("exact", "wild"):
        read = go("subscribe", stream=f"{stream}-{name}", start="earliest", count=1)
        assert (values(read), read[-1]["subject"]) == (["value 0"], f"{stream}.x")


def test_plain_messages_are_stored_whole_with_their_reply_subject(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream)
    go.one("plain", subject=stream, value="just text", reply="answer.here")
    message = go("subscribe", stream=stream, start="earliest", count=1)[-1]
    assert (message["value"], message["key"], message["reply"]) == ("just text", "", "answer.here")
    assert message["headers"] == {"subject": stream, "reply": "answer.here"}


def test_streams_in_one_group_share_the_messages(go: JsonProgram, stream: str) -> None:
    names = [f"{stream}-{n}" for n in range(2)]
    for name in names:
        go.one("create", stream=name, subject=stream, group="shared")
    assert len(go("envelope", subject=stream, count=50, policy="all")) == 50
    stored = [go.one("partition-metadata", stream=name)["newest_offset"] + 1 for name in names]
    assert sum(stored) == 50


# --- subscribing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [0, 1, 2, 3, 4]),
        ("latest", [4]),
        ("offset:0", [0, 1, 2, 3, 4]),
        ("offset:2", [2, 3, 4]),
        ("offset:-5", [0, 1, 2, 3, 4]),
        ("time:0", [0, 1, 2, 3, 4]),
    ],
)
def test_a_subscription_starts_where_it_was_asked_to(
    go: JsonProgram, stream: str, start: str, expected: list[int]
) -> None:
    filled(go, stream, 5)
    assert offsets(go("subscribe", stream=stream, start=start, count=len(expected))) == expected


def test_a_subscription_starts_at_a_time(go: JsonProgram, stream: str) -> None:
    acks = filled(go, stream, 5)
    for first in (1, 3):
        at = acks[first]["received_ns"]
        read = go("subscribe", stream=stream, start=f"time:{at}", stop="latest")
        assert offsets(read) == list(range(first, 5))
        later = go("subscribe", stream=stream, start=f"time:{at + 1}", stop="latest")
        assert offsets(later) == list(range(first + 1, 5))


@pytest.mark.parametrize("start", ["new", "offset:100", "offset:5"])
def test_what_starts_past_the_end_gets_the_next_message(go: JsonProgram, stream: str, start: str) -> None:
    filled(go, stream, 5)
    with go.start("subscribe", stream=stream, start=start, count=1) as reading:
        reading.next("subscribed")
        go.one("publish", stream=stream, value="next")
        message = reading.next("message")
        assert (message["offset"], message["value"]) == (5, "next")


@pytest.mark.parametrize(
    ("stop", "expected"), [("latest", [0, 1, 2, 3, 4]), ("offset:0", [0]), ("offset:3", [0, 1, 2, 3])]
)
def test_a_subscription_stops_after_its_stop_position(
    go: JsonProgram, stream: str, stop: str, expected: list[int]
) -> None:
    filled(go, stream, 5)
    read = go("subscribe", stream=stream, start="earliest", stop=stop)
    assert offsets(read) == expected
    assert ending(read) == "ErrReadonlyPartition"


def test_a_window_of_time_includes_both_of_its_ends(go: JsonProgram, stream: str) -> None:
    acks = filled(go, stream, 6)
    first, last = acks[1]["received_ns"], acks[4]["received_ns"]
    read = go("subscribe", stream=stream, start=f"time:{first}", stop=f"time:{last}")
    assert offsets(read) == [1, 2, 3, 4]


def test_stop_at_latest_of_an_empty_partition_ends_at_once(go: JsonProgram, stream: str) -> None:
    go.one("create", stream=stream)
    assert go.one("subscribe", stream=stream, start="earliest", stop="latest")["is"] == "ErrReadonlyPartition"


def test_a_stop_before_the_start_is_refused(go: JsonProgram, stream: str) -> None:
    filled(go, stream, 5)
    refused = go.one("subscribe", stream=stream, start="offset:3", stop="offset:1")
    assert "Stop offset is before start offset: 1 < 3" in refused["text"]


def test_subscribing_to_what_is_not_there_fails(go: JsonProgram, stream: str) -> None:
    assert go.one("subscribe", stream="never-made")["event"] == "error"
    go.one("create", stream=stream)
    assert go.one("subscribe", stream=stream, partition=3)["event"] == "error"


def test_a_subscription_ends_when_its_stream_is_deleted(go: JsonProgram, stream: str) -> None:
    filled(go, stream, 2)
    with go.start("subscribe", stream=stream, start="earliest") as reading:
        for name in ("subscribed", "message", "message"):
            reading.next(name)
        go.one("delete", stream=stream)
        assert reading.next("end")["is"] == "ErrStreamDeleted"


def test_a_pause_ends_a_subscription_and_a_publish_resumes_the_stream(go: JsonProgram, stream: str) -> None:
    filled(go, stream, 2)
    with go.start("subscribe", stream=stream, start="earliest") as reading:
        for name in ("subscribed", "message", "message"):
            reading.next(name)
        assert go.one("pause", stream=stream)["event"] == "paused"
        assert reading.next("end")["is"] == "ErrPartitionPaused"
    assert offsets(go("publish", stream=stream, count=1, policy="all")) == [2]


def test_a_readonly_stream_ends_its_subscriptions_and_refuses_messages(go: JsonProgram, stream: str) -> None:
    filled(go, stream, 2)
    with go.start("subscribe", stream=stream, start="earliest") as reading:
        for name in ("subscribed", "message", "message"):
            reading.next(name)
        assert go.one("readonly", stream=stream)["readonly"] is True
        assert reading.next("end")["is"] == "ErrReadonlyPartition"
    assert go.one("publish", stream=stream, policy="all")["event"] == "error"
    assert go.one("readonly", stream=stream, off=True)["readonly"] is False
    assert offsets(go("publish", stream=stream, count=1, policy="all")) == [2]


# --- restarts ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stop", [BrokerProcess.terminate, BrokerProcess.kill9])
def test_a_subscription_survives_a_restart_of_the_broker(
    go_against: Callable[[BrokerProcess], JsonProgram],
    tmp_path: Path,
    stop: Callable[[BrokerProcess], object],
) -> None:
    with start_broker(tmp_path) as broker:
        go = go_against(broker)
        filled(go, "kept", 3)
        with go.start("subscribe", stream="kept", start="earliest", timeout="60s", count=5) as reading:
            reading.next("subscribed")
            assert [reading.next("message")["offset"] for _ in range(3)] == [0, 1, 2]
            stop(broker)
            broker.start().wait_ready()
            assert offsets(go("publish", stream="kept", count=2, value="after #", policy="all")) == [3, 4]
            assert [reading.next("message")["value"] for _ in range(2)] == ["after 0", "after 1"]


@pytest.mark.slow
def test_what_was_acked_is_there_after_kill_9(
    go_against: Callable[[BrokerProcess], JsonProgram], tmp_path: Path
) -> None:
    with start_broker(tmp_path) as broker:
        go = go_against(broker)
        filled(go, "kept", 50)
        broker.kill9()
        broker.start().wait_ready()
        assert go.one("create", stream="kept")["is"] == "ErrStreamExists"
        read = go("subscribe", stream="kept", start="earliest", stop="latest")
        assert values(read) == [f"value {n}" for n in range(50)]
