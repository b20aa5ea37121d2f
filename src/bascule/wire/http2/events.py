"""What a connection reports to the code above it, in the order the peer's frames arrived."""

from dataclasses import dataclass

from bascule.errors import Http2Error

Headers = list[tuple[str, str]]


@dataclass(slots=True)
class HeadersReceived:
    """A new request (server), or a response's headers or trailers (client)."""

    stream_id: int
    headers: Headers
    end_stream: bool


@dataclass(slots=True)
class DataReceived:
    """Bytes of a stream, merged over as many DATA frames as one read held."""

    stream_id: int
    data: bytes
    flow: int
    """What it cost of the windows; to be given back with `Connection.grant`."""
    end_stream: bool


@dataclass(slots=True)
class StreamReset:
    """The stream is gone: the peer reset it, or broke the protocol on it and we did."""

    stream_id: int
    code: int
    by_peer: bool


@dataclass(slots=True)
class SettingsReceived:
    """The peer's settings arrived or changed: more streams may be opened now."""


@dataclass(slots=True)
class PingAcked:
    payload: bytes


@dataclass(slots=True)
class GoAwayReceived:
    """The peer takes no new streams; those above `last_stream_id` were never looked at."""

    last_stream_id: int
    code: int
    reason: str


@dataclass(slots=True)
class ConnectionFailed:
    """The peer broke the protocol. Nothing follows; GOAWAY is in the output."""

    error: Http2Error


Event = HeadersReceived | DataReceived | StreamReset | SettingsReceived | PingAcked | GoAwayReceived | ConnectionFailed
