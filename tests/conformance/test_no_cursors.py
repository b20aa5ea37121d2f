"""Cursors on a server that has none (`cursors.stream.partitions` is 0 by default)."""

import grpc
import pytest

from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import Server, status


def test_cursors_are_off(server: Server) -> None:
    """1.5 SetCursor: __cursors missing; 1.5 FetchCursor: __cursors missing; 3.20: off by default."""
    if server.described("__cursors").error == api.StreamMetadata.OK:
        pytest.skip("this server has cursors.stream.partitions set")
    expected = (grpc.StatusCode.INTERNAL, "Cursors stream does not exist")
    setting = api.SetCursorRequest(stream="s", cursorId="c", offset=1)
    assert status(server.any.SetCursor, setting) == expected
    fetching = api.FetchCursorRequest(stream="s", cursorId="c")
    assert status(server.any.FetchCursor, fetching) == expected


def test_there_is_no_activity_stream(server: Server) -> None:
    """3.21: off by default."""
    if server.described("__activity").error == api.StreamMetadata.OK:
        pytest.skip("this server has activity.stream.enabled set")
    assert server.refusal("__activity") == (grpc.StatusCode.NOT_FOUND, "No such partition")
