"""Targets: batches to records, acks and responses, records read back. Both twins, and upb."""

from __future__ import annotations

import struct

from bascule.limits import KEY_SLOT_BYTES, MAX_CORRELATION_ID_BYTES, MAX_PARTITION_PRODUCERS
from bascule.wire.pb import api_pb2
from bascule.wire.record import ack_prefix
from bascule.wire.subjects import usable_subject
from tools.fuzzing import inputs, judge
from tools.fuzzing.chance import Chance, bent
from tools.fuzzing.inputs import NOW, ORIGIN, SUBJECT, TAIL
from tools.fuzzing.target import Target, require
from tools.fuzzing.twins import COMPILED, ask, ask_within, make

PREFIX = ack_prefix("readings", "sensor.readings")
LIMIT = 1 << 20
RECORD_PREFIX_BYTES = 5  # of gRPC: a flag and the length
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
    require(ask("open_batch", records, 0, len(records)) == (len(records), -1, 0), "encode_records: a part of a batch")
    for pending in answer[4:7]:
        ask("encode_acks", pending, PREFIX, SUBJECT, NOW, chance.choice((b"", b"own.")), chance.choice((120, LIMIT)))


def check_messages(data: bytes, chance: Chance) -> None:
    """Framed messages become valid records with what upb reads in them, all or none."""
    next_offset, most = chance.choice((0, 5, 1 << 40)), chance.choice((0, 1, 2, 5, 1 << 40))
    settings = (9, NOW, chance.choice((0, NOW + 5)), chance.choice((0, 30, 10_000)))
    atomic = chance.one_in(2)
    records, count, end, _, problem = ask("encode_messages", data, SUBJECT, TAIL, next_offset, *settings, most, atomic)
    if problem:
        require((records, end) == (b"", next_offset), "encode_messages: something of a refused batch is left")
        return
    require(end == next_offset + count <= next_offset + most, "encode_messages: count and next offset disagree")
    scanned = ask("scan_records", records, 0, len(records), next_offset)
    require(scanned[:2] == (len(records), count), "encode_messages: its records are not valid")
    read, position = 0, 0
    for offset in range(next_offset, end):
        size = int.from_bytes(data[position + 1 : position + 5], "big")
        message = judge.parsed(api_pb2.Message, data[position + 5 : position + 5 + size])
        length = int.from_bytes(records[read + 1 : read + 5], "big")
        stored = api_pb2.Message.FromString(records[read + 5 : read + 5 + length])
        require(message is not None, "encode_messages: took what upb refuses")
        if message is not None:
            same = (stored.offset, stored.key, stored.value) == (offset, message.key, message.value)
            require(same, "encode_messages: a record is not what upb reads")
            if not judge.forgot_entries(message, 9):
                headers = {**message.headers, "subject": SUBJECT, "reply": b""}
                require(dict(stored.headers) == headers, "encode_messages: headers are not upb's")
        read, position = read + 5 + length, position + 5 + size
    missing = most - count if atomic and 0 < count < most < 1 << 16 else 0
    expected = (0, next_offset, missing) if missing else (len(records), -1, 0)
    require(ask("open_batch", records, 0, len(records)) == expected, "open_batch: not what encode_messages wrote")


def check_envelope(data: bytes, chance: Chance) -> None:
    """A record has what upb reads in the envelope, or the whole payload if it is no envelope; so do acks."""
    subject, reply = chance.choice(inputs.SUBJECTS), chance.choice((b"", b"", *inputs.SUBJECTS))
    content = judge.opened(data, 0)
    message = judge.parsed(api_pb2.Message, content) if content is not None else None
    ends = struct.pack("<3i", 0, len(subject), len(subject) + len(data))
    found = ask("envelope_columns", 2, ends, subject + data)
    require((found[0][1] == 1) == (message is not None), "envelope_columns and upb disagree on what is a message")
    together = judge.opened(data, 128)
    if together is not None and judge.parsed(api_pb2.Message, together) is not None:
        return  # an atomic batch: `encode_records` and `producers` are about these
    batch = struct.pack("<HHI", len(subject), len(reply), len(data)) + subject + reply + data
    records, count, *_, leader_pending, all_pending, error_pending, _ = ask(
        "encode_records", batch, ORIGIN, SUBJECT, TAIL, 3, 9, NOW, 0, LIMIT, False, b""
    )
    require(count == 1 and not error_pending, "encode_records: a message was not stored")
    stored = api_pb2.Message.FromString(records[5:])
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


def check_responses(data: bytes, chance: Chance) -> None:
    """A plain ack is what upb reads; what is none is left as it is."""
    most = chance.choice((20, 10_000))
    ask_within("decode_responses", data, chance, most)
    consumed, answers, others, _ = ask("decode_responses", data, 0, len(data), most)
    require(others == sum(isinstance(answer, bytes) for answer in answers), "decode_responses: a wrong count")
    position = 0
    for answer in answers:
        body = data[position + 5 : position + 5 + int.from_bytes(data[position + 1 : position + 5], "big")]
        position += 5 + len(body)
        if isinstance(answer, bytes):
            require(answer == body, "decode_responses: what is no plain ack was changed")
            continue
        made = judge.parsed(api_pb2.PublishResponse, body)
        require(made is not None, "decode_responses: took what upb refuses")
        assert made is not None
        ack = made.ack
        read = (int(ack.correlationId), ack.stream, ack.offset, ack.msgSubject, ack.ackPolicy)
        require(answer == (*read, ack.receptionTimestamp, ack.commitTimestamp), "decode_responses: a wrong ack")
        require(not ack.ackError and not made.HasField("asyncError"), "decode_responses: an error is no plain ack")
    require(position == consumed, "decode_responses: it did not take what it says")


def check_pending(data: bytes, chance: Chance) -> None:
    prefix = chance.choice((b"", b"own.", b"a", b"own.s1"))
    ask("encode_acks", data, PREFIX, SUBJECT, chance.number(), prefix, chance.choice((0, 90, 1_000, LIMIT)))


def check_retained(data: bytes, chance: Chance) -> None:
    """Only acks of calls that have ended are dropped, and a second pass drops nothing."""
    prefix, gone = chance.choice((b"", b"own.", b"a")), dict.fromkeys(chance.sample((b"s1", b"u2", b"a", b""), 2))
    retained = ask("drop_gone", data, prefix, gone)
    if retained is ValueError:
        return
    require(ask("drop_gone", retained, prefix, gone) == retained, "drop_gone: kept what it had to drop")
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
    ask_within("open_batch", data, chance)
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


def _framed(chance: Chance, make: inputs.Make = inputs.message) -> bytes:
    bodies = [inputs.protobuf(chance, make) for _ in range(chance.randrange(5))]
    return b"".join(struct.pack(">BI", 0, len(body)) + body for body in bodies)


def check_producers(data: bytes, chance: Chance) -> None:
    """Each sequence is stored once; a replica that observes the records knows the same, and so does one that restores
    what is stored of them."""
    leading, observing = (
        make("ProducerTable", 7, 1, MAX_PARTITION_PRODUCERS),
        make("ProducerTable", 7, 1, MAX_PARTITION_PRODUCERS),
    )
    end, timestamp, stored = 5, 0, b""
    cuts = sorted(chance.randint(0, len(data)) for _ in range(2))
    for now, batch in enumerate((data[: cuts[0]], data[cuts[0] : cuts[1]], data[cuts[1] :], data)):
        answer = ask("encode_records", batch, ORIGIN, SUBJECT, TAIL, end, 9, now, timestamp, LIMIT, False, b"", leading)
        if answer is ValueError:
            continue
        records, _, end, timestamp, *pending, _ = answer
        stored += records
        ask("observe_producers", observing, records, 0, len(records))
        for each in pending:
            ask("encode_acks", each, PREFIX, SUBJECT, NOW, b"own.", LIMIT)
    known = leading.same(lambda table: table.snapshot())
    require(observing.same(lambda table: table.snapshot()) == known, "a follower knows something else than its leader")
    leading.same(lambda table: (len(table), table.runs, table.duplicates, table.end))
    _, messages, _ = ask("split_messages", stored, 0, len(stored), LIMIT)
    numbers = [api_pb2.Message.FromString(message).producer for _, message in messages]
    numbers = [each for each in numbers if each]
    require(len(numbers) == len(set(numbers)), "a sequence is stored twice")
    again = make("ProducerTable", 7, 1, MAX_PARTITION_PRODUCERS)
    again.same(lambda table: table.restore(known))
    require(again.same(lambda table: table.snapshot()) == known, "what is restored is not what was stored")
    damaged = bent(chance, known)
    if again.same(lambda table: table.restore(damaged)) is not ValueError:
        require(again.same(lambda table: table.snapshot()) == damaged, "what is restored is not what was stored")
    again.same(lambda table: table.restore(known))
    later = chance.randrange(1 << 62)
    again.same(lambda table: table.expire(later))
    again.same(lambda table: table.snapshot())


def check_compaction(data: bytes, chance: Chance) -> None:
    """Both twins keep the same records of each key, and what they keep is valid."""
    answer = ask("encode_records", data, ORIGIN, SUBJECT, TAIL, 5, 9, NOW, 0, LIMIT, False, b"")
    if answer is ValueError or not answer[1]:
        return
    records = answer[0]
    keys = make("KeyMap", bytes(16), chance.choice((8 * KEY_SLOT_BYTES, LIMIT)))
    keys.same(lambda each: each.add(records, 0, len(records), 1 << 62))
    retained = keys.same(lambda each: each.compact(records, 0, len(records), b"", NOW))
    require(len(retained[0]) <= len(records), "compaction adds bytes")
    at = 0
    while at < len(retained[0]):
        size = RECORD_PREFIX_BYTES + int.from_bytes(retained[0][at + 1 : at + RECORD_PREFIX_BYTES], "big")
        require(retained[0][at : at + size] in records, "compaction changes a record")
        at += size


def _any_envelope(chance: Chance) -> bytes:
    return inputs.published(chance) if chance.one_in(2) else inputs.acked(chance)


TARGETS = (
    Target("crc32c", lambda c: c.blob(c.choice((8, 40, 300, 9_000))), check_crc, kernels_only=True),
    Target("record_tail", lambda c: c.choice(inputs.SUBJECTS) + c.blob(9), check_tail, inputs.BAD_TEXTS, True),
    Target("envelope", _any_envelope, check_envelope, WORDS, True),
    Target("encode_records", lambda c: inputs.batch(c, inputs.published), check_encode_records, WORDS, True),
    Target("encode_messages", _framed, check_messages, WORDS, True),
    Target("producers", lambda c: inputs.batch(c, inputs.numbered), check_producers, WORDS, True),
    Target("compaction", lambda c: inputs.batch(c, inputs.published), check_compaction, WORDS, True),
    Target("ack_responses", lambda c: inputs.batch(c, inputs.acked), check_acks, WORDS, True),
    Target("decode_responses", lambda c: _framed(c, inputs.response), check_responses, WORDS, True),
    Target("encode_acks", inputs.pending, check_pending, WORDS, True),
    Target("drop_gone", inputs.pending, check_retained, WORDS, True),
    Target("records", inputs.records, check_stored, WORDS, True),
    Target("decode_records", lambda c: inputs.protobuf(c, inputs.message), check_decode, WORDS, True),
)
