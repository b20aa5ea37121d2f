"""What the kernels are fed with: protobuf, envelopes, batches, NATS streams, records, frames. Mostly right."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import google_crc32c

from bascule.wire import _pure
from bascule.wire.pb import api_pb2
from bascule.wire.producers import numbered as number_it
from bascule.wire.producers import producer_prefix
from bascule.wire.record import origin
from tools.fuzzing.chance import Chance

MAGIC = b"\xb9\x0e\x43\xb4"
SUBJECT = b"sensor.readings"
ORIGIN = origin("readings", 0)
TAIL = _pure.record_tail(ORIGIN, SUBJECT, b"")
NOW = 1_700_000_000_000_000_000
VECTORS = Path(__file__).parents[2] / "tests" / "vectors" / "envelopes.jsonl"

Make = Callable[[Chance], bytes]

SUBJECTS = (SUBJECT, SUBJECT, SUBJECT, b"a", b"a.b", b"own.s1", b"own.u2", b"cluster.raft", b"\xc3\xa9.x", b"a.\xff")
TEXTS = ("", "", "subject", "reply", "é", "\ufffd", "\x00", "in.box", "own.s1", "own.u2", "a..b", "x\r\nPUB y 0")
BAD_TEXTS = (
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe2\x82",
    b"a\xf0\x9f\x98z",
    b"\x80",
    b"\xe0\x80\x80",
)
POLICIES = (0, 0, 0, 1, 1, 2, 3, -1, 255, 256, -(1 << 31))


@cache
def captured() -> tuple[bytes, ...]:
    """Envelopes that other Liftbridge programs sent."""
    return tuple(bytes.fromhex(json.loads(line)["hex"]) for line in VECTORS.read_text().splitlines() if line)


# --- protobuf ---------------------------------------------------------------------------------------------


def varint(chance: Chance, value: int) -> bytes:
    """Sometimes longer than needed, or too long, or with bits that do not fit."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    if chance.one_in(16):
        for _ in range(chance.choice((1, 2, 3, 4, 5, 8, 9, 10))):
            out[-1] |= 0x80
            out.append(0)
    if chance.one_in(40):
        out[-1] |= chance.randrange(0x80)
    return bytes(out)


def raw(chance: Chance) -> bytes:
    """Content of a field; rarely large."""
    size = chance.choice((0, 1, 8, 8, 8, 20)) if not chance.one_in(60) else chance.choice((127, 128, 5_000, 70_000))
    return chance.randbytes(size) if size < 1_000 else bytes((chance.randrange(256),)) * size


def text(chance: Chance) -> str:
    return chance.choice(TEXTS) if not chance.one_in(30) else "x" * chance.choice((130, 1_024, 1_025, 70_000))


def entry(chance: Chance) -> bytes:
    """A header as an entry of the map, sometimes with more in it than belongs there."""
    key, value = text(chance).encode(), raw(chance)
    out = b"\x0a" + varint(chance, chance.lied(len(key))) + key + b"\x12" + varint(chance, len(value)) + value
    return out + field(chance, 1) if chance.one_in(4) else out


def field(chance: Chance, depth: int = 3) -> bytes:
    """One field: known or not, of a fitting wire type or not."""
    number = chance.randint(1, 13) if not chance.one_in(4) else chance.choice((0, 14, 15, 16, 2000, (1 << 29) - 1))
    wire_type = chance.choice((0, 0, 0, 1, 2, 2, 2, 2, 3, 4, 5, 6, 7) if depth else (0, 2, 2))
    tag = varint(chance, number << 3 | wire_type)
    if wire_type == 0:
        return tag + varint(chance, chance.number())
    if wire_type in (1, 5):
        return tag + chance.randbytes(8 if wire_type == 1 else 4)
    if wire_type == 2:
        content = (raw, lambda c: c.choice(BAD_TEXTS), entry, lambda c: fields(c, depth - 1))[chance.randrange(4)](
            chance
        )
        return tag + varint(chance, chance.lied(len(content))) + content
    if wire_type == 3:
        end = number if not chance.one_in(10) else number + 1
        return tag + fields(chance, depth - 1) + varint(chance, end << 3 | 4)
    return tag


def fields(chance: Chance, depth: int = 3) -> bytes:
    return chance.joined(lambda: field(chance, max(depth, 0)), 2)


def protobuf(chance: Chance, valid: Make) -> bytes:
    """A valid message, alone or with odd fields around it; or groups in groups."""
    kind = chance.randrange(10)
    if kind == 0:
        depth = chance.choice((98, 99, 100, 101))
        return valid(chance) + b"\xa3\x06" * depth + b"\xa4\x06" * depth
    return valid(chance) if kind < 5 else fields(chance) + valid(chance) + fields(chance)


def headers(chance: Chance) -> dict[str, bytes]:
    return {text(chance): raw(chance) for _ in range(chance.randrange(3))}


def message(chance: Chance) -> bytes:
    made = api_pb2.Message(
        offset=chance.number() if chance.one_in(2) else chance.randint(-1, 6),
        key=raw(chance),
        value=raw(chance),
        stream=text(chance),
        partition=chance.randint(-2, 5),
        headers=headers(chance),
        ackInbox=text(chance),
        correlationId=text(chance),
    )
    made.ackPolicy = chance.choice(POLICIES)  # type: ignore[assignment]
    return made.SerializeToString()


def publish_request(chance: Chance) -> bytes:
    made = api_pb2.PublishRequest(
        producer=chance.blob(60) if chance.one_in(3) else b"",
        key=raw(chance),
        value=raw(chance),
        stream=chance.choice(("s", "s", "s", "occ", "é", "", "unknown")),
        partition=chance.choice((0, 0, 0, 1, 2, 3, 4, -1, (1 << 31) - 1)),
        headers=headers(chance),
        ackInbox=text(chance),
        correlationId=text(chance),
        expectedOffset=chance.number(),
    )
    made.ackPolicy = chance.choice(POLICIES)  # type: ignore[assignment]
    return made.SerializeToString()


def ack(chance: Chance) -> bytes:
    made = api_pb2.Ack(stream=text(chance), msgSubject=text(chance), offset=chance.number(), correlationId=text(chance))
    made.ackError = chance.choice((0, 0, 0, 1, 2, 3, 4, 5, -1))  # type: ignore[assignment]
    made.ackPolicy = chance.choice(POLICIES)  # type: ignore[assignment]
    return made.SerializeToString()


def response(chance: Chance) -> bytes:
    """Of a publish: mostly an ack whose correlation id is a number."""
    made = api_pb2.PublishResponse()
    if not chance.one_in(8):
        made.ack.ParseFromString(ack(chance))
        if not chance.one_in(4):
            made.ack.correlationId = str(chance.choice((0, 7, 1 << 40, 10**17, 10**18, 10**30)))
    if chance.one_in(2):
        made.correlationId = made.ack.correlationId if chance.one_in(2) else text(chance)
    if chance.one_in(8):
        made.asyncError.message = text(chance)
    return made.SerializeToString()


# --- NATS -------------------------------------------------------------------------------------------------


def envelope(chance: Chance, payload: bytes, message_type: int) -> bytes:
    kind = chance.randrange(12)
    if kind < 6:
        return MAGIC + bytes((0, 8, 0, message_type)) + payload
    if kind < 9:
        crc = google_crc32c.value(payload) ^ (1 if chance.one_in(8) else 0)
        return MAGIC + bytes((0, 12, 1, message_type)) + struct.pack(">I", crc) + payload
    if kind == 9:
        return chance.choice(captured())
    head = (chance.randrange(2), chance.randrange(15), chance.randrange(4), chance.randrange(3))
    return MAGIC + bytes(head) + payload


def published(chance: Chance) -> bytes:
    return batched(chance) if chance.one_in(6) else envelope(chance, protobuf(chance, message), 0)


def batched(chance: Chance, producer: bytes = b"") -> bytes:
    """An atomic batch in an envelope."""
    bodies = [protobuf(chance, message) for _ in range(chance.randrange(5))]
    framed = b"".join(struct.pack(">BI", 0, chance.lied(len(body)) & 0xFFFFFFFF) + body for body in bodies)
    made = api_pb2.Message(value=framed, ackInbox="inbox", correlationId="b", producer=producer)
    made.ackPolicy = chance.choice(POLICIES)  # type: ignore[assignment]
    made.offset = chance.choice((-1, 0, 3))
    return envelope(chance, made.SerializeToString(), 128)


def numbered(chance: Chance) -> bytes:
    """A message of an idempotent producer, mostly of partition 1 of the stream with index 7."""
    made = api_pb2.Message(value=raw(chance), ackInbox="inbox", correlationId="c")
    made.ackPolicy = chance.choice(POLICIES)  # type: ignore[assignment]
    scope = (chance.choice((7, 7, 7, 7, 8)), chance.choice((1, 1, 1, 1, 0)))
    prefix = producer_prefix(chance.choice((1, 2, 300)), chance.choice((3, 3, 3, 4)), *scope)
    made.producer = number_it(prefix, chance.choice((0, 0, 1, 1, 2, 3, 4, 5, (1 << 64) - 1)))
    if chance.one_in(20):
        made.producer = chance.blob(60)
    if chance.one_in(3):
        return batched(chance, made.producer)
    return envelope(chance, made.SerializeToString(), 0)


def acked(chance: Chance) -> bytes:
    return envelope(chance, protobuf(chance, ack), 1)


def batch_of(chance: Chance, subject: bytes, reply: bytes, payload: bytes) -> bytes:
    lengths = (chance.lied(len(subject)) & 0xFFFF, len(reply), chance.lied(len(payload)) & 0xFFFFFFFF)
    return struct.pack("<HHI", *lengths) + subject + reply + payload


def batch(chance: Chance, payload: Make) -> bytes:
    def one() -> bytes:
        reply = chance.choice(SUBJECTS) if chance.one_in(3) else b""
        return batch_of(chance, chance.choice(SUBJECTS), reply, payload(chance))

    return chance.joined(one, 4)


def pending(chance: Chance) -> bytes:
    def one() -> bytes:
        inbox, correlation = chance.choice(SUBJECTS), text(chance).encode()
        subject = chance.choice(SUBJECTS) if chance.one_in(2) else b""
        head = (chance.number(), chance.number(), chance.choice((0, 1, 2, 255)), chance.choice((0, 0, 1, 2, 3, 4, 255)))
        lengths = (chance.lied(len(inbox)) & 0xFFFF, len(subject), chance.lied(len(correlation)) & 0xFFFFFFFF)
        return struct.pack("<qqBBHHI", *head, *lengths) + inbox + subject + correlation

    return chance.joined(one, 4)


def nats_item(chance: Chance) -> bytes:
    """One item a server may send."""
    verbs = (b"MSG", b"MSG", b"MSG", b"msg", b"HMSG", b"HmSg", b"PING", b"PONG", b"+ok", b"-ERR", b"INFO", b"WHAT")
    verb = chance.choice(verbs if chance.one_in(3) else verbs[:-1])
    end = b"\r\n" if not chance.one_in(8) else chance.choice((b"\n", b"\r\r\n", b" \r\n", b"\r"))
    blank = b" " if not chance.one_in(5) else chance.choice((b"\t", b"  ", b" \t "))
    if verb.upper() not in (b"MSG", b"HMSG"):
        return verb + (blank + chance.blob(20).replace(b"\n", b"") if chance.one_in(2) else b"") + end
    payload = raw(chance)
    words = [verb, chance.choice(SUBJECTS), b"%d" % chance.lied(chance.randrange(5))]
    if chance.one_in(3):
        words.append(chance.choice(SUBJECTS))
    if verb.upper() == b"HMSG":
        words.append(b"%d" % chance.lied(chance.randint(0, len(payload))))
    words.append(b"%d" % chance.lied(len(payload)))
    return blank.join(words) + end + payload + b"\r\n"


def nats_stream(chance: Chance) -> bytes:
    return chance.joined(lambda: nats_item(chance), 7)


# --- records and frames -----------------------------------------------------------------------------------


def sealed(payload: bytes, epoch: int) -> bytes:
    """Any bytes with a record's prefix and a right trailer."""
    covered = payload + b"\x82\x7d\x0c" + struct.pack("<Q", epoch)
    whole = covered + struct.pack("<I", google_crc32c.value(covered))
    return struct.pack(">BI", 0, len(whole)) + whole


def records(chance: Chance) -> bytes:
    """Records as the log holds them, and now and then one that only has the right checksum."""
    parts: list[bytes] = []
    offset = chance.choice((0, 0, 2, 1 << 40, (1 << 63) - 3))
    for _ in range(chance.randrange(5)):
        if chance.one_in(6):
            start = b"\x08" + (varint(chance, offset) if chance.one_in(2) else b"")
            parts.append(sealed(start + protobuf(chance, message), chance.number() & ((1 << 64) - 1)))
        else:
            body = published(chance)
            whole = struct.pack("<HHI", len(SUBJECT), 0, len(body)) + SUBJECT + body
            epoch = chance.randrange(4)
            made = _pure.encode_records(
                whole, ORIGIN, SUBJECT, TAIL, offset, epoch, NOW + len(parts), 0, 1 << 20, False, b""
            )
            parts.append(made[0])
        offset = min(offset + chance.choice((1, 1, 1, 3, 0)), (1 << 63) - 2)
    return b"".join(parts)


def grpc_frames(chance: Chance, payload: Make) -> bytes:
    def one() -> bytes:
        body = payload(chance)
        return struct.pack(">BI", 1 if chance.one_in(20) else 0, chance.lied(len(body)) & 0xFFFFFFFF) + body

    return chance.joined(one, 4)


def http2_frame(chance: Chance, kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """One frame; its length may lie."""
    length = chance.lied(len(payload)) & 0xFFFFFF
    return length.to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream_id) + payload


def data_frames(chance: Chance) -> bytes:
    """Mostly DATA of a few streams, with all that belongs to it."""

    def one() -> bytes:
        kind = chance.choice((0, 0, 0, 0, 1, 3, 8))
        flags = chance.choice((0, 0, 0, 1, 8, 9, 4, 0xFF))
        payload = raw(chance)
        if flags & 8 and not chance.one_in(6):
            payload = bytes((min(len(payload) // 2, 255),)) + payload
        return http2_frame(chance, kind, flags, chance.choice((0, 1, 1, 2, 3, 0x80000001)), payload)

    return chance.joined(one, 8)
