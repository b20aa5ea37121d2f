"""Raft's bytes: what goes in comes out, and no other bytes do any harm."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bascule.errors import PeerError
from bascule.wire.kernels import crc32c
from bascule.wire.raft import (
    FORMAT_VERSION,
    MESSAGE_VERSION,
    decode_membership,
    decode_message,
    decode_stored,
    encode_membership,
    encode_message,
    encode_stored,
)
from bascule.wire.raft_messages import (
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Membership,
    Message,
    Snapshot,
    SnapshotReply,
    SnapshotRequest,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

numbers = st.integers(0, (1 << 63) - 1)
tokens = st.text(st.characters(categories=("L", "N"), include_characters="-_é"), min_size=1, max_size=20)
tokens_or_none = st.one_of(st.just(""), tokens)


@st.composite
def memberships(draw: st.DrawFn) -> Membership:
    servers = draw(st.lists(tokens, unique=True, max_size=7))
    cut = draw(st.integers(0, len(servers)))
    renewed = draw(st.lists(st.sampled_from(servers), unique=True)) if servers else []
    incarnations = tuple((server, draw(tokens)) for server in renewed)
    return Membership(tuple(servers[:cut]), tuple(servers[cut:]), incarnations, draw(tokens_or_none))


@st.composite
def entries(draw: st.DrawFn, first: int, low: int, high: int) -> list[Entry]:
    terms = sorted(draw(st.lists(st.integers(low, high), max_size=5)))
    found = []
    for number, term in enumerate(terms):
        kind = draw(st.sampled_from(EntryKind))
        data = encode_membership(draw(memberships())) if kind is EntryKind.MEMBERSHIP else draw(st.binary(max_size=40))
        found.append(Entry(first + number, term, kind, data))
    return found


snapshots = st.builds(Snapshot, numbers, numbers, memberships(), st.binary(max_size=40))
heads = (tokens, tokens, numbers)


@st.composite
def append_requests(draw: st.DrawFn) -> Message:
    term, prev_index = draw(numbers), draw(st.integers(0, 1 << 62))
    prev_term = draw(st.integers(0, term))
    following = tuple(draw(entries(prev_index + 1, prev_term, term)))
    return AppendRequest(draw(tokens), draw(tokens), term, prev_index, prev_term, draw(numbers), following)


@st.composite
def snapshot_requests(draw: st.DrawFn) -> Message:
    snapshot = draw(snapshots)
    offset = draw(st.integers(0, 1000))
    total = offset + len(snapshot.data) + draw(st.integers(0, 1000))
    term = draw(st.integers(snapshot.term, (1 << 63) - 1))
    return SnapshotRequest(draw(tokens), draw(tokens), term, snapshot, offset, total)


messages = st.one_of(
    append_requests(),
    snapshot_requests(),
    st.builds(AppendReply, *heads, numbers, st.booleans(), numbers, numbers, tokens_or_none),
    st.builds(Heartbeat, *heads, numbers, numbers, numbers),
    st.builds(HeartbeatReply, *heads, numbers, tokens_or_none),
    st.builds(VoteRequest, *heads, numbers, numbers, tokens_or_none, st.booleans(), st.booleans()),
    st.builds(VoteReply, *heads, st.booleans(), st.booleans()),
    st.builds(SnapshotReply, *heads, numbers, numbers, tokens_or_none),
    st.builds(TimeoutNow, *heads),
)


@given(messages)
def test_a_message_comes_back_as_it_went(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@given(memberships())
def test_a_membership_comes_back_as_it_went(membership: Membership) -> None:
    assert membership.well_formed
    assert decode_membership(encode_membership(membership)) == membership


@given(
    st.none() | st.builds(HardState, numbers, tokens_or_none, numbers, tokens_or_none),
    st.none() | snapshots,
    st.integers(1, 1 << 60).flatmap(lambda first: entries(first, 0, 9)),
)
def test_a_save_comes_back_as_it_went(
    hard_state: HardState | None, snapshot: Snapshot | None, saved: list[Entry]
) -> None:
    assert decode_stored(encode_stored(hard_state, snapshot, saved)) == (hard_state, snapshot, saved)


def checked(content: bytes) -> bytes:
    """As a message that arrived as it was sent."""
    return bytes((MESSAGE_VERSION,)) + crc32c(content).to_bytes(4, "little") + content


@given(st.binary())
@example(b"")
@example(bytes((MESSAGE_VERSION, 1)))
def test_malformed_bytes_are_a_peer_error_and_nothing_else(data: bytes) -> None:
    for prefix in (b"", *(bytes((FORMAT_VERSION, kind)) for kind in range(11))):
        for decode in (decode_message, decode_stored, decode_membership):
            try:
                decode(prefix + data)
            except PeerError:
                pass
        try:
            decode_message(checked(prefix[1:] + data))
        except PeerError:
            pass


@given(messages, st.data())
def test_a_message_truncated_too_long_or_changed_is_refused_and_a_forged_one_does_no_harm(
    message: Message, data: st.DataObject
) -> None:
    encoded = encode_message(message)
    with pytest.raises(PeerError):
        decode_message(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(PeerError):
        decode_message(encoded + b"\0")
    at = data.draw(st.integers(0, len(encoded) - 1))
    changed = bytearray(encoded)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PeerError):
        decode_message(bytes(changed))
    try:
        again = decode_message(checked(bytes(changed[5:])))
    except PeerError:
        return
    assert encode_message(again)[5:] == bytes(changed[5:]), "one message has one encoding"


def test_a_newer_format_is_refused_with_the_reason() -> None:
    encoded = encode_message(TimeoutNow("a", "b", 1))
    with pytest.raises(PeerError, match="of format 4, this broker knows 3; run the same release"):
        decode_message(b"\4" + encoded[1:])


def test_a_newer_format_on_disk_is_refused_with_the_reason() -> None:
    encoded = encode_stored(HardState(1, "a", 0, ""), None, [])
    with pytest.raises(PeerError, match="stored in format 3, this broker knows 2; run the release that wrote it"):
        decode_stored(b"\3" + encoded[1:])


def test_a_chunk_that_is_no_part_of_its_snapshot_is_refused() -> None:
    snapshot = Snapshot(5, 1, Membership(("a",)), b"0123456789")
    for offset, total in ((0, 9), (1, 10), (1 << 62, 10), (0, 1 << 62)):
        with pytest.raises(PeerError, match="a snapshot's chunk"):
            decode_message(encode_message(SnapshotRequest("a", "b", 1, snapshot, offset, total)))


def test_a_membership_that_cannot_be_is_refused_inside_an_entry_too() -> None:
    for membership in (
        Membership(("a", "a")),
        Membership(("a",), ("a",)),
        Membership(("",)),
        Membership(("a b",)),
        Membership(("a",), (), (("b", "x"),)),
    ):
        data = encode_membership(membership)
        with pytest.raises(PeerError, match="a membership names"):
            decode_membership(data)
        request = AppendRequest("a", "b", 1, 0, 0, 0, (Entry(1, 1, EntryKind.MEMBERSHIP, data),))
        with pytest.raises(PeerError, match="a membership names"):
            decode_message(encode_message(request))


def test_terms_that_go_back_are_refused() -> None:
    for request in (
        AppendRequest("a", "b", 3, 5, 2, 0, (Entry(6, 1),)),
        AppendRequest("a", "b", 3, 5, 2, 0, (Entry(6, 4),)),
        AppendRequest("a", "b", 3, 5, 4, 0),
    ):
        with pytest.raises(PeerError, match="terms"):
            decode_message(encode_message(request))
