"""Targets: batches to records, acks and responses, records read back. Both twins, and upb."""

from __future__ import annotations

import struct

from bascule.limits import MAX_CORRELATION_ID_BYTES
from bascule.wire.pb import api_pb2
from bascule.wire.record import ack_prefix
from bascule.wire.subjects import usable_subject
from tools.fuzzing import inputs, judge
from tools.fuzzing.chance import Chance
from tools.fuzzing.inputs import NOW, ORIGIN, SUBJECT, TAIL
from tools.fuzzing.target import Target, require
from tools.fuzzing.twins import COMPILED, ask, ask_within

PREFIX = ack_prefix("readings", "sensor.readings")
LIMIT = 1 << 20
WORDS = (
    *inputs.BAD_TEXTS,
    inputs.MAGIC,
    b"\x82\x7d\x0c",
    b"\x08",
    b"\x12",
    b"\x1a",
    b"\x20",
    b"\x4a",
    b"\x52",
    b"\x80",
)


def check_encode_records(data: bytes, chance: Chance) -> None:
    """A batch becomes the same records and pending acks; the records are valid, the acks can be written."""
    next_offset = chance.choice((0, 0, 5, 300, 1 << 40))
    last_timestamp = chance.choice((0, NOW, NOW + 5, (1 << 62)))
    answer = ask(
        "encode_records",
        data,
        ORIGIN,
        SUBJECT,
        TAIL,
        next_offset,
        chance.choice((0, 9, (1 << 64) - 1)),
        NOW,
        last_timestamp,
        chance.choice((0, 7, 30, 10_000, LIMIT)),
        chance.one_in(2),
        chance.choice((b"", b"cluster.", b"a")),
    )
    if answer is ValueError:
        return
    records, count, end, *_ = answer
    require(end == next_offset + count, "encode_records: count and next offset disagree")
    scanned = ask("scan_records", records, 0, len(records), next_offset)
    require(scanned[:2] == (len(records), count), "encode_records: its records are not valid")
    for pending in answer[4:]:
        ask("encode_acks", pending, PREFIX, SUBJECT, NOW, chance.choice((b"", b"own.")), chance.choice((120, LIMIT)))


def check_envelope(data: bytes, chance: Chance) -> None:
    """A record has what upb reads in the envelope, or the whole payload if it is no envelope; so do acks."""
    subject, reply = chance.choice(inputs.SUBJECTS), chance.choice((b"", b"", *inputs.SUBJECTS))
    batch = struct.pack("<HHI", len(subject), len(reply), len(data)) + subject + reply + data
    records, count, *_, leader_pending, all_pending, error_pending = ask(
        "encode_records", batch, ORIGIN, SUBJECT, TAIL, 3, 9, NOW, 0, LIMIT, False, b""
    )
    require(count == 1 and not error_pending, "encode_records: a message was not stored")
    stored = api_pb2.Message.FromString(records[5:])
    content = judge.opened(data, 0)
    message = judge.parsed(api_pb2.Message, content) if content is not None else None
    expected = message if message is not None else api_pb2.Message(value=data)
    require((stored.key, stored.value) == (expected.key, expected.value), "a record's key or value is not upb's")
    require((stored.offset, stored.timestamp) == (3, NOW), "a record's offset or timestamp is wrong")
    names = (subject.decode(errors="replace"), reply.decode(errors="replace"))
    require((stored.subject, stored.replySubject) == names, "a record's subject or reply is wrong")
    if not judge.forgot_entries(expected, 9):
        headers = {**expected.headers, "subject": subject, "reply": reply}
        require(dict(stored.headers) == headers, "a record's headers are not upb's")
    pending = (
        message is not None
        and usable_subject(message.ackInbox.encode())
        and len(message.correlationId.encode()) <= MAX_CORRELATION_ID_BYTES
        and message.ackPolicy in (0, 1)
    )
    require(
        bool(leader_pending or all_pending) == pending, "an ack is pending where upb sees none, or the other way round"
    )
    _check_ack(data, chance)


def _check_ack(data: bytes, chance: Chance) -> None:
    """What is forwarded to a caller is what upb reads inside a response."""
    subject = chance.choice((b"ns.s1", b"ns.u1", b"u", b"ns."))
    answer = ask("ack_responses", struct.pack("<HHI", len(subject), 0, len(data)) + subject + data)
    content = judge.opened(data, 1)
    length = inputs.varint(Chance("plain"), len(content)) if content is not None else b""
    inside = judge.parsed(api_pb2.PublishResponse, b"\x0a" + length + content) if content is not None else None
    if content is None or inside is None:
        require(answer == [], "ack_responses: took what upb refuses")
        return
    require(len(answer) == 1, "ack_responses: dropped what upb takes")
    ((token, stream, framed, count),) = answer
    expected = (subject.rpartition(b".")[2], inside.ack.stream.encode(), int(inside.ack.ackPolicy in (0, 1)))
    require((token, stream, count) == expected, "ack_responses: wrong token, stream or count")
    if token.startswith(b"u"):
        require(framed[5:] == content, "ack_responses: the ack was changed")
        return
    response, ack = api_pb2.PublishResponse.FromString(framed[5:]), inside.ack
    require(response.correlationId == ack.correlationId, "ack_responses: wrong correlation id")
    require(response.HasField("asyncError") == (ack.ackError != 0), "ack_responses: wrong error")
    require(response.ack == (ack if ack.ackError == 0 else api_pb2.Ack()), "ack_responses: wrong ack")


def check_acks(data: bytes, chance: Chance) -> None:
    ask("ack_responses", data)


def check_pending(data: bytes, chance: Chance) -> None:
    prefix = chance.choice((b"", b"own.", b"a", b"own.s1"))
    ask("encode_acks", data, PREFIX, SUBJECT, chance.number(), prefix, chance.choice((0, 90, 1_000, LIMIT)))


def check_kept(data: bytes, chance: Chance) -> None:
    """Only acks of calls that have ended are dropped, and a second pass drops nothing."""
    prefix, gone = chance.choice((b"", b"own.", b"a")), dict.fromkeys(chance.sample((b"s1", b"u2", b"a", b""), 2))
    kept = ask("drop_gone", data, prefix, gone)
    if kept is ValueError:
        return
    require(ask("drop_gone", kept, prefix, gone) == kept, "drop_gone: kept what it had to drop")
    require(ask("drop_gone", data, prefix, {}) == data, "drop_gone: dropped what somebody waits for")


def check_stored(data: bytes, chance: Chance) -> None:
    """Both twins agree on stored bytes, damaged or not; records that they find are valid."""
    min_offset = chance.choice((0, 0, 2, 3, -5, 1 << 40))
    ask_within("scan_records", data, chance, min_offset)
    found = ask("find_record", data, 0, len(data), min_offset)
    if found >= 0:
        scanned = ask("scan_records", data, found, len(data), min_offset)
        require(scanned[1] >= 1, "find_record found what scan_records refuses")
    ask_within("find_record", data, chance, min_offset)
    for field, target in ((0, chance.randint(-1, 7)), (1, NOW + chance.randint(-1, 4)), (1, chance.number())):
        ask_within("seek_record", data, chance, field, target)
    back = ask("reverse_records", data, 0, len(data))
    if back is not ValueError:
        require(len(back) == len(data), "reverse_records lost bytes")
        require(ask("reverse_records", back, 0, len(back)) == data, "reversed twice is not the same")
    ask("index_records", data, chance.randrange(1 << 40), chance.randint(0, 200), chance.choice((1, 64, 150)))
    ask_within("decode_records", data, chance, chance.randint(0, 5))
    ask_within("record_columns", data, chance, min_offset, chance.randrange(32))


def check_decode(data: bytes, chance: Chance) -> None:
    """A client decodes what upb decodes."""
    frame = struct.pack(">BI", 0, len(data)) + data
    answer = ask("decode_records", frame, 0, len(frame), 2)
    message = judge.parsed(api_pb2.Message, data)
    require((answer is ValueError) == (message is None), "decode_records and upb disagree on what is a message")
    if message is None:
        return
    position, ((*values, headers),) = answer
    named = ("offset", "key", "value", "timestamp", "stream", "partition", "subject", "replySubject")
    require(position == len(frame), "decode_records stopped early")
    require(values == [getattr(message, name) for name in named], "decode_records and upb read different values")
    if not judge.forgot_entries(message, 9):
        require(headers == dict(message.headers), "decode_records and upb read different headers")


def check_tail(data: bytes, chance: Chance) -> None:
    """Subjects are repaired as Python repairs them."""
    cut = chance.randint(0, len(data))
    subject, reply = data[:cut], data[cut:]
    message = api_pb2.Message.FromString(ask("record_tail", ORIGIN, subject, reply))
    names = (subject.decode("utf-8", "replace"), reply.decode("utf-8", "replace"))
    require((message.subject, message.replySubject) == names, "record_tail repairs otherwise than Python")
    require(dict(message.headers) == {"subject": subject, "reply": reply}, "record_tail: the raw subjects are changed")


def check_crc(data: bytes, chance: Chance) -> None:
    """By the instruction and by the table; in one go and in two."""
    cut, value = chance.randint(0, len(data)), chance.getrandbits(32)
    for table_only in (False, True):
        if COMPILED is not None:
            COMPILED._crc_by_table_only(table_only)
        try:
            whole = ask("crc32c", data, value)
            require(ask("crc32c", data[cut:], ask("crc32c", data[:cut], value)) == whole, "crc32c: two steps differ")
        finally:
            if COMPILED is not None:
                COMPILED._crc_by_table_only(False)


def _any_envelope(chance: Chance) -> bytes:
    return inputs.published(chance) if chance.one_in(2) else inputs.acked(chance)


TARGETS = (
    Target("crc32c", lambda c: c.blob(c.choice((8, 40, 300, 9_000))), check_crc, kernels_only=True),
    Target("record_tail", lambda c: c.choice(inputs.SUBJECTS) + c.blob(9), check_tail, inputs.BAD_TEXTS, True),
    Target("envelope", _any_envelope, check_envelope, WORDS, True),
    Target("encode_records", lambda c: inputs.batch(c, inputs.published), check_encode_records, WORDS, True),
    Target("ack_responses", lambda c: inputs.batch(c, inputs.acked), check_acks, WORDS, True),
    Target("encode_acks", inputs.pending, check_pending, WORDS, True),
    Target("drop_gone", inputs.pending, check_kept, WORDS, True),
    Target("records", inputs.records, check_stored, WORDS, True),
    Target("decode_records", lambda c: inputs.protobuf(c, inputs.message), check_decode, WORDS, True),
)
