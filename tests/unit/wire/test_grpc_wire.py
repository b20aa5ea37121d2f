"""gRPC's texts and framing."""

import gzip
import math

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import Internal, InvalidArgument, ResourceExhausted, Status
from bascule.wire import grpc
from bascule.wire.kernels import split_messages
from tests.harness.http2_peer import decoded


@given(st.text(max_size=500))
def test_status_texts_survive_percent_encoding(text: str) -> None:
    encoded = grpc.encode_text(text)
    assert encoded.isascii()
    assert all(" " <= char <= "~" for char in encoded)
    assert grpc.decode_text(encoded) == text.encode("utf-8", "replace").decode()


@given(st.text(alphabet="%0123456789abcdefXYZ ", max_size=50))
def test_any_status_text_of_a_peer_is_decoded_to_something(text: str) -> None:
    assert isinstance(grpc.decode_text(text), str)


def test_a_long_status_text_is_truncated_to_fit_the_trailers_every_client_takes() -> None:
    assert len(grpc.trailers(Status.INTERNAL, "ü" * 100_000)) < 8192


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("1H", 3600.0), ("2M", 120.0), ("3S", 3.0), ("250m", 0.25), ("5u", 5e-6), ("99999999n", 0.099999999), ("0S", 0.0)],
)
def test_timeouts_are_read_in_every_unit(value: str, seconds: float) -> None:
    assert math.isclose(grpc.parse_timeout(value), seconds)


@pytest.mark.parametrize("value", ["", "1", "S", "-1S", "1.5S", "123456789S", "1s", " 1S", "1S\n", "١S"])
def test_a_malformed_timeout_is_an_error_like_in_grpc_go(value: str) -> None:
    with pytest.raises(Internal, match="malformed grpc-timeout"):
        grpc.parse_timeout(value)


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_a_formatted_timeout_is_never_shorter_and_hardly_longer(seconds: float) -> None:
    parsed = grpc.parse_timeout(grpc.format_timeout(seconds))
    assert seconds * (1 - 1e-9) <= parsed <= seconds * 1.00001 + 1e-8


def test_a_timeout_that_has_passed_is_still_a_timeout() -> None:
    assert grpc.format_timeout(float("inf")) == grpc.format_timeout(1e300) == "99999999H"
    assert grpc.parse_timeout(grpc.format_timeout(-1.0)) == 1e-9


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/grpc", True),
        ("application/grpc+proto", True),
        ("application/grpc;charset=utf-8", True),
        ("application/grpc-web", False),
        ("application/json", False),
        (None, False),
    ],
)
def test_content_types(content_type: str | None, expected: bool) -> None:
    assert grpc.is_grpc(content_type) is expected


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/a.B/Nope", "unknown method Nope for service a.B"),
        ("/a.C/Nope", "unknown service a.C"),
        ("/a", 'malformed method name: "/a"'),
        ("a.B/Nope", 'malformed method name: "a.B/Nope"'),
    ],
)
def test_unknown_paths_have_the_error_texts_of_grpc_go(path: str, text: str) -> None:
    assert str(grpc.unknown_method(path, ["/a.B/Yes"])) == text


def test_trailers_say_status_and_text() -> None:
    fields = decoded(grpc.trailers_only(Status.NOT_FOUND, "50 %"), Decoder())
    assert fields == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-accept-encoding", "identity,gzip"),
        ("grpc-status", "5"),
        ("grpc-message", "50 %25"),
    ]
    assert grpc.status_of_trailers(fields) == (Status.NOT_FOUND, "50 %")


def test_a_status_that_does_not_exist_is_unknown() -> None:
    assert grpc.status_of_trailers([("grpc-status", "99"), ("grpc-message", "odd")]) == (Status.UNKNOWN, "odd")
    assert grpc.status_of_trailers([("grpc-status", "x")])[0] is Status.UNKNOWN  # type: ignore[index]
    assert grpc.status_of_trailers([("other", "x")]) is None


def test_gzip_is_undone_up_to_the_bound() -> None:
    assert grpc.gunzip(gzip.compress(b"x" * 1000), 1000) == b"x" * 1000
    with pytest.raises(ResourceExhausted, match="larger than max 999"):
        grpc.gunzip(gzip.compress(b"x" * 1000), 999)
    with pytest.raises(ResourceExhausted):
        grpc.gunzip(gzip.compress(bytes(100 << 20)), 4 << 20)


@given(st.binary(max_size=100))
def test_what_is_not_gzip_is_an_invalid_argument(malformed: bytes) -> None:
    with pytest.raises(InvalidArgument):
        grpc.gunzip(malformed, 1000)


def test_a_truncated_gzip_message_is_an_invalid_argument() -> None:
    with pytest.raises(InvalidArgument, match="ends too early"):
        grpc.gunzip(gzip.compress(bytes(1000))[:-9], 1000)


@given(st.lists(st.binary(max_size=40), max_size=10), st.data())
def test_a_message_border_is_the_first_one_at_or_after_the_position(messages: list[bytes], data: st.DataObject) -> None:
    frames = b"".join(grpc.frame(message) for message in messages)
    position = data.draw(st.integers(0, len(frames)))
    border = grpc.message_border(frames, position)
    assert position <= border <= len(frames)
    assert split_messages(frames[:border], 0, border, 1000)[0] == border
    if messages and position:
        assert border - position < 45
