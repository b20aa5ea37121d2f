"""Header lists: HPACK (by the `hpack` library) with bounds around it, and the rules of RFC 9113 section 8.

Two ways to encode. Requests use the dynamic table, so they are encoded at the moment they are written out: HPACK
is only right if blocks arrive in the order they were encoded. Responses are `literal_block`s, which touch no table:
they can be prepared once, or dropped unsent, without harm.

A header list over the bound but under four times it is decoded, because skipping it would desynchronise the
tables, and then refused for its stream alone; a longer one ends the connection.
"""

import re
from collections.abc import Iterable
from typing import Final

import hpack
from hpack.hpack import encode_integer

from bascule import limits
from bascule.errors import Http2Error
from bascule.wire.http2.events import Headers
from bascule.wire.http2.frames import ErrorCode

_STATUS_200: Final = b"\x88"  # entry 8 of the static table
_ENTRY_OVERHEAD = 32
_NAME = re.compile(r":?[!#$%&'*+\-.^_`|~0-9a-z]+", re.ASCII)
_BAD_VALUE = re.compile(r"[\x00\r\n]")
_CONNECTION_HEADERS = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
_REQUEST_PSEUDO = frozenset({":method", ":scheme", ":path", ":authority"})


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


class HeaderEncoder:
    """The sending half. Table sizes the peer asked for are remembered as (lowest, last): that is all the next
    block must announce, however often the peer changed its mind."""

    __slots__ = ("_encoder", "_last_size", "_lowest_size")

    def __init__(self) -> None:
        self._encoder = hpack.Encoder()
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
        if isinstance(headers, bytes):
            return bytes(encoder.encode(())) + headers if encoder.header_table.resized else headers
        return bytes(encoder.encode(headers))


class HeaderDecoder:
    """The receiving half."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=4 * limits.HTTP2_MAX_HEADER_LIST_BYTES)

    def decode(self, block: bytes) -> Headers:
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
    return None


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
