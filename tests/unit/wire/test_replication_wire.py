"""Fetch requests and answers: what goes in comes out, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import PeerError
from bascule.wire.replication import (
    Answer,
    FetchRequest,
    Kind,
    Position,
    decode_part,
    decode_request,
    decode_response,
    encode_parts,
    encode_request,
    encode_response,
)

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
ids = st.text(max_size=20)
positions = st.builds(Position, u64, u32, u64, u64, u64, u64)
answers = st.builds(Answer, u64, u32, st.sampled_from(Kind), u64, u64, u64, u64, u64, u64, u64, st.binary(max_size=50))
requests = st.builds(FetchRequest, u64, u64, u64, u64, u64, u64, ids, st.booleans(), st.lists(positions, max_size=5))


@given(requests)
def test_a_request_survives_the_wire(request: FetchRequest) -> None:
    assert decode_request(encode_request(request)) == request


@given(u64, st.lists(answers, max_size=5), st.integers(41, 200))
def test_a_response_survives_being_split_into_parts(request_id: int, sent: list[Answer], max_part: int) -> None:
    messages = [b"".join(pieces) for pieces in encode_parts((7, 8), request_id, 9, encode_response(sent), max_part)]
    assert all(len(message) <= max_part for message in messages)
    parts = [decode_part(message) for message in messages]
    assert [
        (item.session, item.leader_session, item.request_id, item.number, item.part, item.parts) for item in parts
    ] == [(7, 8, request_id, 9, number, len(messages)) for number in range(len(messages))]
    assert decode_response(b"".join(item.piece for item in parts)) == sent


@given(requests, st.data())
def test_a_request_truncated_or_with_something_behind_it_is_refused(request: FetchRequest, data: st.DataObject) -> None:
    encoded = encode_request(request)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(PeerError):
        decode_request(encoded[:cut])
    with pytest.raises(PeerError):
        decode_request(encoded + b"x")


@given(st.binary(max_size=200))
def test_malformed_bytes_are_a_peer_error_and_nothing_else(data: bytes) -> None:
    for decode in (decode_request, decode_part, decode_response):
        try:
            decode(data)
        except PeerError:
            pass
