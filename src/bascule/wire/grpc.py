"""gRPC over HTTP/2, the parts that are only text and bytes: statuses, timeouts, header lists, framed messages.

A message on the wire is a flag byte (1 = compressed), a u32 big-endian length and the bytes. A call's end is a
status number and a percent-encoded text in the trailers; a call that fails before its first message sends both in
its only header block. We never compress; a client that does (gzip) is understood, within a bound on what the
decompressed message may become.
"""

import re
import zlib
from collections.abc import Iterable
from typing import Final

from bascule import limits
from bascule.errors import Internal, InvalidArgument, ResourceExhausted, Status, Unimplemented
from bascule.wire.http2.events import Headers
from bascule.wire.http2.frames import ErrorCode
from bascule.wire.http2.headers import literal_block

PREFIX_BYTES: Final = 5
CONTENT_TYPE: Final = "application/grpc"
USER_AGENT: Final = "grpc-python-bascule/0.1"

_RESPONSE: Final = [
    (":status", "200"),
    ("content-type", CONTENT_TYPE),
    ("grpc-accept-encoding", "identity,gzip"),
]
RESPONSE_HEAD: Final = literal_block(_RESPONSE)
OK_TRAILERS: Final = literal_block([("grpc-status", "0")])

_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])", re.ASCII)
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")


# --- statuses -----------------------------------------------------------------------------------------------


def encode_text(text: str) -> str:
    """A `grpc-message`: printable ASCII as it is, every other byte of the UTF-8 and `%` itself as %XX."""
    raw = text.encode("utf-8", "replace")[: limits.GRPC_MAX_STATUS_MESSAGE_BYTES]
    return "".join(chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in raw)


def decode_text(value: str) -> str:
    """What a peer sent as `grpc-message`; what cannot be decoded stays as it is."""
    raw = value.encode("latin-1", "replace")
    return _PERCENT.sub(lambda match: bytes([int(match[1], 16)]), raw).decode("utf-8", "replace")


def trailers(status: Status, message: str) -> bytes:
    """The end of a call that has already sent its headers."""
    if status is Status.OK and not message:
        return OK_TRAILERS
    fields = [("grpc-status", str(int(status)))]
    if message:
        fields.append(("grpc-message", encode_text(message)))
    return literal_block(fields)


def trailers_only(status: Status, message: str) -> bytes:
    """The whole answer of a call that ends before its first message."""
    return RESPONSE_HEAD + trailers(status, message)


def http_refusal(http_status: int, status: Status, message: str) -> bytes:
    """The response to a request that is not gRPC: an HTTP status, and the same as a gRPC status."""
    return literal_block(
        [
            (":status", str(http_status)),
            ("content-type", CONTENT_TYPE),
            ("grpc-status", str(int(status))),
            ("grpc-message", encode_text(message)),
        ]
    )


_HTTP_STATUS: Final = {
    400: Status.INTERNAL,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.UNIMPLEMENTED,
    429: Status.UNAVAILABLE,
    502: Status.UNAVAILABLE,
    503: Status.UNAVAILABLE,
    504: Status.UNAVAILABLE,
}

_RESET_STATUS: Final = {
    int(ErrorCode.REFUSED_STREAM): Status.UNAVAILABLE,
    int(ErrorCode.CANCEL): Status.CANCELLED,
    int(ErrorCode.ENHANCE_YOUR_CALM): Status.RESOURCE_EXHAUSTED,
    int(ErrorCode.INADEQUATE_SECURITY): Status.PERMISSION_DENIED,
}


def status_of_reset(code: int) -> Status:
    """How gRPC reads an RST_STREAM."""
    return _RESET_STATUS.get(code, Status.INTERNAL)


def status_of_http(http_status: str) -> Status:
    """How gRPC reads an HTTP status that came without a grpc-status."""
    return _HTTP_STATUS.get(int(http_status), Status.UNKNOWN)


def status_of_trailers(fields: Headers) -> tuple[Status, str] | None:
    """The status and text a header block carries; None if it carries none."""
    values = dict(fields)
    number = values.get("grpc-status")
    if number is None:
        return None
    text = decode_text(values.get("grpc-message", ""))
    try:
        return Status(int(number)), text
    except ValueError:
        return Status.UNKNOWN, text or f"the server sent grpc-status {number!r}, which does not exist"


# --- deadlines ----------------------------------------------------------------------------------------------


def parse_timeout(value: str) -> float:
    """A `grpc-timeout` in seconds."""
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise Internal(f"malformed grpc-timeout: {value!r}")
    return int(match[1]) * _UNITS[match[2]]


def format_timeout(seconds: float) -> str:
    """A `grpc-timeout` as precise as its eight digits allow, never shorter than asked."""
    if seconds <= 0:
        return "1n"
    seconds = min(seconds, (10**8 - 1) * 3600.0)  # also one without end
    for unit, size in (("n", 1e-9), ("u", 1e-6), ("m", 1e-3), ("S", 1.0), ("M", 60.0)):
        count = -int(-seconds // size)
        if count < 10**8:
            return f"{count}{unit}"
    return f"{-int(-seconds // 3600)}H"


# --- header lists -------------------------------------------------------------------------------------------


def request_headers(path: str, authority: str, secure: bool, timeout: float | None) -> Headers:
    fields = [
        (":method", "POST"),
        (":scheme", "https" if secure else "http"),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", CONTENT_TYPE),
        ("user-agent", USER_AGENT),
        ("grpc-accept-encoding", "identity"),
    ]
    if timeout is not None:
        fields.append(("grpc-timeout", format_timeout(timeout)))
    return fields


def is_grpc(content_type: str | None) -> bool:
    """application/grpc, alone or with a +subtype or ;parameters."""
    if content_type is None or not content_type.lower().startswith(CONTENT_TYPE):
        return False
    return len(content_type) == len(CONTENT_TYPE) or content_type[len(CONTENT_TYPE)] in "+;"


def unknown_method(path: str, known_paths: Iterable[str]) -> Unimplemented:
    """The error texts of grpc-go for an unknown path."""
    service, slash, method = path.removeprefix("/").rpartition("/")
    if not path.startswith("/") or not slash:
        return Unimplemented(f'malformed method name: "{path}"')
    if any(known.startswith(f"/{service}/") for known in known_paths):
        return Unimplemented(f"unknown method {method} for service {service}")
    return Unimplemented(f"unknown service {service}")


def unknown_encoding(encoding: str) -> Unimplemented:
    return Unimplemented(f'grpc: Decompressor is not installed for grpc-encoding "{encoding}"')


# --- messages -----------------------------------------------------------------------------------------------


def frame(message: bytes) -> bytes:
    """One message with its prefix."""
    return frame_head(len(message)) + message


def frame_head(size: int) -> bytes:
    """The prefix of a message of this many bytes."""
    return b"\x00" + size.to_bytes(4, "big")


def too_large(size: int, max_message: int) -> ResourceExhausted:
    return ResourceExhausted(f"grpc: received message larger than max ({size} vs. {max_message})")


def unexpected_compression() -> Internal:
    return Internal("grpc: compressed flag set with identity or empty encoding")


def gunzip(data: bytes, max_message: int) -> bytes:
    """A gzip-encoded message, never inflated past the bound."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        message = inflater.decompress(data, max_message + 1)
    except zlib.error as error:
        raise InvalidArgument(f"grpc: failed to decompress the received message: {error}") from None
    if len(message) > max_message:
        raise ResourceExhausted(f"grpc: received message after decompression larger than max {max_message}")
    if not inflater.eof:
        raise InvalidArgument("grpc: failed to decompress the received message: it ends too early")
    return message


def message_border(frames: bytes, position: int) -> int:
    """Where the message ends that `position` is in (or begins, if it is between two)."""
    border = 0
    while border < position:
        border += PREFIX_BYTES + int.from_bytes(frames[border + 1 : border + PREFIX_BYTES], "big")
    return border
