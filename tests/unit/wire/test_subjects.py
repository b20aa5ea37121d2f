"""Which subjects and stream names are safe, and how names become folders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.limits import MAX_PARTITIONS, MAX_STREAM_NAME_BYTES, MAX_SUBJECT_BYTES
from bascule.wire.subjects import (
    partition_subject,
    quote_name,
    subjects_overlap,
    usable_subject,
    valid_stream_name,
    valid_stream_subject,
)


@pytest.mark.parametrize("subject", [b"a", b"a.b.c", b"_INBOX.x", b"$SYS.a", "é.ü".encode(), b"\xff", b"a" * 1024])
def test_one_may_publish_to(subject: bytes) -> None:
    assert usable_subject(subject)


@pytest.mark.parametrize(
    "subject",
    [
        b"",
        b" ",
        b"a b",
        b"a\tb",
        b"a\r\nPUB x 0",
        b"a\n",
        b"\x00",
        b"\x1f",
        b"\x7f",
        b"*",
        b"a.*",
        b">",
        b"a.>",
        b"a*",
        b".",
        b".a",
        b"a.",
        b"a..b",
        b"a" * 1025,
    ],
)
def test_nobody_may_publish_to(subject: bytes) -> None:
    assert not usable_subject(subject)


@pytest.mark.parametrize("subject", ["a", "a.b", "*", ">", "a.*.b", "a.>", "*.>", "é", "a-b_c$", "a" * 1019])
def test_a_stream_may_listen_on(subject: str) -> None:
    assert valid_stream_subject(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        " ",
        "a b",
        "a\tb",
        "a\r",
        "a\n",
        "a\x00",
        "a\x7f",
        "a\x85",
        "a\u2028",
        ".",
        ".a",
        "a.",
        "a..b",
        ">.a",
        "a.>.b",
        "a*",
        "a.b>",
        "**",
        "a" * 1020,
    ],
)
def test_no_stream_may_listen_on(subject: str) -> None:
    assert not valid_stream_subject(subject)


def test_the_subject_of_every_partition_can_be_written() -> None:
    longest = "a" * 1019
    assert valid_stream_subject(longest)
    assert len(partition_subject(longest, MAX_PARTITIONS - 1)) <= MAX_SUBJECT_BYTES


def test_partition_zero_has_the_streams_own_subject() -> None:
    assert partition_subject("foo", 0) == "foo"
    assert partition_subject("foo", 12) == "foo.12"


def unquoted(folder: str) -> str:
    """One name at most has this folder."""
    return folder.removeprefix("=").replace("\\", "@")


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "orders.eu",
        "...",
        ".hidden",
        "a.",
        "größe",
        "流",
        "__cursors",
        "a@b",
        "=a",
        "%2f",
        "-rf",
        "~",
        "x" * 200,
        "ü" * 100,
    ],
)
def test_a_stream_may_be_named(name: str) -> None:
    assert valid_stream_name(name) is None
    assert unquoted(quote_name(name)) == name


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("", "empty"),
        ("x" * 201, "200 bytes"),
        ("ü" * 101, "202"),
        (".", "paths"),
        ("..", "paths"),
        ("*", "contain"),
        ("a*b", "contain"),
        ("a>b", "contain"),
        (">", "contain"),
        ("a/b", "'/'"),
        ("a\\b", "contain"),
        ("a\x00", "control"),
        ("a\x7f", "control"),
        ("a\x9f", "control"),
        (" a", "blanks"),
        ("a ", "blanks"),
        ("a b", "blanks"),
        ("a\u00a0b", "blanks"),
        ("a\n", "blanks"),
        ("\ud800", "Unicode"),
    ],
)
def test_a_refused_name_is_told_why(name: str, word: str) -> None:
    reason = valid_stream_name(name)
    assert reason is not None
    assert word in reason
    with pytest.raises(ValueError, match=r"stream"):
        quote_name(name)


NAMES = st.text(st.characters(codec="utf-8") | st.sampled_from("@=.%ü"), min_size=1, max_size=200).filter(
    lambda name: valid_stream_name(name) is None
)


@given(NAMES)
def test_a_folder_name_is_safe_and_short_and_leads_back(name: str) -> None:
    quoted = quote_name(name)
    assert not set(quoted) & set("/@\0")
    assert not quoted.startswith(".")
    assert len(quoted.encode()) <= MAX_STREAM_NAME_BYTES + 1 <= 255 - 30
    assert unquoted(quoted) == name


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.b", "a", False),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        (">", "a", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*.c", "*.b.>", True),
        ("a.*.c", "a.b.d", False),
        ("*.x", "y.>", True),
        ("*", "*.*", False),
    ],
)
def test_subjects_overlap_if_one_message_may_go_to_both(one: str, other: str, overlap: bool) -> None:
    assert subjects_overlap(one, other) is overlap
    assert subjects_overlap(other, one) is overlap
