"""From the text of a setting to its value, and back for people.

Files, environment and flags all give text, so that a value means the same wherever it stands: a password
`0123` in a YAML file stays `0123`. Parsers raise ValueError saying what they expected; `parse` turns it
into a ConfigError that names the key, the value (never a secret one) and where it came from.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from bascule.errors import ConfigError
from bascule.limits import MAX_ID_BYTES
from bascule.log.sync import SyncMode
from bascule.node.config.durations import format_duration, parse_duration
from bascule.node.config.settings import INT64_MAX, Kind, Setting
from bascule.wire.subjects import RESERVED_IDS

NATS_PORT = 4222
_MAX_SHOWN = 100
_TRUE = ("true", "t", "1", "yes", "on")
_FALSE = ("false", "f", "0", "no", "off")
_INT = re.compile(r"[+-]?(0|[1-9][0-9]*(_[0-9]+)*)", re.ASCII)
_USERINFO = re.compile(r"^([a-z]+://)?.*@", re.IGNORECASE | re.DOTALL)
_UNPRINTABLE = re.compile(r"[\s\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Raw:
    """What was written, and where."""

    value: str | tuple[str, ...]
    source: str


Value = str | int | bool | tuple[str, ...] | Address | SyncMode | None


def parse(setting: Setting, raw: Raw) -> Value:
    try:
        if setting.kind in _LIST_PARSERS:
            items = raw.value.split(",") if isinstance(raw.value, str) else _flatten(raw.value)
            return _LIST_PARSERS[setting.kind]([item.strip() for item in items if item.strip()])
        if not isinstance(raw.value, str):
            raise ValueError(f"expected one value ({setting.kind.value}), not a list")
        return _PARSERS[setting.kind](setting, raw.value)
    except ValueError as error:
        shown = "" if setting.secret else f" {quoted(raw.value)}"
        raise ConfigError(f"Invalid {setting.key} setting{shown} ({raw.source}): {error}") from None


def quoted(value: str | Sequence[str]) -> str:
    """On one line, bounded, and without the password a URL may carry."""
    text = value if isinstance(value, str) else ",".join(value)
    text = mask_url(text)
    text = json.dumps(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "...", ensure_ascii=False)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def mask_url(url: str) -> str:
    """Up to the last @, since a password may hold one."""
    return _USERINFO.sub(lambda found: f"{found[1] or ''}***@", url)


def show(setting: Setting, value: Value) -> str:
    """For logs and documentation; secrets are masked."""
    if value is None or value in ("", ()):
        return ""
    if setting.secret:
        return "***"
    if isinstance(value, bool):
        return "true" if value else "false"
    if setting.kind is Kind.DURATION and isinstance(value, int):
        return format_duration(value)
    if isinstance(value, tuple) and not isinstance(value, SyncMode):
        return ", ".join(mask_url(item) for item in value)
    return str(value)


def _flatten(items: Sequence[str]) -> list[str]:
    return [part for item in items for part in item.split(",")]


def _bool(_setting: Setting, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError("expected true or false")


def _whole_number(text: str, minimum: int, maximum: int) -> int:
    text = text.strip()
    number = int(text) if _INT.fullmatch(text) and len(text) < _MAX_SHOWN else None
    if number is None or not minimum <= number <= maximum:
        span = f"of at least {minimum}" if maximum == INT64_MAX else f"from {minimum} to {maximum}"
        raise ValueError(f"expected a whole number {span}")
    return number


def _int(setting: Setting, text: str) -> int:
    return _whole_number(text, setting.minimum, setting.maximum)


def _duration(setting: Setting, text: str) -> int:
    duration_ns = parse_duration(text.strip())
    if duration_ns < setting.minimum:
        raise ValueError("it must be longer than 0" if setting.minimum else "it must not be negative")
    return duration_ns


def _choice(setting: Setting, text: str) -> str:
    lowered = text.strip().lower()
    if lowered not in setting.choices:
        raise ValueError(f"expected {', '.join(setting.choices[:-1])} or {setting.choices[-1]}")
    return lowered


def _string(_setting: Setting, text: str) -> str:
    return text


def _path(_setting: Setting, text: str) -> str:
    if "\0" in text:
        raise ValueError("a path cannot hold a zero byte")
    return text


def _host(_setting: Setting, text: str) -> str:
    host = text.strip().removeprefix("[").removesuffix("]")
    if _UNPRINTABLE.search(host) or "/" in host:
        raise ValueError("expected a host name or an IP address")
    if host.count(":") == 1:
        raise ValueError("expected a host without a port: the port has a setting of its own, port")
    return host


def _address(_setting: Setting, text: str) -> Address | None:
    text = text.strip()
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if _UNPRINTABLE.search(host) or "/" in host or (":" in host and not text.startswith("[")):
        raise ValueError("expected host:port, such as 0.0.0.0:9292 or [::1]:9292")
    try:
        return Address(host, _whole_number(port, 0, 65535))
    except ValueError:
        hint = "" if colon else "; to set only the port, use the setting port"
        raise ValueError(f"expected host:port with a port from 0 to 65535{hint}") from None


def _check_token(text: str) -> str:
    """A name that is one token of a NATS subject."""
    if _UNPRINTABLE.search(text) or "." in text:
        raise ValueError("it must not contain spaces or periods: it becomes a part of NATS subjects")
    if "*" in text or ">" in text or text.startswith("$"):
        raise ValueError("it must not contain * or >, nor begin with $: NATS gives these a meaning")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise ValueError("it must be valid UTF-8") from None
    if len(encoded) > MAX_ID_BYTES:
        raise ValueError(f"it is longer than {MAX_ID_BYTES} bytes")
    return text


def _check_id(text: str) -> str:
    if text in RESERVED_IDS:
        raise ValueError(f"internal subjects use the words {', '.join(RESERVED_IDS)}: choose another id")
    return _check_token(text)


def _token(setting: Setting, text: str) -> str:
    if not text and setting.default:
        raise ValueError("it must not be empty")
    return _check_id(text) if setting.key == "clustering.server.id" else _check_token(text)


def _ids(items: list[str]) -> tuple[str, ...]:
    return tuple(_check_id(item) for item in items)


def _servers(items: list[str]) -> tuple[str, ...]:
    if not items:
        raise ValueError("expected at least one URL, such as nats://127.0.0.1:4222")
    return tuple(_server(item) for item in items)


def _server(text: str) -> str:
    """With scheme and port written out."""
    expected = "expected URLs such as nats://host:4222 or tls://user:password@host:4222"
    url = text if "://" in text else f"nats://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(expected) from None
    if parts.scheme not in ("nats", "tls") or not parts.hostname or _UNPRINTABLE.search(text):
        raise ValueError(expected)
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(expected)
    userinfo, at, _ = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{userinfo}{at}{Address(parts.hostname, NATS_PORT if port is None else port)}"


def _sync(_setting: Setting, text: str) -> SyncMode:
    mode, colon, interval = text.strip().partition(":")
    if mode in ("group", "os") and not colon:
        return SyncMode(mode)
    if mode != "interval" or not interval:
        raise ValueError("expected group, os or interval:T with a duration T, such as interval:100ms")
    interval_ns = parse_duration(interval)
    if interval_ns <= 0:
        raise ValueError("the interval must be longer than 0; to sync before every ack use group")
    return SyncMode(mode, interval_ns)


_PARSERS: dict[Kind, Callable[[Setting, str], Value]] = {
    Kind.STRING: _string,
    Kind.HOST: _host,
    Kind.ADDRESS: _address,
    Kind.PATH: _path,
    Kind.TOKEN: _token,
    Kind.INT: _int,
    Kind.BOOL: _bool,
    Kind.DURATION: _duration,
    Kind.CHOICE: _choice,
    Kind.SYNC: _sync,
}
_LIST_PARSERS: dict[Kind, Callable[[list[str]], tuple[str, ...]]] = {
    Kind.TOKENS: _ids,
    Kind.SERVERS: _servers,
}
