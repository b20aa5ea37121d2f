"""Fetch requests and answers: what goes in comes out, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import PeerError
from bascule.wire.replication import (
    Answer,
    FetchPart,
    FetchRequest,
    Kind,
    Position,
    answer_bytes,
    decode_part,
    decode_request,
    encode_parts,
    encode_request,
    response_bytes,
)

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
ids = st.text(max_size=20)
positions = st.builds(Position, u64, u32, u64, u64, u64, u64)
answers = st.builds(Answer, u64, u32, st.sampled_from(Kind), u64, u64, u64, u64, u64, st.binary(max_size=50))
requests = st.builds(FetchRequest, u64, ids, st.booleans(), st.lists(positions, max_size=5))


@given(requests)
def test_a_request_survives_the_wire(request: FetchRequest) -> None:
    assert decode_request(encode_request(request)) == request


@given(u64, ids, st.lists(st.lists(answers, max_size=3), min_size=1, max_size=4))
def test_an_answer_in_parts_survives_the_wire_and_is_as_large_as_said(
    request_id: int, leader: str, parts: list[list[Answer]]
) -> None:
    encoded = encode_parts(request_id, leader, parts)
    for number, (data, expected) in enumerate(zip(encoded, parts, strict=True)):
        assert decode_part(data) == FetchPart(request_id, leader, number, len(parts), expected)
        assert len(data) == response_bytes(leader) + sum(answer_bytes(len(item.records)) for item in expected)


@given(requests, st.data())
def test_a_request_cut_short_or_with_something_behind_it_is_refused(request: FetchRequest, data: st.DataObject) -> None:
    encoded = encode_request(request)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(PeerError):
        decode_request(encoded[:cut])
    with pytest.raises(PeerError):
        decode_request(encoded + b"x")


@given(st.binary(max_size=200))
def test_garbage_is_a_peer_error_and_nothing_else(data: bytes) -> None:
    for decode in (decode_request, decode_part):
        try:
            decode(data)
        except PeerError:
            pass
