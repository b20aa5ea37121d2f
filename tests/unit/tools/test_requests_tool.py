"""`make requests` calls every method there is, with requests that never touch the load, and says what it finds."""

from pathlib import Path

import pytest
from google.protobuf.message import DecodeError

from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tools import requests
from tools.fuzzing.chance import Chance
from tools.requesting.methods import Method, every_method
from tools.requesting.requests import Requests
from tools.requesting.watch import Usage, Watch

MIB = 1 << 20


def made(seed: str = "1") -> Requests:
    return Requests(Chance(seed), "abc", "orders")


def test_every_method_of_every_service_is_called() -> None:
    paths = {method.path for method in every_method()}
    assert {f"/proto.API/{method.name}" for method in api.DESCRIPTOR.services_by_name["API"].methods} <= paths
    assert {f"/bascule.v1.Admin/{each.name}" for each in admin.DESCRIPTOR.services_by_name["Admin"].methods} <= paths
    assert {"/bascule.v1.Log/Read", "/grpc.health.v1.Health/Watch"} <= paths


def test_the_same_seed_makes_the_same_requests() -> None:
    (method,) = (method for method in every_method() if method.name == "Publish")
    one, other = made(), made()
    assert [one.make(method) for _ in range(50)] == [other.make(method) for _ in range(50)]


@pytest.mark.parametrize("method", every_method(), ids=lambda method: method.path)
def test_requests_are_valid_and_invalid_and_the_load_is_only_read(method: Method) -> None:
    requests, valid = made(method.path), 0
    for _ in range(400):
        data = requests.make(method)
        try:
            message = method.request.FromString(data)
        except DecodeError:
            continue
        valid += 1
        names = [value for field, value in message.ListFields() if field.name in ("stream", "name", "subject")]
        assert method.reads_only or "orders" not in names
        if isinstance(message, admin.RemoveBrokerRequest):
            assert message.broker not in ("a", "b", "c")
            assert not message.force
        if isinstance(message, admin.DrainBrokerRequest):
            assert not message.stop
    assert 300 <= valid < 400 or not method.request.DESCRIPTOR.fields


def test_what_answers_say_is_asked_for_later() -> None:
    (method,) = (each for each in every_method() if each.name == "FetchConsumerGroupAssignments")
    requests = made()
    requests.learn(api.JoinConsumerGroupResponse(coordinator="b", epoch=4711))
    epochs = set()
    for _ in range(200):
        try:
            epochs.add(api.FetchConsumerGroupAssignmentsRequest.FromString(requests.make(method)).epoch)
        except DecodeError:
            continue
    assert 4711 in epochs


def test_memory_that_comes_and_goes_does_not_grow() -> None:
    flat = Usage(rss=[(float(at), (100 + at % 2) * MIB) for at in range(600)])
    growing = Usage(rss=[(float(at), (100 + at // 10) * MIB) for at in range(600)])
    middle, last = flat.grown(0.0, 600.0)
    assert abs(middle - last) <= 1
    middle, last = growing.grown(0.0, 600.0)
    assert last > middle * (1 + requests.MOST_GROWTH) + requests.MOST_GROWTH_MIB


def test_the_longest_callback_comes_first_and_earlier_ones_do_not_count(tmp_path: Path) -> None:
    watch = Watch(tmp_path, "ab")
    (tmp_path / "loop-a").write_text("1.0 0.5 0.0 before\n11.0 0.2 0.15 Broker.run\n")
    (tmp_path / "loop-b").write_text("12.0 0.3 0.0 Leading.step of s 1\n")
    assert watch.held(10.0) == [(300.0, "b", "Leading.step of s 1"), (200.0, "a", "Broker.run (garbage collection)")]
