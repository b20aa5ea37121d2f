"""Consumer groups: members join and leave, and each partition is read by one of them."""

from functools import partial
from typing import Any

import grpc
import pytest

from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import TIMEOUT_S, Outcome, Server, status, unique
from tests.harness.stub import Stub

CONSUMER_TIMEOUT_S, COORDINATOR_TIMEOUT_S = 2, 3
SETTINGS = {
    "groups.consumer.timeout": f"{CONSUMER_TIMEOUT_S}s",
    "groups.coordinator.timeout": f"{COORDINATOR_TIMEOUT_S}s",
}
INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
NO_MEMBER = (PRECONDITION, "consumer is not a member of the consumer group")


class Group:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.id = unique("group")

    def join(self, consumer: str, *streams: str, stub: Stub | None = None) -> api.JoinConsumerGroupResponse:
        request = api.JoinConsumerGroupRequest(groupId=self.id, consumerId=consumer, streams=streams)
        answer: api.JoinConsumerGroupResponse = (stub or self.server.any).JoinConsumerGroup(request, timeout=TIMEOUT_S)
        return answer

    def leave(self, consumer: str) -> None:
        request = api.LeaveConsumerGroupRequest(groupId=self.id, consumerId=consumer)
        self.server.any.LeaveConsumerGroup(request, timeout=TIMEOUT_S)

    def described(self) -> api.ConsumerGroupMetadata:
        request = api.FetchMetadataRequest(streams=["-"], groups=[self.id])
        response: api.FetchMetadataResponse = self.server.any.FetchMetadata(request, timeout=TIMEOUT_S)
        (found,) = response.groupMetadata
        return found

    def coordinator(self) -> Stub:
        return self.server.every[self.described().coordinator]

    def fetch(self, consumer: str, epoch: int | None = None) -> api.FetchConsumerGroupAssignmentsResponse:
        """As one of the present epoch, unless another is given. A broker may hear of a change a moment later."""
        response: api.FetchConsumerGroupAssignmentsResponse | None = None

        def answered() -> bool:
            nonlocal response
            described = self.described()
            request = api.FetchConsumerGroupAssignmentsRequest(
                groupId=self.id, consumerId=consumer, epoch=described.epoch if epoch is None else epoch
            )
            try:
                stub = self.server.every[described.coordinator]
                response = stub.FetchConsumerGroupAssignments(request, timeout=TIMEOUT_S)
            except grpc.RpcError as error:
                if error.code() is not PRECONDITION or "epoch" not in error.details():
                    raise
            return response is not None

        assert poll(answered, TIMEOUT_S)
        assert response is not None
        return response

    def assigned(self, consumer: str) -> dict[str, list[int]]:
        return {each.stream: sorted(each.partitions) for each in self.fetch(consumer).assignments if each.partitions}


@pytest.fixture
def group(server: Server) -> Group:
    return Group(server)


def refused(stub: Stub, method: str, **fields: Any) -> Outcome:
    request = getattr(api, f"{method}Request")(**fields)
    return status(getattr(stub, method), request)


METHODS = (
    "JoinConsumerGroup",
    "LeaveConsumerGroup",
    "FetchConsumerGroupAssignments",
    "ReportConsumerGroupCoordinator",
)


@pytest.mark.parametrize("method", METHODS)
def test_a_group_id_is_needed(server: Server, method: str) -> None:
    """1.5 Groups: groupId empty."""
    assert refused(server.any, method, consumerId="c") == (INVALID, "No groupId provided")


@pytest.mark.parametrize("method", METHODS)
def test_a_consumer_id_is_needed(server: Server, method: str) -> None:
    """1.5 Groups: consumerId empty."""
    assert refused(server.any, method, groupId="g") == (INVALID, "No consumerId provided")


# --- joining -------------------------------------------------------------------------------------------------


def test_a_member_needs_streams(server: Server, group: Group) -> None:
    """1.5 JoinConsumerGroup: streams empty."""
    expected = (INVALID, "No streams provided")
    assert refused(server.any, "JoinConsumerGroup", groupId=group.id, consumerId="c") == expected


def test_a_new_group_needs_its_streams(server: Server, group: Group) -> None:
    """1.5 JoinConsumerGroup: group new, a stream missing; 7.9 TestConsumerGroupAddMember."""
    fields: dict[str, Any] = {"groupId": group.id, "consumerId": "c", "streams": [server.create(), unique("missing")]}
    assert refused(server.any, "JoinConsumerGroup", **fields) == (PRECONDITION, "stream does not exist")
    assert group.described().error == api.ConsumerGroupMetadata.UNKNOWN_GROUP


def test_an_existing_group_needs_its_streams(server: Server, group: Group) -> None:
    """1.5 JoinConsumerGroup: group exists, a stream missing."""
    group.join("a", server.create())
    fields: dict[str, Any] = {"groupId": group.id, "consumerId": "b", "streams": [unique("missing")]}
    assert refused(server.any, "JoinConsumerGroup", **fields) == (PRECONDITION, "stream does not exist")


def test_a_member_joins_once(server: Server, group: Group) -> None:
    """1.5 JoinConsumerGroup: consumer already in."""
    name = server.create()
    group.join("a", name)
    fields: dict[str, Any] = {"groupId": group.id, "consumerId": "a", "streams": [name]}
    text = "consumer is already a member of the consumer group"
    assert refused(server.any, "JoinConsumerGroup", **fields) == (PRECONDITION, text)


def test_what_a_member_is_told(server: Server, group: Group) -> None:
    """3.19: Join; 1.4 JoinConsumerGroupResponse: timeouts in nanoseconds."""
    name = server.create(partitions=2)
    first = group.join("a", name)
    assert first.coordinator in server.every
    assert first.consumerTimeout == CONSUMER_TIMEOUT_S * 10**9
    assert first.coordinatorTimeout == COORDINATOR_TIMEOUT_S * 10**9
    second = group.join("b", name)
    assert (second.coordinator, second.epoch > first.epoch) == (first.coordinator, True)


def test_a_new_group_has_epoch_zero(server: Server, group: Group) -> None:
    """3.19: epoch 0 is returned to the first member."""
    assert group.join("a", server.create()).epoch == 0


@pytest.mark.differs("epoch of a new consumer group")
def test_epochs_of_a_group_only_rise(server: Server, group: Group) -> None:
    """3.19: the epoch of a new group."""
    name, seen = server.create(), 0
    for _ in range(3):
        assert group.join("a", name).epoch == 0
        assert group.fetch("a", epoch=0).epoch == group.described().epoch > seen
        seen = group.described().epoch
        group.leave("a")


@pytest.mark.differs("a coordinator whose broker is dead")
@pytest.mark.three
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_dead_coordinator_is_replaced_without_reports(fresh: Server) -> None:
    """3.19: a coordinator that dies."""
    name, group = fresh.create(), Group(fresh)
    dead = group.join("a", name).coordinator
    other = next(process for broker, process in fresh.processes.items() if broker != dead)
    fresh.processes[dead].kill9()
    with Server(other.address, fresh.nats_url, fresh.settings, fresh.processes) as rest:
        group.server = rest
        assert poll(lambda: group.described().coordinator not in (dead, ""), 60.0)


def test_groups_are_described(server: Server, group: Group) -> None:
    """1.4 ConsumerGroupMetadata; 3.19: the group epoch is that of the last change."""
    name = server.create()
    group.join("a", name)
    joined = group.join("b", name)
    assert poll(lambda: group.described().epoch == joined.epoch, TIMEOUT_S)
    found = group.described()
    assert (found.groupId, found.error) == (group.id, api.ConsumerGroupMetadata.OK)
    assert (found.coordinator, found.epoch) == (joined.coordinator, joined.epoch)
    joined = group.join("c", name)
    assert poll(lambda: group.described().epoch == joined.epoch, TIMEOUT_S)


# --- assignments ---------------------------------------------------------------------------------------------


def test_members_come_and_go(server: Server, group: Group) -> None:
    """3.19: assignment, the example; 7.9 TestConsumerGroupLifecycle;
    3.19: the last member leaving deletes the group."""
    foo, bar = server.create("foo", partitions=2), server.create("bar", partitions=2)
    group.join("c1", foo, bar)
    assert group.assigned("c1") == {foo: [0, 1], bar: [0, 1]}
    group.join("c2", foo)
    assert (group.assigned("c1"), group.assigned("c2")) == ({bar: [0, 1]}, {foo: [0, 1]})
    group.leave("c2")
    assert group.assigned("c1") == {foo: [0, 1], bar: [0, 1]}
    group.leave("c1")
    assert poll(lambda: group.described().error == api.ConsumerGroupMetadata.UNKNOWN_GROUP, TIMEOUT_S)


def test_partitions_are_shared_evenly(server: Server, group: Group) -> None:
    """3.19: each partition has one member, as balanced as can be."""
    name = server.create(partitions=6)
    for consumer in "abc":
        group.join(consumer, name)
    shares = [group.assigned(consumer)[name] for consumer in "abc"]
    assert [len(share) for share in shares] == [2, 2, 2]
    assert sorted(number for share in shares for number in share) == list(range(6))


def test_a_deleted_stream_is_assigned_to_nobody(server: Server, group: Group) -> None:
    """3.13: groups drop the stream from members and rebalance; 7.9 TestConsumerGroupStreamDeleted."""
    foo, bar = server.create("foo"), server.create("bar", partitions=2)
    group.join("a", foo, bar)
    before = group.described().epoch
    server.delete(foo)
    assert poll(lambda: group.assigned("a") == {bar: [0, 1]}, TIMEOUT_S)
    assert group.described().epoch > before


def test_assignments_of_an_unknown_group(server: Server, group: Group) -> None:
    """1.5 FetchConsumerGroupAssignments: group missing."""
    fields: dict[str, Any] = {"groupId": group.id, "consumerId": "a"}
    expected = (NOT_FOUND, "consumer group does not exist")
    assert refused(server.any, "FetchConsumerGroupAssignments", **fields) == expected


def test_assignments_of_another_epoch(server: Server, group: Group) -> None:
    """1.5 FetchConsumerGroupAssignments: epoch differs; 1.5 FetchConsumerGroupAssignments: epoch before membership."""
    joined = group.join("a", server.create())
    text = "client-provided group epoch differs from broker group epoch"
    for consumer in ("a", "nobody"):
        fields: dict[str, Any] = {"groupId": group.id, "consumerId": consumer, "epoch": joined.epoch + 7}
        assert refused(group.coordinator(), "FetchConsumerGroupAssignments", **fields) == (PRECONDITION, text)


def test_assignments_of_no_member(server: Server, group: Group) -> None:
    """1.5 FetchConsumerGroupAssignments: not a member."""
    joined = group.join("a", server.create())
    fields: dict[str, Any] = {"groupId": group.id, "consumerId": "nobody", "epoch": joined.epoch}
    assert refused(group.coordinator(), "FetchConsumerGroupAssignments", **fields) == NO_MEMBER


@pytest.mark.three
def test_only_the_coordinator_answers(server: Server, group: Group) -> None:
    """1.5 FetchConsumerGroupAssignments: wrong broker; 1.5 FetchConsumerGroupAssignments: coordinator before epoch."""
    joined = group.join("a", server.create())
    text = "broker is not the consumer group coordinator"
    for name, stub in server.every.items():
        if name != joined.coordinator:
            fields: dict[str, Any] = {"groupId": group.id, "consumerId": "a", "epoch": 77}
            assert poll(partial(known_to, stub, fields), TIMEOUT_S)
            assert refused(stub, "FetchConsumerGroupAssignments", **fields) == (PRECONDITION, text)


def known_to(stub: Stub, fields: dict[str, Any]) -> bool:
    return refused(stub, "FetchConsumerGroupAssignments", **fields)[0] is not NOT_FOUND


# --- leaving -------------------------------------------------------------------------------------------------


def test_leaving_an_unknown_group(server: Server, group: Group) -> None:
    """1.5 LeaveConsumerGroup: group missing."""
    expected = (NOT_FOUND, "consumer group does not exist")
    assert refused(server.any, "LeaveConsumerGroup", groupId=group.id, consumerId="a") == expected


def test_who_is_no_member_cannot_leave(server: Server, group: Group) -> None:
    """1.5 LeaveConsumerGroup: not a member."""
    group.join("a", server.create())
    assert refused(server.any, "LeaveConsumerGroup", groupId=group.id, consumerId="b") == NO_MEMBER


def test_a_silent_member_is_removed(server: Server, group: Group) -> None:
    """3.19: a member that does not fetch expires; 3.19: fetching is the heartbeat."""
    name = server.create(partitions=2)
    group.join("silent", name)
    group.join("alive", name)
    assert poll(lambda: group.assigned("alive") == {name: [0, 1]}, 5 * CONSUMER_TIMEOUT_S)
    epoch = group.described().epoch
    fields: dict[str, Any] = {"groupId": group.id, "consumerId": "silent", "epoch": epoch}
    assert refused(group.coordinator(), "FetchConsumerGroupAssignments", **fields) == NO_MEMBER


def test_fetching_for_another_epoch_is_no_heartbeat(server: Server, group: Group) -> None:
    """3.19: an epoch-mismatch answer does not reset the timer."""
    joined = group.join("late", server.create())
    fields = {"groupId": group.id, "consumerId": "late", "epoch": joined.epoch + 7}

    def ended() -> bool:
        return refused(server.every[joined.coordinator], "FetchConsumerGroupAssignments", **fields)[0] is NOT_FOUND

    assert poll(ended, 5 * CONSUMER_TIMEOUT_S)


def test_a_group_of_silent_members_ends(server: Server, group: Group) -> None:
    """3.19: expiry of the last member deletes the group."""
    group.join("silent", server.create())
    unknown = api.ConsumerGroupMetadata.UNKNOWN_GROUP
    assert poll(lambda: group.described().error == unknown, 5 * CONSUMER_TIMEOUT_S)


# --- the coordinator -----------------------------------------------------------------------------------------


def report(server: Server, group: Group, consumer: str, coordinator: str, epoch: int) -> Outcome:
    fields: dict[str, Any] = {"groupId": group.id, "consumerId": consumer, "coordinator": coordinator, "epoch": epoch}
    return refused(server.any, "ReportConsumerGroupCoordinator", **fields)


def test_a_report_needs_a_coordinator(server: Server, group: Group) -> None:
    """1.5 ReportConsumerGroupCoordinator: coordinator empty."""
    assert report(server, group, "a", "", 0) == (INVALID, "No coordinator provided")


def test_a_report_about_an_unknown_group(server: Server, group: Group) -> None:
    """1.5 ReportConsumerGroupCoordinator: group missing."""
    expected = (PRECONDITION, f"No such consumer group {group.id}")
    assert report(server, group, "a", "x", 0) == expected


def test_a_report_about_another_coordinator(server: Server, group: Group) -> None:
    """1.5 ReportConsumerGroupCoordinator: coordinator or epoch stale."""
    name = server.create()
    group.join("a", name)
    joined = group.join("b", name)
    current = f"current coordinator: {joined.coordinator} epoch: {joined.epoch}"
    for other, epoch in (("nobody", joined.epoch), (joined.coordinator, joined.epoch + 9)):
        text = f"Coordinator generation mismatch, {current}, got coordinator: {other} epoch: {epoch}"
        assert report(server, group, "a", other, epoch) == (PRECONDITION, text)


def test_a_report_of_no_member(server: Server, group: Group) -> None:
    """1.5 ReportConsumerGroupCoordinator: not a member."""
    joined = group.join("a", server.create())
    text = f"Consumer nobody is not a member of consumer group {group.id}"
    assert report(server, group, "nobody", joined.coordinator, joined.epoch) == (PRECONDITION, text)


def test_a_report_where_nobody_else_can_coordinate(server: Server, group: Group) -> None:
    """1.5 ReportConsumerGroupCoordinator: nobody else to elect."""
    if len(server) > 1:
        pytest.skip("needs a server of one broker")
    joined = group.join("a", server.create())
    expected = (PRECONDITION, "No group coordinator candidates")
    assert report(server, group, "a", joined.coordinator, joined.epoch) == expected


@pytest.mark.three
def test_a_majority_of_reports_replaces_the_coordinator(server: Server, group: Group) -> None:
    """3.19: coordinator fail-over by reports; 7.9 TestConsumerGroupCoordinatorFailover."""
    name = server.create(partitions=3)
    for consumer in "abc":
        group.join(consumer, name)
    before = group.described()
    assert report(server, group, "a", before.coordinator, before.epoch)[0] is grpc.StatusCode.OK
    assert group.described().coordinator == before.coordinator, "one of three is no majority"
    assert report(server, group, "b", before.coordinator, before.epoch)[0] is grpc.StatusCode.OK
    assert poll(lambda: group.described().coordinator != before.coordinator, TIMEOUT_S)
    assert group.described().epoch > before.epoch
    assert sorted(number for each in "abc" for number in group.assigned(each)[name]) == [0, 1, 2]


@pytest.mark.three
def test_coordinators_are_spread(server: Server) -> None:
    """3.3: the coordinator is the server with the fewest coordinations."""
    name = server.create()
    coordinators = {Group(server).join("a", name).coordinator for _ in range(9)}
    assert coordinators == set(server.every)


@pytest.mark.three
def test_members_join_through_any_broker(server: Server, group: Group) -> None:
    """1.1: JoinConsumerGroup on any server."""
    name = server.create(partitions=3)
    for number, stub in enumerate(server.every.values()):
        group.join(f"c{number}", name, stub=stub)
    assert [len(group.assigned(f"c{number}")[name]) for number in range(3)] == [1, 1, 1]
