"""Batches of publishes, as a partition leader is given them."""

import struct

from bascule.wire.envelope import MsgType, encode
from bascule.wire.pb import api_pb2 as api


def batch(*payloads: bytes, subject: bytes = b"orders") -> bytes:
    return b"".join(struct.pack("<HHI", len(subject), 0, len(data)) + subject + data for data in payloads)


def envelope(value: bytes, policy: int = 0, expected: int = 0, correlation: str = "c") -> bytes:
    message = api.Message(
        value=value, ackInbox="in.box", correlationId=correlation, ackPolicy=api.AckPolicy.Name(policy), offset=expected
    )
    return encode(MsgType.PUBLISH, message.SerializeToString())
