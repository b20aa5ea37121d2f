"""Header lists: HPACK (by the `hpack` library) with bounds, and the rules of RFC 9113 section 8.

Two ways to encode. Requests use the dynamic table, so they are encoded at the moment they are written out: HPACK
is only right if blocks arrive in the order they were encoded. Responses are `literal_block`s, which touch no table:
they can be prepared once, or dropped unsent, without harm.

Clients send the same headers again and again, so both halves cache the blocks they have seen since their table last
changed: until then the same list has the same block, and the same block the same list.

A header list over the bound but under four times it is decoded, because skipping it would desynchronise the
tables, and then refused for its stream alone; a longer one ends the connection.
"""

import re
from collections.abc import Iterable
from typing import Final

import hpack
from hpack.hpack import encode_integer
from hpack.table import HeaderTable

from bascule import limits
from bascule.errors import Http2Error
from bascule.wire.http2 import frames
from bascule.wire.http2.events import Headers
from bascule.wire.http2.frames import ErrorCode

_STATUS_200: Final = b"\x88"  # entry 8 of the static table
_ENTRY_OVERHEAD = 32
_NAME = re.compile(r":?[!#$%&'*+\-.^_`|~0-9a-z]+", re.ASCII)
_BAD_VALUE = re.compile(r"[\x00\r\n]")
_LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)
_CONNECTION_HEADERS = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
_REQUEST_PSEUDO = frozenset({":method", ":scheme", ":path", ":authority"})


class HeaderBlock:
    """What a HEADERS frame begins, and CONTINUATION frames go on with."""

    __slots__ = ("_continuations", "content", "ends_stream", "stream_id")

    def __init__(self, stream_id: int, flags: int, payload: bytes) -> None:
        start, end = 0, len(payload)
        if flags & frames.PADDED:
            start = 1
            end -= payload[0] if payload else 1
        if flags & frames.PRIORITY_PRESENT:
            start += 5
        if start > end:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a HEADERS frame's padding is longer than the frame")
        self.stream_id = stream_id
        self.ends_stream = bool(flags & frames.END_STREAM)
        self.content = bytearray(payload[start:end])
        self._continuations = 0

    def go_on(self, payload: bytes) -> None:
        self._continuations += 1
        self.content += payload
        if (
            self._continuations > limits.HTTP2_MAX_CONTINUATIONS
            or len(self.content) > limits.HTTP2_MAX_HEADER_BLOCK_BYTES
        ):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a header block goes on for too long")


def literal_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """A header block of literals without indexing: right at any time, on any connection."""
    parts: list[bytes | bytearray] = []
    for name, value in headers:
        if name == ":status" and value == "200":
            parts.append(_STATUS_200)
            continue
        raw_name, raw_value = name.encode("latin-1"), value.encode("latin-1")
        parts += (
            b"\x00",
            encode_integer(len(raw_name), 7),
            raw_name,
            encode_integer(len(raw_value), 7),
            raw_value,
        )
    return b"".join(parts)


class _Mark:
    """A table as it was. Entries come in at the front and leave at the back, each a new object: the same front
    object at the same length means the same content."""

    __slots__ = ("_front", "_length", "_maxsize", "_table")

    def __init__(self, table: HeaderTable) -> None:
        self._table = table
        self._length = len(table.dynamic_entries)
        self._front = table.dynamic_entries[0] if self._length else None
        self._maxsize = table.maxsize

    def unchanged(self) -> bool:
        table = self._table
        return (
            len(table.dynamic_entries) == self._length
            and table.maxsize == self._maxsize
            and (not self._length or table.dynamic_entries[0] is self._front)
        )


class HeaderEncoder:
    """The sending half. Table sizes the peer asked for are remembered as (lowest, last): that is all the next
    block must announce, however often the peer changed its mind."""

    __slots__ = ("_encoder", "_last_size", "_lowest_size", "_memo")

    def __init__(self) -> None:
        self._encoder = hpack.Encoder()
        self._memo: dict[tuple[tuple[str, str], ...], bytes] = {}
        self._lowest_size = self._last_size = int(self._encoder.header_table_size)

    def resize(self, size: int) -> None:
        self._last_size = min(size, limits.HTTP2_HEADER_TABLE_BYTES)
        self._lowest_size = min(self._lowest_size, self._last_size)

    def encode(self, headers: Headers | bytes) -> bytes:
        """The block to send now: a prepared literal block, or a list through the dynamic table."""
        encoder = self._encoder
        if self._lowest_size != encoder.header_table_size:
            encoder.header_table_size = self._lowest_size
        if self._last_size != encoder.header_table_size:
            encoder.header_table_size = self._last_size
        self._lowest_size = self._last_size
        table = encoder.header_table
        update = b""
        if table.resized:
            update = bytes(encoder.encode(()))
            self._memo.clear()
        if isinstance(headers, bytes):
            return update + headers
        stable, varying = split_varying(headers)
        block = self._memo.get(stable)
        if block is None:
            before = _Mark(table)
            block = bytes(encoder.encode(stable))
            if before.unchanged() and len(self._memo) < limits.HTTP2_HEADER_MEMO:
                self._memo[stable] = block
            else:
                self._memo.clear()
        return update + block + literal_block(varying)


def split_varying(headers: Headers) -> tuple[tuple[tuple[str, str], ...], Headers]:
    """What a caller repeats, and what differs each time (the timeout) and would only push the rest out of the table."""
    varying = [field for field in headers if field[0] == "grpc-timeout"]
    stable = tuple(field for field in headers if field[0] != "grpc-timeout") if varying else tuple(headers)
    return stable, varying


class HeaderDecoder:
    """The receiving half."""

    __slots__ = ("_decoder", "_memo")

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=4 * limits.HTTP2_MAX_HEADER_LIST_BYTES)
        self._memo: dict[bytes, Headers] = {}

    def decode(self, block: bytes) -> Headers:
        known = self._memo.get(block)
        if known is not None:
            return known.copy()
        table = self._decoder.header_table
        before = _Mark(table)
        headers = self._decode(block)
        if before.unchanged() and len(self._memo) < limits.HTTP2_HEADER_MEMO:
            self._memo[block] = headers.copy()
        else:
            self._memo.clear()
        return headers

    def _decode(self, block: bytes) -> Headers:
        try:
            raw = self._decoder.decode(block, raw=True)
        except hpack.OversizedHeaderListError:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a header list is far over the announced bound") from None
        except hpack.HPACKError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, f"a header block cannot be decoded: {error}") from None
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in raw]


def list_size(headers: Headers) -> int:
    """As SETTINGS_MAX_HEADER_LIST_SIZE counts it."""
    return sum(len(name) + len(value) + _ENTRY_OVERHEAD for name, value in headers)


def _field_problem(headers: Headers) -> str | None:
    regular_seen = False
    for name, value in headers:
        if not _NAME.fullmatch(name):
            return f"header name {name!r} is not allowed in HTTP/2"
        if _BAD_VALUE.search(value):
            return f"the value of header {name!r} holds a line break or NUL"
        if name.startswith(":"):
            if regular_seen:
                return f"{name} comes after regular headers"
        else:
            regular_seen = True
            if name in _CONNECTION_HEADERS or (name == "te" and value != "trailers"):
                return f"{name} has no place in HTTP/2"
    return None


def request_problem(headers: Headers) -> str | None:
    """Why these cannot be the headers of a request; None if they can."""
    problem = _field_problem(headers)
    if problem is not None:
        return problem
    pseudo = [name for name, _ in headers if name.startswith(":")]
    if len(set(pseudo)) != len(pseudo):
        return "a pseudo-header is repeated"
    if not _REQUEST_PSEUDO.issuperset(pseudo):
        return "an unknown pseudo-header"
    if not {":method", ":scheme", ":path"}.issubset(pseudo):
        return ":method, :scheme or :path is missing"
    if (":path", "") in headers:
        return ":path is empty"
    return None


def content_length(headers: Headers) -> int | None:
    """How many bytes of data are announced: -1 if nothing is said; None if it is said in a way that cannot be."""
    values = {value for name, value in headers if name == "content-length"}
    if not values:
        return -1
    value = values.pop()
    return int(value) if not values and _LENGTH.fullmatch(value) else None


def response_problem(headers: Headers) -> str | None:
    """Why these cannot be the first headers of a response; None if they can."""
    problem = _field_problem(headers)
    if problem is not None:
        return problem
    pseudo = [(name, value) for name, value in headers if name.startswith(":")]
    if len(pseudo) != 1 or pseudo[0][0] != ":status" or not re.fullmatch(r"[1-9][0-9][0-9]", pseudo[0][1]):
        return "exactly one three-digit :status is needed"
    return None


def trailers_problem(headers: Headers) -> str | None:
    """Why these cannot be trailers; None if they can."""
    problem = _field_problem(headers)
    if problem is not None:
        return problem
    if any(name.startswith(":") for name, _ in headers):
        return "a pseudo-header in trailers"
    return None
