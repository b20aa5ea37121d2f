"""The NATS client protocol, the parts that are not hot: commands out, INFO and `-ERR` in, server addresses.

Splitting what a server sends is a kernel's work (`split_nats`), and so is writing acks and routed publishes. What
stays here runs once per connection, subscription or single message, so it is plain Python and checks everything: a
CR LF in a subject would run commands on our own connection, and a line the server refuses costs the connection.

Subjects are bytes: NATS takes nearly any. Sizes are checked by whoever knows the connection's `max_payload`,
because a server ends the connection of a client that exceeds it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv6Address
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from bascule.errors import ConfigError, InvalidArgument, NatsProtocolError
from bascule.limits import MAX_SUBJECT_BYTES, NATS_DEFAULT_PAYLOAD_BYTES, NATS_MAX_PAYLOAD_BYTES
from bascule.wire.subjects import usable_subject

DEFAULT_PORT = 4222
PING = b"PING\r\n"
PONG = b"PONG\r\n"

_ENTRY = struct.Struct("<HHI")
_BLANK_OR_CONTROL = bytes(range(0x21)) + b"\x7f"
_TLS_OF_SCHEME = {"nats": False, "tls": True}


# --- commands ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials in CONNECT. Never part of a log line: `repr` hides the secrets."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        return self.user is not None or self.token is not None


def connect(name: str, version: str, credentials: Credentials, tls: bool) -> bytes:
    """CONNECT. Our own messages come back to us (`echo`): a broker's publishes are for its own streams too."""
    options: dict[str, Any] = {
        "verbose": False,
        "pedantic": False,
        "tls_required": tls,
        "name": name,
        "lang": "python",
        "version": version,
        "protocol": 1,
        "echo": True,
        "headers": True,
        "no_responders": False,
    }
    if credentials.user is not None:
        options["user"] = credentials.user
        options["pass"] = credentials.password or ""
    if credentials.token is not None:
        options["auth_token"] = credentials.token
    return b"CONNECT " + json.dumps(options).encode() + b"\r\n"


def sub(subject: bytes, sid: int, queue: bytes = b"") -> bytes:
    """SUB; `*` and `>` are allowed as whole tokens, `>` as the last."""
    if not subscribable(subject):
        raise InvalidArgument(f"NATS cannot subscribe to {_shown(subject)}: not a subject")
    if queue and not _one_word(queue):
        raise InvalidArgument(f"NATS has no queue group {_shown(queue)}: blanks are not allowed in it")
    return b"SUB %b %b %d\r\n" % (subject, queue, sid) if queue else b"SUB %b %d\r\n" % (subject, sid)


def unsub(sid: int, after: int = 0) -> bytes:
    """UNSUB, at once or after that many messages."""
    return b"UNSUB %d %d\r\n" % (sid, after) if after else b"UNSUB %d\r\n" % sid


def pub(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """PUB of one message, to subjects one may publish to."""
    return pub_pieces(subject, (payload,), reply)


def pub_pieces(subject: bytes, pieces: Sequence[bytes], reply: bytes = b"") -> bytes:
    """The same for a payload in pieces."""
    # Joined, not formatted: formatting grows its buffer step by step, and copies a large payload more than once.
    head = b"PUB %b%d\r\n" % (_destination(subject, reply), sum(map(len, pieces)))
    return b"".join((head, *pieces, b"\r\n"))


def _destination(subject: bytes, reply: bytes) -> bytes:
    for name in (subject, reply) if reply else (subject,):
        if not usable_subject(name):
            raise InvalidArgument(
                f"NATS cannot carry a message to {_shown(name)}: a subject has no blanks, control characters, "
                f"wildcards or empty tokens, and at most {MAX_SUBJECT_BYTES} bytes"
            )
    return b"%b %b " % (subject, reply) if reply else b"%b " % subject


def subscribable(subject: bytes) -> bool:
    """One may subscribe to it: like a usable subject, with whole-token wildcards."""
    tokens = subject.split(b".")
    return _one_word(subject) and all(
        token and (token != b">" or index == len(tokens) - 1) for index, token in enumerate(tokens)
    )


def _one_word(name: bytes) -> bool:
    return 0 < len(name) <= MAX_SUBJECT_BYTES and len(name.translate(None, _BLANK_OR_CONTROL)) == len(name)


def _shown(name: bytes) -> str:
    return repr(name[:64].decode("utf-8", "replace"))


# --- what the server says ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Info:
    """What a server says about itself, at first and whenever it changes."""

    server_id: str = ""
    version: str = ""
    max_payload: int = NATS_DEFAULT_PAYLOAD_BYTES
    headers: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    connect_urls: tuple[str, ...] = ()

    @classmethod
    def parse(cls, argument: bytes) -> Info:
        """The argument of INFO. A field of the wrong type, or with an impossible value, counts as absent."""
        try:
            said = json.loads(argument)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise NatsProtocolError("the NATS server's INFO is not a JSON object; is this a NATS server?")
        max_payload = said.get("max_payload")
        if type(max_payload) is not int or max_payload <= 0:
            max_payload = NATS_DEFAULT_PAYLOAD_BYTES
        urls = said.get("connect_urls")
        return cls(
            server_id=_text(said, "server_id"),
            version=_text(said, "version"),
            max_payload=min(max_payload, NATS_MAX_PAYLOAD_BYTES),
            headers=said.get("headers") is True,
            auth_required=said.get("auth_required") is True,
            tls_required=said.get("tls_required") is True,
            tls_available=said.get("tls_available") is True,
            connect_urls=tuple(url for url in urls if isinstance(url, str)) if isinstance(urls, list) else (),
        )


def _text(said: Mapping[str, Any], key: str) -> str:
    value = said.get(key)
    return value if isinstance(value, str) else ""


class ServerError(Enum):
    """What a `-ERR` means for the connection."""

    AUTH = "auth"
    """The server does not accept our credentials; the connection ends."""
    PERMISSION = "permission"
    """One subscription or message was refused; the connection goes on."""
    SLOW_CONSUMER = "slow consumer"
    """We did not read fast enough; the connection ends and what was under way is gone."""
    FATAL = "fatal"
    """Anything else; the connection ends."""


_AUTH_TEXTS = ("authorization violation", "authentication", "user not found", "bad credentials")
_PERMISSION_TEXTS = ("permissions violation", "invalid subject", "maximum subscriptions exceeded")


def error_text(argument: bytes) -> str:
    """The text of `-ERR '<text>'`, safe for a log line."""
    text = argument.decode("utf-8", "replace").strip().strip("'")
    return "".join(character if character.isprintable() else "?" for character in text[:200])


def classify_error(text: str) -> ServerError:
    lowered = text.lower()
    if any(known in lowered for known in _PERMISSION_TEXTS):
        return ServerError.PERMISSION
    if any(known in lowered for known in _AUTH_TEXTS):
        return ServerError.AUTH
    return ServerError.SLOW_CONSUMER if "slow consumer" in lowered else ServerError.FATAL


class NatsMessage(NamedTuple):
    subject: bytes
    reply: bytes
    payload: bytes


def messages(batch: bytes) -> Iterator[NatsMessage]:
    """The messages of a packed batch, one by one: for what is not on the hot path."""
    position, end = 0, len(batch)
    while position < end:
        if end - position < _ENTRY.size:
            raise ValueError("a packed batch ends inside an entry")
        subject_length, reply_length, payload_length = _ENTRY.unpack_from(batch, position)
        subject = position + _ENTRY.size
        reply = subject + subject_length
        payload = reply + reply_length
        position = payload + payload_length
        if position > end:
            raise ValueError("a packed batch ends inside an entry")
        yield NatsMessage(batch[subject:reply], batch[reply:payload], batch[payload:position])


def pack(message: NatsMessage) -> bytes:
    """One entry of a packed batch."""
    subject, reply, payload = message
    return _ENTRY.pack(len(subject), len(reply), len(payload)) + subject + reply + payload


# --- where servers are -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """One server of the list. `str()` leaves the credentials out."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False
    credentials: Credentials = Credentials()
    tls_name: str = ""
    """The name its certificate must have, where that is not `host`: servers announce each other by number."""

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """`[nats://|tls://][user:password@|token@]host[:port]`."""
        try:
            parts = urlsplit(url if "://" in url else f"nats://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        else:
            if parts.scheme not in _TLS_OF_SCHEME:
                raise ConfigError(f"nats.servers: cannot connect by {parts.scheme}://; use nats:// or tls://")
        if not host or port == 0 or not _is_host(host) or any(ord(character) <= 0x20 for character in url):
            raise ConfigError(
                "nats.servers: a server is named like nats://host:4222 or nats://user:password@host:4222; "
                f"this is not: {_without_secrets(url)!r}"
            )
        credentials = Credentials()
        if parts.username is not None and parts.password is not None:
            credentials = Credentials(unquote(parts.username), unquote(parts.password))
        elif parts.username is not None:
            credentials = Credentials(token=unquote(parts.username))
        return cls(host, port or DEFAULT_PORT, _TLS_OF_SCHEME[parts.scheme], credentials)

    def announced(self, url: str) -> ServerAddress | None:
        """A server this one announced: same credentials, same kind of connection. None if it names nothing."""
        try:
            other = ServerAddress.parse(url)
        except ConfigError:
            return None
        return ServerAddress(other.host, other.port, self.tls, self.credentials, self.tls_name or self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"


def _is_host(name: str) -> bool:
    """`urlsplit` lets brackets in the credentials stand for brackets around the host."""
    if ":" not in name:
        return "[" not in name and "]" not in name
    try:
        IPv6Address(name)
    except ValueError:
        return False
    return True


def _without_secrets(url: str) -> str:
    """The URL without anything before the last `@`, except for the scheme."""
    scheme, separator, _ = url.partition("://")
    _, at, place = url.rpartition("@")
    if not at:
        return url
    return f"{scheme}://{place}" if separator and scheme in _TLS_OF_SCHEME else place
