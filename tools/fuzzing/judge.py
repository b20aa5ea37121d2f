"""A third implementation to compare with: the protobuf library, and the envelope's rules. Twins can share a bug."""

from __future__ import annotations

from typing import TypeVar

import google_crc32c
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bascule.wire.envelope import MsgType, decode
from tools.fuzzing.inputs import MAGIC
from tools.fuzzing.target import require

AnyMessage = TypeVar("AnyMessage", bound=Message)


def parsed(kind: type[AnyMessage], payload: bytes) -> AnyMessage | None:
    """What upb makes of it; None if it refuses."""
    try:
        return kind.FromString(payload)
    except DecodeError:
        return None


def forgot_entries(message: Message, number: int) -> bool:
    """upb put entries of the map `number` aside because something in them was unknown; we keep them."""
    unknown = UnknownFieldSet(message)
    retained = [unknown[index] for index in range(len(unknown))]
    return any(field.field_number == number and field.wire_type == 2 for field in retained)


def opened(payload: bytes, message_type: int) -> bytes | None:
    """What an envelope of this type holds; None if it is none."""
    content = None
    if len(payload) >= 8 and payload[:4] == MAGIC and payload[4] == 0 and payload[7] == message_type:
        start, checked = payload[5], bool(payload[6] & 1)
        if not checked and start <= len(payload):
            content = payload[start:]
        elif checked and start == 12 <= len(payload):
            crc = int.from_bytes(payload[8:12], "big")
            content = payload[12:] if google_crc32c.value(payload[12:]) == crc else None
    require(decode(payload, MsgType(message_type)) == content, "envelope.decode and the rules of the envelope differ")
    return content
