"""A message may be large, but not in the number of its headers: each is an object to decode, and others wait."""

import asyncio

import pytest

from bascule.errors import Status
from bascule.limits import GRPC_MAX_MESSAGE_BYTES, MAX_MESSAGE_FIELDS
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.fieldcount import fields_up_to
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node

EMPTY_HEADER = {"Publish": b"\x2a\x00", "PublishToSubject": b"\x22\x00"}


def request(method: str) -> bytes:
    if method == "Publish":
        return api.PublishRequest(stream="s", value=b"value", ackPolicy=api.ALL).SerializeToString()
    return api.PublishToSubjectRequest(subject="s", value=b"value", ackPolicy=api.ALL).SerializeToString()


async def answer(node: Node, method: str, data: bytes) -> tuple[Status, str]:
    call = MemoryCall(1.0)
    call.request(data)
    return await call.run(node.handler(method))


@pytest.mark.parametrize("method", EMPTY_HEADER)
def test_too_many_headers_are_refused_before_they_are_decoded(method: str) -> None:
    async def scenario() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        few = request(method)
        most = MAX_MESSAGE_FIELDS - fields_up_to(few, 100)
        assert await answer(node, method, few + EMPTY_HEADER[method] * most) == (Status.OK, "")
        status, text = await answer(node, method, few + EMPTY_HEADER[method] * (most + 1))
        assert status is Status.INVALID_ARGUMENT
        assert f"more than {MAX_MESSAGE_FIELDS} headers" in text

        huge = few + EMPTY_HEADER[method] * ((GRPC_MAX_MESSAGE_BYTES - len(few)) // 2)
        status, _ = await answer(node, method, huge)
        assert status is Status.INVALID_ARGUMENT

    run(scenario())


def test_a_large_value_is_no_header() -> None:
    async def scenario() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        value = EMPTY_HEADER["Publish"] * 300_000
        data = api.PublishRequest(stream="s", value=value, ackPolicy=api.ALL).SerializeToString()
        assert await answer(node, "Publish", data) == (Status.OK, "")

    run(scenario())


def test_fields_are_counted_up_to_a_bound_whatever_they_are() -> None:
    message = api.PublishRequest(stream="s", value=b"v", partition=3, headers={"a": b"1", "b": b"2"})
    data = message.SerializeToString()
    assert fields_up_to(data, 100) == 5
    assert fields_up_to(data, 3) == 3
    unknown = b"\x7d" + bytes(4) + b"\x79" + bytes(8) + b"\x7b" + b"\x78\x01" + b"\x7c"  # fixed, and a group of one
    assert fields_up_to(unknown + data, 100) == 5 + 5
    assert fields_up_to(data[:-1] + b"\xff" * 20, 100) <= 6
    assert fields_up_to(b"\xff" * 20, 100) == 0


def test_an_unroutable_one_in_publish_async_is_refused_and_the_next_is_not() -> None:
    async def scenario() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        many = api.PublishRequest(stream="none").SerializeToString() + EMPTY_HEADER["Publish"] * 5_000
        call = MemoryCall(2.0)
        call.request(many)
        call.request(request("Publish"))
        working = asyncio.get_running_loop().create_task(call.run(node.handler("PublishAsync")))
        await asyncio.sleep(1.0)
        working.cancel()
        answers, data = [], bytes(call.responses)
        while data:
            size = int.from_bytes(data[1:5], "big")
            answers.append(api.PublishResponse.FromString(data[5 : 5 + size]))
            data = data[5 + size :]
        assert sorted(each.asyncError.code for each in answers) == [0, api.PublishAsyncError.BAD_REQUEST]

    run(scenario())
