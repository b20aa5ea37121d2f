"""The NATS client protocol without a socket: commands, INFO, errors, batches, server addresses."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import ConfigError, InvalidArgument, NatsProtocolError
from bascule.limits import NATS_DEFAULT_PAYLOAD_BYTES, NATS_MAX_PAYLOAD_BYTES
from bascule.wire.kernels import split_nats
from bascule.wire.nats import (
    Credentials,
    Info,
    NatsMessage,
    ServerAddress,
    ServerError,
    classify_error,
    connect,
    error_text,
    messages,
    pack,
    pub,
    sub,
    unsub,
)

# --- commands ----------------------------------------------------------------------------------------------


def test_commands_are_written_as_the_protocol_has_them() -> None:
    assert sub(b"a.*.>", 7) == b"SUB a.*.> 7\r\n"
    assert sub(b"a", 7, b"group") == b"SUB a group 7\r\n"
    assert unsub(7) == b"UNSUB 7\r\n"
    assert unsub(7, 3) == b"UNSUB 7 3\r\n"
    assert pub(b"a.b", b"hi") == b"PUB a.b 2\r\nhi\r\n"
    assert pub(b"a.b", b"", b"r") == b"PUB a.b r 0\r\n\r\n"
    assert pub("é".encode(), b"x") == b"PUB \xc3\xa9 1\r\nx\r\n"


@pytest.mark.parametrize(
    "subject",
    [b"", b"a b", b"a\r\nPUB x 0\r\n", b"a\tb", b"a\0", b"a..b", b".a", b"a.", b"a.*", b">", b"x" * 1025, b"\x7f"],
)
def test_no_message_goes_to_a_subject_that_is_none(subject: bytes) -> None:
    with pytest.raises(InvalidArgument):
        pub(subject, b"")
    if subject:  # an empty reply is no reply
        with pytest.raises(InvalidArgument):
            pub(b"fine", b"", subject)


@pytest.mark.parametrize("subject", [b"", b"a b", b"a\r\n", b"a..b", b".a", b"a.", b">.a", b"x" * 1025])
def test_no_subscription_to_what_is_no_subject(subject: bytes) -> None:
    with pytest.raises(InvalidArgument):
        sub(subject, 1)


def test_a_queue_group_has_no_blanks() -> None:
    with pytest.raises(InvalidArgument):
        sub(b"a", 1, b"a b")


@given(st.binary(), st.binary())
def test_a_pub_is_always_one_line_of_arguments_then_the_payload(subject: bytes, payload: bytes) -> None:
    try:
        command = pub(subject, payload)
    except InvalidArgument:
        return
    line, _, rest = command.partition(b"\r\n")
    assert line.split() == [b"PUB", subject, b"%d" % len(payload)]
    assert rest == payload + b"\r\n"


def test_connect_carries_who_we_are_and_asks_for_our_own_messages() -> None:
    command = connect("me", "1.2", Credentials("u", 'p"\r\n'), tls=True)
    assert command.startswith(b"CONNECT {")
    assert command.index(b"\r\n") == len(command) - 2
    options = json.loads(command[8:])
    assert (options["user"], options["pass"]) == ("u", 'p"\r\n')
    assert options["echo"] is True
    assert options["verbose"] is False
    assert options["tls_required"] is True
    assert "auth_token" not in options
    options = json.loads(connect("me", "1.2", Credentials(token="t"), tls=False)[8:])
    assert options["auth_token"] == "t"
    assert "user" not in options


def test_secrets_are_not_shown() -> None:
    assert "geheim" not in repr(Credentials("u", "geheim", "geheim"))
    assert "geheim" not in str(ServerAddress.parse("nats://u:geheim@host"))
    with pytest.raises(ConfigError) as caught:
        ServerAddress.parse("nats://u:geheim@")
    assert "geheim" not in str(caught.value)


# --- what the server says ----------------------------------------------------------------------------------


def test_info_says_what_the_server_takes_and_wants() -> None:
    said = {
        "server_id": "S",
        "version": "2.11",
        "max_payload": 4096,
        "headers": True,
        "auth_required": True,
        "tls_required": True,
        "tls_available": True,
        "ldm": True,
        "connect_urls": ["10.0.0.1:4222", "[::1]:4222"],
        "something_new": {},
    }
    info = Info.parse(json.dumps(said).encode())
    assert info == Info("S", "2.11", 4096, True, True, True, True, ("10.0.0.1:4222", "[::1]:4222"))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("{}", NATS_DEFAULT_PAYLOAD_BYTES),
        ('{"max_payload": 10}', 10),
        ('{"max_payload": 99999999999999999999}', NATS_MAX_PAYLOAD_BYTES),
        ('{"max_payload": -1}', NATS_DEFAULT_PAYLOAD_BYTES),
        ('{"max_payload": "8"}', NATS_DEFAULT_PAYLOAD_BYTES),
        ('{"max_payload": true}', NATS_DEFAULT_PAYLOAD_BYTES),
        ('{"connect_urls": [1, null], "version": 3}', NATS_DEFAULT_PAYLOAD_BYTES),
    ],
)
def test_nonsense_in_info_counts_as_not_said(said: str, expected: int) -> None:
    info = Info.parse(said.encode())
    assert info.max_payload == expected
    assert info.connect_urls == ()
    assert info.version == ""


@pytest.mark.parametrize("argument", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_an_info_that_is_no_object_is_refused(argument: bytes) -> None:
    with pytest.raises(NatsProtocolError):
        Info.parse(argument)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Authorization Violation", ServerError.AUTH),
        ("Authentication Timeout", ServerError.AUTH),
        ("User Authentication Expired", ServerError.AUTH),
        ("User Authentication Revoked", ServerError.AUTH),
        ("Account Authentication Expired", ServerError.AUTH),
        ('Permissions Violation for Subscription to "a"', ServerError.PERMISSION),
        ('Permissions Violation for Publish to "authentication"', ServerError.PERMISSION),
        ("Invalid Subject", ServerError.PERMISSION),
        ("maximum subscriptions exceeded", ServerError.PERMISSION),
        ("Slow Consumer", ServerError.SLOW_CONSUMER),
        ("Stale Connection", ServerError.FATAL),
        ("Maximum Payload Violation", ServerError.FATAL),
        ("Unknown Protocol Operation", ServerError.FATAL),
        ("", ServerError.FATAL),
    ],
)
def test_errors_of_the_server_are_told_apart(text: str, kind: ServerError) -> None:
    assert classify_error(text) is kind


def test_the_text_of_an_error_is_safe_to_log() -> None:
    assert error_text(b"'Slow Consumer'") == "Slow Consumer"
    assert error_text(b"'a\x1b[31m\xff'") == "a?[31m\N{REPLACEMENT CHARACTER}"
    assert len(error_text(b"x" * 10_000)) == 200


# --- batches -----------------------------------------------------------------------------------------------

words = st.binary(min_size=1, max_size=20).map(lambda raw: bytes(byte | 0x40 for byte in raw))


@given(st.lists(st.builds(NatsMessage, words, st.one_of(st.just(b""), words), st.binary(max_size=50))))
def test_messages_gives_back_what_the_kernel_packed(sent: list[NatsMessage]) -> None:
    wire = b"".join(
        b"MSG %b 1 %b %d\r\n%b\r\n" % (message.subject, message.reply, len(message.payload), message.payload)
        for message in sent
    )
    consumed, _, batches, _ = split_nats(wire, 0, len(wire), 4096, 4096)
    assert consumed == len(wire)
    got = [message for _, _, batch in batches for message in messages(batch)]
    assert got == sent
    assert b"".join(map(pack, sent)) == b"".join(batch for _, _, batch in batches)


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_truncated_batch_is_refused(cut: int) -> None:
    batch = struct.pack("<HHI", 1, 1, 2) + b"srxx"
    with pytest.raises(ValueError, match="ends inside"):
        list(messages(batch[:-cut]))


# --- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nats://127.0.0.1:4333", ServerAddress("127.0.0.1", 4333)),
        ("127.0.0.1:4333", ServerAddress("127.0.0.1", 4333)),
        ("host", ServerAddress("host", 4222)),
        ("tls://host:1", ServerAddress("host", 1, True)),
        ("nats://[::1]:4222", ServerAddress("::1", 4222)),
        ("nats://u:p%40%3a@host", ServerAddress("host", 4222, False, Credentials("u", "p@:"))),
        ("nats://t%2Fk@host", ServerAddress("host", 4222, False, Credentials(token="t/k"))),
    ],
)
def test_server_urls_are_understood(url: str, expected: ServerAddress) -> None:
    assert ServerAddress.parse(url) == expected


@pytest.mark.parametrize(
    "url", ["", "nats://", "nats://:4222", "host:port", "host:99999", "host:0", "ws://host", "http://host", "a b"]
)
def test_what_is_no_server_url_is_refused_with_the_key_to_correct(url: str) -> None:
    with pytest.raises(ConfigError, match=r"nats\.servers"):
        ServerAddress.parse(url)


def test_an_announced_server_is_reached_like_the_one_that_announced_it() -> None:
    server = ServerAddress.parse("tls://u:p@nats.example:4222")
    found = server.announced("10.0.0.2:4223")
    assert found == ServerAddress("10.0.0.2", 4223, True, Credentials("u", "p"), "nats.example")
    assert found.announced("10.0.0.3:1") == ServerAddress("10.0.0.3", 1, True, Credentials("u", "p"), "nats.example")
    assert server.announced("nonsense:port") is None
    assert str(ServerAddress("::1", 5, True)) == "tls://[::1]:5"
