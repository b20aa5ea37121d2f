"""Target: messages of the FlatBuffers draft, which the official library writes and reads."""

from __future__ import annotations

import struct

from bascule.wire.envelope import MsgType, encode
from bascule.wire.pb import api_pb2
from tests.harness import drafts
from tools.fuzzing import inputs, judge
from tools.fuzzing.chance import Chance
from tools.fuzzing.inputs import NOW, ORIGIN, SUBJECT, TAIL
from tools.fuzzing.target import Target, require
from tools.fuzzing.twins import ask

LIMIT = 1 << 20
WORDS = (b"\x04\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x00\x00", b"\xfc\xff\xff\xff", b"\xff")


def drafted(chance: Chance) -> bytes:
    names = ("", "", "subject", "in.box", "é", "a" * 30)
    return drafts.draft(
        value=None if chance.one_in(8) else chance.blob(40),
        key=chance.blob(9) if chance.one_in(2) else None,
        headers=[(chance.choice(names), chance.blob(9)) for _ in range(chance.randrange(4))]
        if chance.one_in(2)
        else None,
        offset=chance.choice((-1, 0, 3, 1 << 40)),
        policy=chance.choice((0, 1, 2, 3, 255)),
        timestamp=chance.choice((0, NOW)),
        ack_inbox=chance.choice(names),
        correlation_id=chance.choice(names),
    )


def check_draft(data: bytes, chance: Chance) -> None:
    """What is taken of a buffer is what the library reads there; whatever else it is, it is stored whole."""
    payload = encode(MsgType.PUBLISH, data, crc=chance.one_in(4))
    batch = struct.pack("<HHI", len(SUBJECT), 0, len(payload)) + SUBJECT + payload
    records, count, *_, leader, every, errors, taken = ask(
        "encode_records", batch, ORIGIN, SUBJECT, TAIL, 3, 9, NOW, 0, LIMIT, False, b"", None, True
    )
    require((count, taken, errors) == (1, 1, b""), "draft: a message was not stored")
    require(len(records) < 4 * len(payload) + 100_000, "draft: a record is much larger than its message")
    stored = api_pb2.Message.FromString(records[5:])
    for pending in (leader, every):
        ask("encode_acks", pending, b"", SUBJECT, NOW, b"own.", LIMIT)
    released = judge.parsed(api_pb2.Message, data)
    if released is not None:
        require((stored.key, stored.value) == (released.key, released.value), "draft: the protocol did not win")
    elif stored.value != payload:
        _, key, value, headers, *_ = drafts.read(data)
        require((stored.key, stored.value) == (key, value), "draft: not what the library reads")
        expected = {(name or b"").decode(): content for name, content in headers}
        expected |= {"subject": SUBJECT, "reply": b""}
        require(dict(stored.headers) == expected, "draft: its headers are not what the library reads")


TARGETS = (Target("draft", drafted, check_draft, (*WORDS, *inputs.BAD_TEXTS), True),)
