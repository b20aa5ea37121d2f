"""NATS subjects and stream names: which are safe in a protocol line, an ack, or the name of a folder.

NATS itself takes nearly any bytes; a CR LF in an inbox would run commands on the broker's own connection, and
a blank would shift the arguments of a PUB. So whatever a client names is checked once, here, before it gets
that far. Names of streams also name folders, as `<quoted name>@<index>`. Quoting must keep 200 bytes within
what a file system takes, so it replaces instead of escaping: `@` by the backslash, which no stream name may
hold, and a first `.` (hidden files, `..`) gets a `=` before it, as does a first `=`.
"""

from __future__ import annotations

from bascule.limits import MAX_ID_BYTES, MAX_PARTITIONS, MAX_STREAM_NAME_BYTES, MAX_SUBJECT_BYTES

_UNUSABLE = bytes(range(0x21)) + b"\x7f*>"
_MAX_STREAM_SUBJECT_BYTES = MAX_SUBJECT_BYTES - len(f".{MAX_PARTITIONS - 1}")
_NOT_IN_NAMES = ("/", "\\", "*", ">")
_WHOLE_NAMES_REFUSED = (".", "..")
RESERVED_IDS = ("admin", "bootstrap", "info", "join", "propagate", "status")
"""Tokens that internal subjects have in the place of a broker id, `<namespace>.raft.metadata.<id>`: a broker with such
an id would take messages to the whole cluster for messages to itself."""


def usable_subject(subject: bytes) -> bool:
    """One may publish to it: no blanks, control characters, wildcards or empty tokens, and not too long."""
    return (
        0 < len(subject) <= MAX_SUBJECT_BYTES
        and len(subject.translate(None, _UNUSABLE)) == len(subject)
        and b".." not in subject
        and not subject.startswith(b".")
        and not subject.endswith(b".")
    )


def usable_token(name: str) -> bool:
    """It can be one token of a subject, as the ids of servers are."""
    token = name.encode("utf-8", "surrogatepass")
    return len(token) <= MAX_ID_BYTES and b"." not in token and usable_subject(token)


def usable_id(name: str) -> bool:
    """A broker may have this id."""
    return usable_token(name) and name not in RESERVED_IDS


def valid_stream_subject(subject: str) -> bool:
    """A stream may listen on it. `*` and `>` are fine as whole tokens, `>` as the last one only."""
    return subject_refusal(subject) is None


def subject_refusal(subject: str) -> str | None:
    """None if a stream may listen on this subject, else why not."""
    for character in subject:
        if _blank_or_control(character):
            return f"a subject cannot contain blanks or control characters, here {character!r}"
    length = len(subject.encode("utf-8", "surrogatepass"))
    if length > _MAX_STREAM_SUBJECT_BYTES:
        return f"the subject of a stream takes at most {_MAX_STREAM_SUBJECT_BYTES} bytes as UTF-8, this one {length}"
    tokens = subject.split(".")
    for index, token in enumerate(tokens):
        if not token:
            return "a subject cannot be empty, nor begin or end with a period, nor have two periods in a row"
        if token == "*" or (token == ">" and index == len(tokens) - 1):
            continue
        if wildcards := set(token) & set("*>"):
            return (
                f"a subject can contain {min(wildcards)!r} only as a wildcard: '*' between two periods, '>' after the "
                "last one"
            )
    return None


def valid_stream_name(name: str) -> str | None:
    """None if a stream may have this name, else why not."""
    if not name:
        return "a stream name cannot be empty"
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return "a stream name must be valid Unicode"
    if length > MAX_STREAM_NAME_BYTES:
        return f"a stream name takes at most {MAX_STREAM_NAME_BYTES} bytes as UTF-8, this one {length}"
    if name in _WHOLE_NAMES_REFUSED:
        return f"a stream cannot be named {name!r}, which means something else in paths or subjects"
    for character in name:
        if _blank_or_control(character):
            return f"a stream name cannot contain blanks or control characters, here {character!r}"
        if character in _NOT_IN_NAMES:
            return f"a stream name cannot contain {character!r}"
    return None


def quote_name(name: str) -> str:
    """The folder-safe form of a stream name: one to one, at most one byte longer."""
    reason = valid_stream_name(name)
    if reason is not None:
        raise ValueError(reason)
    quoted = name.replace("@", "\\")
    return "=" + quoted if name[0] in ".=" else quoted


def partition_subject(subject: str, partition: int) -> str:
    """Where the messages of a partition are published: partition 0 has the stream's subject itself."""
    return f"{subject}.{partition}" if partition else subject


def subjects_overlap(one: str, other: str) -> bool:
    """Whether there is a subject that subscriptions to both receive. Both may have wildcards."""
    tokens, others = one.split("."), other.split(".")
    for first, second in zip(tokens, others, strict=False):
        if ">" in (first, second):
            return True
        if first != second and "*" not in (first, second):
            return False
    return len(tokens) == len(others)


def _blank_or_control(character: str) -> bool:
    return character.isspace() or character < " " or "\x7f" <= character < "\xa0"
