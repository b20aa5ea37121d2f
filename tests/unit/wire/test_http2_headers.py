"""Header blocks: our two halves against each other and against the library alone, whatever the tables go through."""

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule import limits
from bascule.errors import Http2Error
from bascule.wire.http2.headers import HeaderDecoder, HeaderEncoder, literal_block

_FIELDS = st.tuples(
    st.sampled_from([":path", "te", "content-type", "x-a", "x-b", "grpc-timeout"]),
    st.sampled_from(["", "1", "2", "trailers", "v" * 300, "w" * 1500, "ü"]),
)
_LISTS = st.lists(st.lists(_FIELDS, max_size=6), max_size=25)


def sorted_last(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Our encoder writes timeouts last."""
    return sorted(headers, key=lambda field: field[0] == "grpc-timeout")


@given(_LISTS, st.lists(st.tuples(st.integers(0, 24), st.integers(0, 5000)), max_size=4))
def test_what_our_encoder_writes_the_library_reads(
    lists: list[list[tuple[str, str]]], resizes: list[tuple[int, int]]
) -> None:
    encoder, decoder = HeaderEncoder(), hpack.Decoder()
    for n, headers in enumerate(lists):
        for when, size in resizes:
            if when == n:
                encoder.resize(size)
                decoder.max_allowed_table_size = min(size, limits.HTTP2_HEADER_TABLE_BYTES)
        block = encoder.encode(headers)
        got = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
        # A list goes through the table as UTF-8; a varying field is written as the literal it is.
        assert got == [
            (name.encode(), value.encode("latin-1" if name == "grpc-timeout" else "utf-8"))
            for name, value in sorted_last(headers)
        ]


@given(_LISTS, st.booleans())
def test_our_decoder_reads_what_the_library_reads(lists: list[list[tuple[str, str]]], huffman: bool) -> None:
    encoder, ours, theirs = hpack.Encoder(), HeaderDecoder(), hpack.Decoder()
    for headers in lists:
        block = bytes(encoder.encode(headers, huffman=huffman))
        expected = [(bytes(n).decode("latin-1"), bytes(v).decode("latin-1")) for n, v in theirs.decode(block, raw=True)]
        assert ours.decode(block) == expected


@given(_LISTS)
def test_a_repeated_block_means_the_same_only_while_the_table_is_the_same(
    lists: list[list[tuple[str, str]]],
) -> None:
    """Indexed fields are replayed after other entries came in between: the remembered answer must not survive."""
    encoder, ours, theirs = hpack.Encoder(), HeaderDecoder(), hpack.Decoder()
    probe = b"\xbe\xbf"  # the two newest entries of the dynamic table
    for headers in lists:
        block = bytes(encoder.encode(headers))
        ours.decode(block)
        theirs.decode(block, raw=True)
        if len(theirs.header_table.dynamic_entries) >= 2:
            expected = [bytes(value).decode("latin-1") for _, value in theirs.decode(probe, raw=True)]
            assert [value for _, value in ours.decode(probe)] == expected
            assert [value for _, value in ours.decode(probe)] == expected


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_random_bytes_are_decoded_or_refused_and_nothing_else(blocks: list[bytes]) -> None:
    decoder = HeaderDecoder()
    try:
        for block in blocks:
            decoder.decode(block)
    except Http2Error:
        pass


def test_a_caller_may_change_what_it_was_given() -> None:
    decoder = HeaderDecoder()
    block = literal_block([("a", "b")])
    decoder.decode(block).append(("c", "d"))
    assert decoder.decode(block) == [("a", "b")]


def test_a_header_list_far_over_the_bound_ends_the_connection() -> None:
    with pytest.raises(Http2Error, match="far over"):
        HeaderDecoder().decode(literal_block([("x", "v" * 5000)] * 14))
