"""The envelope of all messages between Liftbridge-compatible programs over NATS.

Eight bytes: magic, version 0, length of the header, flags, type of the message. With flag bit 0 a CRC-32C of
the payload follows and the header takes twelve bytes. Messages between brokers have the checksum; publishes and acks
have none, but one that a publisher sends is checked. Without it any header length within the data is taken as given:
the payload starts there. On the hot path the kernels do the same; this is for everything else.
"""

from __future__ import annotations

from enum import IntEnum

from bascule.wire.kernels import crc32c
from bascule.wire.pure.envelope import CRC_HEADER_BYTES, HEADER_BYTES, MAGIC, content

__all__ = [
    "CRC_HEADER_BYTES",
    "HEADER_BYTES",
    "MAGIC",
    "MsgType",
    "decode",
    "decode_checked",
    "encode",
    "encode_checked",
]

_CRC_FLAG = 1


class MsgType(IntEnum):
    """The type byte. From 2 on they are between brokers only, but for ours."""

    PUBLISH = 0
    ACK = 1
    REPLICATION_REQUEST = 2
    REPLICATION_RESPONSE = 3
    RAFT_JOIN_REQUEST = 4
    RAFT_JOIN_RESPONSE = 5
    LEADER_EPOCH_OFFSET_REQUEST = 6
    LEADER_EPOCH_OFFSET_RESPONSE = 7
    PROPAGATED_REQUEST = 8
    PROPAGATED_RESPONSE = 9
    SERVER_INFO_REQUEST = 10
    SERVER_INFO_RESPONSE = 11
    PARTITION_STATUS_REQUEST = 12
    PARTITION_STATUS_RESPONSE = 13
    PARTITION_NOTIFICATION = 14
    BATCH = 128
    """Ours, far from the protocol's own: messages that are stored together, by whoever listens on the subject. Who does
    not know it takes it as a plain message."""


def encode(message_type: MsgType, payload: bytes, crc: bool = False) -> bytes:
    """The payload in its envelope."""
    if not crc:
        return MAGIC + bytes((0, HEADER_BYTES, 0, message_type)) + payload
    header = bytes((0, CRC_HEADER_BYTES, _CRC_FLAG, message_type))
    return MAGIC + header + crc32c(payload).to_bytes(4, "big") + payload


def encode_checked(message_type: MsgType, pieces: list[bytes]) -> list[bytes]:
    """The envelope with its checksum, and the payload behind it in pieces: joining them copies the payload once."""
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return [MAGIC + bytes((0, CRC_HEADER_BYTES, _CRC_FLAG, message_type)) + checksum.to_bytes(4, "big"), *pieces]


def decode_checked(data: bytes, expected: MsgType) -> memoryview | None:
    """The payload of a message between brokers; None if it is no valid envelope of this type with a checksum."""
    if len(data) < CRC_HEADER_BYTES or data[:8] != MAGIC + bytes((0, CRC_HEADER_BYTES, _CRC_FLAG, expected)):
        return None
    payload = memoryview(data)[CRC_HEADER_BYTES:]
    return payload if crc32c(payload) == int.from_bytes(data[8:CRC_HEADER_BYTES], "big") else None


def decode(data: bytes, expected: MsgType) -> bytes | None:
    """The payload, not yet parsed; None if this is no valid envelope of the expected type."""
    return content(data, expected)
