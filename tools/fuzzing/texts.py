"""Targets: the parsers in Python, which run once per connection or call. Each returns or raises its own error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

from bascule import limits
from bascule.errors import BasculeError, ConfigError, Internal, InvalidArgument, NatsProtocolError, ResourceExhausted
from bascule.wire import grpc, nats
from tools.fuzzing import inputs
from tools.fuzzing.chance import NUMBERS, Chance
from tools.fuzzing.target import Target, require

INFO_KEYS = ("server_id", "version", "max_payload", "headers", "auth_required", "tls_required", "ldm", "connect_urls")
ADDRESSES = (
    "nats://127.0.0.1:4222",
    "tls://user:s3cret@host.example:4443",
    "t0ken@[::1]:4222",
    "host",
    "nats://u%40:p%3a@h",
    "nats://[fe80::1%25eth0]:1",
    "nats://a:b:c@host:99999",
)
SECRET = "s3cret"


def _answer(parse: Callable[[Any], Any], given: object, *expected: type[BasculeError]) -> Any:
    """Its result; None if it raises an error of its own."""
    try:
        return parse(given)
    except expected:
        return None


def info(chance: Chance) -> bytes:
    def value() -> object:
        urls = [chance.choice(ADDRESSES) for _ in range(chance.randrange(3))]
        options: tuple[object, ...] = (chance.number(), True, False, None, 1.5, "text", urls, {"a": urls}, 1e300, -1)
        return chance.choice(options)

    said = {key: value() for key in INFO_KEYS if not chance.one_in(3)}
    if chance.one_in(50):
        return b"[" * chance.choice((10, 100_000))
    return json.dumps(said if not chance.one_in(20) else [said]).encode()


def check_info(data: bytes, chance: Chance) -> None:
    said = _answer(nats.Info.parse, data, NatsProtocolError)
    if said is not None:
        require(0 < said.max_payload <= limits.NATS_MAX_PAYLOAD_BYTES, "an impossible max_payload")
        require(all(type(url) is str for url in said.connect_urls), "a URL that is no text")
        require(type(said.headers) is bool and type(said.version) is str, "a field of the wrong type")
        for url in said.connect_urls:
            nats.ServerAddress("host").announced(url)
    text = nats.error_text(data)
    require(len(text) <= 200 and text.isprintable(), "an error text that is not safe in a log line")
    nats.classify_error(text)


def check_address(data: bytes, chance: Chance) -> None:
    url = data.decode("utf-8", "surrogateescape" if chance.one_in(4) else "replace")
    try:
        address = nats.ServerAddress.parse(url)
    except ConfigError as error:
        require(f":{SECRET}@" not in str(error), "an error message has the password")
        return
    require(0 < address.port < 1 << 16 and bool(address.host), "an address nobody can connect to")
    again = nats.ServerAddress.parse(str(address))
    require((again.host, again.port, again.tls) == (address.host, address.port, address.tls), "not the same again")
    require(repr(address.credentials) == f"Credentials(user={address.credentials.user!r})", "repr has a secret")


def check_batch(data: bytes, chance: Chance) -> None:
    try:
        found = list(nats.messages(data))
    except ValueError:
        return
    require(b"".join(map(nats.pack, found)) == data, "a batch is not the same again")


def check_grpc(data: bytes, chance: Chance) -> None:
    text = data.decode("latin-1")
    grpc.decode_text(text)
    encoded = grpc.encode_text(data.decode("utf-8", "replace"))
    require(encoded.isascii() and encoded.isprintable(), "a grpc-message that is no header value")
    seconds = _answer(grpc.parse_timeout, text, Internal)
    require(seconds is None or 0 <= seconds <= 100_000_000 * 3_600, "an impossible timeout")
    grpc.status_of_trailers([("grpc-status", text), ("grpc-message", text)])
    grpc.is_grpc(text)
    grpc.unknown_method(text, ["/proto.API/Publish"])


def check_gunzip(data: bytes, chance: Chance) -> None:
    most = chance.choice((0, 10, 10_000))

    def inflate(given: Any) -> bytes:
        return grpc.gunzip(given, most)

    message = _answer(inflate, data, InvalidArgument, ResourceExhausted)
    require(message is None or len(message) <= most, "inflated past the bound")


def _trailer_text(chance: Chance) -> bytes:
    unit = chance.choice("HMSmunX")
    return chance.choice((b"%d%b" % (chance.choice(NUMBERS), unit.encode()), b"%41%zz%", b"13", chance.blob(12)))


TARGETS = (
    Target("nats_info", info, check_info, (b"null", b"[", b"{", b'"', b"1e999", b"\\ud800", b"-Infinity", b"NaN")),
    Target(
        "nats_address", lambda c: c.choice(ADDRESSES).encode(), check_address, (b"://", b"@", b"[", b"]", b":", b"%")
    ),
    Target("nats_batch", lambda c: inputs.batch(c, inputs.raw), check_batch),
    Target("grpc_texts", _trailer_text, check_grpc, (b"%", b"%C3%A9", b"application/grpc", b"/proto.API/", b"\xb2")),
    Target("gunzip", lambda c: gzip.compress(bytes(c.choice((0, 9, 11, 20_000))), mtime=0), check_gunzip),
)
