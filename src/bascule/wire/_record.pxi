# Records: what NATS delivered to a partition, into the bytes of its log and the acks that are pending for it.

cdef enum:
    TRAILER_BYTES = 15
    BATCH_BYTES = 7
    PENDING_BYTES = 26
    ERROR_UNKNOWN = 1
    ERROR_INCORRECT_OFFSET = 2
    ERROR_TOO_LARGE = 3
    ERROR_EMPTY_BATCH = 105
    ERROR_BENT_BATCH = 106
    ERROR_LONG_BATCH = 107
    TYPE_PUBLISH = 0
    TYPE_BATCH = 128

cdef uint8_t *MAGIC = [0xB9, 0x0E, 0x43, 0xB4]

cdef struct Encoder:
    Span origin
    Span subject
    Span tail
    Span refused
    int64_t next_offset
    int64_t now
    int64_t last_timestamp
    int64_t max_bytes
    uint64_t epoch
    uint64_t count
    uint64_t taken  # messages from NATS that are stored: a batch is one
    bint occ
    bint flatbuffers  # the draft's messages are understood
    Producers *producers  # NULL if what producers say is ignored
    bint judges  # whether it is known what they have stored
    uint32_t batch  # how many messages the atomic batch has that is encoded; 0: none is
    uint32_t index  # of its next one
    Span inbox  # the last one looked at, and whether it may be written to
    bint inbox_usable
    Out records
    Out draft_headers  # of the message of the draft that is encoded
    Out leader_pending
    Out all_pending
    Out error_pending

cdef struct Delivered:
    Span subject
    Span reply
    Span payload


cdef const uint8_t *next_delivered(const uint8_t *at, const uint8_t *end, Delivered *message) noexcept nogil:
    # The next entry of a batch; NULL if it is truncated.
    cdef uint64_t left = <uint64_t>(end - at)
    cdef uint64_t subject
    cdef uint64_t reply
    cdef uint64_t payload
    if left < 8:
        return NULL
    subject = get_le16(at)
    reply = get_le16(at + 2)
    payload = get_le32(at + 4)
    if left - 8 < subject + reply + payload:
        return NULL
    at += 8
    message.subject.data = at
    message.subject.size = subject
    message.reply.data = at + subject
    message.reply.size = reply
    message.payload.data = at + subject + reply
    message.payload.size = payload
    return at + subject + reply + payload


cdef int64_t count_delivered(const uint8_t *at, const uint8_t *end) noexcept nogil:
    # How many messages a batch holds, or -1 if it is not a batch.
    cdef Delivered message
    cdef int64_t count = 0
    while at < end:
        at = next_delivered(at, end, &message)
        if at == NULL:
            return -1
        count += 1
    return count


cdef bint open_envelope(const Span *payload, uint8_t message_type, Span *body) noexcept nogil:
    # Checks the envelope's header, and its CRC if it has one; `body` is the protobuf inside.
    cdef const uint8_t *data = payload.data
    if payload.size < 8 or memcmp(data, MAGIC, 4) != 0 or data[4] != 0 or data[7] != message_type:
        return False
    if data[5] > payload.size:
        return False
    body.data = data + data[5]
    body.size = payload.size - data[5]
    if data[6] & 1:
        if data[5] != 12:
            return False
        return crc_extend(0, body.data, body.size) == get_be32(data + 8)
    return True


# --- the constant end of a record -------------------------------------------------------------------------

cdef inline uint64_t tail_room(const Span *origin, const Span *subject, const Span *reply) noexcept nogil:
    # At least as much as put_tail writes: each name once raw and once repaired, up to three times as long.
    return origin.size + 4 * (subject.size + reply.size) + 64


cdef uint64_t common_size(const Span *subject, const Span *reply) noexcept nogil:
    # What put_tail writes without the origin: the same in all streams that listen on the subject.
    cdef Header header
    cdef uint64_t name = repaired_size(subject)
    cdef uint64_t size = 1 + varint_size(name) + name
    if reply.size:
        name = repaired_size(reply)
        size += 1 + varint_size(name) + name
    header.key.data = b"subject"
    header.key.size = 7
    header.value = subject[0]
    size += header_size(&header)
    header.key.data = b"reply"
    header.key.size = 5
    header.value = reply[0]
    return size + header_size(&header)


cdef uint8_t *put_tail(uint8_t *to, const Span *origin, const Span *subject, const Span *reply) noexcept nogil:
    cdef uint64_t size
    cdef Header header
    to = put(to, origin)
    size = repaired_size(subject)
    to[0] = 0x3A
    to = put_repaired(put_varint(to + 1, size), subject, size)
    if reply.size:
        size = repaired_size(reply)
        to[0] = 0x42
        to = put_repaired(put_varint(to + 1, size), reply, size)
    header.key.data = b"subject"
    header.key.size = 7
    header.value = subject[0]
    to = put_header(to, &header)
    header.key.data = b"reply"
    header.key.size = 5
    header.value = reply[0]
    return put_header(to, &header)


def record_tail(bytes origin not None, bytes subject not None, bytes reply not None):
    """Everything of a record between its timestamp and the user's headers."""
    cdef Out out
    cdef Span origin_span = span_of(origin)
    cdef Span subject_span = span_of(subject)
    cdef Span reply_span = span_of(reply)
    memset(&out, 0, sizeof(Out))
    out_reserve(&out, tail_room(&origin_span, &subject_span, &reply_span))
    out.size = <uint64_t>(put_tail(out.data, &origin_span, &subject_span, &reply_span) - out.data)
    return out_take(&out)


# --- pending acks --------------------------------------------------------------------------------------------

cdef int put_pending(
    Encoder *encoder, Out *out, const Delivered *message, const Parsed *parsed,
    int64_t offset, int64_t reception, uint8_t error,
) except -1 nogil:
    cdef const Span *inbox = &parsed.fields[10]
    cdef const Span *correlation = &parsed.fields[11]
    cdef int32_t policy = <int32_t>parsed.fields[12].size
    cdef uint64_t subject = 0
    cdef uint8_t *to
    if not same(&message.subject, &encoder.subject):
        subject = repaired_size(&message.subject)
        if subject > 0xFFFF:
            subject = 0
    out_reserve(out, PENDING_BYTES + inbox.size + subject + correlation.size)
    to = out.data + out.size
    put_le64(to, <uint64_t>offset)
    put_le64(to + 8, <uint64_t>reception)
    to[16] = <uint8_t>policy if 0 <= policy <= 2 else 2
    to[17] = error
    put_le16(to + 18, <uint32_t>inbox.size)
    put_le16(to + 20, <uint32_t>subject)
    put_le32(to + 22, <uint32_t>correlation.size)
    to = put(to + PENDING_BYTES, inbox)
    if subject:
        to = put_repaired(to, &message.subject, subject)
    if correlation.size:
        to = put(to, correlation)
    out.size = <uint64_t>(to - out.data)
    return 0


cdef inline bint can_be_acked(Encoder *encoder, const Parsed *parsed) noexcept nogil:
    # Publishers use one inbox for many messages, so the last result is cached.
    cdef const Span *inbox = &parsed.fields[10]
    if inbox.size == 0 or parsed.fields[11].size > MAX_CORRELATION_ID:
        return False
    if not same(inbox, &encoder.inbox):
        encoder.inbox = inbox[0]
        encoder.inbox_usable = is_usable_subject(inbox)
    return encoder.inbox_usable


# --- records ----------------------------------------------------------------------------------------------

cdef inline bint is_reserved(const Span *key) noexcept nogil:
    if key.size == 7:
        return memcmp(key.data, b"subject", 7) == 0
    return key.size == 5 and memcmp(key.data, b"reply", 5) == 0


cdef int put_user_headers(Out *out, const Span *body) except -1 nogil:
    cdef Header header
    cdef const uint8_t *at = body.data
    cdef const uint8_t *end = body.data + body.size
    while True:
        at = next_header(at, end, 9, &header)
        if at == NULL:
            return 0
        if not is_reserved(&header.key):
            out_reserve(out, header_size(&header))
            out.size = <uint64_t>(put_header(out.data + out.size, &header) - out.data)


cdef int put_record(
    Encoder *encoder, const Delivered *message, const Span *key, const Span *value, const Span *headers,
    const Span *producer, int64_t timestamp,
) except -1 nogil:
    # One record at the end of encoder.records; `headers` is NULL or the message whose headers are copied, `producer`
    # NULL or the content of field 2001. Gives 0, and leaves nothing behind, if the record would be longer than a log
    # takes.
    cdef Out *out = &encoder.records
    cdef uint64_t begin = out.size
    cdef bint usual = message.reply.size == 0 and same(&message.subject, &encoder.subject)
    cdef uint64_t tail
    cdef uint64_t length
    cdef uint8_t *to
    if usual:
        tail = encoder.tail.size
    else:
        tail = tail_room(&encoder.origin, &message.subject, &message.reply)
    out_reserve(out, 64 + key.size + value.size + MAX_PRODUCER_FIELD + tail)
    to = out.data + begin + 5
    to = put_number(to, 0x08, <uint64_t>encoder.next_offset)
    if key.size:
        to = put_field(to, 0x12, key)
    if value.size:
        to = put_field(to, 0x1A, value)
    to = put_number(to, 0x20, <uint64_t>timestamp)
    if producer != NULL:
        to[0] = 0x8A
        to = put_field(to + 1, 0x7D, producer)
    if encoder.batch:
        to[0] = 0x92
        to[1] = 0x7D
        to[2] = 0x04
        put_le16(to + 3, encoder.index)
        put_le16(to + 5, encoder.batch)
        to += BATCH_BYTES
    if usual:
        to = put(to, &encoder.tail)
    else:
        to = put_tail(to, &encoder.origin, &message.subject, &message.reply)
    if headers != NULL:
        out.size = <uint64_t>(to - out.data)
        put_user_headers(out, headers)
        out_reserve(out, TRAILER_BYTES)
        to = out.data + out.size
    length = <uint64_t>(to - out.data) + TRAILER_BYTES - begin - 5
    if length > MAX_RECORD:
        out.size = begin
        return 0
    out.data[begin] = 0
    put_be32(out.data + begin + 1, <uint32_t>length)
    to[0] = 0x82
    to[1] = 0x7D
    to[2] = 0x0C
    put_le64(to + 3, encoder.epoch)
    put_le32(to + 11, crc_extend(0, out.data + begin + 5, length - 4))
    out.size = <uint64_t>(to - out.data) + TRAILER_BYTES
    return 1


cdef int encode_one(Encoder *encoder, const Delivered *message) except -1 nogil:
    cdef Parsed parsed
    cdef Span body
    cdef Span key
    cdef const Span *value = &message.payload
    cdef const Span *headers = NULL
    cdef int64_t timestamp
    cdef bint owing = False
    cdef int64_t expected = 0
    cdef int32_t policy = 2
    cdef const Span *producer = NULL
    cdef bint understood = False
    cdef Numbered numbered
    cdef int verdict
    cdef int64_t stored = 0
    if encoder.refused.size and starts_with(&message.subject, &encoder.refused):
        return 0
    key.data = NULL
    key.size = 0
    if message.payload.size >= 8 and message.payload.data[7] == TYPE_BATCH:
        if open_envelope(&message.payload, TYPE_BATCH, &body) and parse(&body, MESSAGE, &parsed, MAX_DEPTH):
            return encode_batch(encoder, message, &parsed)
    if open_envelope(&message.payload, TYPE_PUBLISH, &body):
        understood = parse(&body, MESSAGE, &parsed, MAX_DEPTH)
        if not understood and encoder.flatbuffers and parse_draft(&body, &parsed, &encoder.draft_headers):
            understood = True
            body.data = encoder.draft_headers.data
            body.size = encoder.draft_headers.size
            parsed.entries = body.size
    if understood:
        key = parsed.fields[2]
        value = &parsed.fields[3]
        expected = <int64_t>parsed.fields[1].size
        owing = can_be_acked(encoder, &parsed)
        policy = <int32_t>parsed.fields[12].size
        if parsed.entries:
            headers = &body
        if encoder.producers != NULL and parsed.fields[PRODUCER].size:
            if read_numbered(&parsed.fields[PRODUCER], &numbered) and is_of(encoder.producers, &numbered):
                producer = &parsed.fields[PRODUCER]
    if <int64_t>message.payload.size > encoder.max_bytes:
        if owing:
            put_pending(encoder, &encoder.error_pending, message, &parsed, 0, encoder.now, ERROR_TOO_LARGE)
        return 0
    timestamp = <int64_t>(<uint64_t>encoder.last_timestamp + 1)
    if encoder.now > timestamp:
        timestamp = encoder.now
    if producer != NULL:
        verdict = ERROR_UNKNOWN
        if encoder.judges:
            verdict = judge_sequence(encoder.producers, &numbered, 1, timestamp, &stored)
        if verdict == SEQUENCE_STORED:
            if owing and policy == 0:
                put_pending(encoder, &encoder.leader_pending, message, &parsed, stored, encoder.now, 0)
            elif owing and policy == 1:
                put_pending(encoder, &encoder.all_pending, message, &parsed, stored, encoder.now, 0)
            return 0
        if verdict != SEQUENCE_ACCEPTED:
            if owing:
                put_pending(encoder, &encoder.error_pending, message, &parsed, 0, encoder.now, <uint8_t>verdict)
            return 0
    if encoder.occ and expected != -1 and expected != encoder.next_offset:
        if owing:
            put_pending(encoder, &encoder.error_pending, message, &parsed, 0, encoder.now, ERROR_INCORRECT_OFFSET)
        return 0
    if not put_record(encoder, message, &key, value, headers, producer, timestamp):
        if owing:
            put_pending(encoder, &encoder.error_pending, message, &parsed, 0, encoder.now, ERROR_TOO_LARGE)
        return 0
    if producer != NULL:
        observe_numbered(encoder.producers, &numbered, encoder.next_offset, timestamp)
    if owing:
        if policy == 0:
            put_pending(encoder, &encoder.leader_pending, message, &parsed, encoder.next_offset, timestamp, 0)
        elif policy == 1:
            put_pending(encoder, &encoder.all_pending, message, &parsed, encoder.next_offset, timestamp, 0)
    encoder.last_timestamp = timestamp
    encoder.next_offset += 1
    encoder.count += 1
    encoder.taken += 1
    return 0


cdef int encode_all(Encoder *encoder, const uint8_t *at, const uint8_t *end) except -1 nogil:
    cdef Delivered message
    cdef int64_t count = count_delivered(at, end)
    if count < 0:
        with gil:
            raise ValueError("the batch is truncated: its last entry runs past its end")
    out_reserve(&encoder.records, <uint64_t>(end - at) + <uint64_t>count * (encoder.tail.size + 40))
    while at < end:
        at = next_delivered(at, end, &message)
        encode_one(encoder, &message)
    return 0


def encode_records(
    object batch, bytes origin not None, bytes subject not None, bytes tail not None, int64_t next_offset,
    uint64_t epoch, int64_t now, int64_t last_timestamp, int64_t max_bytes, bint occ, bytes refused_prefix not None,
    ProducerTable producers=None, bint flatbuffers=False,
):
    """A batch into records -> (records, count, next_offset, last_timestamp, leader_pending, all_pending, error_pending,
    taken).

    A message that one of the `producers` has stored before is not stored again: its ack has its first offset. `taken`
    is how many of the messages are stored: an atomic batch is one of them, and several records. With `flatbuffers` a
    message of the FlatBuffers draft, which is none of the protocol, is understood."""
    cdef Py_buffer view
    cdef Encoder encoder
    cdef const uint8_t *at
    memset(&encoder, 0, sizeof(Encoder))
    encoder.origin = span_of(origin)
    encoder.subject = span_of(subject)
    encoder.tail = span_of(tail)
    encoder.refused = span_of(refused_prefix)
    encoder.inbox = encoder.refused
    encoder.inbox.size = 0
    encoder.next_offset = next_offset
    encoder.now = now
    encoder.last_timestamp = last_timestamp
    encoder.max_bytes = max_bytes
    encoder.epoch = epoch
    encoder.occ = occ
    encoder.flatbuffers = flatbuffers
    if producers is not None:
        encoder.producers = &producers.table
        encoder.judges = producers.ready
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t *>view.buf
        if view.len >= UNLOCK_FROM_BYTES:
            with nogil:
                encode_all(&encoder, at, at + view.len)
        else:
            encode_all(&encoder, at, at + view.len)
        if producers is not None and encoder.count:
            producers.end = encoder.next_offset
        return (
            out_take(&encoder.records), encoder.count, encoder.next_offset, encoder.last_timestamp,
            out_take(&encoder.leader_pending), out_take(&encoder.all_pending), out_take(&encoder.error_pending),
            encoder.taken,
        )
    finally:
        out_drop(&encoder.records)
        out_drop(&encoder.draft_headers)
        out_drop(&encoder.leader_pending)
        out_drop(&encoder.all_pending)
        out_drop(&encoder.error_pending)
        PyBuffer_Release(&view)
