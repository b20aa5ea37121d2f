"""Streams are created and deleted."""

from typing import Any

import grpc
import pytest

from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import TIMEOUT_S, Server, status, unique
from tests.harness.envelopes import message

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
RESERVED = (INVALID, "Stream is reserved")


def creation(server: Server, **fields: Any) -> tuple[grpc.StatusCode, str]:
    request = api.CreateStreamRequest(**fields)
    return status(server.any.CreateStream, request)


def deletion(server: Server, name: str) -> tuple[grpc.StatusCode, str]:
    return status(server.any.DeleteStream, api.DeleteStreamRequest(name=name))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param({"subject": "x"}, "Name cannot be empty", id="1.5 CreateStream: name empty"),
        pytest.param({"name": "x"}, "Subject is invalid", id="1.5 CreateStream: subject empty"),
        pytest.param(
            {"name": "x", "subject": "a b"},
            "Subject is invalid",
            id="1.5 CreateStream: subject with space; 7.1 TestCreateStreamInvalidSubject",
        ),
        pytest.param({"name": "x", "subject": "a\tb"}, "Subject is invalid", id="1.5 CreateStream: subject with tab"),
        pytest.param({"name": "x", "subject": "a\rb"}, "Subject is invalid", id="1.5 CreateStream: subject with CR"),
        pytest.param({"name": "x", "subject": "a\nb"}, "Subject is invalid", id="1.5 CreateStream: subject with LF"),
        pytest.param({"name": "x", "subject": "a..b"}, "Subject is invalid", id="1.5 CreateStream: empty token"),
        pytest.param({"name": "x", "subject": ".a"}, "Subject is invalid", id="1.5 CreateStream: empty first token"),
        pytest.param({"name": "x", "subject": "a."}, "Subject is invalid", id="1.5 CreateStream: empty last token"),
        pytest.param(
            {"name": "__activity", "subject": "x"}, "Stream is reserved", id="1.5 CreateStream: name is __activity"
        ),
        pytest.param(
            {"name": "__cursors", "subject": "x"}, "Stream is reserved", id="1.5 CreateStream: name is __cursors"
        ),
        pytest.param({"subject": "a b"}, "Name cannot be empty", id="1.5 CreateStream: name before subject"),
        pytest.param(
            {"name": "__cursors", "subject": "a b"},
            "Subject is invalid",
            id="1.5 CreateStream: subject before reserved",
        ),
        pytest.param(
            {"name": "__cursors", "subject": "x", "replicationFactor": -2},
            "Stream is reserved",
            id="1.5 CreateStream: reserved before replicationFactor",
        ),
        pytest.param(
            {"name": "x", "subject": "x", "replicationFactor": -2},
            "Invalid replicationFactor -2",
            id="1.5 CreateStream: replicationFactor below -1",
        ),
    ],
)
def test_a_stream_is_not_created(server: Server, fields: dict[str, Any], text: str) -> None:
    assert creation(server, **fields) == (INVALID, text)


def test_more_replicas_than_servers_are_refused(server: Server) -> None:
    """1.5 CreateStream: replicationFactor above the number of servers; 7.1 TestCreateStreamInsufficientReplicas."""
    size = len(server)
    text = f"Invalid replicationFactor {size + 1}, cluster size {size}"
    assert creation(server, name=unique("r"), subject="x", replicationFactor=size + 1) == (INVALID, text)


def test_a_name_is_given_once(server: Server) -> None:
    """1.5 CreateStream: name exists; 7.1 TestCreateStream."""
    name = server.create()
    assert creation(server, name=name, subject="other") == (grpc.StatusCode.ALREADY_EXISTS, "stream already exists")
    invalid = (INVALID, f"Invalid replicationFactor {len(server) + 1}, cluster size {len(server)}")
    assert creation(server, name=name, subject="other", replicationFactor=len(server) + 1) == invalid


def test_encryption_without_a_key_is_refused(server: Server) -> None:
    """1.5 CreateStream: encryption without a key."""
    code, text = creation(server, name=unique("e"), subject="x", encryption=api.NullableBool(value=True))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert text.startswith("Failed on preconditions for stream's encryption handler: ")


@pytest.mark.differs("negative or absurd number of partitions")
@pytest.mark.parametrize("partitions", [-1, -(2**31), 10_001, 2**31 - 1])
def test_absurd_numbers_of_partitions_are_refused(server: Server, partitions: int) -> None:
    """1.5 CreateStream: negative partitions; 11.2."""
    code, text = creation(server, name=unique("p"), subject="x", partitions=partitions)
    assert (code, text.partition(":")[0]) == (INVALID, f"Invalid partitions {partitions}")


@pytest.mark.differs("stream names")
@pytest.mark.parametrize("name", ["a/b", "../../etc/passwd", "..", "a\0b", "a\nb", "a*b", "a>b", " a", "x" * 201])
def test_names_that_would_be_harmful_paths_or_subjects_are_refused(server: Server, name: str) -> None:
    """1.5 CreateStream: names are validated; 11.4."""
    code, text = creation(server, name=name, subject="x")
    assert (code, text.partition(": ")[0]) == (INVALID, "Name is invalid")


@pytest.mark.parametrize("name", ["with.dots", "grüße", "日本", "UPPER", "upper", "a=b", "a@7"])
def test_harmless_names_are_accepted(server: Server, name: str) -> None:
    """1.5 CreateStream: everything harmless is accepted."""
    full = server.create(name)
    assert server.publish(full).stream == full
    server.delete(full)


@pytest.mark.differs("subject `….>` with several partitions")
def test_partitions_of_a_stream_on_everything_are_refused(server: Server) -> None:
    """3.4: a subject that ends in > has no subjects for partitions."""
    assert creation(server, name=unique("w"), subject="a.>", partitions=2) == (INVALID, "Subject is invalid")


@pytest.mark.differs("a stream on the cluster's own subjects (`<namespace>.…`)")
def test_a_stream_on_the_subjects_of_the_cluster_is_refused(server: Server) -> None:
    """3.4: the cluster's own subjects."""
    # Also where only another partition than the first would have one.
    code, text = creation(server, name=unique("n"), subject="liftbridge-default.ack.>")
    assert (code, text.partition(":")[0]) == (INVALID, "Subject is invalid")
    code, text = creation(server, name=unique("n"), subject="liftbridge-default", partitions=2)
    assert (code, text.partition(":")[0]) == (INVALID, "Subject is invalid")


def test_unset_numbers_mean_one(server: Server) -> None:
    """1.4 CreateStreamRequest: 0 partitions and replicas are 1."""
    name = unique("unset")
    assert creation(server, name=name, subject=name)[0] is grpc.StatusCode.OK
    server.known(name)
    (item,) = server.described(name).partitions.values()
    assert (item.id, len(item.replicas)) == (0, 1)


def test_a_stream_has_the_partitions_asked_for(server: Server) -> None:
    """7.1 TestCreateStreamPartitioned."""
    name = server.create(partitions=3)
    assert sorted(server.described(name).partitions) == [0, 1, 2]
    for number in range(3):
        assert server.publish(name, partition=number).msgSubject == (f"{name}.{number}" if number else name)


def test_a_created_stream_can_be_used_at_once(server: Server) -> None:
    """3.2: CreateStream returns when each leader has started."""
    for _ in range(5):
        name = unique("at-once")
        request = api.CreateStreamRequest(name=name, subject=name, partitions=2, replicationFactor=-1)
        server.any.CreateStream(request, timeout=TIMEOUT_S)
        for partition in range(2):
            first = api.PublishRequest(stream=name, partition=partition, value=b"first", ackPolicy=api.ALL)
            assert server.any.Publish(first, timeout=TIMEOUT_S).ack.offset == 0


def test_minus_one_means_every_server(server: Server) -> None:
    """3.3: replicationFactor -1; 3.3: the initial ISR is all replicas."""
    name = server.create(replicationFactor=-1)
    (item,) = server.described(name).partitions.values()
    assert sorted(item.replicas) == sorted(item.isr) == sorted(server.every)


def test_a_deleted_stream_is_gone(server: Server) -> None:
    """3.13: delete; 7.1 TestDeleteStream."""
    name = server.create()
    server.publish(name)
    server.delete(name)
    assert server.described(name).error == api.StreamMetadata.UNKNOWN_STREAM
    request = api.PublishRequest(stream=name)
    assert status(server.any.Publish, request)[0] is NOT_FOUND


def test_a_name_can_be_used_again_at_once(server: Server) -> None:
    """3.13: re-creating the name immediately works and starts at offset 0."""
    name = server.create()
    server.fill(name, 3)
    server.delete(name)
    request = api.CreateStreamRequest(name=name, subject=name, replicationFactor=-1)
    server.any.CreateStream(request, timeout=TIMEOUT_S)
    assert server.publish(name, b"new").offset == 0
    assert server.values(name) == [b"new"]


def test_subscribers_of_a_deleted_stream_are_told(server: Server) -> None:
    """3.13: subscribers get NotFound; 1.5 Subscribe: stream deleted; 7.3 TestSubscribePartitionDeleted."""
    name = server.create()
    server.publish(name, ackPolicy=api.ALL)
    with server.reading(name) as reading:
        assert reading.offsets(1) == [0]
        server.delete(name)
        assert reading.end() == (NOT_FOUND, "commit log was deleted")


def test_a_missing_stream_is_not_deleted(server: Server) -> None:
    """1.5 DeleteStream: missing."""
    assert deletion(server, unique("missing")) == (NOT_FOUND, "stream does not exist")


@pytest.mark.parametrize("name", ["__cursors", "__activity"])
def test_a_reserved_stream_is_not_deleted(server: Server, name: str) -> None:
    """1.5 DeleteStream: reserved."""
    assert deletion(server, name) == RESERVED


# --- subjects and load-balance groups ------------------------------------------------------------------------


def test_partitions_have_subjects_of_their_own(server: Server) -> None:
    """3.4: partition 0 is on S, partition n on S.n."""
    name = server.create(partitions=3)
    with server.nats() as nats:
        for subject, value in ((name, b"0"), (f"{name}.1", b"1"), (f"{name}.2", b"2")):
            nats.publish(subject.encode(), value)
        nats.flush()
    for number in range(3):
        assert [message.value for message in server.holds(name, 1, number)] == [b"%d" % number]


def test_members_of_a_load_balance_group_share_messages(server: Server) -> None:
    """3.4: streams of one group share, others get their own copy."""
    subject = unique("balanced")
    members = [server.create("member", subject, group="workers") for _ in range(2)]
    others = [server.create("alone", subject), server.create("other", subject, group="another")]
    with server.nats() as nats:
        for number in range(40):
            nats.publish(subject.encode(), b"%d" % number)
        nats.flush()
    for other in others:
        server.holds(other, 40)

    def seen() -> list[int]:
        return sorted(int(value) for member in members for value in server.values(member))

    assert poll(lambda: len(seen()) >= 40, TIMEOUT_S)
    assert seen() == list(range(40))


def test_many_streams_may_share_a_subject(server: Server) -> None:
    """3.4: many streams on one subject; 2.3: every attached stream stores its own copy."""
    subject = unique("shared")
    names = [server.create("copy", subject) for _ in range(3)]
    with server.nats() as nats:
        nats.publish(subject.encode(), message(b"x"))
        nats.flush()
    assert [server.holds(name, 1)[0].value for name in names] == [b"x"] * 3


def test_wildcards_are_legal(server: Server) -> None:
    """3.4: wildcards; 3.4: foo.* captures another stream's partition subjects."""
    base = unique("wild")
    one, rest = server.create("one", f"{base}.*"), server.create("rest", f"{base}.>")
    parted = server.create("parted", base, partitions=2)
    server.publish(parted, b"to 1", partition=1)
    with server.nats() as nats:
        nats.publish(f"{base}.a.b".encode(), b"deep")
        nats.flush()
    assert [(each.subject, each.value) for each in server.holds(one, 1)] == [(f"{base}.1", b"to 1")]
    assert [each.subject for each in server.holds(rest, 2)] == [f"{base}.1", f"{base}.a.b"]
