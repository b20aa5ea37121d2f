"""NATS subjects and stream names: which ones are safe to write into a protocol line, a folder name, or an ack.

NATS itself takes nearly any bytes; a CR LF in an inbox would run commands on the broker's own connection, a blank
would shift the arguments of a PUB. So everything a client names is checked once, here, before it gets that far.
Stream names become folder names: those are quoted byte by byte with `=` and the byte's number in base 36, so that
two names never share a folder, also on file systems that fold case.
"""

from __future__ import annotations

from bascule.limits import MAX_STREAM_NAME_BYTES, MAX_SUBJECT_BYTES

_UNUSABLE = bytes(range(0x21)) + b"\x7f*>"


def usable_subject(subject: bytes) -> bool:
    """One may publish to it: no blanks, control characters, wildcards or empty tokens, and not too long."""
    return (
        0 < len(subject) <= MAX_SUBJECT_BYTES
        and len(subject.translate(None, _UNUSABLE)) == len(subject)
        and b".." not in subject
        and not subject.startswith(b".")
        and not subject.endswith(b".")
    )
